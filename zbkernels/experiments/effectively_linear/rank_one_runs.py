"""Networks that start with rank one, W1 = W2ᵀ rᵀ, the two parts of W2 of equal norm, beside linear networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.symmetric_starts import (
    ALPHAS,
    SETTINGS,
    STEP,
    Data,
    points,
    solution,
    start,
)
from zbkernels.experiments.effectively_linear.weight_flow import (
    apart,
    data_rate,
    descend,
    flow,
    linear_rate,
    outputs,
)


def balanced(
    name: str, dimension: int, count: int, width: int, moments: int, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Flow and descent of all slopes at once, beside the linear network and the reduced equations."""
    setting, alpha = SETTINGS[name], torch.tensor(ALPHAS, dtype=torch.float64)
    rows, curves = [], {}
    for seed in seeds:
        data = points(setting, dimension, count, seed)
        v1, v2, r = start(setting, data, width, seed)
        root = ((1 + alpha) / 2).sqrt()[:, None, None]
        rate = data_rate(alpha[:, None, None], data.x[None], data.y[None])
        straight = linear_rate(data.beta[None, None], data.sigma[None])
        size = float(data.beta.norm())
        times = torch.linspace(0, setting.until / size, moments, dtype=torch.float64)
        w1, w2 = (root * w for w in flow(rate, v1 / root, v2 / root, times))
        l1, l2 = flow(straight, v1[None], v2[None], times)
        steps = int(times[-1] / STEP)
        g1, g2 = (root * w for w in descend(rate, v1 / root, v2 / root, STEP, steps, every=10))
        h1, h2 = descend(straight, v1[None], v2[None], STEP, steps, every=10)
        o1, o2, linear_map = solution(setting, data, v2, r, times)
        from_reduced = apart(w1, w2, o1[:, None], o2[:, None])
        loss, even = _losses(w1, w2, alpha, data)
        plain, _ = _losses(l1, l2, torch.ones(1, dtype=torch.float64), data)
        reduced = 0.5 * (data.y.mT - linear_map @ data.x.mT).square().mean(1)
        weights, descent = apart(w1, w2, l1, l2), apart(g1, g2, h1, h2)
        for i, slope in enumerate(ALPHAS):
            rows.append(
                {
                    "alpha": slope,
                    "seed": seed,
                    "weights": float(weights[:, i].max()),
                    "loss": float((loss[:, i] - plain[:, 0]).abs().max()),
                    "descent": float(descent[:, i].max()),
                    "reduced_weights": float(from_reduced[:, i].max()),
                    "reduced_loss": float((loss[:, i] - reduced).abs().max()),
                    "even": float(even[:, i].max()),
                }
            )
        if seed == seeds[0]:
            curves = {
                "times": times.tolist(),
                "losses": loss.mT.tolist(),
                "linear_loss": plain[:, 0].tolist(),
                "reduced_loss": reduced.tolist(),
                "a": w2.square().sum((-1, -2)).mT.tolist(),
                "reduced_a": o2.square().sum((-1, -2)).tolist(),
                "weights": weights.mT.tolist(),
                "reduced_weights": from_reduced.mT.tolist(),
            }
    return {"name": name, "title": setting.title, "target": setting.target, "rows": rows, "curves": curves}


def one_sided(dimension: int, count: int, width: int, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """The setting "general" on x without -x: how far the same start comes from the linear network."""
    setting, alpha = SETTINGS["general"], torch.tensor(ALPHAS, dtype=torch.float64)
    rows = []
    for seed in seeds:
        whole = points(setting, dimension, 2 * count, seed)
        data = Data(whole.x[: 2 * count], whole.y[: 2 * count])
        v1, v2, _ = start(setting, data, width, seed)
        root = ((1 + alpha) / 2).sqrt()[:, None, None]
        steps = int(setting.until / float(data.beta.norm()) / STEP)
        w1, w2 = descend(
            data_rate(alpha[:, None, None], data.x[None], data.y[None]), v1 / root, v2 / root, STEP, steps, 10
        )
        l1, l2 = descend(
            linear_rate(data.beta[None, None], data.sigma[None]), v1[None], v2[None], STEP, steps, 10
        )
        weights = apart(root * w1, root * w2, l1, l2)
        rows += [
            {"alpha": a, "seed": seed, "weights": float(weights[:, i].max())} for i, a in enumerate(ALPHAS)
        ]
    return rows


def _losses(v1: Tensor, v2: Tensor, alpha: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """½ E[(y - f)²] and the root mean square of f's even part, [T, B], of networks with weights (v1, v2)/√c."""
    c = (1 + alpha) / 2
    f = outputs(v1, v2, alpha[:, None, None], data.x) / c[:, None]
    half = f.shape[-1] // 2
    even = (f[..., :half] + f[..., half:]) / 2  # f(x) and f(-x)
    return 0.5 * (data.y[:, 0] - f).square().mean(-1), even.square().mean(-1).sqrt()
