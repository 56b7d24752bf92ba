"""Whether a recording may go on: the same model, choice, circumstances and inputs as when it began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zbkernels.nap.batches import Batch, batch_crc32
from zbkernels.nap.fingerprint import difference
from zbkernels.nap.layers import RecordingError

_AGAIN = "give another folder, or overwrite=True (--force) to start over"
_SHUFFLES = "does it shuffle, or has the data changed?"


def refuse_another(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Compare the headers' ``made`` parts.

    Raises:
        RecordingError: they differ; the message says in what.
    """
    reason = _difference(before, now)
    if reason is not None:
        raise RecordingError(f"{folder}: holds the recording of another {reason}; {_AGAIN}")


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    other = difference(before["model"], now["model"])
    if other is not None:
        return f"model: {other}"
    for key, what in (
        ("units", "choice of units"),
        ("choice", "choice of layers"),
        ("predictions", "choice of predictions"),
    ):
        if before[key] != now[key]:
            return f"{what}: {before[key]} then, {now[key]} now"
    for part in ("run", "loader"):
        for key, value in before[part].items():
            if value == now[part][key]:
                continue
            if key == "first_crc32":
                return f"loader: the first batch has other values ({_SHUFFLES})"
            return f"{part}: {key} was {value} then, is {now[part][key]} now"
    other = _other_layer(before["layers"], now["layers"])
    return None if other is None else f"model: its forward pass had the layer {other}"


def _other_layer(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> str | None:
    for old, new in zip([*before, None], [*now, None], strict=False):
        if old != new:
            said = [
                f"{each['name']} ({each['kind']}, {each['coding']} {each['shape']})" if each else "none"
                for each in (old, new)
            ]
            return f"{said[0]} where it has {said[1]} now"
    return None


def refuse_other_inputs(folder: Path, batches: Iterator[Batch], done: dict[str, Any]) -> int:
    """Read the batches that are done, and compare them with what was recorded. Returns their CRC-32.

    Raises:
        RecordingError: they are others, fewer, or (of a complete recording) more.
    """
    rows = crc = 0
    for index in range(done["batches"]):
        batch = next(batches, None)
        if batch is None:
            raise RecordingError(
                f"{folder}: holds {done['batches']} batches, and the loader gives {index} ({_SHUFFLES}); {_AGAIN}"
            )
        rows += batch[0].shape[0]
        crc = batch_crc32(*batch, crc)
    if (rows, crc) != (done["rows"], done["inputs_crc32"]):
        raise RecordingError(
            f"{folder}: holds {done['rows']} rows of another loader: among its first {done['batches']} batches are "
            f"other values ({_SHUFFLES}); {_AGAIN}"
        )
    if done["complete"] and next(batches, None) is not None:
        raise RecordingError(f"{folder}: is complete with {rows} rows, and the loader gives more; {_AGAIN}")
    return crc
