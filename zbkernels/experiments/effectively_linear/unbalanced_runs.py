"""Networks that start with rank one, W1 = W2ᵀ rᵀ, the two parts of W2 of unequal norm: an even part appears."""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.experiments.effectively_linear.reduced_dynamics import logistic, two_groups
from zbkernels.experiments.effectively_linear.symmetric_starts import ALPHAS, SETTINGS, START, points, start
from zbkernels.experiments.effectively_linear.weight_flow import data_rate, flow, outputs

SHARES = (1.0, 0.9, 0.75, 0.5)  # of ‖W2‖², that the positive part has at the start
_DRAWN = ((0.0, 0.9), (0.5, 0.9))  # slope and share of the curves that are kept


def unbalanced(
    dimension: int, count: int, width: int, moments: int, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Whitened inputs, r along the target, parts of W2 of unequal norm: the even part, beside its formula."""
    setting = SETTINGS["whitened"]
    cases = [(alpha, share) for alpha in ALPHAS for share in SHARES]
    alpha = torch.tensor([a for a, _ in cases], dtype=torch.float64)
    rows, curves = [], {}
    for seed in seeds:
        data = points(setting, dimension, count, seed)
        size = float(data.beta.norm())
        times = torch.linspace(0, 2 * setting.until / size, moments, dtype=torch.float64)
        c = ((1 + alpha) / 2)[:, None, None]
        v1, v2 = (
            torch.stack(v)
            for v in zip(*(start(setting, data, width, seed, p)[:2] for _, p in cases), strict=True)
        )
        w1, w2 = flow(
            data_rate(alpha[:, None, None], data.x[None], data.y[None]), v1 / c.sqrt(), v2 / c.sqrt(), times
        )
        r, s = data.beta / size, (1 - alpha) / 2
        a = logistic(times, START * size, size)
        parts = [c[:, 0, 0] * part.square().sum((-1, -2)) for part in (w2.clamp_min(0), w2.clamp_max(0))]
        for i, (slope, share) in enumerate(cases):
            begin = START * size
            p, q = two_groups(times, share * begin, (1 - share) * begin, size, slope)
            if slope == 0:
                one, two = (
                    logistic(times, k * begin, size / 2, 4.0) if k else 0 * times for k in (share, 1 - share)
                )
                decoupled = float(torch.maximum((p - one).abs(), (q - two).abs()).max() / size)
            else:
                decoupled = None
            hidden = (data.x @ w1[:, i].mT).abs()
            even = s[i] * (hidden @ w2[:, i].mT)[..., 0]  # [T, N]
            said = (s[i] / c[i, 0, 0] * (p - q))[:, None] * (data.x @ r).abs()
            f = outputs(w1[:, i], w2[:, i], alpha[i], data.x)
            far = (f - a[:, None] * (data.x @ r)).square().mean(1).sqrt() / size
            rows.append(
                {
                    "alpha": slope,
                    "share": share,
                    "seed": seed,
                    "even": float(even.square().mean(1).sqrt().max() / size),
                    "even_end": float(even[-1].square().mean().sqrt() / size),
                    "even_from_said": float((even - said).square().mean(1).sqrt().max() / size),
                    "parts": float(
                        torch.maximum((parts[0][:, i] - p).abs(), (parts[1][:, i] - q).abs()).max() / size
                    ),
                    "decoupled": decoupled,
                    "from_linear": float(far.max()),
                }
            )
            if seed == seeds[0] and (slope, share) in _DRAWN:
                curves[f"slope {slope:g}, {share:g}"] = {
                    "times": times.tolist(),
                    "positive": parts[0][:, i].tolist(),
                    "negative": parts[1][:, i].tolist(),
                    "said": [p.tolist(), q.tolist()],
                    "even": even.square().mean(1).sqrt().tolist(),
                    "size": size,
                }
    return {"rows": rows, "curves": curves}
