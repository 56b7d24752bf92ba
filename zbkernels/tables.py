"""Small JSON tables of measured results: shipped with the package, or kept in the user's cache folder.

Results only say what is fast, so a table that is missing, broken or foreign must never stop an op: reading gives
what can be used and warns once of a file that can't be.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from zbkernels import locks
from zbkernels.files import read_json

_warned: set[Path] = set()


def cache_folder() -> Path:
    """``$ZBKERNELS_CACHE_DIR``, else ``zbkernels`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    own = os.environ.get("ZBKERNELS_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(shared):  # the XDG specification: a relative path is to be ignored
        shared = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(shared) / "zbkernels"


def read_table(path: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table whose other fields are ``head``; [] where the file is missing.

    A file that can't be read, is no such table, or is of another format, card or version is ignored with one
    warning, which names it.
    """
    try:
        table = read_json(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        return ignored(path, str(error))
    if not isinstance(table, dict):
        return ignored(path, "not a table of results")
    for name, want in head.items():
        if table.get(name) != want:
            return ignored(path, f"{name} is {table.get(name)!r}, expected {want!r}")
    rows = table.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ignored(path, "it has no list of rows")
    return rows


def measured_ms(value: Any) -> float:
    """A time of a row.

    Raises:
        TypeError: it is no number.
        ValueError: it is not above 0, or more than a float holds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a time in milliseconds, got {value!r}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError("expected a time above 0 that a float holds")
    return float(value)


def ignored(path: Path, reason: str) -> list[dict[str, Any]]:
    """No rows, and a warning the first time that ``path`` is found unusable."""
    if path not in _warned:
        _warned.add(path)
        warnings.warn(f"zbkernels: ignoring {path}: {reason}", RuntimeWarning, stacklevel=2)
    return []


def locked(path: Path) -> AbstractContextManager[None]:
    """Hold the lock of ``path``, after the process that holds it now.

    The lock is a file of its own beside ``path``, which is itself replaced by each writer.
    """
    return locks.locked(path.with_suffix(path.suffix + ".lock"), keep=True, wait=True)
