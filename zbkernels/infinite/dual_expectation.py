"""E[s1(u) s2(v)] for any two functions, with error control and gradients: what activations without a closed form use.

Gradients are expectations themselves (Price's and Stein's identities), so they have the same error control, and
none divides by the sine of an angle:

    d/dq12 E[s1 s2] = E[s1' s2'],     d/dq11 E[s1 s2] = (E[u s1' s2] - q12 E[s1' s2']) / (2 q11), 0 where q11 is 0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from zbkernels.infinite import dual_series
from zbkernels.infinite.dual_forms import safe_sqrt, sine_squared
from zbkernels.infinite.dual_quadrature import quadrature
from zbkernels.infinite.dual_series import Scalar

METHODS = ("auto", "series", "quadrature")


@dataclasses.dataclass(frozen=True)
class Control:
    """How an expectation is computed and how exact it must be.

    ``tolerance`` is relative to sqrt(E[s1²] E[s2²]); None is 1e-12 for float64 and 1e-7 for float32. ``"auto"`` sums
    the Hermite series and takes the quadrature for those pairs where its bound at degree 512 is above the tolerance.
    """

    name: str  # for messages
    tolerance: float | None = None
    method: str = "auto"

    def relative(self, dtype: torch.dtype) -> float:
        return self.tolerance if self.tolerance is not None else 1e-7 if dtype == torch.float32 else 1e-12


class ToleranceError(ValueError):
    """An expectation could not be computed as exactly as asked."""


def slope_of(s: Scalar) -> Scalar:
    """The derivative of a function that acts on each element alone.

    In reverse: torch has forward derivatives of many functions but not of their derivatives (silu, softplus).
    """

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: s(x).sum())(x)

    return slope


@dataclasses.dataclass(frozen=True)
class Smooth:
    """A function and its derivative; the derivative of that one is found by differentiation when it is needed."""

    value: Scalar
    slope: Scalar

    def derivative(self) -> Smooth:
        return Smooth(self.slope, slope_of(self.slope))

    def times_x(self) -> Smooth:
        return Smooth(lambda x: x * self.value(x), lambda x: self.value(x) + x * self.slope(x))


def expectation(s1: Smooth, s2: Smooth, q11: Tensor, q12: Tensor, q22: Tensor, control: Control) -> Tensor:
    """E[s1(u) s2(v)], of q12's dtype and the shape to which the three broadcast.

    Raises:
        ToleranceError: neither method reaches the tolerance, e.g. for a kink or a jump away from 0.
    """
    return _Expectation.apply(q11, q12, q22, s1, s2, control)


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(q11: Tensor, q12: Tensor, q22: Tensor, s1: Smooth, s2: Smooth, control: Control) -> Tensor:
        a, c, b = (t.detach().to("cpu", torch.float64) for t in (q11, q12, q22))
        return evaluate(s1.value, s2.value, a, c, b, control, q12.dtype)[0].to(q12.device, q12.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.rest = inputs[3:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        qs = ctx.saved_tensors
        slopes = _slopes(qs, ctx.rest, (ctx.needs_input_grad[0], ctx.needs_input_grad[2]))
        parts = (
            None if slope is None else (grad * slope).sum_to_size(q.shape)
            for slope, q in zip(slopes, qs, strict=True)
        )
        return *parts, None, None, None

    @staticmethod
    def jvp(ctx: Any, t11: Tensor | None, t12: Tensor | None, t22: Tensor | None, *rest: Any) -> Tensor:
        qs, tangents = ctx.saved_tensors, (t11, t12, t22)
        slopes = _slopes(qs, ctx.rest, (t11 is not None, t22 is not None))
        total = torch.zeros(
            torch.broadcast_shapes(*(q.shape for q in qs)), dtype=qs[1].dtype, device=qs[1].device
        )
        for slope, t in zip(slopes, tangents, strict=True):
            if slope is not None and t is not None:
                total = total + slope * t
        return total

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], q11: Tensor, q12: Tensor, q22: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """Each element alone: the batch is one more dimension in front."""
        pairs = tuple(zip((q11, q12, q22), in_dims, strict=False))
        rank = max(q.dim() - (d is not None) for q, d in pairs)

        def front(q: Tensor, d: int | None) -> Tensor:
            if d is None:
                return q
            q = q.movedim(d, 0)
            return q.reshape(len(q), *[1] * (rank + 1 - q.dim()), *q.shape[1:])

        return _Expectation.apply(*(front(q, d) for q, d in pairs), *rest), 0


def _slopes(
    qs: tuple[Tensor, Tensor, Tensor], rest: tuple[Smooth, Smooth, Control], wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """The derivatives of the expectation by q11, q12 and q22, each of their common shape; where ``wanted``."""
    (q11, q12, q22), (s1, s2, control) = qs, rest
    d1, d2 = s1.derivative(), s2.derivative()
    both = expectation(d1, d2, q11, q12, q22, control)

    def by_variance(q: Tensor, moment: Tensor) -> Tensor:
        none = q <= 0
        return torch.where(none, 0, (moment - q12 * both) / torch.where(none, 1, 2 * q))

    return (
        by_variance(q11, expectation(d1.times_x(), s2, q11, q12, q22, control)) if wanted[0] else None,
        both,
        by_variance(q22, expectation(s1, d2.times_x(), q11, q12, q22, control)) if wanted[1] else None,
    )


def evaluate(
    s1: Scalar, s2: Scalar, q11: Tensor, q12: Tensor, q22: Tensor, control: Control, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The expectation and the bound on its error, both of the broadcast shape; float64 on the CPU, no gradients.

    The bound is that of the series where it was taken (a true bound), and else the difference of two quadratures.
    """
    one, rows = torch.unique(q11, return_inverse=True)  # the distinct variances; which of them each entry is
    two, columns = torch.unique(q22, return_inverse=True)
    q11, q12, q22 = torch.broadcast_tensors(q11, q12, q22)
    if q12.numel() == 0:
        return q12.clone(), q12.clone()
    values1, values2 = dual_series.values_at_nodes(s1, one), dual_series.values_at_nodes(s2, two)
    sizes1, sizes2 = (dual_series.second_moment(v).sqrt() for v in (values1, values2))
    relative = control.relative(dtype)
    tolerance = relative * sizes1[rows] * sizes2[columns]
    for s, q, size in ((s1, one, sizes1), (s2, two, sizes2)):
        _check_rule(s, q, size, relative, control)

    none = (q11 <= 0) | (q22 <= 0)
    roots = safe_sqrt(q11) * safe_sqrt(q22)
    rho = torch.where(none, 0, q12 / torch.where(none, 1, roots)).clamp(-1, 1)
    if control.method == "quadrature":
        value, bound = torch.empty_like(rho), torch.full_like(rho, torch.inf)
        poor = torch.ones_like(none)
    else:
        for degree in dual_series.DEGREES:
            a, b = dual_series.coefficients(values1, degree), dual_series.coefficients(values2, degree)
            left = dual_series.rest(values1, a)[rows] * dual_series.rest(values2, b)[columns]
            bound = rho.abs() ** (degree + 1) * left
            poor = bound > tolerance  # False for NaN
            if not poor.any():
                break
        value = dual_series.summed(a, b, rho, rows, columns)
    if control.method != "series" and poor.any():
        angle = torch.where(poor, torch.atan2(sine_squared(q11, q12, q22).sqrt(), rho), 0)[poor]
        value[poor], bound[poor] = quadrature(s1, s2, q11[poor], q22[poor], angle, tolerance[poor])
    excess = (bound / tolerance.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num(0).max().item()
    if excess > 1:
        raise ToleranceError(
            f"{control.name}: expected a relative error of at most {relative:g}, got a bound of {excess * relative:.2g}"
            f" by method {control.method!r}; ask for a larger tolerance"
        )
    return value, bound


def _check_rule(s: Scalar, q: Tensor, size: Tensor, relative: float, control: Control) -> None:
    error = (
        dual_series.rule_error(s, q) / size.square().clamp(min=torch.finfo(torch.float64).tiny)
    ).nan_to_num(0)
    if error.max() > relative:
        raise ToleranceError(
            f"{control.name}: expected a relative error of at most {relative:g}, got {error.max().item():.2g} in "
            f"E[s(u)²] at variance {q[error.argmax()].item():g} (a kink or jump away from 0?); ask for a larger one"
        )
