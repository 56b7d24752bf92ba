"""Networks that start with rank one, W1 = W2ᵀ rᵀ: balanced ones beside linear networks, and unbalanced ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS, symmetric_inputs
from zbkernels.experiments.effectively_linear.reduced_dynamics import logistic, rank_one, two_groups
from zbkernels.experiments.effectively_linear.weight_flow import apart, data_rate, descend, flow, linear_rate

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
UNBALANCED = (1.0, 0.9, 0.75, 0.5)  # shares of ‖W2‖² that the positive part has
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
        if setting.whitened and setting.along:
            a, rs = logistic(times, START * size, size), r.expand(moments, -1)
        else:
            a, rs = rank_one(times, START * size, r, data.beta, data.sigma)
        o2 = v2 / v2.norm() * a[:, None, None].sqrt()
        from_reduced = apart(w1, w2, (o2.mT * rs[:, None])[:, None], o2[:, None])
        loss, even = _losses(w1, w2, alpha, data)
        plain, _ = _losses(l1, l2, torch.ones(1, dtype=torch.float64), data)
        reduced = 0.5 * (data.y.mT - (a[:, None] * rs) @ data.x.mT).square().mean(1)
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
                "a": (w2.square().sum((-1, -2))).mT.tolist(),
                "reduced_a": a.tolist(),
                "weights": weights.mT.tolist(),
                "reduced_weights": from_reduced.mT.tolist(),
            }
    return {"name": name, "title": setting.title, "target": setting.target, "rows": rows, "curves": curves}


def unbalanced(
    dimension: int, count: int, width: int, moments: int, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Whitened inputs, r along the target, parts of W2 of unequal norm: the even part, beside its formula."""
    setting = SETTINGS["whitened"]
    cases = [(alpha, share) for alpha in ALPHAS for share in UNBALANCED]
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
        parts = [
            c[:, 0, 0] * (w2.clamp_min(0) if k == 0 else w2.clamp_max(0)).square().sum((-1, -2))
            for k in (0, 1)
        ]
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
            outputs = _outputs(w1[:, i : i + 1], w2[:, i : i + 1], alpha[i : i + 1], data)[:, 0]
            far = (outputs - a[:, None] * (data.x @ r)).square().mean(1).sqrt() / size
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
            if seed == seeds[0] and (slope, share) in ((0.0, 0.9), (0.0, 0.75), (0.5, 0.9)):
                curves[f"slope {slope:g}, {share:g}"] = {
                    "times": times.tolist(),
                    "positive": parts[0][:, i].tolist(),
                    "negative": parts[1][:, i].tolist(),
                    "said": [p.tolist(), q.tolist()],
                    "even": (even.square().mean(1).sqrt()).tolist(),
                    "size": size,
                }
    return {"rows": rows, "curves": curves}


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


def _outputs(v1: Tensor, v2: Tensor, alpha: Tensor, data: Data) -> Tensor:
    """Of networks with weights [T, B, ...] as they are: [T, B, N]."""
    z = data.x @ v1.mT
    return (torch.where(z > 0, z, alpha[:, None, None] * z) @ v2.mT)[..., 0]


def _losses(v1: Tensor, v2: Tensor, alpha: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """½ E[(y - f)²] and the root mean square of f's even part, [T, B], of networks with weights (v1, v2)/√c."""
    c = (1 + alpha) / 2
    f = _outputs(v1, v2, alpha, data) / c[:, None]
    half = f.shape[-1] // 2
    even = (f[..., :half] + f[..., half:]) / 2  # f(x) and f(-x)
    return 0.5 * (data.y[:, 0] - f).square().mean(-1), even.square().mean(-1).sqrt()
