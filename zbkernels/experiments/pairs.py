"""Pairs of images with equal prediction and equal activation pattern: all of them, and what lies between them.

Definition 1 and Theorem 2 of "Scalar Invariant Networks with Zero Bias". Pairs are never listed: images are grouped by
pattern and prediction (exactly, :func:`zbkernels.nap_group`), a group of n images holds n(n-1)/2 pairs, and pairs to
look at are drawn from all of them alike.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import zbkernels as zb
from zbkernels.nap import PatternReader

READ_BATCH = 10_000
LOOK_BATCH = 2_000  # interpolations at a time: few enough to stay in the cache
DARKEST = 8  # conic combinations are multiplied by 1, 1/2, … 1/2^8 in turn: powers of two round nothing


class Reader:
    """Signatures and predictions of a network, batch by batch, its units being ReLUs."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self._reader = PatternReader(model, example)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [N, words] and int64 [N]."""
        read = [self._reader.read(batch) for batch in images.split(READ_BATCH)]
        return torch.cat([sig for sig, _ in read]), torch.cat([logits.argmax(1) for _, logits in read])


@dataclass(frozen=True)
class Groups:
    """Rows of equal words, by group.

    Attributes:
        ids: [N], the group of each row.
        counts: [G], rows of each group.
    """

    ids: Tensor
    counts: Tensor

    @classmethod
    def of(cls, *keys: Tensor) -> Groups:
        """Group rows in which every key, int64 [N] or [N, words], is equal."""
        ids, _, counts = zb.nap_group(torch.cat([key if key.dim() == 2 else key[:, None] for key in keys], 1))
        return cls(ids, counts)

    def pairs(self, among: Tensor | None = None) -> int:
        """How many pairs of different rows share a group; ``among`` (bool [N]): both of these rows."""
        counts = self.counts
        if among is not None:
            counts = self.ids[among].bincount(minlength=len(counts))
        return int(_pairs(counts).sum())

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` different pairs, each as likely as any other, or all where there are no more: [P, 2] rows."""
        order = self.ids.argsort(stable=True)  # rows, group after group
        start = self.counts.cumsum(0) - self.counts
        ends = _pairs(self.counts).cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        if total <= count:
            drawn = torch.arange(total)
        else:
            drawn = torch.empty(0, dtype=torch.int64)
            while len(drawn) < count:
                more = torch.randint(total, (2 * count,), generator=generator)
                drawn = _in_order(torch.cat([drawn, more]))
            drawn = drawn[:count]
        drawn = drawn.to(self.ids.device)
        group = torch.searchsorted(ends, drawn, right=True)
        rank = drawn - (ends - _pairs(self.counts))[group]  # of the pair in its group
        second = ((1 + (1 + 8 * rank.double()).sqrt()) / 2).long()  # largest with second(second-1)/2 <= rank
        second -= (second * (second - 1) // 2 > rank).long()
        second += (second * (second + 1) // 2 <= rank).long()
        first = rank - second * (second - 1) // 2
        return torch.stack([order[start[group] + first], order[start[group] + second]], 1)


def count_pairs(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """All pairs of ``images`` that qualify for Theorem 2, and how the images spread over patterns.

    Returns:
        ``images``, ``accuracy`` (%), ``patterns`` (different ones), ``pairs`` (same pattern and prediction), of which
        ``right`` and ``wrong`` ones (both images predicted as labelled, neither), ``largest_group`` (images),
        ``images_in_pairs``, and ``same_prediction`` (pairs with equal prediction, whatever their patterns).
    """
    sig, predicted = Reader(model, images[:1])(images)
    right = predicted == labels
    groups, patterns = Groups.of(sig, predicted), Groups.of(sig)
    return {
        "images": len(labels),
        "accuracy": 100 * int(right.sum()) / len(labels),
        "patterns": len(patterns.counts),
        "pairs": groups.pairs(),
        "right": groups.pairs(right),
        "wrong": groups.pairs(~right),
        "largest_group": int(groups.counts.max()),
        "images_in_pairs": int(groups.counts[groups.counts > 1].sum()),
        "same_prediction": Groups.of(predicted).pairs(),
    }


def between(a: Tensor, b: Tensor, points: int) -> Tensor:
    """Interpolations λa + (1-λ)b for λ = k/(points+1), k = 1 … points: [N, points, …] of images [N, …]."""
    weight = torch.arange(1, points + 1, dtype=a.dtype, device=a.device) / (points + 1)
    weight = weight.reshape(1, -1, *[1] * (a.dim() - 1))
    return torch.lerp(b[:, None], a[:, None], weight)


def look_between(
    model: nn.Module, images: Tensor, pairs: Tensor, points: int, *, conic: bool = False
) -> dict[str, Any]:
    """Whether prediction and pattern stay those of the pair on the way from one image to the other.

    Args:
        pairs: [P, 2] rows of ``images``. What a pair's interpolations are compared with is its first image.
        points: interpolations of a pair (see :func:`between`).
        conic: multiply them by 1, 1/2, … 1/256 in turn, so that they are conic combinations, not convex ones.

    Returns:
        ``pairs``, ``points``; ``pairs_broken`` (another prediction or pattern at some point), ``prediction_broken``
        (pairs with another prediction at some point), ``points_broken``, ``points_predicted_otherwise``,
        ``worst_share`` (of a pair's points, the largest share broken, in %), ``most_bits`` (units that differ, at most)
        and ``broken`` (numbers of the broken pairs).
    """
    read = Reader(model, images[:1])
    dtype = next(model.parameters()).dtype
    scales = 2.0 ** -(torch.arange(points, dtype=dtype, device=images.device) % (DARKEST + 1))
    chunk = max(1, LOOK_BATCH // points)
    shares, otherwise, bits = [], [], 0
    for part in pairs.split(chunk):
        ends = images[part.flatten()].to(dtype).unflatten(0, (-1, 2))  # [p, 2, C, H, W]
        x = between(ends[:, 0], ends[:, 1], points)
        if conic:
            x = x * scales.reshape(1, -1, 1, 1, 1)
        sig, predicted = read(x.flatten(0, 1))
        own_sig, own_predicted = read(ends[:, 0])
        differ = sig.unflatten(0, (len(part), points)) ^ own_sig[:, None]  # [p, points, words]
        changed = predicted.unflatten(0, (len(part), points)) != own_predicted[:, None]
        off = (differ != 0).any(2)
        if off.any():
            bits = max(bits, int(zb.nap_unpack(differ[off], 64 * sig.shape[1]).sum(1).max()))
        shares.append((off | changed).sum(1))
        otherwise.append(changed.sum(1))
    empty = torch.zeros(0, dtype=torch.int64)
    broken, changed_points = torch.cat([empty, *shares]), torch.cat([empty, *otherwise])
    return {
        "pairs": len(pairs),
        "points": points,
        "pairs_broken": int((broken > 0).sum()),
        "prediction_broken": int((changed_points > 0).sum()),
        "points_broken": int(broken.sum()),
        "points_predicted_otherwise": int(changed_points.sum()),
        "worst_share": 100 * int(broken.max()) / points if len(broken) else 0.0,
        "most_bits": bits,
        "broken": broken.nonzero()[:, 0].tolist(),
    }


def look_again_exactly(
    model: nn.Module, images: Tensor, pairs: Tensor, points: int, *, conic: bool = False
) -> dict[str, Any]:
    """The same in float64, for pairs that broke: is it more than float32's rounding of a value beside 0?

    Returns:
        ``pairs``; ``unequal`` (in float64 their two patterns or predictions differ, so Theorem 2 says nothing of them),
        and of the others ``pairs_broken`` and ``points_broken``.
    """
    if not len(pairs):
        return {"pairs": 0, "unequal": 0, "pairs_broken": 0, "points_broken": 0}
    model = copy.deepcopy(model).double()
    ends = images[pairs.flatten()].double()
    sig, predicted = Reader(model, ends[:1])(ends)
    equal = (sig[0::2] == sig[1::2]).all(1) & (predicted[0::2] == predicted[1::2])
    found = look_between(model, images, pairs[equal], points, conic=conic)
    return {
        "pairs": len(pairs),
        "unequal": int((~equal).sum()),
        "pairs_broken": found["pairs_broken"],
        "points_broken": found["points_broken"],
    }


def _pairs(counts: Tensor) -> Tensor:
    return counts * (counts - 1) // 2


def _in_order(numbers: Tensor) -> Tensor:
    """The different ones of ``numbers`` in the order in which they first appear."""
    _, first, _ = zb.nap_group(numbers[:, None])
    return numbers[first]
