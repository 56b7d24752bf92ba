"""What a loader may give: inputs, with labels or without."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from zbkernels.nap.layers import RecordingError

Batch = tuple[torch.Tensor, torch.Tensor | None]


def labelled_batches(loader: Iterable[Any], who: str) -> Iterator[Batch]:
    """(x [N, ...], labels int32 [N] or None) for each batch that is not empty.

    Raises:
        RecordingError: a batch of another form.
    """
    labelled: bool | None = None
    for index, batch in enumerate(loader):
        x, labels = _parts(who, index, batch)
        if x.shape[0] == 0:
            continue
        if labelled is not None and labelled != (labels is not None):
            raise RecordingError(f"{who}: batch {index} has {'no ' * labelled}labels, unlike those before it")
        labelled = labels is not None
        yield x, labels


def _parts(who: str, index: int, batch: Any) -> Batch:
    form = "expected a tensor [N, ...], (inputs,) or (inputs, labels)"
    if isinstance(batch, dict):
        raise RecordingError(
            f"{who}: batch {index}: {form}, got a dict of {', '.join(map(repr, batch))}; give "
            "((b['…'], b['…']) for b in loader)"
        )
    parts = batch if isinstance(batch, (tuple, list)) else (batch,)
    if not 1 <= len(parts) <= 2 or not isinstance(parts[0], torch.Tensor) or parts[0].dim() < 1:
        kinds = ", ".join(
            f"tensor {list(part.shape)}" if isinstance(part, torch.Tensor) else type(part).__name__
            for part in parts
        )
        raise RecordingError(f"{who}: batch {index}: {form}, got {type(batch).__name__} ({kinds})")
    x = parts[0]
    return x, _labels(who, index, parts[1], x.shape[0]) if len(parts) == 2 else None


def _labels(who: str, index: int, labels: Any, count: int) -> torch.Tensor:
    given = labels
    if isinstance(given, (list, tuple, np.ndarray)):
        with suppress(TypeError, ValueError, RuntimeError):
            given = torch.as_tensor(given)
    whole = isinstance(given, torch.Tensor) and not (given.is_floating_point() or given.is_complex())
    if not whole or tuple(given.shape) != (count,):
        got = (
            f"{given.dtype} {list(given.shape)}" if isinstance(given, torch.Tensor) else type(labels).__name__
        )
        raise RecordingError(f"{who}: batch {index}: expected labels to be integers [{count}], got {got}")
    narrow = given.to(torch.int32)
    if not torch.equal(narrow.to(given.dtype), given):
        raise RecordingError(
            f"{who}: batch {index}: expected labels that fit 32 bits, got {given.max().item()}"
        )
    return narrow.cpu()


def batch_crc32(x: torch.Tensor, labels: torch.Tensor | None, before: int) -> int:
    """CRC-32 of a batch's values, going on from the one before it."""
    for tensor in (x, labels):
        if tensor is not None:
            before = zlib.crc32(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, before
            )
    return before
