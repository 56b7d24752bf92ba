"""Closed forms of dual activations, for any variances of the two Gaussians.

A form has three functions. With (u, v) jointly Gaussian of mean 0, variances q11 and q22 and covariance q12:

    dual         E[s(u) s(v)]
    derivative   E[s'(u) s'(v)], which is also the derivative of the first by q12
    mean         E[s(u)]

All of them are made of plain torch operations, so every transform of torch.func works, and they are written so
that no gradient is NaN or infinite: where the angle between the inputs is 0 or 180 degrees its square root has no
derivative, and the symmetric value 0 is taken; where a variance is 0 the piecewise linear forms have gradient 0.
NaN comes out as NaN, beside a vector of zeros too. A variance below 0 counts as 0.

``sin2`` is the squared sine of the angle between the two inputs. From the three numbers alone it has an absolute
error of some eps, so the angle has one of sqrt(eps) near 0 and 180 degrees, and of eps elsewhere; a caller that
knows it better (:func:`zbkernels.infinite.dual.covariance`) hands it over.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

Dual = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (q11, q12, q22, sin2) -> value, all broadcast


@dataclasses.dataclass(frozen=True)
class Form:
    dual: Dual
    derivative: Dual
    mean: Callable[[Tensor], Tensor]


def sine_squared(q11: Tensor, q12: Tensor, q22: Tensor) -> Tensor:
    """1 - q12² / (q11 q22), within [0, 1]; 1 where a variance is 0.

    Two quotients rather than the products: they neither overflow nor underflow, and their product is exactly 1 for
    equal inputs (q11 = q12 = q22), so that these have the angle 0 and not sqrt(eps).
    """
    none = (q11 <= 0) | (q22 <= 0)
    product = (q12 / torch.where(none, 1, q11)) * (q12 / torch.where(none, 1, q22))
    return torch.where(none, 1, lifted(1 - product))


def lifted(x: Tensor) -> Tensor:
    """x, and 0 where rounding made it negative; the gradient goes through either way, as it does beside the edge."""
    return x + (x.clamp(min=0) - x).detach()


def safe_sqrt(x: Tensor) -> Tensor:
    """The square root with derivative 0, not infinity, at 0 (and for what rounding made negative)."""
    none = x <= 0
    return torch.where(none, 0, torch.where(none, 1, x).sqrt())


# --- piecewise linear: ReLU and its kin --------------------------------------------------------------------------


def _angle(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(sqrt(q11 q22), sine of the angle, 90 degrees less the angle); the last is 0 where a variance is 0."""
    none = (q11 <= 0) | (q22 <= 0)
    norms = torch.where(none, 1, q11).sqrt() * torch.where(none, 1, q22).sqrt()
    sine = safe_sqrt(sin2)
    return norms, sine, torch.atan2(torch.where(none, 0, q12) / norms, torch.where(none, 1, sine))


def _abs_dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
    """E|u||v| = 2/pi (sqrt(q11 q22) sin + q12 (pi/2 - angle))."""
    none = (q11 <= 0) | (q22 <= 0)
    norms, sine, rest = _angle(q11, q12, q22, sin2)
    return torch.where(none, 0 * q12, (2 / math.pi) * (norms * sine + q12 * rest))


def _sign_dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
    """E[sign(u) sign(v)] = 1 - 2 angle / pi."""
    return (2 / math.pi) * _angle(q11, q12, q22, sin2)[2]


def leaky_relu(slope: float) -> Form:
    """max(x, slope·x), of which ReLU (slope 0), the identity (1) and the absolute value (-1) are cases.

    It is (1 + slope)/2 · x + (1 - slope)/2 · |x|, and what is odd in one input and even in the other has mean 0.
    At a variance of 0 the slope is that of the left side, as torch has it.
    """
    odd, even = (1 + slope) / 2, (1 - slope) / 2

    def dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        value = odd**2 * torch.where((q11 <= 0) | (q22 <= 0), 0 * q12, q12)
        return value + even**2 * _abs_dual(q11, q12, q22, sin2)

    def derivative(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        value = odd**2 + even**2 * _sign_dual(q11, q12, q22, sin2)
        one, two = (q11 <= 0) | (q22 <= 0), (q11 <= 0) & (q22 <= 0)
        return torch.where(two, slope**2, torch.where(one, slope * odd, value))

    return Form(dual, derivative, lambda q: even * safe_sqrt(q * (2 / math.pi)))


def absolute() -> Form:
    return Form(_abs_dual, _sign_dual, lambda q: safe_sqrt(q * (2 / math.pi)))


def identity() -> Form:
    def dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        return q12 + 0 * (q11 + q22)  # of the shape that all of them broadcast to

    def derivative(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        return 1 + 0 * (q12 + q11 + q22)

    return Form(dual, derivative, torch.zeros_like)


# --- erf and GELU ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Saturated:
    """With 1 + t q in place of the variances and t q12 of the covariance: what arises wherever erf does."""

    keep1: Tensor  # 1 / (1 + t q11)
    keep2: Tensor
    norms: Tensor  # sqrt((1 + t q11)(1 + t q22))
    cosine: Tensor
    sine: Tensor  # never 0: a sum of terms that are not negative, the first of them positive


def _saturated(t: float, q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> _Saturated:
    q11, q22 = q11.clamp(min=0), q22.clamp(min=0)
    sum1, sum2 = 1 + t * q11, 1 + t * q22
    keep1, keep2, lose1, lose2 = 1 / sum1, 1 / sum2, t * q11 / sum1, t * q22 / sum2
    norms = sum1.sqrt() * sum2.sqrt()
    sine2 = keep1 * keep2 + (lose1 * keep2 + lose2 * keep1) + (lose1 * lose2) * sin2
    return _Saturated(keep1, keep2, norms, t * q12 / norms, sine2.sqrt())


def erf() -> Form:
    """erf(x): E[erf(u) erf(v)] = 2/pi asin(2 q12 / sqrt((1 + 2 q11)(1 + 2 q22))) (Williams 1997).

    At variances 1 this is equation 63 of the thesis with gamma = 1; the arc tangent there is this arc sine.
    """

    def dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        s = _saturated(2, q11, q12, q22, sin2)
        return (2 / math.pi) * torch.atan2(s.cosine, s.sine)

    def derivative(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        s = _saturated(2, q11, q12, q22, sin2)
        return (4 / math.pi) / (s.norms * s.sine)

    return Form(dual, derivative, torch.zeros_like)


def gelu() -> Form:
    """x Phi(x), Phi the normal distribution's: by parts (Stein's identity, twice) from the dual of erf(x/sqrt(2)).

    With S = (1 + q11)(1 + q22) - q12² and A = 2/pi asin(q12 / sqrt((1 + q11)(1 + q22))):

        4 E = q12 (1 + A) + 2/pi N / sqrt(S),   N = q11 q22 - q12² + q12² (1/(1 + q11) + 1/(1 + q22))
    """

    def parts(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s = _saturated(1, q11, q12, q22, sin2)
        keep = s.keep1 + s.keep2
        N = q11.clamp(min=0) * q22.clamp(min=0) * sin2 + q12 * q12 * keep
        return (2 / math.pi) * torch.atan2(s.cosine, s.sine), s.norms * s.sine, N, keep

    def dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        A, root, N, _ = parts(q11, q12, q22, sin2)
        return 0.25 * (q12 * (1 + A) + (2 / math.pi) * N / root)

    def derivative(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        A, root, N, keep = parts(q11, q12, q22, sin2)
        return 0.25 * (1 + A + (2 / math.pi) * (q12 / root) * (2 * keep - 1 + N / (root * root)))

    def mean(q: Tensor) -> Tensor:
        q = q.clamp(min=0)
        return q / (2 * math.pi * (1 + q)).sqrt()

    return Form(dual, derivative, mean)


# --- sine and cosine ---------------------------------------------------------------------------------------------


def _waves(q11: Tensor, q12: Tensor, q22: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(q12 - m), exp(-q12 - m) and m = (q11 + q22)/2; the exponents are -E(u - v)²/2 and -E(u + v)²/2."""
    m = (q11.clamp(min=0) + q22.clamp(min=0)) / 2
    return torch.exp(q12 - m), torch.exp(-q12 - m), m


def _sin_dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
    """E[sin u sin v] = exp(-(q11 + q22)/2) sinh q12."""
    plus, minus, m = _waves(q11, q12, q22)
    small = q12.abs() < 1  # where the difference of two exponentials would cancel
    return torch.where(small, torch.exp(-m) * torch.sinh(torch.where(small, q12, 0)), (plus - minus) / 2)


def _cos_dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
    plus, minus, _ = _waves(q11, q12, q22)
    return (plus + minus) / 2


def _wave_dual(q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
    """sin + cos, and its derivative cos - sin: exp(-E(u - v)²/2), the Gaussian kernel (equation 61)."""
    return _waves(q11, q12, q22)[0]


def sine() -> Form:
    return Form(_sin_dual, _cos_dual, torch.zeros_like)


def cosine() -> Form:
    return Form(_cos_dual, _sin_dual, lambda q: torch.exp(-q.clamp(min=0) / 2))


def sine_plus_cosine() -> Form:
    return Form(_wave_dual, _wave_dual, lambda q: torch.exp(-q.clamp(min=0) / 2))
