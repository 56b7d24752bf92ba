"""How far computed values can be from the exact ones: what one sum can lose, and what is known of a tensor of them.

A sum of k products, in any order, with multiply and add fused or not, is computed in a dtype of unit roundoff u to
within

    gamma(k) * sum |w x|,      gamma(k) = k u / (1 - k u)

(Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1). Where all values are multiples of one power of
two and fit into the significand, nothing is rounded at all. ``errors.py`` carries this through a network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


def gamma(k: int, dtype: torch.dtype) -> float:
    """k u / (1 - k u), u half the distance from 1 to the next number of ``dtype``; infinite from k u = 1/2 on."""
    ku = k * torch.finfo(dtype).eps / 2
    return ku / (1 - ku) if ku < 0.5 else float("inf")


@dataclass(frozen=True)
class Rounding:
    """What is known of the values of one tensor.

    Attributes:
        factors: the most roundings on a path from the input.
        underflow: what underflow can add to an error, over the smallest normal number of the dtype.
        grid: a power of two that divides every exact value; 0 where there is none to speak of.
        span: the largest sum of magnitudes met so far over the grid it was on.
        largest: the largest sum of magnitudes met so far.
    """

    factors: int = 0
    underflow: float = 0.0
    grid: float = 0.0
    span: float = 0.0
    largest: float = 0.0

    @staticmethod
    def of_input(x: torch.Tensor) -> Rounding:
        """Of given values, which nothing has rounded."""
        grid, largest = grid_of(x), float(x.abs().max()) if x.numel() else 0.0
        return Rounding(grid=grid, span=0.0 if grid == float("inf") else largest / grid, largest=largest)

    def exact_in(self, dtype: torch.dtype) -> bool:
        """Whether every value so far is a number of ``dtype``, so that nothing was rounded."""
        info = torch.finfo(dtype)
        if self.grid == float("inf"):
            return True
        return self.grid >= info.tiny and self.span <= 2 / info.eps and self.largest < info.max / 2


def grid_of(t: torch.Tensor) -> float:
    """The largest power of two that divides each value of ``t`` (infinite where all are 0)."""
    t = t[t != 0].double().abs()
    if not t.numel():
        return float("inf")
    fraction, exponent = torch.frexp(t)
    digits = (fraction * 2**53).long()
    lowest = torch.frexp((digits & -digits).double()).exponent  # of the lowest bit, plus 1
    return math.ldexp(1.0, int((exponent + lowest).min()) - 54)
