"""Files that are either whole or not there: written under a temporary name, then renamed into place."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zbkernels.distributed import team

# A list of numbers as json.dumps indents it. No string looks like it: line breaks are escaped there.
_NUMBERS = re.compile(r"\[\n\s+(?:(?:-?\d[\d.eE+-]*|null),?\s+)+\]")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it to ``path`` when the block succeeds, delete it
    otherwise.

    The temporary name keeps the suffix of ``path``, since writers such as matplotlib go by it. Where several processes
    train together (:mod:`zbkernels.distributed`), what any but rank 0 writes is dropped.
    """
    if not team().first:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / path.name
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
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
    return json.loads(path.read_text(encoding="utf-8"))


def _umask() -> int:
    """The process's umask, which mkstemp ignores (it makes files for the owner only)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
