"""E[s1(u) s2(v)] by Gauss quadrature in polar coordinates: for activations with a kink or a steep part at 0.

With z = r (cos t, sin t) a standard normal pair, u = sqrt(q11) r cos t and v = sqrt(q22) r cos(t - angle). The lines
u = 0 and v = 0 cut the plane into two pairs of opposite wedges, of widths 180 degrees less the angle (u and v of one
sign) and the angle (of opposite signs). Inside a wedge such functions are smooth, so that Gauss rules converge fast
at every angle, 0 and 180 degrees included, where one wedge is empty. Panels shrink by factors of 2 towards the edges
and of 4 towards the origin, where a steep function has its layer. Everything is float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zbkernels.infinite.dual_series import Scalar, legendre

_RADII = (0.0, 2.0**-6, 2.0**-4, 0.25, 1.0, 2.5, 5.0, 9.0)  # beyond the last, the mass is exp(-40)
_HALF = (0.0, *(2.0**-k for k in range(9, 0, -1)))  # of a wedge; the other half is its mirror image
ORDERS = (5, 8, 12, 16, 22)  # nodes in each panel; each checks the one before
_PIECE = 2**21  # values at a time


def _panels(edges: tuple[float, ...], order: int) -> tuple[Tensor, Tensor]:
    x, w = legendre(order)
    low, high = (torch.tensor(e, dtype=torch.float64)[:, None] for e in (edges[:-1], edges[1:]))
    return ((high - low) / 2 * x + (high + low) / 2).flatten(), ((high - low) / 2 * w).flatten()


def _wedges(s1: Scalar, s2: Scalar, root1: Tensor, root2: Tensor, angle: Tensor, order: int) -> Tensor:
    r, radial = _panels(_RADII, order)
    radial = radial * r * torch.exp(-r * r / 2)  # the integral is of r exp(-r²/2) dr
    part, w = _panels(_HALF, order)
    total = torch.zeros_like(angle)
    # Of each wedge the width, and the sign of u in it where v > 0. Distances to both edges, not t, are what is
    # computed with: close to an edge cos t is the sine of the distance.
    for width, sign in ((math.pi - angle, 1), (angle, -1)):
        near = width[:, None] * part  # [P, T], the distance to the one edge; to the other it is width - near
        far = width[:, None] - near
        for from_u, from_v in ((near, far), (far, near)):
            u = (sign * root1[:, None] * torch.sin(from_u))[..., None] * r  # [P, T, R]
            v = (root2[:, None] * torch.sin(from_v))[..., None] * r
            total += ((s1(u) * s2(v) + s1(-u) * s2(-v)) @ radial @ w) * width
    return total / (2 * math.pi)


def quadrature(
    s1: Scalar, s2: Scalar, q11: Tensor, q22: Tensor, angle: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """The expectations, and for each how far the two finest rules used differ: an estimate of the coarser one's error.

    Args:
        q11, q22, angle, tolerance: float64 [P], on the CPU. Rules get finer until the two last agree within tolerance.
    """
    root1, root2 = q11.clamp(min=0).sqrt(), q22.clamp(min=0).sqrt()
    value, error = torch.full_like(angle, torch.nan), torch.full_like(angle, torch.inf)
    left = torch.arange(len(angle))
    for order in ORDERS:
        step = max(_PIECE // (len(_HALF) * len(_RADII) * order**2), 1)
        for some in left.split(step):
            now = _wedges(s1, s2, root1[some], root2[some], angle[some], order)
            if order != ORDERS[0]:
                error[some] = (now - value[some]).abs()
            value[some] = now
        left = left[error[left] > tolerance[left]]
        if len(left) == 0:
            break
    return value, error
