"""Reads damaged and forged files of every format that the package reads: ``python python_tests/hostile.py --count N``.

Valid files are changed at random (bits, lengths, numbers in headers, structure of JSON; half of the time with checksums
made anew, so that what lies behind them is reached), and read within a limit of memory and time. What may come of it is
the right value, or an error of the kinds that the reader documents. Anything else is a failure: another exception, a
value that differs though the file has a checksum, a file touched outside the folder, a hang, a crash.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar_files import write_archive, write_folder
from idx_files import write_idx_set
from safetensors.torch import save_file
from torch import nn

from zbkernels.cards import Card
from zbkernels.checkpoint import CheckpointError
from zbkernels.data import DataError, Dataset, Split, mnist
from zbkernels.data.cifar import CIFAR10, load_cifar
from zbkernels.data.decode import decode
from zbkernels.experiments import ExperimentError, get, runner, units
from zbkernels.files import write_json
from zbkernels.models.reference.weights import read_weights
from zbkernels.nap import NapIndex, Recording, RecordingError, mine_specifications, record
from zbkernels.nap.sources import NapError, _state, load_images, load_model
from zbkernels.nap.specification import Specification
from zbkernels.nap.vnnlib import write_specification_vnnlib
from zbkernels.ops import _choice
from zbkernels.report import ReportError
from zbkernels.tensor_file import load_tensors, save_tensors
from zbkernels.train import TrainConfig, TrainingError, train
from zbkernels.triton import results

MEMORY = 3 << 30  # bytes, beyond what the process has when it starts
SECONDS = 30
Mutate = Callable[[random.Random, bytes], bytes]
_EDGES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**47,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


class Hang(BaseException):
    """The reader took more than SECONDS."""


@dataclass
class Format:
    """One kind of file.

    Attributes:
        make: writes a valid folder.
        file: the file in it that is changed.
        read: reads the folder, all of it, and returns what can be compared (by ``repr``), or None.
        errors: that the reader may raise.
        mutations: ways to change the file's bytes; those of every format come on top.
        guarded: unforged changes must give the same value or an error.
        weight: how often it is drawn.
    """

    make: Callable[[Path], None]
    file: str
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]
    mutations: tuple[Mutate, ...] = ()
    guarded: bool = False
    weight: int = 4
    value: Any = field(default=None, init=False)
    folder: Path = field(default=Path(), init=False)


# --- changes of bytes ---------------------------------------------------------------------------------------------


def flip(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[_place(draw, len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[
        : draw.choice((0, 1, 8, len(data) // 2, max(0, len(data) - 1), draw.randrange(len(data) + 1)))
    ]


def splice(draw: random.Random, data: bytes) -> bytes:
    start = _place(draw, len(data) + 1)
    stop = min(len(data), start + draw.choice((0, 1, 4, 64, 1000)))
    return (
        data[:start] + draw.choice((b"", data[:64], draw.randbytes(draw.choice((1, 4, 100))))) + data[stop:]
    )


def number(draw: random.Random, data: bytes) -> bytes:
    """An aligned number becomes one at the edge of its range."""
    size, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    if len(data) < size:
        return data
    start = _place(draw, len(data) - size + 1) // size * size
    value = draw.choice(_EDGES) % (1 << 8 * size)
    return data[:start] + value.to_bytes(size, order) + data[start + size :]  # type: ignore[arg-type]


def _place(draw: random.Random, length: int) -> int:
    """Headers matter more."""
    return draw.randrange(min(length, draw.choice((64, 1024, length))) or 1)


PLAIN: tuple[Mutate, ...] = (flip, flip, cut, splice, number, number)

# --- changes of JSON ----------------------------------------------------------------------------------------------

_ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -0.5, "", "x", "../../outside",
    "/etc/passwd", "a\x00b", "\ud800", [], {}, [[]], {"": 0}, "é" * 300, 10**18,
    float("nan"), float("inf"), -float("inf"),
]  # fmt: skip


def changed_json(draw: random.Random, value: Any) -> Any:
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 2))):
        path: list[Any] = []
        node = value
        while isinstance(node, dict | list) and node and (not path or draw.random() < 0.75):
            key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
            path.append((node, key))
            node = node[key]
        if not path:
            return draw.choice(_ODD)
        holder, key = path[-1]
        how = draw.random()
        if how < 0.2 and isinstance(holder, dict):
            del holder[key]
        elif how < 0.3 and isinstance(holder, dict):
            holder[draw.choice(("../../outside", "x", "crc32"))] = holder.pop(key)
        elif how < 0.4 and isinstance(holder, list):
            holder.extend([holder[key]] * draw.choice((1, 3)))
        elif how < 0.5 and isinstance(node, int | float) and not isinstance(node, bool):
            holder[key] = draw.choice((node + 1, -node, node * 1000, node * 1.5))
        else:
            holder[key] = draw.choice(_ODD)
    return value


def as_text(draw: random.Random, value: Any) -> bytes:
    text = json.dumps(value)
    how = draw.random()
    if how < 0.03:
        depth = draw.choice((500, 100_000))
        text = "[" * depth + "]" * depth
    elif how < 0.06 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]  # each key twice
    elif how < 0.08:
        return b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass")
    return text.encode("utf-8", "surrogatepass")


def json_file(draw: random.Random, data: bytes) -> bytes:
    return as_text(draw, changed_json(draw, json.loads(data)))


def forged_recording(draw: random.Random, data: bytes) -> bytes:
    header = json.loads(data)
    parts = changed_json(draw, {key: header[key] for key in ("made", "done")})
    header = {**header, **(parts if isinstance(parts, dict) else {"made": parts})}
    try:
        crc = zlib.crc32(json.dumps([header["made"], header["done"]], sort_keys=True).encode())
    except (KeyError, TypeError):
        crc = 0
    return as_text(draw, {**header, "crc32": crc})


def forged_seal(draw: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    value.pop("json_crc32", None)
    value = changed_json(draw, value)
    if isinstance(value, dict):
        value["json_crc32"] = f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"
    return as_text(draw, value)


def safetensors_header(draw: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    if draw.random() < 0.5:
        header.get("__metadata__", {}).pop("crc32", None)  # as others write it
    text = as_text(draw, changed_json(draw, header))
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def specification_about(draw: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = changed_json(draw, json.loads(header["__metadata__"]["specification"]))
    header["__metadata__"] = {"specification": as_text(draw, about).decode("utf-8", "replace")}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


# --- changes within containers, which are put together again ----------------------------------------------------------


def regzipped(draw: random.Random, data: bytes) -> bytes:
    return gzip.compress(draw.choice(PLAIN)(draw, gzip.decompress(data)), 1)


def retarred(draw: random.Random, data: bytes) -> bytes:
    raw = gzip.decompress(data)
    where = draw.randrange(0, len(raw), 512)
    changed = bytearray(raw)
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        member = draw.choice(tar.getmembers())
    if draw.random() < 0.6:  # a header, with the sum that it then needs
        where = member.offset
        at = where + draw.choice((124, 156, 157, 257, 345, draw.randrange(500)))
        changed[at : at + 1] = bytes(
            [draw.choice((0, 49, 50, 53, 55, 83, 120, 76, 255, draw.randrange(256)))]
        )
        changed[where + 148 : where + 156] = b"        "
        changed[where + 148 : where + 156] = b"%06o\0 " % sum(changed[where : where + 512])
    else:
        changed[member.offset_data : member.offset_data + member.size] = draw.choice(PLAIN)(
            draw, bytes(raw[member.offset_data : member.offset_data + member.size])
        )
    return gzip.compress(bytes(changed), 1)


def rezipped(draw: random.Random, data: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        which = draw.randrange(len(old.namelist()))
        for index, name in enumerate(old.namelist()):
            content = old.read(name)
            if index == which:
                change = json_file if name.endswith(".json") else draw.choice(PLAIN)
                content = change(draw, content)
                name = draw.choice((name, name, name, "../../outside", "/outside", name + "x"))
            new.writestr(name, content, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return written.getvalue()


def index_header(draw: random.Random, data: bytes) -> bytes:
    """A field of the header of a NapIndex, and the checksum that the header then has."""
    changed = bytearray(data)
    at = draw.choice((*range(16, 80, 8), *range(592, 928, 8)))
    (value,) = struct.unpack_from("<Q", changed, at)
    value = draw.choice((value + 1, value - 1, value + 64, value * 2, *_EDGES)) % 2**64
    struct.pack_into("<Q", changed, at, value)
    struct.pack_into("<Q", changed, 952, _index_checksum(bytes(changed[:952])))
    return bytes(changed)


def index_section(draw: random.Random, data: bytes) -> bytes:
    """Bytes of a section, and the checksums that follow from them."""
    changed = bytearray(data)
    at = 592 + 24 * draw.randrange(13)
    offset, size, _ = struct.unpack_from("<QQQ", changed, at)
    if not size:
        return index_header(draw, data)
    filled = -(-size // 64) * 64
    for _ in range(draw.choice((1, 3))):
        place = offset + draw.randrange(size)
        changed[place : place + 4] = draw.randbytes(min(4, offset + size - place))
    struct.pack_into("<Q", changed, at + 16, _index_checksum(bytes(changed[offset : offset + filled])))
    struct.pack_into("<Q", changed, 952, _index_checksum(bytes(changed[:952])))
    return bytes(changed)


def _index_checksum(data: bytes) -> int:
    """As csrc/host/nap_index_file.cpp computes it."""
    words = struct.unpack(f"<{-(-len(data) // 64) * 8}Q", data.ljust(-(-len(data) // 64) * 64, b"\0"))
    sums = [1, 2, 3, 4]
    for i, word in enumerate(words):
        sums[i & 3] = _step(sums[i & 3], word)
    total = 0
    for each in sums:
        total = _step(total, each)
    return total


def _step(total: int, word: int) -> int:
    total = ((total ^ word) * 0xD6E8FEB86659FD93) % 2**64
    return total ^ total >> 32


# --- the formats --------------------------------------------------------------------------------------------------


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))


def _loader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(10, 3, 4, generator=generator), torch.arange(10) % 3) for _ in range(3)]


def _recorded(folder: Path) -> None:
    record(_network(), _loader(), out=folder / "rec", progress=False)


def _read_recording(folder: Path) -> Any:
    found = Recording.load(folder / "rec", verify=True)
    parts = [layer.decode(found.signatures).sum().item() for layer in found.layers]
    repr(found)
    labels = None if found.labels is None else found.labels.tolist()
    return found.signatures.tolist(), labels, parts, found.complete


def _resume_recording(folder: Path) -> Any:
    found = record(_network(), _loader(), out=folder / "rec", progress=False)
    return found.signatures.tolist()


def _index(folder: Path) -> None:
    rows = torch.arange(300)[:, None].repeat(1, 2) // 3
    index = NapIndex(2, classes=4, predictions=True, example_ids=True)
    index.insert(rows, torch.arange(300) % 4, torch.arange(300) % 3)
    index.save(folder / "a.zbnap")


def _read_index(folder: Path) -> Any:
    seen: list[Any] = []
    for verify in (True, False):
        try:
            index = NapIndex.load(folder / "a.zbnap", verify=verify)
        except ValueError:
            if verify:
                continue
            raise
        rows = torch.arange(0, 150)[:, None].repeat(1, index.words if index.words < 9 else 2)
        seen = [len(index), index.examples, index.counts().tolist(), index.first_ids().tolist()]
        if index.words == 2:
            seen += [index.find(rows).tolist()]
            index.rarity(rows ^ 1)
        if index.classes and index.classes < 1000:
            seen += [index.labels().tolist(), index.class_counts().tolist()]
        index.top(3)
        for pattern in range(min(len(index), 20)):
            try:
                seen.append(index.example_ids(pattern).tolist())
            except ValueError:
                break
        if verify:
            return seen
        index.verify()
    return seen


def _idx(packed: bool) -> Callable[[Path], None]:
    return lambda folder: write_idx_set(folder, packed=packed) and None


def _dataset(data: Dataset) -> None:
    assert len(data.train.images) == len(data.train.labels) and data.train.images.dtype == torch.float32


def _tiny() -> Dataset:
    images = torch.rand(32, 1, 3, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(32) % 3
    return Dataset("tiny", "tiny", Split(images, labels), Split(images, labels), ("0", "1", "2"), True, "")


_CONFIG = TrainConfig(3, 16, 0.01, "adam")


def _checkpoint(folder: Path) -> None:
    train(_network(), _tiny(), _CONFIG, folder=folder / "c", until=2)


def _resume(folder: Path) -> Any:
    model = _network()
    history = train(model, _tiny(), _CONFIG, folder=folder / "c")
    weights = [value.tolist() for value in model.state_dict().values()]
    return [(e.epoch, e.train_loss, e.test_loss) for e in history], weights


def _weights(folder: Path) -> None:
    save_tensors(folder / "w.safetensors", _network().state_dict())


def _torch_file(folder: Path) -> None:
    torch.save(_network().state_dict(), folder / "w.pt")


def _legacy_torch_file(folder: Path) -> None:
    torch.save(_network().state_dict(), folder / "w.pt", _use_new_zipfile_serialization=False)


def _shapes(tensors: dict[str, torch.Tensor]) -> Any:
    return {name: value.tolist() if value.numel() < 1000 else 0 for name, value in tensors.items()}


def _specification(folder: Path) -> None:
    mine_specifications((_network(), _loader()), "0.1").save(folder / "s.safetensors")


def _read_specification(folder: Path) -> Any:
    found = Specification.load(folder / "s.safetensors")
    found.satisfied(found.on)
    found.sizes()
    for label in found.classes[:2]:
        nodes = {layer.name: "h" for layer in found.layers}
        write_specification_vnnlib(folder / "q", found, label, shape=(12,), classes=3, nodes=nodes)
    return found.on.tolist(), found.off.tolist(), found.classes, found.delta


_CARD = Card("Test Card", "9.0")


def _tuned(folder: Path) -> None:
    row = {
        "op": "nap_hash",
        "dtype": "int64",
        "shape_class": "W8",
        "constants": {"BLOCK": 128},
        "num_warps": 4,
    }
    row |= {"num_stages": 2, "ms": 1.5, "default_ms": 2.0}
    write_json(
        folder / "t.json",
        {"format": results.FORMAT, "card": "Test Card", "capability": "9.0", "rows": [row] * 2},
    )


def _choices(folder: Path) -> None:
    row = {"op": "linear_relu", "dtype": "float16", "shape_class": "x", "ms": {"triton": 1.0, "torch": 2.0}}
    head = {"format": _choice.FORMAT, "card": "Test Card", "capability": "9.0"}
    write_json(folder / "t.json", {**head, "rows": [row] * 2})


def _read_choices(folder: Path) -> None:
    found = _choice.load(folder / "t.json", _CARD)
    if found is not None:
        assert all(0 < ms < float("inf") for row in found.rows.values() for ms in row.values())


_RESULTS = Path(__file__).resolve().parent.parent / "docs/results"  # not in a source distribution


def _run(name: str) -> Callable[[Path], None]:
    """A finished run of those that the documentation shows."""

    def make(folder: Path) -> None:
        for file in ("metrics.json", "config.json"):
            shutil.copy(_RESULTS / name / file, folder / file)

    return make


def _table(folder: Path) -> None:
    """`zb report` but for the figure, which takes most of the time."""
    import zbkernels.report as module

    real = runner.write_report
    runner.write_report = lambda experiment, path, metrics: None  # type: ignore[assignment]
    try:
        module.rewrite(folder)
    finally:
        runner.write_report = real


def _finished(folder: Path) -> Any:
    settings = runner.settings_for(get("table1-mnist"), "paper", "cpu", None, None, "fused")
    return runner.is_finished(folder, settings) in (True, False)


def _unit(folder: Path) -> None:
    write_json(folder / "settings.json", {"seed": 1, "nested": {"a": [1, 2]}, "device": "cpu"})


def _check_unit(folder: Path) -> None:
    units._check_same(folder / "settings.json", {"seed": 1, "nested": {"a": [1, 2]}, "device": "cpu"})


def _picture(form: str, mode: str = "RGB", **options: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8)
        image = (
            Image.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else Image.fromarray(pixels)
        )
        image.convert(mode).save(folder / "p.png", format=form, **options)

    return make


def _read_picture(folder: Path) -> None:
    assert decode(folder / "p.png", None, 16).shape == (3, 16, 16)


def _read_source(folder: Path) -> None:
    images = load_images(str(folder / "p.png"), None).images
    assert images.dim() == 4 and images.isfinite().all()


def _array(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        images = np.random.default_rng(0).random((3, 1, 4, 4), dtype=np.float32)
        if name.endswith(".npy"):
            np.save(folder / name, images)
        else:
            np.savez_compressed(folder / name, images=images, labels=np.arange(3))

    return make


def _exported(folder: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(_network().eval(), (torch.rand(4, 3, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "m.pt2")


def _read_exported(folder: Path) -> None:
    images = load_images.__globals__["Images"]("x", torch.rand(2, 3, 4, 1), None)
    load_model(str(folder / "m.pt2"), images, None, torch.device("cpu"))


def _cifar(folder: Path) -> None:
    write_folder(folder)


FORMATS: dict[str, Format] = {
    "index": Format(
        _index, "a.zbnap", _read_index, (ValueError,), (index_header, index_header, index_section), guarded=True
    ),
    "recording header": Format(
        _recorded, "rec/recording.json", _read_recording, (RecordingError,),
        (json_file, forged_recording, forged_recording), guarded=True,
    ),
    "recording, resumed": Format(
        _recorded, "rec/recording.json", _resume_recording, (RecordingError,), (json_file, forged_recording), weight=2
    ),
    "recording's signatures": Format(
        _recorded, "rec/signatures.bin", _read_recording, (RecordingError,), guarded=True, weight=1
    ),
    "idx": Format(
        _idx(False), "MNIST/raw/train-images-idx3-ubyte", lambda f: _dataset(mnist.load_mnist(f)), (DataError,)
    ),
    "idx labels, gzip": Format(
        _idx(True), "MNIST/raw/train-labels-idx1-ubyte.gz", lambda f: _dataset(mnist.load_mnist(f)), (DataError,),
        (regzipped, regzipped),
    ),
    "CIFAR batch": Format(
        _cifar, "cifar-10-batches-py/data_batch_1", lambda f: _dataset(load_cifar(CIFAR10, f)), (DataError,)
    ),
    "CIFAR names": Format(
        _cifar, "cifar-10-batches-py/batches.meta", lambda f: _dataset(load_cifar(CIFAR10, f)), (DataError,), weight=2
    ),
    "CIFAR archive": Format(
        lambda f: write_archive(f) and None, "cifar-10-python.tar.gz", lambda f: _dataset(load_cifar(CIFAR10, f)),
        (DataError,), (retarred, retarred, retarred, regzipped),
    ),
    "safetensors": Format(
        _weights, "w.safetensors", lambda f: _shapes(load_tensors(f / "w.safetensors")[0]), (ValueError, OSError),
        (safetensors_header,),
    ),
    "safetensors, guarded": Format(
        _weights, "w.safetensors", lambda f: _shapes(load_tensors(f / "w.safetensors")[0]), (ValueError, OSError),
        guarded=True,
    ),
    "safetensors of others": Format(
        lambda f: save_file(_network().state_dict(), f / "w.safetensors"), "w.safetensors",
        lambda f: _state(f / "w.safetensors") and read_weights(f / "w.safetensors") and None,
        (CheckpointError, NapError), (safetensors_header,),
    ),
    "torch.save": Format(
        _torch_file, "w.pt", lambda f: _shapes(read_weights(f / "w.pt")), (CheckpointError,), (rezipped,)
    ),
    "torch.save, before 1.6": Format(
        _legacy_torch_file, "w.pt", lambda f: _shapes(read_weights(f / "w.pt")), (CheckpointError,), weight=2
    ),
    "specification": Format(
        _specification, "s.safetensors", _read_specification, (ValueError,),
        (safetensors_header, specification_about, specification_about),
    ),
    "checkpoint's index": Format(
        _checkpoint, "c/checkpoint.json", _resume, (CheckpointError, TrainingError),
        (json_file, forged_seal, forged_seal), weight=2,
    ),
    "checkpoint's index, guarded": Format(
        _checkpoint, "c/checkpoint.json", _resume, (CheckpointError,), guarded=True, weight=2
    ),
    "checkpoint's tensors": Format(
        _checkpoint, "c/epoch-0002.safetensors", _resume, (CheckpointError,), guarded=True, weight=2
    ),
    "tuning cache": Format(_tuned, "t.json", lambda f: results.read(f / "t.json") and None, (), (json_file, json_file)),
    "choices": Format(_choices, "t.json", _read_choices, (), (json_file, json_file)),
    **{
        f"metrics.json of {name}": Format(
            _run(name), "metrics.json", _table, (ReportError,), (json_file, json_file), weight=2
        )
        for name in ("table1-mnist", "loss-curves", "ldnet-error", "spectra", "ntk-bias", "interpolation")
        if _RESULTS.exists()
    },
    **(
        {
            "config.json": Format(
                _run("table1-mnist"), "config.json", _finished, (ExperimentError,), (json_file, json_file), weight=2
            )
        }
        if _RESULTS.exists()
        else {}
    ),
    "a unit's settings.json": Format(
        _unit, "settings.json", _check_unit, (ExperimentError,), (json_file, json_file), weight=2
    ),
    "PNG": Format(_picture("PNG"), "p.png", _read_picture, (DataError,)),
    "PNG of 16 bits": Format(_picture("PNG", "I;16"), "p.png", _read_source, (NapError,), weight=2),
    "JPEG": Format(_picture("JPEG"), "p.png", _read_picture, (DataError,)),
    "TIFF": Format(_picture("TIFF", compression="tiff_lzw"), "p.png", _read_source, (NapError,)),
    "WebP": Format(_picture("WEBP"), "p.png", _read_picture, (DataError,), weight=2),
    "GIF": Format(_picture("GIF", "P"), "p.png", _read_picture, (DataError,), weight=2),
    "BMP": Format(_picture("BMP"), "p.png", _read_picture, (DataError,), weight=2),
    "PPM": Format(_picture("PPM"), "p.png", _read_source, (NapError,), weight=2),
    "npy": Format(
        _array("a.npy"), "a.npy", lambda f: load_images(str(f / "a.npy"), None) and None, (NapError,)
    ),
    "npz": Format(
        _array("a.npz"), "a.npz", lambda f: load_images(str(f / "a.npz"), None) and None, (NapError,),
        (rezipped, rezipped),
    ),
    "exported program": Format(
        _exported, "m.pt2", _read_exported, (NapError,), (rezipped, rezipped, rezipped), weight=1
    ),
}  # fmt: skip


# --- running them -------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    format: str
    case: int
    what: str  # "value", the name of an error, or the failure
    failure: str | None = None


def run(
    names: list[str], count: int, seed: int, work: Path, say: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    """``count`` cases of each format (times its weight, divided by 4), each drawn from (seed, format, number)."""
    outcomes = []
    for name in names:
        form = FORMATS[name]
        form.folder = work / name.replace(" ", "-").replace("'", "").replace(",", "")
        form.folder.mkdir(parents=True)
        form.make(form.folder)
        started = time.perf_counter()
        again = work / "again"
        shutil.copytree(form.folder, again)
        form.value = repr(form.read(again))
        shutil.rmtree(again)
        cases = max(1, count * form.weight // 4)
        found = [one(name, case, seed, work) for case in range(cases)]
        outcomes += found
        bad = [each for each in found if each.failure]
        kinds = {what: sum(each.what == what for each in found) for what in {each.what for each in found}}
        shown = ", ".join(f"{n} {what}" for what, n in sorted(kinds.items()))
        say(f"{name}: {cases} cases, {shown}, {len(bad)} failures, {time.perf_counter() - started:.1f} s")
        for each in bad[:3]:
            say(f"  case {each.case}: {each.failure}")
    return outcomes


def one(name: str, case: int, seed: int, work: Path) -> Outcome:
    form = FORMATS[name]
    draw = random.Random(f"{seed} {name} {case}")
    place = work / "place"
    folder, outside = place / "deep" / "case", place / "outside"
    shutil.copytree(form.folder, folder)
    outside.write_bytes(b"kept")
    mutations = (*PLAIN, *form.mutations * 2)
    how = draw.choice(mutations)
    path = folder / form.file
    path.write_bytes(how(draw, path.read_bytes()))
    forged = how not in PLAIN
    try:
        value = _within_limits(lambda: form.read(folder))
        what, failure = "right values" if form.guarded and not forged else "values", None
        if form.guarded and not forged and repr(value) != form.value:
            failure = f"{how.__name__}: another value than the undamaged file's, and no error"
    except form.errors as error:
        what, failure = "named errors", None
        if "\n" in str(error).strip():
            failure = f"{how.__name__}: an error of several lines: {str(error)!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        what = type(error).__name__
        failure = f"{how.__name__}: {''.join(traceback.format_exception(error)[-4:])[-1500:]}"
    left = {entry.name for entry in place.iterdir()}
    if (
        left != {"deep", "outside"}
        or outside.read_bytes() != b"kept"
        or len(list((place / "deep").iterdir())) != 1
    ):
        failure = f"{how.__name__}: files outside the folder were touched: {sorted(left)}"
    shutil.rmtree(place)
    return Outcome(name, case, what, failure)


def _within_limits(read: Callable[[], Any]) -> Any:
    def too_long(*_: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def limit_memory() -> None:
    """For the rest of the process."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100, help="cases of a format (some have fewer)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", action="append", choices=list(FORMATS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    limit_memory()
    with tempfile.TemporaryDirectory() as work:
        names = arguments.format or list(FORMATS)
        outcomes = run(
            names, arguments.count, arguments.seed, Path(work), lambda text: print(text, flush=True)
        )
    bad = [each for each in outcomes if each.failure]
    print(f"{len(outcomes)} cases of {len(names)} formats, seed {arguments.seed}: {len(bad)} failures")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
