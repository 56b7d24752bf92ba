"""E[s1(u) s2(v)] of correlated Gaussians in two ways that share nothing with zbkernels.infinite: what it is held to.

:func:`double_integral` integrates over v given u and then over u, in float64, with Gauss rules that are cut where the
functions may have a kink or a jump (at 0); :func:`monte_carlo` draws pairs and tells its own standard error.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

from zbkernels.infinite.dual_series import Scalar

REACH = 9.0  # the normal mass beyond is 2e-19
_NODES = 20  # of each panel
_NEAR = tuple(4.0**-k for k in range(12, 0, -1))  # ends of the panels that shrink towards 0
_PIECES = 9  # panels on each side of the kink, inside
_DRAWS = 1 << 18  # at a time


@functools.lru_cache(maxsize=1)
def _outer() -> tuple[Tensor, Tensor]:
    """Nodes u and weights of E[·] under N(0, 1): given u the mean of s2(v) is steep at 0 where |c| is near 1."""
    edges = (0.0, *_NEAR, *(float(k) for k in range(1, int(REACH) + 1)))
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(_NODES))
    panels = [((b - a) / 2 * x + (b + a) / 2, (b - a) / 2 * w) for a, b in itertools.pairwise(edges)]
    u = torch.cat([nodes for nodes, _ in panels])
    weights = torch.cat([w for _, w in panels]) * torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    return torch.cat([-u, u]), torch.cat([weights, weights])


def _mean_given(s: Scalar, u: Tensor, c: float) -> Tensor:
    """E[s(c u + sqrt(1 - c²) z)] over z ~ N(0, 1) for each u, the range of z cut where the argument is 0."""
    root = math.sqrt((1 - c) * (1 + c))
    cut = (-c * u / root).clamp(-REACH, REACH)[:, None, None]
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(_NODES))
    step = torch.arange(_PIECES, dtype=torch.float64)[:, None]
    total = torch.zeros_like(u)
    for end in (-REACH, REACH):
        length = (end - cut) / _PIECES
        z = cut + length * (step + (x + 1) / 2)  # [U, pieces, nodes]
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        total += (s(c * u[:, None, None] + root * z) * density * w / 2 * length.abs()).sum((1, 2))
    return total


def double_integral(s1: Scalar, s2: Scalar, c: float) -> float:
    """E[s1(u) s2(v)] for standard normal u and v of correlation c in [-1, 1].

    The functions act on each element alone; a kink or jump may be at 0 only.
    """
    u, weights = _outer()
    inner = s2(c * u) if abs(c) == 1 else _mean_given(s2, u, c)
    return float((s1(u) * inner) @ weights)


def mean(s: Scalar) -> float:
    """E[s(u)] for a standard normal u."""
    u, weights = _outer()
    return float(s(u) @ weights)


def monte_carlo(
    functions: tuple[Scalar, ...], cosines: tuple[float, ...], draws: int, seed: int
) -> list[list[tuple[float, float]]]:
    """For each function s and each correlation c, the mean of s(u) s(v) over drawn pairs and its standard error.

    All share the same ``draws`` pairs of normal numbers; float64.
    """
    generator = torch.Generator().manual_seed(seed)
    sums = torch.zeros(2, len(functions), len(cosines), dtype=torch.float64)
    for start in range(0, draws, _DRAWS):
        count = min(_DRAWS, draws - start)
        u, z = torch.randn(2, count, generator=generator, dtype=torch.float64)
        values = [s(u) for s in functions]
        for j, c in enumerate(cosines):
            v = c * u + math.sqrt((1 - c) * (1 + c)) * z
            for i, s in enumerate(functions):
                product = values[i] * s(v)
                sums[0, i, j] += product.sum()
                sums[1, i, j] += product.square().sum()
    first, second = sums / draws
    errors = ((second - first.square()).clamp(min=0) / (draws - 1)).sqrt()
    return [list(zip(m, e, strict=True)) for m, e in zip(first.tolist(), errors.tolist(), strict=True)]
