"""The recorded patterns nearest to those of new inputs, and how rare a new pattern is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from zbkernels.nap.layers import Layer, RecordingError
from zbkernels.nap.patterns import PatternReader
from zbkernels.nap.recording import Recording
from zbkernels.ops import nap_topk

_SAMPLE = 500  # recorded inputs whose own nearest other says what is usual


@dataclass(frozen=True)
class Neighbours:
    """Of N inputs, the k recorded patterns nearest to each.

    Attributes:
        distances: int32 [N, k], bits that differ (of winner codes too: bits, not windows), from the nearest on; of
            equal distance the lower row first.
        rows: int64 [N, k], which recorded inputs.
        bits: of a pattern.
        rarer_than: float64 [N], the share of a sample of recorded inputs whose nearest other recorded input is nearer
            than this input's nearest.
        usual: int32, ascending: these distances of the sample. Empty where fewer than two inputs are recorded.
        predictions: int64 [N] of the model, or None.
        layers: that were compared.
    """

    distances: torch.Tensor
    rows: torch.Tensor
    bits: int
    rarer_than: torch.Tensor
    usual: torch.Tensor
    predictions: torch.Tensor | None
    layers: tuple[Layer, ...]


def neighbours(
    recording: Recording,
    model: nn.Module,
    x: torch.Tensor,
    *,
    k: int = 5,
    layers: Sequence[str] | None = None,
) -> Neighbours:
    """Compare the patterns of ``x`` [N, ...] with recorded ones.

    Args:
        model: the one that was recorded.
        layers: names, with ``*`` and ``?``; None for all that were recorded.

    Raises:
        RecordingError: another model, a layer that was not recorded, or fewer recorded inputs than k.
    """
    recording.refuse_other_model(model)
    chosen = recording.choose(layers)
    if not 1 <= k <= len(recording):
        raise RecordingError(
            f"{recording.path}: expected 1 <= k <= {len(recording)}, the recorded inputs, got {k}"
        )
    reader = PatternReader(
        model, x, units=recording.units, layers=[layer.name for layer in chosen], who="neighbours"
    )
    if [(each.name, each.coding, each.shape) for each in reader.layers] != [
        (each.name, each.coding, each.shape) for each in chosen
    ]:
        raise RecordingError(
            f"{recording.path}: was recorded from inputs of another shape than {list(x.shape)}"
        )
    signatures, y = reader.read(x)
    database = recording.words(chosen)
    distances, rows = nap_topk(signatures.cpu(), database, k)
    usual = _usual(database)
    below = torch.searchsorted(usual, distances[:, 0].contiguous())
    return Neighbours(
        distances,
        rows,
        sum(layer.bits for layer in chosen),
        below.double() / max(1, len(usual)),
        usual,
        y.argmax(1).cpu() if reader.classes is not None else None,
        chosen,
    )


def _usual(database: torch.Tensor) -> torch.Tensor:
    count = database.shape[0]
    if count < 2:
        return torch.empty(0, dtype=torch.int32)
    sample = torch.linspace(0, count - 1, min(_SAMPLE, count)).long()
    # Each is among its own two nearest, or is equal to both.
    return nap_topk(database[sample], database, 2)[0][:, 1].sort().values
