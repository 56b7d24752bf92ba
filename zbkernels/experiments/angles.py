"""Angles between images of one class and of different classes, and how narrow a cone all fill together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Split
from zbkernels.experiments.neighbours import Products

BIN = 0.5  # degrees
BINS = round(180 / BIN)
_QUANTILES = (0.1, 0.5, 0.9)


class Angles:
    """Collects the angles between test and training images, block by block, as they are and less the training mean."""

    def __init__(self, train: Split, test: Split) -> None:
        self._train, self._test = train, test
        self._counts = {kind: torch.zeros(2 * BINS, dtype=torch.int64) for kind in ("raw", "centred")}
        self._own, self._other = (torch.empty(len(test)) for _ in range(2))

    def add(self, found: Products) -> None:
        part = slice(found.start, found.start + len(found.dots))
        same = self._test.labels[part, None] == self._train.labels
        cosines = found.cosines()
        self._own[part] = degrees(cosines.masked_fill(~same, -1).amax(1)).cpu()
        self._other[part] = degrees(cosines.masked_fill(same, -1).amax(1)).cpu()
        for kind, values in (("raw", cosines), ("centred", found.centred_cosines())):
            bins = degrees(values).mul_(1 / BIN).clamp_max_(BINS - 0.5).int()
            bins += same.int().mul_(BINS)
            self._counts[kind] += bins.flatten().bincount(minlength=2 * BINS).cpu()

    def result(self) -> dict[str, Any]:
        """For ``raw`` and ``centred`` images: ``same`` and ``different``, pairs by angle in bins of :data:`BIN`
        degrees, [360] counts each; ``resultant``: length of the mean of the training images' unit vectors, 1 if all
        have one direction and 0 if they cancel.

        ``nearest_own``, ``nearest_other``: the 10, 50 and 90 % quantiles of the angle (degrees) from a test image to
        the nearest of its class, and of another. ``to_mean``: the same quantiles of the angle between a training image
        and the mean image, and the largest. ``by_class_mean``: accuracy (%) of the class whose mean direction is
        nearest.
        """
        pixels = self._train.images.flatten(1)
        mean = pixels.mean(0, dtype=torch.float64).to(pixels)
        to_mean = degrees(unit(pixels) @ unit(mean[None])[0])
        return {
            **{
                kind: {
                    "same": counts[BINS:].tolist(),
                    "different": counts[:BINS].tolist(),
                    "resultant": resultant(pixels - mean if kind == "centred" else pixels),
                }
                for kind, counts in self._counts.items()
            },
            "nearest_own": quantiles(self._own),
            "nearest_other": quantiles(self._other),
            "to_mean": [*quantiles(to_mean), float(to_mean.max())],
            "by_class_mean": by_class_mean(self._train, self._test),
        }


def degrees(cosines: Tensor) -> Tensor:
    """Angles in 0 … 180 of cosines, which rounding may have put a little outside of -1 … 1; in their place."""
    return cosines.clamp_(-1, 1).acos_().mul_(180 / torch.pi)


def unit(images: Tensor) -> Tensor:
    """Each row [images, pixels] over its length."""
    return images / torch.linalg.vector_norm(images, dim=1, keepdim=True)


def quantiles(values: Tensor) -> list[float]:
    ordered = values.double().sort().values
    return [float(ordered[round(share * (len(ordered) - 1))]) for share in _QUANTILES]


def resultant(images: Tensor) -> float:
    return float(torch.linalg.vector_norm(unit(images).mean(0, dtype=torch.float64)))


def class_means(split: Split) -> Tensor:
    """Mean direction of each class, unit vectors [classes, pixels]."""
    directions = unit(split.images.flatten(1))
    return unit(torch.stack([directions[split.labels == label].mean(0) for label in split.labels.unique()]))


def by_class_mean(train: Split, test: Split) -> float:
    """Accuracy (%) of the class whose mean direction is nearest: of one round cone for each class."""
    nearest = train.labels.unique()[(test.images.flatten(1) @ class_means(train).T).argmax(1)]
    return 100 * (nearest == test.labels).sum().item() / len(test)


def nearer_share(same: Sequence[int], different: Sequence[int]) -> float:
    """How probable it is that an angle within a class is smaller than one between classes; ties of bins count half."""
    counts, others = (torch.tensor(part, dtype=torch.float64) for part in (same, different))
    beyond = others.sum() - others.cumsum(0)
    return float((counts * (beyond + others / 2)).sum() / (counts.sum() * others.sum()))


def median(counts: Sequence[int]) -> float:
    """Of angles in bins: the middle of the bin that holds it."""
    below = torch.tensor(counts).cumsum(0)
    return BIN * (int(torch.searchsorted(below, (below[-1] + 1) // 2)) + 0.5)


def obtuse_share(same: Sequence[int], different: Sequence[int]) -> float:
    """Share (%) of all pairs beyond 90.5 degrees: images without a pixel in common are at 90 degrees, in the bin that
    begins there."""
    counts = torch.tensor([same, different]).sum(0)
    return 100 * float(counts[BINS // 2 + 1 :].sum() / counts.sum())
