"""The matrix Chernoff bound of section 6.1 as printed (equations 38 to 40), and the widths that it asks for."""

from __future__ import annotations

import math

SIDES = ("lower", "upper")  # equation 38, for the smallest eigenvalue, and 39, for the largest


def rate(delta: float, side: str) -> float:
    """-log of the bracket: delta + (1 - delta) log(1 - delta), or (1 + delta) log(1 + delta) - delta.

    The theorem is for delta in (0, 1) below and delta > 0 above, which the thesis leaves out.
    """
    signed = -delta if side == "lower" else delta
    return (1 + signed) * math.log1p(signed) - signed


def probability(n: int, width: float, kappa: float, delta: float, side: str) -> float:
    """The bound on the probability that an eigenvalue is off by delta or more; above 1 it says nothing.

    Args:
        n: training inputs, the dimension of the matrix.
        kappa: B² ||X||² / lambda_min(H∞), or another bound on width · ||H∞^(-1/2) H_k H∞^(-1/2)||.
    """
    return n * math.exp(-width / kappa * rate(delta, side))


def width_needed(n: int, kappa: float, delta: float, chance: float, side: str) -> float:
    """The width from which on the bound is at most ``chance``."""
    return kappa * math.log(n / chance) / rate(delta, side)
