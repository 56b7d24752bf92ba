"""Points with the symmetry p(x) = p(-x), odd targets, and starts of rank one, W1 = W2ᵀ rᵀ: what the runs begin with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS, symmetric_inputs
from zbkernels.experiments.effectively_linear.reduced_dynamics import logistic, rank_one

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
START = 1e-3  # ‖V2‖² at the start, of the final one on whitened inputs
STEP = 0.02  # of gradient descent, in time of the linear network


@dataclass(frozen=True)
class Setting:
    """Inputs, target and r.

    Attributes:
        whitened: E[x xᵀ] is the identity on the very points; else eigenvalues fall from 1 to 0.1.
        along: r points along E[y x]; else r is a random direction.
        length: ‖r‖ at the start.
    """

    title: str
    target: str
    whitened: bool
    along: bool
    length: float
    until: float  # time, in units of 1/‖E[y x]‖


SETTINGS = {
    "whitened": Setting("whitened inputs, r along the target", "cubic", True, True, 1.0, 8.0),
    "general": Setting("covariance of condition 10, random r", "median", False, False, 1.0, 25.0),
    "long-r": Setting("the same, r of length 2", "sign", False, False, 2.0, 25.0),
    "short-r": Setting("the same, r of length 1/2", "dead-zone", False, False, 0.5, 25.0),
}


@dataclass(frozen=True)
class Data:
    """Points of one seed: x [N, D], y [N, 1], and beta = E[y x] [D], sigma = E[x xᵀ] [D, D] of them."""

    x: Tensor
    y: Tensor

    @property
    def beta(self) -> Tensor:
        return (self.y * self.x).mean(0)

    @property
    def sigma(self) -> Tensor:
        return self.x.mT @ self.x / len(self.x)


def points(setting: Setting, dimension: int, count: int, seed: int) -> Data:
    """``count`` points and their negatives; the target has a mean square of 1."""
    sigma = None if setting.whitened else torch.logspace(0, -1, dimension, dtype=torch.float64).diag()
    x = symmetric_inputs(count, dimension, seed, sigma)
    if setting.whitened:
        x = torch.linalg.solve_triangular(torch.linalg.cholesky(x.mT @ x / len(x)), x.mT, upper=False).mT
    y = ODD_TARGETS[setting.target].function(x)[:, None]
    return Data(x, y / y.square().mean().sqrt())


def read_out(width: int, seed: int, positive: float = 0.5) -> Tensor:
    """A random row [1, width] of length 1 whose positive entries have the share ``positive`` of its square."""
    w = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).abs()
    half = width // 2
    w[:half] *= positive**0.5 / w[:half].norm()
    w[half:] *= -((1 - positive) ** 0.5) / w[half:].norm()
    return w[None]


def start(
    setting: Setting, data: Data, width: int, seed: int, positive: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """(v1 [H, D], v2 [1, H], r [D]) of a linear network of rank one."""
    r = (
        data.beta
        if setting.along
        else torch.randn(
            len(data.beta), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 77)
        )
    )
    r = r * (setting.length / r.norm())
    v2 = read_out(width, seed, positive) * (START * data.beta.norm()) ** 0.5
    return v2.mT * r, v2, r


def solution(
    setting: Setting, data: Data, v2: Tensor, r: Tensor, times: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The course of a linear network from :func:`start`: the logistic where it applies, else the reduced equations.

    Returns:
        (v1 [T, H, D], v2 [T, 1, H], a r [T, D], the linear map).
    """
    size = float(data.beta.norm())
    if setting.whitened and setting.along:
        a, rs = logistic(times, START * size, size), r.expand(len(times), -1)
    else:
        a, rs = rank_one(times, START * size, r, data.beta, data.sigma)
    o2 = v2 / v2.norm() * a[:, None, None].sqrt()
    return o2.mT * rs[:, None], o2, a[:, None] * rs
