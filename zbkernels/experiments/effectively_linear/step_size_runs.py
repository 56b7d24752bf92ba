"""Gradient descent beside gradient flow, as the step goes to zero."""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.experiments.effectively_linear.symmetric_starts import SETTINGS, points, solution, start
from zbkernels.experiments.effectively_linear.weight_flow import apart, data_rate, descend, linear_rate

ALPHAS = (0.0, 0.5, 1.0)


def converge(
    name: str, dimension: int, count: int, width: int, steps: tuple[float, ...], seeds: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Distance of descent's weights from the flow's, at most over time; the flow is that of the reduced equations.

    Args:
        name: a key of ``SETTINGS``.
        steps: each in time of the linear network and units of 1/‖E[y x]‖; each divides the largest.
    """
    setting, alpha = SETTINGS[name], torch.tensor(ALPHAS, dtype=torch.float64)[:, None, None]
    root, rows = ((1 + alpha) / 2).sqrt(), []
    for seed in seeds:
        data = points(setting, dimension, count, seed)
        size = float(data.beta.norm())
        v1, v2, r = start(setting, data, width, seed)
        rate = data_rate(alpha, data.x[None], data.y[None])
        straight = linear_rate(data.beta[None, None], data.sigma[None])
        coarse = max(steps) / size
        moments = int(setting.until / max(steps))
        times = coarse * torch.arange(moments + 1, dtype=torch.float64)
        o1, o2, _ = solution(setting, data, v2, r, times)
        for step in steps:
            every = round(max(steps) / step)
            w1, w2 = descend(rate, v1 / root, v2 / root, coarse / every, moments * every, every)
            l1, l2 = descend(straight, v1[None], v2[None], coarse / every, moments * every, every)
            far, linear = (
                apart(root * w1, root * w2, o1[:, None], o2[:, None]),
                apart(root * w1, root * w2, l1, l2),
            )
            rows += [
                {
                    "setting": name,
                    "alpha": slope,
                    "seed": seed,
                    "step": step,
                    "from_flow": float(far[:, i].max()),
                    "from_linear": float(linear[:, i].max()),
                }
                for i, slope in enumerate(ALPHAS)
            ]
    return rows
