"""What deep networks are trained on: a sample with its mirror image, the symmetry broken by an amount, digits."""

from __future__ import annotations

import torch
from torch import Tensor

from zbkernels.data import Dataset, Split
from zbkernels.experiments.base import ExperimentError


def mirrored(count: int, features: int, *, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Gaussian inputs x and then -x, [2 count, features] in float64: the sample has p(x) = p(-x) exactly.

    Args:
        spread: the covariance of the sample is exactly diagonal, from 1 down to ``spread`` in equal ratios.
    """
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, features, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(z.T @ z / count)
    white = torch.linalg.solve_triangular(factor, z.T, upper=False).T
    x = white * torch.logspace(0, 1, features, base=spread, dtype=torch.float64).sqrt()
    return torch.cat([x, -x])


def even_target(x: Tensor, amount: float) -> Tensor:
    """y = x_1 + amount · |x_2|, [N, 1]: an even part that E[y x] does not see, and so no linear network does."""
    return x[:, :1] + amount * x[:, 1:2].abs()


def odd_target(x: Tensor) -> Tensor:
    """y = x_1 + (x_2³ - 3 x_2)/4, [N, 1]: odd and not linear; for Gaussian x its best linear part is x_1."""
    return x[:, :1] + (x[:, 1:2] ** 3 - 3 * x[:, 1:2]) / 4


def lopsided(count: int, amount: float) -> Tensor:
    """Sample weights [2 count]: (1 + amount)/2 for each x and (1 - amount)/2 for its mirror image, over ``count``.

    E[x xᵀ] and, for odd targets, E[y xᵀ] are the same for every amount: linear networks do not see it.
    """
    half = torch.full((count,), 0.5 / count, dtype=torch.float64)
    return torch.cat([half * (1 + amount), half * (1 - amount)])


def two_digits(data: Dataset, pair: tuple[int, int], count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of one digit (target 1) against another (-1), float64, images of 28x28 averaged to 14x14.

    Args:
        count: of training images of each digit, the first of the set.

    Returns:
        (x [2 count, d], y [2 count, 1]) for training, the same of all test images; scaled so that the largest
        eigenvalue of E[x xᵀ] of the training images is 1.

    Raises:
        ExperimentError: there are not so many images of a digit.
    """

    def take(split: Split, most: int | None) -> tuple[Tensor, Tensor]:
        images = split.images.double()
        if images.shape[-1] >= 28:
            images = torch.nn.functional.avg_pool2d(images, 2)
        parts = [images[split.labels == digit].flatten(1)[:most] for digit in pair]
        if most is not None and min(map(len, parts)) < most:
            got = " and ".join(str(len(part)) for part in parts)
            raise ExperimentError(f"two_digits: expected {most} images of {pair[0]} and {pair[1]}, got {got}")
        ones = [torch.ones(len(part), 1, dtype=torch.float64) for part in parts]
        return torch.cat(parts), torch.cat([ones[0], -ones[1]])

    (x, y), (x_test, y_test) = take(data.train, count), take(data.test, None)
    scale = torch.linalg.matrix_norm(x, 2) / len(x) ** 0.5
    return x / scale, y, x_test / scale, y_test
