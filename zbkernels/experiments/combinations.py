"""Inputs that share pattern and prediction, and what becomes of both at combinations of them (Theorem 3).

A *set* is n inputs of one pattern and one prediction. Points are drawn inside its convex hull and in its
cone; the set is *broken* where a point has another pattern or another prediction.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.nap import NotCertified, PatternReader, Region, certify_hull
from zbkernels.train import EVALUATION_BATCH

# How the weights of a combination are drawn: uniform on the simplex, times 10**(a power drawn from these).
KINDS: dict[str, tuple[float, float]] = {"convex": (0, 0), "conic": (-3, 3), "extreme": (-30, 30)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Groups:
    """Inputs grouped by pattern and prediction.

    Attributes:
        order: [N] int64, the inputs' indices, group after group.
        first, size: [G] int64, where each group begins in ``order`` and how many it has.
    """

    order: Tensor
    first: Tensor
    size: Tensor

    def at_least(self, count: int) -> int:
        """How many groups have ``count`` inputs."""
        return int((self.size >= count).sum())


def read_patterns(model: nn.Module, images: Tensor, units: str) -> tuple[Tensor, Tensor]:
    """Signatures int64 [N, words] and predictions int64 [N], in batches."""
    reader = PatternReader(model, images[:1], units=units)
    parts = [reader.read(batch) for batch in images.split(EVALUATION_BATCH)]
    return torch.cat([signature for signature, _ in parts]), torch.cat([y.argmax(1) for _, y in parts])


def group(signatures: Tensor, predictions: Tensor) -> Groups:
    keys = torch.cat([signatures, predictions[:, None]], 1)
    _, of, size = keys.unique(dim=0, return_inverse=True, return_counts=True)
    return Groups(of.argsort(stable=True), size.cumsum(0) - size, size)


def draw_sets(groups: Groups, vertices: int, count: int, generator: torch.Generator) -> Tensor:
    """At most ``count`` sets of ``vertices`` different inputs of one group each: indices [sets, vertices] int64.

    As many groups take part as there are; they give several sets each only where they are fewer than ``count``.
    """
    usable = (groups.size >= vertices).nonzero().flatten()
    if not len(usable):
        return torch.empty(0, vertices, dtype=torch.int64)
    turns = -(-count // len(usable))
    chosen = torch.cat([usable[torch.randperm(len(usable), generator=generator)] for _ in range(turns)])
    return torch.stack([_members(groups, int(g), vertices, generator) for g in chosen[:count]])


def draw_weights(kind: str, count: int, vertices: int, generator: torch.Generator) -> Tensor:
    """Weights of ``count`` combinations, float64 [count, vertices], of a kind of :data:`KINDS`."""
    weights = -torch.rand(count, vertices, generator=generator, dtype=torch.float64).clamp(min=1e-300).log()
    weights = weights / weights.sum(1, keepdim=True)
    low, high = KINDS[kind]
    if kind == "extreme":  # one end or the other
        power = torch.where(torch.rand(count, 1, generator=generator) < 0.5, low, high).double()
    else:
        power = low + (high - low) * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return weights * 10**power


def try_sets(
    model: nn.Module, images: Tensor, sets: Tensor, units: str, points: int, generator: torch.Generator
) -> dict[str, Any]:
    """Sample ``points`` combinations of each kind for each set, in each dtype.

    Args:
        images: [N, C, H, W] float32, from which ``sets`` [sets, vertices] picks.
        units: of the pattern that must be kept: "winner" says whether the linear piece is left.

    Returns:
        ``vertices``, ``sets``; ``certified``, ``certified_float32``: sets that :func:`certify_hull` certifies
        in exact terms and for any float32 evaluation; kind -> dtype -> ``points`` tried, how many ``left``
        the pattern and how many have another ``class``, how many of either were ``unexpected``, as the set's
        certificate covers this kind in this dtype, and ``broken`` (``broken_class``): sets with such points.
    """
    models = {name: copy.deepcopy(model).to(dtype) for name, dtype in DTYPES.items()}
    readers = {name: PatternReader(each, images[:1], units=units) for name, each in models.items()}
    counts = {
        kind: {
            name: dict.fromkeys(("points", "left", "class", "unexpected", "broken", "broken_class"), 0)
            for name in DTYPES
        }
        for kind in KINDS
    }
    certified = certified_float32 = 0
    for chosen in sets:
        vertices = images[chosen]
        region = _certified(model, vertices)
        certified += region is not None
        certified_float32 += region is not None and region.margins[torch.float32].holds
        expected = {name: readers[name].read(vertices.to(dtype)) for name, dtype in DTYPES.items()}
        for kind in KINDS:
            weights = draw_weights(kind, points, len(chosen), generator).to(images.device)
            for name, dtype in DTYPES.items():
                mixed = (weights.to(dtype) @ vertices.to(dtype).flatten(1)).unflatten(1, vertices.shape[1:])
                signatures, logits = readers[name].read(mixed)
                left = (signatures != expected[name][0][0]).any(1)
                other = logits.argmax(1) != expected[name][1][0].argmax()
                tally = counts[kind][name]
                tally["points"] += points
                tally["left"] += int(left.sum())
                tally["class"] += int(other.sum())
                tally["unexpected"] += int((left | other).sum()) if _covers(region, kind, dtype) else 0
                tally["broken"] += bool(left.any())
                tally["broken_class"] += bool(other.any())
    return {
        "vertices": sets.shape[1],
        "sets": len(sets),
        "certified": certified,
        "certified_float32": certified_float32,
        **counts,
    }


def _certified(model: nn.Module, vertices: Tensor) -> Region | None:
    try:
        return certify_hull(model, vertices)
    except NotCertified:
        return None


def _covers(region: Region | None, kind: str, dtype: torch.dtype) -> bool:
    """Whether a certificate promises that combinations of this kind, computed in ``dtype``, keep "
    "pattern and class."""
    if region is None or (region.kind == "hull" and kind != "convex"):
        return False
    margin = region.margins[dtype]
    least, most = margin.scales
    low, high = (10.0**power for power in KINDS[kind])
    return margin.holds and least <= low and high <= most


def _members(groups: Groups, which: int, count: int, generator: torch.Generator) -> Tensor:
    first, size = int(groups.first[which]), int(groups.size[which])
    return groups.order[first + torch.randperm(size, generator=generator)[:count]]
