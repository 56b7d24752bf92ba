"""Small random starts: how far a two-layer leaky ReLU network then comes from the linear network, over scale and width.

In expectation over x ~ N(0, I), where both flows have closed right-hand sides, and on points by gradient descent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.reduced_dynamics import imbalance_floor
from zbkernels.experiments.effectively_linear.symmetric_starts import SETTINGS, STEP, points
from zbkernels.experiments.effectively_linear.weight_flow import (
    apart,
    data_rate,
    descend,
    even_square,
    flow,
    gaussian_rate,
    linear_rate,
    outputs,
)

ALPHAS = (0.0, 0.5)
AS_DRAWN, BALANCED = "as drawn", "balanced"
BEYOND = 8.0  # time after ln(1/scale), by which outputs of that start have grown to 1


def draw(width: int, dimension: int, scale: float, seed: int, along: Tensor | None) -> tuple[Tensor, Tensor]:
    """Normal weights v1 [H, D], v2 [1, H] of variance scale²/H.

    Args:
        along: a unit vector u [D]. While weights are small v2_h + v1_h·u grows as exp(‖beta‖ t) where u is the target's
            direction, and nothing else does; units in which it is negative are multiplied so that the squares of those
            above and below 0 have equal sums. None: weights stay as drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(width, dimension + 1, dtype=torch.float64, generator=generator) * (scale / width**0.5)
    if along is not None:
        growing = growing_part(v[:, 1:], v[:, :1].mT, along)
        above, below = growing.clamp_min(0).norm(), growing.clamp_max(0).norm()
        v = torch.where(growing[:, None] < 0, v * (above / below), v)
    return v[:, 1:], v[:, :1].mT


def growing_part(v1: Tensor, v2: Tensor, along: Tensor) -> Tensor:
    """(v2_h + v1_h·u)/2 of each unit [H]."""
    return (v2[0] + v1 @ along) / 2


def floor_of(v1: Tensor, v2: Tensor, along: Tensor, alpha: float) -> float:
    """What :func:`imbalance_floor` says of this draw, whatever its scale."""
    growing = growing_part(v1, v2, along)
    ratio = growing.clamp_min(0).square().sum() / growing.clamp_max(0).square().sum()
    return imbalance_floor(float(ratio), alpha)


def in_expectation(
    start: str, width: int, dimension: int, scales: tuple[float, ...], seeds: tuple[int, ...], moments: int
) -> list[dict[str, Any]]:
    """All slopes, scales and seeds in one flow; the target's linear part is x₁, of size 1."""
    target = torch.zeros(dimension, dtype=torch.float64)
    target[0] = 1
    along = target if start == BALANCED else None
    cases = [(scale, seed) for scale in scales for seed in seeds]
    drawn = [draw(width, dimension, scale, seed, along) for scale, seed in cases]
    v1, v2 = (torch.stack(v) for v in zip(*drawn, strict=True))
    rows = []
    times = torch.linspace(0, float(-torch.tensor(min(scales)).log()) + BEYOND, moments, dtype=torch.float64)
    beta = target.expand(len(cases), 1, -1)
    l1, l2 = flow(linear_rate(beta, torch.eye(dimension, dtype=torch.float64)), v1, v2, times, 1e-8, 1e-9)
    for alpha in ALPHAS:
        root = torch.full((len(cases), 1, 1), (1 + alpha) / 2, dtype=torch.float64).sqrt()
        slopes = torch.full_like(root, alpha)
        w1, w2 = (
            root * w for w in flow(gaussian_rate(slopes, beta), v1 / root, v2 / root, times, 1e-8, 1e-9)
        )
        k = ((1 - alpha) / (1 + alpha)) ** 2
        even = (k * torch.stack([even_square(a, b) for a, b in zip(w1, w2, strict=True)])).sqrt()
        odd = (w2 @ w1 - l2 @ l1).norm(dim=(-1, -2))
        far, weights = (odd.square() + even.square()).sqrt(), apart(w1, w2, l1, l2)
        for i, (scale, seed) in enumerate(cases):
            rows.append(
                {
                    "start": start,
                    "alpha": alpha,
                    "width": width,
                    "scale": scale,
                    "seed": seed,
                    "outputs": float(far[:, i].max()),
                    "outputs_end": float(far[-1, i]),
                    "even": float(even[:, i].max()),
                    "weights": float(weights[:, i].max()),
                    "floor": floor_of(*drawn[i], target, alpha),
                }
            )
    return rows


def on_points(
    width: int, dimension: int, count: int, scales: tuple[float, ...], seeds: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Gradient descent on ``count`` points and their negatives (setting "general"), beside the linear network's."""
    setting = SETTINGS["general"]
    rows = []
    for start in (AS_DRAWN, BALANCED):
        for seed in seeds:
            data = points(setting, dimension, count, seed)
            size = float(data.beta.norm())
            along = data.beta / size
            drawn = [
                draw(width, dimension, scale, seed, along if start == BALANCED else None) for scale in scales
            ]
            cases = [(alpha, i) for alpha in ALPHAS for i in range(len(scales))]
            v1, v2 = (torch.stack([drawn[i][k] for _, i in cases]) for k in (0, 1))
            alpha = torch.tensor([a for a, _ in cases], dtype=torch.float64)[:, None, None]
            root = ((1 + alpha) / 2).sqrt()
            until = (float(-torch.tensor(min(scales)).log()) + BEYOND) / size
            steps = int(until / STEP)
            w1, w2 = descend(
                data_rate(alpha, data.x[None], data.y[None]), v1 / root, v2 / root, STEP, steps, 10
            )
            l1, l2 = descend(linear_rate(data.beta[None, None], data.sigma[None]), v1, v2, STEP, steps, 10)
            far = torch.stack([outputs(a, b, alpha, data.x) for a, b in zip(w1, w2, strict=True)])
            far = (far - (data.x @ (l2 @ l1).mT)[..., 0]).square().mean(-1).sqrt() / _size(l1, l2, data.x)
            for k, (slope, i) in enumerate(cases):
                rows.append(
                    {
                        "start": start,
                        "alpha": slope,
                        "width": width,
                        "scale": scales[i],
                        "seed": seed,
                        "outputs": float(far[:, k].max()),
                    }
                )
    return rows


def _size(l1: Tensor, l2: Tensor, x: Tensor) -> Tensor:
    """Root mean square of the linear networks' last outputs [B]."""
    return (x @ (l2[-1] @ l1[-1]).mT)[..., 0].square().mean(-1).sqrt()
