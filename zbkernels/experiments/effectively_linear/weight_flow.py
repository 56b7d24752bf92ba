"""Gradient flow and gradient descent on all weights of stacks of two-layer networks, float64, loss ½ E[(y - f(x))²].

Stacks have one batch dimension B, over slopes, seeds and settings: w1 [B, H, D], w2 [B, 1, H]. Time is that of the
linear network: a network of slope ``alpha`` moves by 1/c of its negative gradient, c = (1 + alpha)/2, so that networks
of all slopes keep pace. The fused ops take one weight matrix, not a stack, and are of no use here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Rate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (w1, w2) -> their derivatives in time


def data_rate(alpha: Tensor, x: Tensor, y: Tensor) -> Rate:
    """Of leaky ReLU networks on points: alpha [B, 1, 1], x [B, N, D], y [B, N, 1]."""
    c = (1 + alpha) / 2

    def rate(w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ w1.mT
        slope = torch.where(z > 0, torch.ones_like(alpha), alpha)
        hidden = z * slope
        error = (y - hidden @ w2.mT) / (c * x.shape[1])
        return (error * slope * w2).mT @ x, error.mT @ hidden

    return rate


def linear_rate(beta: Tensor, sigma: Tensor) -> Rate:
    """Of linear networks: beta = E[y xᵀ] [B, 1, D], sigma = E[x xᵀ] [B, D, D]."""

    def rate(v1: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
        g = beta - v2 @ v1 @ sigma
        return v2.mT @ g, g @ v1.mT

    return rate


def gaussian_rate(alpha: Tensor, beta: Tensor) -> Rate:
    """Of leaky ReLU networks in expectation over x ~ N(0, I), for an odd target: alpha [B, 1, 1], beta [B, 1, D].

    The even part needs E[f_e sgn(w·x) x], a sum of E[|v·x| sgn(w·x) x] = (2/π) ((π/2 - θ) v + ‖v‖ sin θ w/‖w‖), θ the
    angle between v and w: the derivative of the kernel of degree one.
    """
    c, s = (1 + alpha) / 2, (1 - alpha) / 2

    def rate(w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
        g = beta - c * (w2 @ w1)
        pull = g - s * s / c * even_pull(w1, w2)  # [B, H, D]
        return w2.mT * pull, (w1 * pull).sum(-1)[:, None]

    return rate


def even_pull(w1: Tensor, w2: Tensor) -> Tensor:
    """E[Σ_k w2_k |w1_k·x| sgn(w1_h·x) x] over x ~ N(0, I), for each unit h: [B, H, D]."""
    norms = w1.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    unit = w1 / norms
    cosine = (unit @ unit.mT).clamp(-1, 1)
    beside = (1 - cosine * cosine).sqrt() @ (norms * w2.mT)
    return ((torch.pi / 2 - cosine.acos()) * w2 @ w1 + beside * unit) * (2 / torch.pi)


def even_square(w1: Tensor, w2: Tensor) -> Tensor:
    """E[(Σ_k w2_k |w1_k·x|)²] over x ~ N(0, I): [B]."""
    return (w2.mT * w1 * even_pull(w1, w2)).sum((-1, -2)).clamp_min(0)


def flow(
    rate: Rate, w1: Tensor, w2: Tensor, times: Tensor, rtol: float = 1e-10, atol: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """Weights at ``times`` [T] (increasing, from 0), by scipy's DOP853 on all networks of the stack at once.

    Args:
        atol: in units of each network's largest weight at the start.

    Returns:
        (w1 [T, B, H, D], w2 [T, B, 1, H]).
    """
    from scipy.integrate import solve_ivp

    size = torch.maximum(w1.abs().amax((-1, -2)), w2.abs().amax((-1, -2)))[:, None, None]
    absolute = _flat(size.expand_as(w1), size.expand_as(w2)) * atol

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        return _flat(*rate(*_split(torch.from_numpy(state), w1, w2)))

    span = (float(times[0]), float(times[-1]))
    found = solve_ivp(slope, span, _flat(w1, w2), "DOP853", times.numpy(), rtol=rtol, atol=absolute)
    if not found.success:
        raise RuntimeError(f"flow: the solver stopped: {found.message}")
    return _split(torch.from_numpy(np.ascontiguousarray(found.y.T)), w1, w2)


def descend(
    rate: Rate, w1: Tensor, w2: Tensor, step: float, steps: int, every: int = 1
) -> tuple[Tensor, Tensor]:
    """Weights at the start and after each ``every`` of ``steps`` steps of gradient descent; shapes as :func:`flow`."""
    kept = [(w1, w2)]
    for done in range(1, steps + 1):
        d1, d2 = rate(w1, w2)
        w1, w2 = w1 + step * d1, w2 + step * d2
        if done % every == 0:
            kept.append((w1, w2))
    return torch.stack([one for one, _ in kept]), torch.stack([two for _, two in kept])


def outputs(w1: Tensor, w2: Tensor, alpha: Tensor, x: Tensor) -> Tensor:
    """Of leaky ReLU networks, [..., N]: alpha a number or [..., 1, 1], x [N, D]."""
    z = x @ w1.mT
    return (torch.where(z > 0, z, alpha * z) @ w2.mT)[..., 0]


def apart(w1: Tensor, w2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    """‖(w1, w2) - (v1, v2)‖ over ‖(v1, v2)‖, of stacks [..., H, D] and [..., 1, H]: [...]."""
    difference = (w1 - v1).square().sum((-1, -2)) + (w2 - v2).square().sum((-1, -2))
    return (difference / (v1.square().sum((-1, -2)) + v2.square().sum((-1, -2)))).sqrt()


def _flat(w1: Tensor, w2: Tensor) -> np.ndarray:
    return torch.cat([w1.flatten(), w2.flatten()]).numpy()


def _split(state: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """[..., all weights] -> [..., *w1.shape], [..., *w2.shape]."""
    one, two = state.split([w1.numel(), w2.numel()], -1)
    return one.unflatten(-1, w1.shape), two.unflatten(-1, w2.shape)
