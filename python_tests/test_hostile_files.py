"""Files that were made to do harm: none runs code, leads out of its folder, or fills the memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from cifar_files import write_archive, write_folder
from typer.testing import CliRunner

from zbkernels import checkpoint as checkpoints
from zbkernels.checkpoint import CheckpointError
from zbkernels.cli import app
from zbkernels.data import DataError
from zbkernels.data.cifar import CIFAR10, load_cifar
from zbkernels.data.decode import decode
from zbkernels.files import read_json, read_sealed_json, write_sealed_json
from zbkernels.models.reference.weights import read_weights
from zbkernels.nap import Recording, RecordingError
from zbkernels.nap.exported import load_exported
from zbkernels.nap.sources import NapError, load_images
from zbkernels.tensor_file import load_tensors, save_tensors

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = Path(__file__).resolve().parent


class Harm:
    """Unpickled as such, makes the file it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_slice_of_the_fuzzing() -> None:
    """In a process of its own, whose memory is limited: a crash or a hang fails it too."""
    command = [sys.executable, str(HERE / "hostile.py"), "--count", "24", "--seed", "11"]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].endswith("seed 11: 0 failures")


def test_the_fuzzer_finds_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a checksum that is always the same, flipped bits come back as values."""
    monkeypatch.setattr("zbkernels.tensor_file._crc32", lambda *_: "same")
    outcomes = hostile.run(["safetensors, guarded"], 60, 5, tmp_path)
    assert any(each.failure and "another value" in each.failure for each in outcomes)


# --- code ---------------------------------------------------------------------------------------------------------


def test_no_pickle_is_read_but_restricted() -> None:
    """Every place that could run what a file holds is one of these, each looked at."""
    allowed = {
        ("zbkernels/data/imagenet.py", "torch.load"): 1,  # weights_only
        ("zbkernels/models/reference/weights.py", "torch.load"): 1,  # weights_only
        ("zbkernels/nap/exported.py", "torch.load"): 1,  # weights_only
        ("zbkernels/nap/exported.py", "export.load"): 1,  # of what was looked through
        ("zbkernels/data/plain_pickle.py", "pickle.Unpickler"): 1,  # whose find_class knows five names
        ("zbkernels/nn/fusion/rewritten.py", "exec("): 1,  # source that torch.fx wrote of a model in memory
        ("zbkernels/stopping.py", "exec("): 1,  # of nothing
    }
    risky = re.compile(
        r"torch\.load|export\.load|jit\.load|pickle\.loads?|pickle\.Unpickler|np\.load\b|yaml|marshal\.load|shelve|joblib"
        r"|(?<![\w.])eval\([^)]|(?<![\w.])exec\(|extractall|unpack_archive|allow_pickle=True|weights_only=False|shell=True"
        r"|os\.system"
    )
    found: dict[tuple[str, str], int] = {}
    for path in sorted((HERE.parent / "zbkernels").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            code = line.split("#")[0]
            for name in risky.findall(code) if "``" not in code else ():
                key = (str(path.relative_to(HERE.parent)), name)
                found[key] = found.get(key, 0) + 1
                assert name != "torch.load" or "weights_only=True" in code, line
    assert found == allowed


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_weights_that_are_pickles_of_code(tmp_path: Path, form: str) -> None:
    path, made = tmp_path / "w.pt", tmp_path / "made"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Harm(made)))
    else:
        torch.save({"weight": Harm(made)}, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(CheckpointError, match=r"nothing in it was run|cannot be read"):
        read_weights(path)
    assert not made.exists()


@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_batch_of_cifar_that_is_code(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path)
    (folder / name).write_bytes(pickle.dumps({"data": Harm(tmp_path / "made")}, protocol=2))
    with pytest.raises(DataError, match=r"it asks for (posix|nt)\.mkdir, which no such file needs"):
        load_cifar(CIFAR10, tmp_path)
    assert not (tmp_path / "made").exists()


def test_arrays_of_objects(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([Harm(tmp_path / "made")], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", images=np.array([Harm(tmp_path / "made")], dtype=object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(NapError, match="Object arrays cannot be loaded"):
            load_images(str(tmp_path / name), None)
    assert not (tmp_path / "made").exists()


def test_a_picture_that_is_a_program(tmp_path: Path) -> None:
    """PostScript goes by its content, whatever the name; PIL would start an interpreter of it."""
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(DataError, match="none that can be identified"):
        decode(tmp_path / "a.png")
    with pytest.raises(NapError, match="cannot be read as a picture"):
        load_images(str(tmp_path / "a.png"), None)


# --- exported programs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    hostile._exported(folder)
    return folder / "m.pt2"


def _with(
    program: Path, out: Path, change: Callable[[str, bytes], bytes], more: dict[str, bytes] | None = None
) -> Path:
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for name, content in (more or {}).items():
            new.writestr(f"m/{name}", content)
    return out


def test_a_plain_exported_program_is_what_torch_makes_of_it(program: Path) -> None:
    x = torch.rand(5, 3, 4)
    assert torch.equal(load_exported(program)(x), torch.export.load(program).module()(x))


def _graph(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return changed


def _renamed(content: str, old: str, new: str) -> Callable[[str, bytes], bytes]:
    def changed(name: str, data: bytes) -> bytes:
        if not name.endswith(content):
            return data
        assert old.encode() in data
        return data.replace(old.encode(), new.encode())

    return changed


PROGRAMS: dict[str, tuple[Callable[[str, bytes], bytes], str]] = {
    "an operator of the system": (
        _renamed("model.json", "torch.ops.aten.relu.default", "torch.os.mkdir"), "calls 'torch.os.mkdir'"
    ),
    "an operator that writes a file": (
        _renamed("model.json", "torch.ops.aten.relu.default", "torch.ops.aten.from_file.default"), "aten.from_file"
    ),
    "a size that is code": (
        _renamed("model.json", "Symbol('s", "exec('s"), "its graph has a size"
    ),
    "a size without end": (
        _renamed("model.json", "Symbol('s", "9**9**9**9*Symbol('s"), "its graph has a size"
    ),
    "a name that is code": (
        _renamed("model.json", '"name": "p_', '"name": "p=__import__(chr(111)),'), "as a name"
    ),
    "a pickled weight": (_renamed("weights_config.json", '"use_pickle": false', '"use_pickle": true'), "is a pickle"),
    "a weight from elsewhere": (_renamed("weights_config.json", '"weight_0"', '"../x_0"'), "is a pickle"),
    "a container of one's own": (
        _renamed("model.json", "builtins.dict", "os.mkdir"), "in a container 'os.mkdir'"
    ),
    "an object": (
        _graph(lambda v: v["graph_module"]["graph"]["custom_obj_values"].update(a={"name": "a"})), "which may be code"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_programs_that_are_more_than_that(tmp_path: Path, program: Path, name: str) -> None:
    change, said = PROGRAMS[name]
    with pytest.raises(ValueError, match=re.escape(said)):
        load_exported(_with(program, tmp_path / "m.pt2", change))


@pytest.mark.parametrize(
    "member",
    ["data/aotinductor/model/a.so", "data/constants/opaque_obj_0", "data/constants/custom_obj_0", "../x"],
)
def test_exported_programs_with_parts_that_could_run(tmp_path: Path, program: Path, member: str) -> None:
    made = _with(
        program, tmp_path / "m.pt2", lambda _, data: data, {member: pickle.dumps(Harm(tmp_path / "made"))}
    )
    with pytest.raises(ValueError, match="which a plain program has not"):
        load_exported(made)
    assert not (tmp_path / "made").exists()


def test_sample_inputs_that_are_code(tmp_path: Path, program: Path) -> None:
    """torch.export.load itself would fall back to a pickle of anything."""
    stream = io.BytesIO()
    torch.save(((Harm(tmp_path / "made"),), {}), stream)

    def change(name: str, data: bytes) -> bytes:
        return stream.getvalue() if name.endswith("sample_inputs/model.pt") else data

    with pytest.raises(pickle.UnpicklingError):
        load_exported(_with(program, tmp_path / "m.pt2", change))
    assert not (tmp_path / "made").exists()


# --- archives -----------------------------------------------------------------------------------------------------


def _archive(
    root: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[tarfile.TarInfo, bytes] | None]
) -> Path:
    path = write_archive(root)
    stream = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as old,
        tarfile.open(fileobj=stream, mode="w") as new,
    ):
        for member in old.getmembers():
            content = old.extractfile(member)
            assert content is not None
            changed = change(member, content.read())
            if changed is not None:
                new.addfile(changed[0], io.BytesIO(changed[1]))
    path.write_bytes(gzip.compress(stream.getvalue()))
    return path


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
@pytest.mark.parametrize("target", ["cifar-10-batches-py/data_batch_2", "/etc/passwd", "../../outside"])
def test_members_of_an_archive_that_are_no_files(tmp_path: Path, kind: bytes, target: str) -> None:
    """Links to themselves among them; they are refused, not followed."""

    def change(member: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if member.name.endswith("data_batch_2"):
            member.type, member.linkname, member.size, content = kind, target, 0, b""
        return member, content

    _archive(tmp_path / "root", change) if (tmp_path / "root").mkdir() is None else None
    with pytest.raises(DataError, match="expected a file data_batch_2 in it, got something else"):
        load_cifar(CIFAR10, tmp_path / "root")
    assert [path.name for path in tmp_path.rglob("*")] == ["root", "cifar-10-python.tar.gz"]


@pytest.mark.parametrize("prefix", ["../", "ABSOLUTE/", "cifar-10-batches-py/../../"])
def test_names_in_an_archive_that_lead_out_of_it(tmp_path: Path, prefix: str) -> None:
    """Nothing is written, whatever the names; what the set needs is then missing."""

    def change(member: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        member.name = prefix.replace("ABSOLUTE", str(tmp_path / "outside")) + member.name
        return member, content

    (tmp_path / "root").mkdir()
    _archive(tmp_path / "root", change)
    with pytest.raises(DataError, match="no cifar-10-batches-py/data_batch_1 in it"):
        load_cifar(CIFAR10, tmp_path / "root")
    assert [path.name for path in tmp_path.rglob("*")] == ["root", "cifar-10-python.tar.gz"]


def test_a_sparse_member_and_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sparse(member: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if member.name.endswith("data_batch_2"):
            member.pax_headers = {"GNU.sparse.map": f"0,{len(content)}", "GNU.sparse.size": str(2**50)}
        return member, content

    (tmp_path / "root").mkdir()
    path = _archive(tmp_path / "root", sparse)
    with pytest.raises(DataError, match="expected a file data_batch_2 in it, got something else"):
        load_cifar(CIFAR10, tmp_path / "root")
    path.write_bytes(gzip.compress(bytes(3 << 20)))
    monkeypatch.setattr("zbkernels.data.unpack.gunzip.__defaults__", (1 << 20,))
    with pytest.raises(DataError, match="no archive of such a set: it unpacks to more than 1,048,576 bytes"):
        load_cifar(CIFAR10, tmp_path / "root")


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("../x",),
        ("ABSOLUTE/x",),
        ("table1-mnist/../../x",),
        ("table1-mnist", "--preset", "../../x"),
        ("table1-mnist", "--preset", "smoke/../x"),
        ("table1-mnist", "--seeds", "../1"),
        ("table1-mnist", "--seeds", "1/../../2"),
        ("table1-mnist", "--variant", "../../x"),
        ("table1-mnist", "--form", "../x"),
        ("zero-image", "--checkpoint", "torchvision:../../x=/dev/null"),
    ],
    ids=" ".join,
)
def test_names_on_the_command_line_stay_within_out(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    out = tmp_path / "deep/out"
    arguments = tuple(each.replace("ABSOLUTE", str(tmp_path / "outside")) for each in arguments)
    if "--preset" not in arguments:
        arguments += ("--preset", "smoke")
    result = CliRunner().invoke(app, ["run", *arguments, "--out", str(out)])
    assert result.exit_code in (1, 2) and "Traceback" not in result.output
    outside = [
        path for path in tmp_path.rglob("*") if out not in (path, *path.parents) and path != out.parent
    ]
    assert outside == []


def test_a_recording_names_its_own_files_only(tmp_path: Path) -> None:
    """A forged header would have had a resumed recording cut files elsewhere to a length."""
    import zlib

    hostile._recorded(tmp_path)
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept" * 100)
    path = tmp_path / "rec/recording.json"
    header = json.loads(path.read_text())
    header["done"]["files"]["../outside"] = {"bytes": 4 * header["done"]["rows"], "crc32": 0}
    header["crc32"] = zlib.crc32(json.dumps([header["made"], header["done"]], sort_keys=True).encode())
    path.write_text(json.dumps(header))
    for read in (lambda: Recording.load(tmp_path / "rec"), lambda: hostile._resume_recording(tmp_path)):
        with pytest.raises(RecordingError, match=r"recording\.json: cannot be read .*expected the files"):
            read()
    assert outside.read_bytes() == b"kept" * 100


def test_a_checkpoint_names_its_own_tensors_only(tmp_path: Path) -> None:
    hostile._checkpoint(tmp_path)
    path = tmp_path / "c/checkpoint.json"
    index = read_sealed_json(path)
    save_tensors(tmp_path / "x.safetensors", {})
    write_sealed_json(path, {**index, "tensors": "../x.safetensors"})
    (tmp_path / "c/checkpoint-before.json").unlink()
    with pytest.raises(CheckpointError, match="expected the name of a tensor file"):
        checkpoints.load(tmp_path / "c")


# --- JSON and tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "expected strict JSON, got NaN"),
        ('{"a": -Infinity}', "expected strict JSON, got -Infinity"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('{"a": "\xff', "Unterminated"),
    ],
)
def test_json_is_read_strictly(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_json(tmp_path / "a.json")


def test_many_keys_and_one_of_them_twice_take_no_time(tmp_path: Path) -> None:
    keys = ", ".join(f'"{i}": 0' for i in range(200_000))
    (tmp_path / "a.json").write_text(f'{{{keys}, "199999": 1}}')
    started = time.perf_counter()
    with pytest.raises(ValueError, match="the key '199999' is given twice"):
        read_json(tmp_path / "a.json")
    assert time.perf_counter() - started < 30


def test_a_seal_covers_names_and_values(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"a": 1.5, "b": [1, None, "é"], "c": {"2": 0.1, "10": -0.0}}
    write_sealed_json(path, value)
    assert read_sealed_json(path) == value
    write_sealed_json(path, {"numbers": {10: 1, 2: 2}})  # they become text, which sorts otherwise
    assert read_sealed_json(path) == {"numbers": {"10": 1, "2": 2}}
    text = path.read_text()
    for place in range(len(text)):
        bad = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        path.write_text(bad)
        try:
            assert read_sealed_json(path) == {"numbers": {"10": 1, "2": 2}}
        except ValueError:
            continue
        assert text[place].isspace()  # a line break became a tab
    path.write_text('{"a": 1}')
    assert read_sealed_json(path) == {"a": 1}  # of an older version


def test_every_dtype_is_sealed_and_read_as_it_was(tmp_path: Path) -> None:
    dtypes = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.float64,
    )
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    tensors |= {
        "scalar": torch.tensor(2.0),
        "empty": torch.empty(0, 3),
        "strided": torch.arange(6.0).view(2, 3).t(),
    }
    save_tensors(tmp_path / "t.safetensors", tensors, {"note": "kept"})
    found, metadata = load_tensors(tmp_path / "t.safetensors")
    assert metadata == {"note": "kept"} and found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        for name, value in tensors.items()
    )
