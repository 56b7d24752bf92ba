"""E[s1(u) s2(v)] by the Hermite series (equations 53 and 54), with a bound on what is left out.

With h_k the Hermite polynomials of unit norm under the normal distribution, z ~ N(0, 1) and rho the correlation,

    E[s1(u) s2(v)] = sum over k of rho^k a_k b_k,   a_k = E[s1(sqrt(q11) z) h_k(z)],   b_k = E[s2(sqrt(q22) z) h_k(z)].

Cut off after degree K, the rest is at most |rho|^(K+1) sqrt(R1 R2) (Cauchy-Schwarz), R1 = E[s1²] - (a_0² + … + a_K²).
Both are computed here. Everything is float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Scalar = Callable[[Tensor], Tensor]  # acts on each element alone

DEGREES = (16, 32, 64, 128, 256, 512)
_NODES_A_PANEL = 24
_REACH = 13.0  # the normal density there is 4e-38, its square root 2e-19


@functools.lru_cache(maxsize=8)
def legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss rule on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


@functools.lru_cache(maxsize=2)
def _normal_rule(order: int = _NODES_A_PANEL) -> tuple[Tensor, Tensor]:
    """Nodes z and weights of E[·] under N(0, 1): panels of length 1, and ever shorter ones towards 0.

    Activations have their kinks and their steep parts at 0; a length of 1 resolves the polynomials up to degree 512.
    """
    edges = [0.0] + [2.0**-k for k in range(12, 0, -1)] + [float(k) for k in range(1, int(_REACH) + 1)]
    x, w = legendre(order)
    low, high = torch.tensor(edges[:-1]).double()[:, None], torch.tensor(edges[1:]).double()[:, None]
    z = ((high - low) / 2 * x + (high + low) / 2).flatten()
    weights = ((high - low) / 2 * w).flatten() * torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
    return torch.cat([-z.flip(0), z]), torch.cat([weights.flip(0), weights])


@functools.lru_cache(maxsize=2)
def _weighted_polynomials(degree: int) -> Tensor:
    """h_k(z) times the weights, [nodes, degree + 1], by the three-term recurrence of the normed polynomials."""
    z, weights = _normal_rule()
    table = torch.empty(degree + 1, len(z), dtype=torch.float64)
    table[0] = 1
    if degree:
        table[1] = z
    for k in range(1, degree):
        table[k + 1] = (z * table[k] - k**0.5 * table[k - 1]) / (k + 1) ** 0.5
    return (table * weights).t().contiguous()


def values_at_nodes(s: Scalar, q: Tensor) -> Tensor:
    """s(sqrt(q) z) at the nodes of the rule, [Q, nodes], for q [Q] float64 on the CPU."""
    return s(q.clamp(min=0).sqrt()[:, None] * _normal_rule()[0])


def coefficients(values: Tensor, degree: int) -> Tensor:
    """[Q, nodes] of :func:`values_at_nodes` -> the Hermite coefficients a_0 … a_degree, [Q, degree + 1]."""
    return values @ _weighted_polynomials(degree)


def second_moment(values: Tensor) -> Tensor:
    """E[s²], [Q]."""
    return (values * values) @ _normal_rule()[1]


def rule_error(s: Scalar, q: Tensor) -> Tensor:
    """How far two Gauss rules differ in E[s²], [Q]: about 0 unless s has a kink or a steep part away from 0."""
    root = q.clamp(min=0).sqrt()[:, None]
    moments = []
    for order in (_NODES_A_PANEL, _NODES_A_PANEL - 8):
        z, weights = _normal_rule(order)
        moments.append(s(root * z).square() @ weights)
    return (moments[0] - moments[1]).abs()


def rest(values: Tensor, a: Tensor) -> Tensor:
    """sqrt(R): the norm of what the coefficients ``a`` leave of s, [Q]."""
    return (second_moment(values) - a.square().sum(1)).clamp(min=0).sqrt()


def summed(a: Tensor, b: Tensor, rho: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """sum over k of rho^k a[rows, k] b[columns, k]; rows and columns broadcast against rho."""
    total = torch.zeros_like(rho)
    for k in range(a.shape[1] - 1, -1, -1):
        total = total * rho + a[:, k][rows] * b[:, k][columns]
    return total
