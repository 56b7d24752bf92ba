"""Odd, non-linear targets of one output, and inputs that hold -x for each x."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class OddTarget:
    """An odd function of inputs [N, D] with values [N].

    Attributes:
        homogeneous: f(s x) = s f(x) for s > 0, so that a deeper bias-free network could be it.
        least_dimension: inputs of fewer dimensions make no sense.
    """

    title: str
    function: Callable[[Tensor], Tensor]
    homogeneous: bool
    least_dimension: int = 2


def _dead_zone(x: Tensor) -> Tensor:
    """x1 pulled towards 0 by |x2|: relu(x1 - |x2|) - relu(-x1 - |x2|), a bias-free network of three layers."""
    a, b = x[:, 0], x[:, 1].abs()
    return torch.relu(a - b) - torch.relu(-a - b)


ODD_TARGETS: Mapping[str, OddTarget] = {
    "sign": OddTarget("sign x₁", lambda x: x[:, 0].sign(), False),
    "cubic": OddTarget("x₁³/3", lambda x: x[:, 0] ** 3 / 3, False),
    "sine": OddTarget("sin(2 x₁ + x₂)", lambda x: torch.sin(2 * x[:, 0] + x[:, 1]), False),
    "product": OddTarget("x₁ x₂ x₃", lambda x: x[:, :3].prod(1), False, 3),
    "median": OddTarget("median(x₁, x₂, x₃)", lambda x: x[:, :3].median(1).values, True, 3),
    "dead-zone": OddTarget("x₁ shrunk by abs(x₂)", _dead_zone, True),
}


def symmetric_inputs(points: int, dimension: int, seed: int, covariance: Tensor | None = None) -> Tensor:
    """``points`` normal vectors, then their negatives: [2·points, dimension], float64.

    Args:
        covariance: of the normal distribution [dimension, dimension]; None: the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, dimension, dtype=torch.float64, generator=generator)
    if covariance is not None:
        x = x @ torch.linalg.cholesky(covariance).mT
    return torch.cat([x, -x])


def best_linear(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """The linear map [D] of least mean squared error on x [N, D], y [N], and that error."""
    linear = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    return linear, float((y - x @ linear).square().mean())
