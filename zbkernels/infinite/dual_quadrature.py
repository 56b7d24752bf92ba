"""E[s1(u) s2(v)] by Gauss quadrature in polar coordinates: for activations with a kink or a steep part at 0.

With z = r (cos t, sin t) a standard normal pair, u = sqrt(q11) r cos t and v = sqrt(q22) r cos(t - angle). The lines
u = 0 and v = 0 cut the plane into two pairs of opposite wedges, of widths 180 degrees less the angle (u and v of one
sign) and the angle (of opposite signs). Inside a wedge such functions are smooth, so that Gauss rules converge fast
at every angle, 0 and 180 degrees included, where one wedge is empty. Everything is float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zbkernels.infinite.dual_series import Scalar, legendre

_RADII = (0.0, 0.5, 1.5, 3.0, 5.0, 9.0)  # beyond the last, the mass is exp(-40)
ORDERS = (12, 20, 32)  # nodes in each panel of radii, and twice as many in each wedge; each checks the one before
_PIECE = 2**21  # values at a time


def _radial(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the integral of r exp(-r²/2) dr."""
    x, w = legendre(order)
    low, high = (torch.tensor(e, dtype=torch.float64)[:, None] for e in (_RADII[:-1], _RADII[1:]))
    r = ((high - low) / 2 * x + (high + low) / 2).flatten()
    return r, ((high - low) / 2 * w).flatten() * r * torch.exp(-r * r / 2)


def _wedges(s1: Scalar, s2: Scalar, root1: Tensor, root2: Tensor, angle: Tensor, order: int) -> Tensor:
    r, radial = _radial(order)
    x, w = legendre(2 * order)
    total = torch.zeros_like(angle)
    # (first edge, width): between the edges u > 0 in the first and u < 0 in the second, v > 0 in both.
    for start, width in ((angle - math.pi / 2, math.pi - angle), (angle * 0 + math.pi / 2, angle)):
        t = start[:, None] + width[:, None] * (x + 1) / 2  # [P, T]
        u = (root1[:, None] * torch.cos(t))[..., None] * r  # [P, T, R]
        v = (root2[:, None] * torch.cos(t - angle[:, None]))[..., None] * r
        inside = (s1(u) * s2(v) + s1(-u) * s2(-v)) @ radial  # [P, T]
        total += (inside @ w) * width / 2
    return total / (2 * math.pi)


def quadrature(
    s1: Scalar, s2: Scalar, q11: Tensor, q22: Tensor, angle: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """The expectations, and for each how far the two finest rules used differ: an estimate of the coarser one's error.

    Args:
        q11, q22, angle, tolerance: float64 [P], on the CPU. Rules get finer until the two last agree within tolerance.
    """
    root1, root2 = q11.clamp(min=0).sqrt(), q22.clamp(min=0).sqrt()
    value, error = torch.empty_like(angle), torch.empty_like(angle)
    for first in range(0, len(angle), max(_PIECE // (2 * ORDERS[-1] * 5 * ORDERS[-1]), 1)):
        piece = slice(first, first + max(_PIECE // (2 * ORDERS[-1] * 5 * ORDERS[-1]), 1))
        args = root1[piece], root2[piece], angle[piece]
        before = _wedges(s1, s2, *args, ORDERS[0])
        for order in ORDERS[1:]:
            value[piece] = _wedges(s1, s2, *args, order)
            error[piece] = (value[piece] - before).abs()
            if not (error[piece] > tolerance[piece]).any():
                break
            before = value[piece].clone()
    return value, error
