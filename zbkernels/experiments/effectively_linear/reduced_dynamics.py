"""Closed forms and small differential equations for two-layer networks that start with rank one, W1 = W2ᵀ rᵀ.

Notation, as on the page docs/papers/bias-free-linear.md: c, s = (1 ± slope)/2; V = √c W are the weights of the linear
network; time is that of the linear network, t = c times the network's own; a = ‖V2‖²; beta = E[y x], sigma = E[x xᵀ].
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_TOLERANCES = {"rtol": 1e-12, "atol": 1e-14}


def logistic(times: Tensor, start: Tensor | float, size: Tensor | float, rate: float = 2.0) -> Tensor:
    """The solution of a' = rate·a (size - a): for whitened inputs and r = beta/‖beta‖, with size ‖beta‖, it is a."""
    return size / (1 + (size / start - 1) * torch.exp(-rate * size * times))


def rank_one(times: Tensor, a: float, r: Tensor, beta: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """a and r for any r and covariance: a' = 2 (g·r) a, r' = g - (g·r) r, with g = beta - a·sigma r.

    Args:
        times: increasing, from 0, [T], float64.
        a: at time 0.
        r: at time 0, [D], of any length; where it is 1 it stays so.

    Returns:
        (a [T], r [T, D]).
    """
    beta_, sigma_ = beta.numpy(), sigma.numpy()

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        g = beta_ - state[0] * (sigma_ @ state[1:])
        along = g @ state[1:]
        return np.concatenate([[2 * along * state[0]], g - along * state[1:]])

    found = _solve(slope, np.concatenate([[a], r.numpy()]), times)
    return found[0], found[1:].mT


def two_groups(
    times: Tensor, positive: float, negative: float, size: float, slope: float
) -> tuple[Tensor, Tensor]:
    """c‖W2+‖² and c‖W2-‖² of the parts of W2 above and below 0, for whitened inputs and r = beta/‖beta‖.

    With the two of unequal norm the network has the even part s (‖W2+‖² - ‖W2-‖²) |r·x|, and

        p' = 2 p (size - (p + q) - (s/c)² (p - q)),   q' = 2 q (size - (p + q) + (s/c)² (p - q)).

    At slope 0 the two decouple: p' = 2 p (size - 2 p), a logistic each.

    Returns:
        (p [T], q [T]).
    """
    k = ((1 - slope) / (1 + slope)) ** 2

    def rate(_: float, state: np.ndarray) -> np.ndarray:
        both, apart = size - state.sum(), k * (state[0] - state[1])
        return 2 * state * np.array([both - apart, both + apart])

    found = _solve(rate, np.array([positive, negative]), times)
    return found[0], found[1]


def imbalance_floor(ratio: float, slope: float) -> float:
    """How far, at most over time, the outputs come from the linear network's as both parts of W2 start from nothing.

    In units of the linear network's final output (root mean square, whitened inputs): the distance that is left when a
    random start is made ever smaller, and the squared norms of the two parts grow out of it with this ratio. At slope 0
    the even part alone makes tanh(|ln ratio|/4)/2 of it.
    """
    start = 1e-7
    times = torch.linspace(0, 0.5 * np.log(1 / start) + 6, 4000, dtype=torch.float64)
    p, q = two_groups(times, start * ratio / (1 + ratio), start / (1 + ratio), 1.0, slope)
    even = (1 - slope) / (1 + slope) * (p - q)
    odd = p + q - logistic(times, start, 1.0)
    return float((even.square() + odd.square()).sqrt().max())


def _solve(rate: object, start: np.ndarray, times: Tensor) -> Tensor:
    """[number of equations, T]."""
    from scipy.integrate import solve_ivp

    span = (float(times[0]), float(times[-1]))
    found = solve_ivp(rate, span, start, method="DOP853", t_eval=times.numpy(), **_TOLERANCES)
    if not found.success:
        raise RuntimeError(f"reduced_dynamics: the solver stopped: {found.message}")
    return torch.from_numpy(np.ascontiguousarray(found.y))
