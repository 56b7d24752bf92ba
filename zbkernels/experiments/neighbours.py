"""Nearest training images by direction (cosine) and by distance, for test images of any contrast, in blocks.

One product of test and training images serves every rule and every scalar: for a test image x, a training image y
and the training images' mean m,

- distance: |s·x - y|² = s²|x|² - 2s·x·y + |y|², least where x·y - |y|²/2s is largest; subtracting m from both images
  changes nothing;
- direction: the cosine of s·x and y is x·y / (|x||y|), whatever s;
- direction after the mean is subtracted: (s·x - m)·(y - m) = s·(x·y - x·m - y·m/s + m·m/s), over |y - m|.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Split

DIRECTION, DISTANCE, CENTRED = "direction", "distance", "centred-direction"
RULES = (DIRECTION, DISTANCE, CENTRED)
BLOCK = 64  # test images at a time
NEAR_TIE = 1e-5  # two cosines that differ by less may change places by rounding in float32


@dataclass(frozen=True)
class Products:
    """Test images of one block against all training images.

    Attributes:
        start: number of the block's first test image.
        dots: [B, N] x·y.
        test_lengths, lengths: |x| [B], |y| [N].
        mean_test, mean_train, mean_square: x·m [B], y·m [N], m·m.
        centred_lengths: |y - m| [N].
    """

    start: int
    dots: Tensor
    test_lengths: Tensor
    lengths: Tensor
    mean_test: Tensor
    mean_train: Tensor
    mean_square: float
    centred_lengths: Tensor

    def cosines(self) -> Tensor:
        """[B, N]."""
        return self.dots.div(self.lengths).div_(self.test_lengths[:, None])

    def centred_cosines(self) -> Tensor:
        """Of x - m and y - m, [B, N]."""
        squares = self.test_lengths**2 - 2 * self.mean_test + self.mean_square
        return self._centred(1.0).div_(squares.clamp_min(0).sqrt()[:, None])

    def nearest(self, rule: str, scalar: float) -> Tensor:
        """The training image [B] nearest to each s·x, the first of several.

        Raises:
            ValueError: ``rule`` is none of :data:`RULES`.
        """
        if rule == DIRECTION:
            return self.dots.div(self.lengths).argmax(1)
        if rule == DISTANCE:
            return self.dots.sub(self.lengths**2 / (2 * scalar)).argmax(1)
        if rule == CENTRED:
            return self._centred(scalar).argmax(1)
        raise ValueError(f"nearest: expected a rule of {', '.join(RULES)}, got {rule!r}")

    def _centred(self, scalar: float) -> Tensor:
        """(s·x - m)·(y - m) / s|y - m|."""
        over = self.dots.sub(self.mean_train / scalar)
        return over.sub_((self.mean_test - self.mean_square / scalar)[:, None]).div_(self.centred_lengths)


def products(train: Tensor, test: Tensor, block: int = BLOCK) -> Iterator[Products]:
    """Blocks of ``block`` test images against all of ``train``; both [images, pixels].

    Raises:
        ValueError: an image is black (it has no direction), or the shapes do not fit.
    """
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1]:
        raise ValueError(
            f"products: expected images [N, pixels] and [M, pixels], got {list(train.shape)} and {list(test.shape)}"
        )
    lengths, test_lengths = (torch.linalg.vector_norm(images, dim=1) for images in (train, test))
    for name, found in (("training", lengths), ("test", test_lengths)):
        if (found == 0).any():
            raise ValueError(
                f"products: expected images with a direction, got {int((found == 0).sum())} black {name} images"
            )
    mean = train.mean(0, dtype=torch.float64)
    mean_train, mean_test = (images @ mean.to(images) for images in (train, test))
    square = float(mean @ mean)
    centred = (lengths.double() ** 2 - 2 * mean_train.double() + square).clamp_min(0).sqrt().to(train)
    for start in range(0, len(test), block):
        part = slice(start, start + block)
        yield Products(
            start,
            test[part] @ train.T,
            test_lengths[part],
            lengths,
            mean_test[part],
            mean_train,
            square,
            centred,
        )


class Accuracies:
    """Collects the nearest images' labels, block by block, for every rule and scalar.

    By direction the scalar makes no difference to the formula, so there is one row, for scalar 1; see
    :func:`recheck`.
    """

    def __init__(self, train: Split, test: Split, rules: Sequence[str], scalars: Sequence[float]) -> None:
        self._train, self._test, self._rules = train, test, rules
        self._predicted = {
            (rule, scalar): torch.empty_like(test.labels)
            for rule in rules
            for scalar in ((1.0,) if rule == DIRECTION else scalars)
        }

    def add(self, found: Products) -> None:
        part = slice(found.start, found.start + len(found.dots))
        for (rule, scalar), labels in self._predicted.items():
            labels[part] = self._train.labels[found.nearest(rule, scalar)]

    def result(self) -> dict[str, list[dict[str, float]]]:
        """Rule -> a row for each scalar: ``scalar``, ``accuracy`` (%) of the nearest image's label, and
        ``commonest_share`` (%) of the class that is predicted most often."""
        rows: dict[str, list[dict[str, float]]] = {rule: [] for rule in self._rules}
        for (rule, scalar), labels in self._predicted.items():
            rows[rule].append(
                {
                    "scalar": scalar,
                    "accuracy": 100 * (labels == self._test.labels).sum().item() / len(labels),
                    "commonest_share": 100 * labels.bincount().max().item() / len(labels),
                }
            )
        return rows


def recheck(train: Split, test: Split, scalars: Sequence[float]) -> dict[str, Any]:
    """The nearest directions again, now from the multiplied images themselves, at every scalar.

    Returns:
        ``images``, ``scalars``; ``changed``: (image, scalar) with another nearest image than at scalar 1, and ``gap``:
        the largest difference of the two cosines there (None where nothing changed). In float32 cosines within
        :data:`NEAR_TIE` may change places.
    """
    pixels, others = train.images.flatten(1), test.images.flatten(1)
    (whole,) = products(pixels, others, len(test))
    cosines = whole.cosines()
    before = cosines.argmax(1, keepdim=True)
    changed, gap = 0, None
    for scalar in scalars:
        (scaled,) = products(pixels, others * scalar, len(test))
        after = scaled.cosines().argmax(1, keepdim=True)
        moved = (after != before)[:, 0]
        if moved.any():
            changed += int(moved.sum())
            apart = (cosines.gather(1, before) - cosines.gather(1, after))[moved]
            gap = max(gap or 0.0, float(apart.max()))
    return {"images": len(test), "scalars": len(scalars), "changed": changed, "gap": gap}
