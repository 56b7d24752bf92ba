"""What ``zb tune`` found, by card and Triton version: one JSON file each in the cache folder.

The package may ship such files too, under ``zbkernels/triton/configs``; the user's own results come first. A file
has a head (``format card capability triton``) and rows (``op dtype shape_class constants num_warps num_stages ms
default_ms``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zbkernels import cards
from zbkernels.cards import Card
from zbkernels.files import write_json
from zbkernels.tables import cache_folder, ignored, locked, measured_ms, read_table
from zbkernels.triton import config
from zbkernels.triton.config import Config, Key

FORMAT = 1
SHIPPED = Path(__file__).parent / "configs"


class Result(NamedTuple):
    """The fastest configuration of a key, its time and the default's (milliseconds of the whole call)."""

    config: Config
    ms: float
    default_ms: float

    @property
    def gain(self) -> float:
        return self.default_ms / self.ms


Results = dict[Key, Result]

# What each card's files held when they were first asked for; read once in a process.
_read: dict[Card, Results] = {}


def tuned(device: torch.device, key: Key) -> Config | None:
    """The fastest configuration that was measured on this device's card, or None."""
    card = cards.card_of(device)
    if card is None:
        return None
    found = _read.get(card)
    if found is None:
        found = _read[card] = load(card)
    result = found.get(key)
    return None if result is None else result.config


def load(card: Card) -> Results:
    """All results for a card under the Triton that is installed: shipped ones, then the user's over them."""
    return {**read(SHIPPED / file_name(card), card), **read(folder() / file_name(card), card)}


def save(card: Card, found: Mapping[Key, Result]) -> None:
    """Add results to the user's file. Those that other processes write at the same time are kept.

    Raises:
        OSError: the file can't be written.
    """
    path = folder() / file_name(card)
    with locked(path):
        rows = [_row(key, result) for key, result in sorted({**read(path, card), **found}.items())]
        write_json(path, {**_head(card), "rows": rows})
    _read.pop(card, None)
    config.forget()


def clear() -> list[Path]:
    """Delete the user's results, of all cards; returns the files deleted."""
    files = all_files()
    for path in files:
        with locked(path):
            path.unlink(missing_ok=True)
    _read.clear()
    config.forget()
    return files


def all_files() -> list[Path]:
    """The user's result files."""
    # A name that begins with a dot is a writer's, whose file is not in place yet.
    return sorted(path for path in folder().glob("*.json") if path.name[0] != "." and path.is_file())


def folder() -> Path:
    return cache_folder() / "triton"


def file_name(card: Card) -> str:
    return f"{card.slug}-triton-{triton_version()}.json"


@functools.cache
def triton_version() -> str:
    import triton

    return str(triton.__version__)


def _head(card: Card) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "card": card.name,
        "capability": card.capability,
        "triton": triton_version(),
    }


def read(path: Path, card: Card | None = None) -> Results:
    """A file's results; with ``card``, only if they are that card's, under the Triton that is installed."""
    rows = read_table(path, {"format": FORMAT} if card is None else _head(card))
    try:
        return dict(_result(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        ignored(path, f"a row of it is no result ({type(error).__name__}: {error})")
        return {}


def _row(key: Key, result: Result) -> dict[str, Any]:
    op, dtype, shape_class = key
    chosen = result.config
    return {
        "op": op,
        "dtype": dtype,
        "shape_class": shape_class,
        "constants": chosen.constants,
        "num_warps": chosen.num_warps,
        "num_stages": chosen.num_stages,
        "ms": result.ms,
        "default_ms": result.default_ms,
    }


def _result(row: Mapping[str, Any]) -> tuple[Key, Result]:
    names = [row[name] for name in ("op", "dtype", "shape_class")]
    sizes = {**row["constants"], "num_warps": row["num_warps"], "num_stages": row["num_stages"]}
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"expected names as strings, got {names}")
    if not all(isinstance(size, int) for size in sizes.values()):
        raise TypeError(f"expected sizes as integers, got {sizes}")
    times = measured_ms(row["ms"]), measured_ms(row["default_ms"])
    chosen = Config(dict(row["constants"]), row["num_warps"], row["num_stages"])
    return (names[0], names[1], names[2]), Result(chosen, *times)
