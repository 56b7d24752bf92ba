"""E[s1(u) s2(v)] of Gaussians by the thesis' double integral (equation 52), in float64: what tests compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Scalar = Callable[[Tensor], Tensor]
_CUTS = (-9.0, -3.0, 0.0, 3.0, 9.0)  # at 0 the activations have their kinks
_NODES = 48


def _rule() -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(_NODES)
    halves = [((b - a) / 2, (b + a) / 2) for a, b in itertools.pairwise(_CUTS)]
    nodes = np.concatenate([h * x + m for h, m in halves])
    return torch.from_numpy(nodes), torch.from_numpy(np.concatenate([h * w for h, _ in halves]))


def double_integral(s1: Scalar, s2: Scalar, c: float, q11: float = 1.0, q22: float = 1.0) -> float:
    """c is the correlation, |c| <= 0.9: closer to 1 the density is too narrow for these nodes."""
    x, w = _rule()
    y = x[:, None]
    density = torch.exp((2 * x * y * c - x * x - y * y) / (2 * (1 - c * c))) / (
        2 * np.pi * (1 - c * c) ** 0.5
    )
    return ((s1(q11**0.5 * x) * w) @ density.t() @ (s2(q22**0.5 * x) * w)).item()


def single_integral(s: Scalar, q: float = 1.0) -> float:
    """E[s(u)]."""
    x, w = _rule()
    return ((s(q**0.5 * x) * w) @ torch.exp(-x * x / 2)).item() / (2 * np.pi) ** 0.5
