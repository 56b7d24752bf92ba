"""Files that are either whole or not there: written under a temporary name, then renamed into place."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zbkernels.distributed import team

# A list of numbers as json.dumps indents it. No string looks like it: line breaks are escaped there.
_NUMBERS = re.compile(r"\[\n\s+(?:(?:-?\d[\d.eE+-]*|null),?\s+)+\]")
_SEAL = "json_crc32"
_swept: set[Path] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it to ``path`` when the block succeeds, delete it
    otherwise.

    The temporary name keeps the suffix of ``path``, since writers such as matplotlib go by it. Where several processes
    train together (:mod:`zbkernels.distributed`), what any but rank 0 writes is dropped. What killed processes of this
    machine left of the same path is deleted first.
    """
    if not team().first:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / path.name
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    try:
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}-{_machine()}-{os.getpid()}-", suffix=path.suffix, dir=path.parent
        )
    except OSError as error:
        error.filename = str(path)
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, name, str(temporary)):
            error.filename = str(path)  # a full disk tells no name, and the temporary one is gone by now
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), so that every reader can parse it; a list of numbers takes one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, _NUMBERS.sub(_on_one_line, text) + "\n")


def _on_one_line(numbers: re.Match[str]) -> str:
    return "[" + " ".join(numbers[0][1:-1].split()) + "]"


def read_json(path: Path) -> Any:
    """The value of a file of strict JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file: not UTF-8, not JSON, with NaN or an infinity, with a key given twice, or nested
            too deeply.
    """
    try:
        return json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_once
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_sealed_json(path: Path, value: dict[str, Any]) -> None:
    """:func:`write_json` with a checksum inside, which :func:`read_sealed_json` compares."""
    read_back = json.loads(json.dumps(value))  # keys that are numbers become text
    write_json(path, {**value, _SEAL: _crc32(read_back)})


def read_sealed_json(path: Path) -> dict[str, Any]:
    """What :func:`write_sealed_json` wrote. A file without a checksum, of an older version, is taken as it is.

    Raises:
        OSError: it cannot be read.
        ValueError: as :func:`read_json`, or it is no JSON object, or its content is not what was written.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    if _SEAL not in value:
        if any(resembles(key, _SEAL) for key in value):
            raise ValueError("the name of its checksum has changed: the file is damaged")
        return value
    expected = value.pop(_SEAL)
    found = _crc32(value)
    if found != expected:
        raise ValueError(f"expected the checksum {expected}, got {found}: the file is damaged")
    return value


def resembles(key: str, name: str) -> bool:
    """Whether a key may be that name with a character or two changed."""
    return len(key) == len(name) and sum(a != b for a, b in zip(key, name, strict=True)) <= 2


def _crc32(value: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"expected strict JSON, got {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:40]!r} is given twice")
        found[name] = value
    return found


def _sweep(path: Path) -> None:
    """Delete the temporaries of ``path`` whose writers are dead; once in a process for each path."""
    if path in _swept:
        return
    _swept.add(path)
    name = re.compile(rf"\.{re.escape(path.stem)}-{_machine()}-(\d+)-\w+{re.escape(path.suffix)}")
    for entry in path.parent.iterdir():
        match = name.fullmatch(entry.name)
        if match and not _lives(int(match[1])):
            entry.unlink(missing_ok=True)


def _machine() -> str:
    """Tells apart the machines of a shared file system, whose process ids mean nothing to each other."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def _umask() -> int:
    """The process's umask, which mkstemp ignores (it makes files for the owner only)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
