"""What a recording holds, in numbers: groups of equal patterns, their purity, and units that never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from zbkernels.nap.layers import Layer
from zbkernels.nap.recording import Recording
from zbkernels.ops import nap_frequency, nap_group


@dataclass(frozen=True)
class Group:
    """Inputs of one pattern: how many, the first row, and (label, how many) from the most frequent on."""

    size: int
    first: int
    labels: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ClassPurity:
    """One class: its inputs, the patterns they have, how many share a pattern with another input, and how many of these
    share it with inputs of their own class only."""

    label: int
    inputs: int
    patterns: int
    shared: int
    pure: int


@dataclass(frozen=True)
class PatternStatistics:
    """Of one layer, or of whole signatures (name "all").

    Attributes:
        units, bits: in each signature.
        patterns: distinct ones.
        largest: the biggest groups, from the biggest on; of equal size the one that appeared first.
        alone: inputs whose pattern no other has.
        purity: share of the inputs that have the most frequent label of their group; None without labels.
        classes: per label; () without labels.
        never, always: units that are on for no input, for every input; ``always`` is None of winner codes.
    """

    name: str
    coding: str
    units: int
    bits: int
    patterns: int
    largest: tuple[Group, ...]
    alone: int
    purity: float | None
    classes: tuple[ClassPurity, ...]
    never: int
    always: int | None

    @property
    def varying(self) -> int | None:
        return None if self.always is None else self.units - self.never - self.always


def statistics(
    recording: Recording, *, layers: Sequence[str] | None = None, top: int = 5
) -> list[PatternStatistics]:
    """Of each layer, then, where there are several, of all together.

    Args:
        layers: names, with ``*`` and ``?``; None for all.
        top: how many of the biggest groups to give.

    Raises:
        RecordingError: a layer is not in the recording.
    """
    chosen = recording.choose(layers)
    ons = [_on(layer, layer.of(recording.signatures), len(recording)) for layer in chosen]
    result = []
    for layer, on in zip(chosen, ons, strict=True):
        words = layer.of(recording.signatures)
        result.append(
            _statistics(recording, layer.name, layer.coding, layer.units, layer.bits, words, on, top)
        )
    if len(chosen) > 1:
        always = None if any(on[1] is None for on in ons) else sum(on[1] or 0 for on in ons)
        units, bits = (sum(getattr(layer, key) for layer in chosen) for key in ("units", "bits"))
        codings = ", ".join(dict.fromkeys(layer.coding for layer in chosen))
        on = sum(on[0] for on in ons), always
        result.append(_statistics(recording, "all", codings, units, bits, recording.words(chosen), on, top))
    return result


def _on(layer: Layer, words: torch.Tensor, rows: int) -> tuple[int, int | None]:
    """(units never on, units always on)."""
    counts = nap_frequency(words.contiguous(), layer.bits)
    if layer.coding == "winner":  # a window is off where all bits of its code are
        return int((counts.view(-1, layer.unit_bits).sum(1) == 0).sum()), None
    return int((counts == 0).sum()), int((counts == rows).sum())


def _statistics(
    recording: Recording,
    name: str,
    coding: str,
    units: int,
    bits: int,
    words: torch.Tensor,
    on: tuple[int, int | None],
    top: int,
) -> PatternStatistics:
    ids, first, counts = nap_group(words.contiguous())
    labels = None if recording.labels is None else recording.labels.long()
    biggest = counts.argsort(descending=True, stable=True)[:top].tolist()
    groups = tuple(
        Group(int(counts[g]), int(first[g]), () if labels is None else _tally(labels[ids == g]))
        for g in biggest
    )
    purity, classes = (None, ()) if labels is None else _purity(ids, counts, labels)
    alone = int((counts == 1).sum())
    return PatternStatistics(name, coding, units, bits, len(counts), groups, alone, purity, classes, *on)


def _tally(labels: torch.Tensor) -> tuple[tuple[int, int], ...]:
    values, counts = labels.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    return tuple(zip(values[order].tolist(), counts[order].tolist(), strict=True))


def _purity(
    ids: torch.Tensor, counts: torch.Tensor, labels: torch.Tensor
) -> tuple[float | None, tuple[ClassPurity, ...]]:
    """Over pairs (group, label) that occur: no table of groups times labels is made."""
    if not len(labels):
        return None, ()
    names, place = labels.unique(return_inverse=True)
    pairs, size = (ids * len(names) + place).unique(return_counts=True)
    group, label = pairs // len(names), pairs % len(names)
    most = torch.zeros_like(counts).scatter_reduce_(0, group, size, "amax")
    alone = counts[group] == 1
    pure = (size == counts[group]) & ~alone
    per = {
        "inputs": size,
        "patterns": torch.ones_like(size),
        "shared": torch.where(alone, 0, size),
        "pure": torch.where(pure, size, 0),
    }
    sums = {key: torch.zeros_like(names).index_add_(0, label, value).tolist() for key, value in per.items()}
    classes = tuple(
        ClassPurity(name, *(sums[key][i] for key in per)) for i, name in enumerate(names.tolist())
    )
    return float(most.sum()) / len(labels), classes


def as_json(statistics: PatternStatistics) -> dict[str, Any]:
    value = asdict(statistics)
    for group in value["largest"]:
        group["labels"] = [list(pair) for pair in group["labels"]]
    value["largest"], value["classes"] = list(value["largest"]), list(value["classes"])
    return value
