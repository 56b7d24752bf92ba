"""Which pairs the figure of ``interpolation`` shows, with their images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.data import Split
from zbkernels.experiments.pairs import Groups, Reader, look_between
from zbkernels.experiments.pictures import encode

STRIPS = 5  # pairs shown of each image set, predicted right and predicted wrong, as in Figures 7 and 8


def strips(
    model: nn.Module, split: Split, count: int, points: int, generator: torch.Generator
) -> dict[str, list[dict[str, Any]]]:
    """Pairs of images to draw, as Figures 7 and 8 do: predicted right, and predicted wrong.

    Args:
        count: pairs of either kind to choose from, drawn from all.
        points: interpolations of a pair that are looked at.

    Returns:
        "right" and "wrong" -> at most :data:`STRIPS` pairs, each with its ``images`` (:func:`pictures.encode`), their
        ``rows`` and ``labels``, the ``predicted`` class, and whether it is ``broken`` at some point.
    """
    sig, predicted = Reader(model, split.images[:1])(split.images)
    right = predicted == split.labels
    shown = {}
    for kind, among in (("right", right), ("wrong", ~right)):
        rows = among.nonzero()[:, 0]
        pairs = rows[Groups.of(sig[rows], predicted[rows]).sample(count, generator)]
        pairs = varied(pairs, predicted, split.labels)
        look = look_between(model, split.images, pairs, points)
        shown[kind] = [
            {
                "images": [encode(split.images[row]) for row in pair],
                "rows": pair,
                "labels": split.labels[pair].tolist(),
                "predicted": int(predicted[pair[0]]),
                "broken": index in look["broken"],
            }
            for index, pair in enumerate(pairs.tolist())
        ]
    return shown


def varied(pairs: Tensor, predicted: Tensor, labels: Tensor) -> Tensor:
    """The first few pairs, but new predictions before old ones, and new labels before old ones."""
    left = pairs.tolist()
    chosen: list[list[int]] = []
    seen: list[tuple[int, int, int]] = []
    while left and len(chosen) < STRIPS:

        def known(pair: list[int]) -> tuple[int, int]:
            p = int(predicted[pair[0]])
            kinds = {int(labels[row]) for row in pair}
            return sum(p == old for old, _, _ in seen), sum(len(kinds & {a, b}) for _, a, b in seen)

        best = min(left, key=known)  # the first of the least known
        left.remove(best)
        chosen.append(best)
        seen.append((int(predicted[best[0]]), int(labels[best[0]]), int(labels[best[1]])))
    return torch.tensor(chosen, dtype=torch.int64).reshape(-1, 2)
