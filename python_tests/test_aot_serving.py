"""The example of a C++ program that runs an exported network without Python (examples/aot_serving), built and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zbkernels as zb
from zbkernels import _loader

EXAMPLE = Path(zb.__file__).resolve().parents[1] / "examples/aot_serving"
pytestmark = [
    pytest.mark.skipif(not EXAMPLE.exists(), reason="not a source tree"),
    pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler"),
    pytest.mark.skipif(_loader.handle("_C_cpu") is None, reason="the CPU library is not built"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the program ``serve`` and the folders one/ and five/ of batches, one exported package for both."""
    folder = tmp_path_factory.mktemp("serving")
    env = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(EXAMPLE.parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    compiling = subprocess.Popen(
        [str(EXAMPLE / "build.sh"), str(folder / "serve")], env=env, stderr=subprocess.PIPE, text=True
    )
    export = [sys.executable, "-W", "ignore", str(EXAMPLE / "export.py"), str(folder / "exported")]
    exporting = subprocess.run(export, env=env, capture_output=True, text=True)
    _, said = compiling.communicate()
    assert exporting.returncode == 0, exporting.stderr
    assert compiling.returncode == 0, said
    return folder


def serve(folder: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "serve"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"], **env})


@pytest.mark.parametrize("count", [5, 1])
def test_results_are_pythons_without_python(folder: Path, count: int, tmp_path: Path) -> None:
    exported, log = folder / "exported", tmp_path / "loaded"
    images = tmp_path / "images.bin"
    images.write_bytes((exported / "input.bin").read_bytes()[: count * 28 * 28 * 4])
    told = serve(
        *(folder, zb.library_path(), exported / "model.pt2", images, tmp_path),
        LD_DEBUG="files",
        LD_DEBUG_OUTPUT=str(log),
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"{count} images -> [{count}, 10]\n"

    def values(folder: Path, name: str, dtype: torch.dtype, width: int) -> torch.Tensor:
        raw = bytearray((folder / f"{name}.bin").read_bytes())
        return torch.frombuffer(raw, dtype=dtype).reshape(-1, width)

    for name, dtype, width in (("logits", torch.float32, 10), ("signatures", torch.int64, 98)):
        want, got = (values(where, name, dtype, width) for where in (exported, tmp_path))
        assert len(want) == 5 and len(got) == count
        torch.testing.assert_close(
            got, want[:count]
        )  # whole numbers exactly, float32 as torch's own tests do
    files = set(re.findall(r"file=(\S+) ", "".join(path.read_text() for path in tmp_path.glob("loaded.*"))))
    assert str(zb.library_path()) in files and "libtorch_cpu.so" in files
    assert not [file for file in files if re.search(r"libpython|libtorch_python", file)]


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("/nowhere/_C_cpu.so", "the library of ops could not be loaded: /nowhere/_C_cpu.so: cannot open"),
        ("libm.so.6", "libm.so.6 does not define the ops zb::*: expected zbkernels' _C_cpu.so"),
    ],
)
def test_a_missing_library_is_one_line(folder: Path, library: str, message: str, tmp_path: Path) -> None:
    exported = folder / "exported"
    told = serve(folder, library, exported / "model.pt2", exported / "input.bin", tmp_path)
    assert told.returncode == 1 and told.stdout == ""
    assert told.stderr.startswith(f"serve: {message}") and told.stderr.count("\n") == 1


def test_input_of_another_size_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images.bin").write_bytes(b"123")
    told = serve(folder, zb.library_path(), folder / "exported/model.pt2", tmp_path / "images.bin", tmp_path)
    assert told.returncode == 1
    assert told.stderr == f"serve: {tmp_path}/images.bin: expected a multiple of 3136 bytes, got 3\n"


def test_a_missing_or_damaged_package_is_one_line_with_its_name(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "exported/model.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt2").write_text("no archive\n")
    for name in ("cut", "text", "missing"):
        package = tmp_path / f"{name}.pt2"
        told = serve(folder, zb.library_path(), package, folder / "exported/input.bin", tmp_path)
        assert told.returncode == 1 and told.stdout == ""
        assert told.stderr.startswith(f"serve: the package {package} could not be loaded: Failed to init")
        assert told.stderr.count("\n") == 1


def test_more_images_than_exported_for_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "many.bin").write_bytes(bytes(1025 * 28 * 28 * 4))
    arguments = (zb.library_path(), folder / "exported/model.pt2", tmp_path / "many.bin", tmp_path)
    told = serve(folder, *arguments)
    assert told.returncode == 1 and not list(tmp_path.glob("logits*"))
    assert told.stderr.splitlines()[-1] == (
        f"serve: the package did not run on {tmp_path}/many.bin: input_handles[0]: dim value is too large at 0, "
        "expected to be <= 1024, but got: 1025"
    )
    assert serve(folder, *arguments, AOTI_RUNTIME_CHECK_INPUTS="0").returncode == 0  # torch's own behaviour


def test_from_python_as_the_readme_has_it(folder: Path) -> None:
    """Ops come with the import, and shapes that the package was not exported for are refused."""
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    program = f"""
import torch
try:
    torch._inductor.aoti_load_package("out/model.pt2")
except RuntimeError as error:
    print("without the ops:", "Could not find schema for zb::conv_relu_pool2d" in str(error))
{block}
print(tuple(logits.shape), tuple(signatures.shape))
for shape in ((1, 1, 28, 28), (1024, 1, 28, 28), (1025, 1, 28, 28), (3, 1, 27, 28), (3, 2, 28, 28), (1, 28, 28)):
    try:
        print(shape, tuple(model(torch.ones(shape))[0].shape))
    except RuntimeError as error:
        print(shape, str(error).strip())
"""
    env = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1]), "OMP_NUM_THREADS": "1"}
    env.pop("AOTI_RUNTIME_CHECK_INPUTS", None)
    (folder / "out").symlink_to("exported")
    command = [sys.executable, "-W", "ignore", "-c", program]
    told = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "without the ops: True",
        "(5, 10) (5, 98)",
        "(1, 1, 28, 28) (1, 10)",
        "(1024, 1, 28, 28) (1024, 10)",
        "(1025, 1, 28, 28) input_handles[0]: dim value is too large at 0, expected to be <= 1024, but got: 1025",
        "(3, 1, 27, 28) input_handles[0]: unmatched dim value at 2, expected: 28, but got: 27",
        "(3, 2, 28, 28) input_handles[0]: unmatched dim value at 1, expected: 1, but got: 2",
        "(1, 28, 28) input_handles[0]: unmatched dim value at 1, expected: 1, but got: 28",
    ]


def test_library_path_says_what_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert zb.library_path() == zb.library_path("cpu") and zb.library_path().name == "_C_cpu.so"
    with pytest.raises(ValueError, match="library_path: expected device to be 'cpu' or 'cuda', got 'xpu'"):
        zb.library_path("xpu")
    monkeypatch.setattr(_loader, "_PACKAGE", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"_C_cuda\.so was not built\. Mend: ZBKERNELS_CUDA=1 pip install"
    ):
        zb.library_path("cuda")
