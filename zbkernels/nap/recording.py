"""A recording on disk: signatures, labels and predictions of a model's inputs, written as they come.

Format, version 1: a folder of

- ``recording.json``: the header, strict JSON. ``format`` and ``version``; ``made`` (all that decides the bits: units,
  the layers as :class:`~zbkernels.nap.layers.Layer` has them, words, the model's fingerprint, dtypes, versions, the
  loader's form); ``done``: ``rows`` and ``batches`` so far, whether it is ``complete``, a CRC-32 of the inputs, and of
  each file its ``bytes`` and their CRC-32.
- ``signatures.bin``: int64 [rows, words], row-major, little-endian, no header. Bit j of word k of a layer is unit
  64k + j; every layer starts at a word.
- ``labels.bin``, ``predictions.bin``: int32 [rows], where there are any.

The header is replaced as a whole and last, after the files' bytes have reached the disk. What a file holds beyond the
header's count is what a killed run left, and is cut off when the recording goes on.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import torch
from torch import nn

from zbkernels import locks
from zbkernels.files import read_json, write_json
from zbkernels.nap.fingerprint import difference, fingerprint
from zbkernels.nap.layers import UNITS, Layer, RecordingError, find_named, layers_from_json

FORMAT = "zbkernels activation patterns"
VERSION = 1
HEADER = "recording.json"
FILES = {"signatures.bin": torch.int64, "labels.bin": torch.int32, "predictions.bin": torch.int32}
_COMMIT_SECONDS = 2.0  # what a killed run loses at most, beside the batch it was in
_CHUNK = 1 << 23


class Recording:
    """Signatures that :func:`zbkernels.nap.record` wrote, mapped into memory.

    Attributes:
        path: the folder.
        signatures: int64 [N, words], memory-mapped (a private mapping: writing into it changes no file).
        layers: tuple of :class:`~zbkernels.nap.layers.Layer`, each at its words.
        units: ``"relu"``, ``"output"`` or ``"winner"``.
        labels, predictions: int32 [N], or None.
        complete: False where the run that made it was cut off.
        made: the header's ``made``: the model's fingerprint, versions, the choice of layers.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.made: dict[str, Any] = header["made"]
        self.done: dict[str, Any] = header["done"]
        self.layers = layers_from_json(self.made["layers"])
        self.units: str = self.made["units"]
        self.complete: bool = self.done["complete"]
        rows, words = self.done["rows"], self.made["words"]
        self.signatures = _mapped(path, "signatures.bin", rows * words).view(rows, words)
        self.labels = _mapped(path, "labels.bin", rows) if self.made["loader"]["labels"] else None
        self.predictions = _mapped(path, "predictions.bin", rows) if self.made["predictions"] else None
        self._aliases: dict[str, list[str]] = self.made.get("aliases", {})  # older headers have none
        self._temporary: TemporaryDirectory[str] | None = None

    def keep(self, temporary: TemporaryDirectory[str] | None) -> None:
        """Hold on to a temporary folder, which is deleted when the recording is forgotten."""
        self._temporary = temporary

    @staticmethod
    def load(path: str | Path, *, verify: bool = False) -> Recording:
        """The recording in a folder.

        Args:
            verify: read all files and compare their CRC-32, not only their sizes.

        Raises:
            RecordingError: there is none, or it is of another version, truncated or corrupt.
        """
        folder = Path(path)
        header = read_header(folder)
        if header is None:
            raise RecordingError(
                f"{folder}: no recording is there ({HEADER} is missing); make one with zb nap record"
            )
        check_files(folder, header, verify)
        return Recording(folder, header)

    def __len__(self) -> int:
        return self.signatures.shape[0]

    def __repr__(self) -> str:
        bits = sum(layer.bits for layer in self.layers)
        return (
            f"Recording({str(self.path)!r}, {len(self):,} signatures of {bits:,} bits, "
            f"units={self.units!r}, layers {', '.join(layer.name for layer in self.layers)})"
        )

    def find(self, name: str) -> Layer:
        """The layer of that name.

        Raises:
            RecordingError: it is not in the recording.
        """
        exact = [layer for layer in self.layers if layer.name == name]
        found = exact or find_named(self.layers, [escape(name)], self._aliases, f"{self.path}")
        return found[0]

    def choose(self, names: Sequence[str] | None) -> tuple[Layer, ...]:
        """The layers of these names (``*`` and ``?`` as in a shell), each where it is; None for all.

        Of ``F.relu(self.fc1(x))`` also ``fc1``, unless the recording was made before such names were kept.

        Raises:
            RecordingError: a name is none of the recording's, or that of several.
        """
        return find_named(self.layers, names, self._aliases, f"{self.path}")

    def words(self, layers: Sequence[Layer]) -> torch.Tensor:
        """The signatures of some layers, int64 [N, their words]: contiguous; of all layers the mapped ones."""
        if tuple(layers) == self.layers:
            return self.signatures
        return torch.cat([layer.of(self.signatures) for layer in layers], 1)

    def refuse_other_model(self, model: nn.Module) -> None:
        """Compare the fingerprint.

        Raises:
            RecordingError: another model's patterns were recorded; the message says in what it differs.
        """
        other = difference(self.made["model"], fingerprint(model))
        if other is not None:
            raise RecordingError(f"{self.path}: holds the recording of another model: {other}")

    def layer(self, name: str) -> torch.Tensor:
        """The signatures of one layer, int64 [N, words of the layer]: a view of :attr:`signatures`."""
        return self.find(name).of(self.signatures)


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header, or None where the folder holds none.

    Raises:
        RecordingError: it can't be read, or is of another format or version.
    """
    path = folder / HEADER
    try:
        header = read_json(path)
        form, version = header["format"], header["version"]
        if (form, version) == (FORMAT, VERSION):
            if header["crc32"] != _header_crc(header["made"], header["done"]):
                raise ValueError("its CRC-32 is another")
            _check_header(header["made"], header["done"])
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RecordingError(f"{folder}: expected a folder, got a file") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{path}: cannot be read as a recording's header ({error})") from error
    if form != FORMAT or version != VERSION:
        raise RecordingError(
            f"{path}: expected {FORMAT!r} of version {VERSION}, got {form!r} of version {version!r}"
        )
    return header


def _check_header(made: dict[str, Any], done: dict[str, Any]) -> None:
    """A header that was made up must not lead out of the folder, nor out of its files.

    Raises:
        ValueError, KeyError, TypeError: it contradicts itself.
    """
    rows, words = _count(done["rows"]), _count(made["words"])
    for name in ("batches", "inputs_crc32"):
        _count(done[name])
    for value in (done["complete"], made["predictions"], made["loader"]["labels"]):
        if not isinstance(value, bool):
            raise TypeError(f"expected true or false, got {value!r}")
    aliases = made.get("aliases", {})
    if not isinstance(aliases, dict):
        raise TypeError(f"expected the layers' other names, got {str(aliases)[:40]}")
    for names in aliases.values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"expected a layer's other names to be text, got {str(names)[:40]}")
    found = sum(layer.words for layer in layers_from_json(made["layers"]))
    if found != words or made["units"] not in UNITS:
        raise ValueError(f"{found} words of layers in signatures of {words}")
    wanted = {"signatures.bin": 8 * words}  # bytes of a row
    wanted |= {name: 4 for name in FILES if name not in wanted and _kept(made, name)}
    if done["files"].keys() != wanted.keys():
        raise ValueError(f"expected the files {', '.join(wanted)}, got {', '.join(done['files'])[:100]}")
    for name, known in done["files"].items():
        _count(known["crc32"])
        if _count(known["bytes"]) != rows * wanted[name]:
            raise ValueError(f"{name} has {known['bytes']} bytes for {rows} rows")


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"expected a whole number from 0 to 2**63 - 1, got {str(value)[:40]}")
    return value


def check_files(folder: Path, header: dict[str, Any], verify: bool) -> None:
    """Whether the files hold what the header says.

    Raises:
        RecordingError: one is missing or shorter, or (``verify``) its bytes are others.
    """
    for name, known in header["done"]["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size < known["bytes"]:
            found = "is missing" if size < 0 else f"is truncated to {size:,} of {known['bytes']:,} bytes"
            raise RecordingError(f"{path}: {found}; record again with overwrite=True (--force)")
        if verify and (crc := _crc_of(path, known["bytes"])) != known["crc32"]:
            raise RecordingError(
                f"{path}: expected CRC-32 {known['crc32']:08x}, got {crc:08x}: the file has changed; record again with "
                "overwrite=True (--force)"
            )


def _crc_of(path: Path, size: int) -> int:
    crc = 0
    with path.open("rb") as file:
        while size and (chunk := file.read(min(size, _CHUNK))):
            crc = zlib.crc32(chunk, crc)
            size -= len(chunk)
    return crc


def _mapped(folder: Path, name: str, count: int) -> torch.Tensor:
    if count == 0:  # there is nothing to map
        return torch.empty(0, dtype=FILES[name])
    return torch.from_file(str(folder / name), shared=False, size=count, dtype=FILES[name])


class Writer:
    """Appends batches to a recording's files and keeps the header true at any moment. A context manager.

    Args:
        folder: made where it is not there.
        made: the header's ``made``.
        done: where to go on from; None for a new recording, which replaces what the folder holds of an older one.

    Raises:
        RecordingError: on entering, where another process writes there.
    """

    def __init__(self, folder: Path, made: dict[str, Any], done: dict[str, Any] | None) -> None:
        self.folder, self.made = folder, made
        names = [name for name in FILES if name == "signatures.bin" or _kept(made, name)]
        self._new = done is None
        self.done = done or {
            "rows": 0,
            "batches": 0,
            "complete": False,
            "inputs_crc32": 0,
            "files": {name: {"bytes": 0, "crc32": 0} for name in names},
        }
        self._files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()
        self._committed = time.monotonic()

    def __enter__(self) -> Writer:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(_locked(self.folder))
            if self._new:
                # Unlinked, not overwritten: whoever has the old files mapped keeps them.
                for name in (HEADER, *FILES):
                    (self.folder / name).unlink(missing_ok=True)
            for name, known in self.done["files"].items():
                file = self._files[name] = stack.enter_context((self.folder / name).open("ab"))
                file.truncate(known["bytes"])
            self.commit()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        with self._stack:
            self.commit()

    def append(
        self,
        signatures: torch.Tensor,
        labels: torch.Tensor | None,
        predictions: torch.Tensor | None,
        inputs_crc32: int,
    ) -> None:
        """One batch, whole or not at all: rows count once the header says so."""
        given = {"signatures.bin": signatures, "labels.bin": labels, "predictions.bin": predictions}
        files = {}
        for name, file in self._files.items():
            values = given[name]
            assert values is not None
            data = values.to("cpu", FILES[name]).contiguous().numpy().reshape(-1).view("uint8").data
            file.write(data)
            known = self.done["files"][name]
            files[name] = {"bytes": known["bytes"] + len(data), "crc32": zlib.crc32(data, known["crc32"])}
        self.done = {
            "rows": self.done["rows"] + signatures.shape[0],
            "batches": self.done["batches"] + 1,
            "complete": False,
            "inputs_crc32": inputs_crc32,
            "files": files,
        }
        if time.monotonic() - self._committed > _COMMIT_SECONDS:
            self.commit()

    def finish(self) -> None:
        self.done["complete"] = True

    def commit(self) -> None:
        """Put the files' bytes on the disk, then the header that counts them."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        header = {"format": FORMAT, "version": VERSION, "made": self.made, "done": self.done}
        write_json(self.folder / HEADER, {**header, "crc32": _header_crc(self.made, self.done)})
        self._committed = time.monotonic()


def _header_crc(made: dict[str, Any], done: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps([made, done], sort_keys=True).encode())


def _kept(made: dict[str, Any], name: str) -> bool:
    return made["loader"]["labels"] if name == "labels.bin" else made["predictions"]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder is this process's to write while the block runs."""
    try:
        with locks.locked(folder / "lock"):
            yield
    except locks.Busy as busy:
        raise RecordingError(
            f"{folder}: another process is recording there ({busy.holder}); wait for it to end"
        ) from None
