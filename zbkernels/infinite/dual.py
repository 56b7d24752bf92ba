"""Dual activations: what an activation makes of the covariance of its Gaussian inputs (thesis, section 9).

For jointly Gaussian (u, v) of mean 0 with variances q11, q22 and covariance q12:

    dual             E[s(u) s(v)]       the covariance after the layer; at variances 1 the thesis' g (equation 51)
    dual_derivative  E[s'(u) s'(v)]     what the training of the layers below is multiplied by

and at unit norm, of the cosine c alone, :func:`g` and :func:`f` = c·g'(c) (equation 50), the kernel of a network
whose first layer trains.

Everywhere: NaN gives NaN. Correlations outside [-1, 1], as rounding makes them, count as ±1. Gradients are finite;
at c = ±1 and for equal inputs, where the derivative kernels of the piecewise linear activations have a kink, they are
the symmetric value (the mean of the two one-sided derivatives taken along a line through the point, that is, without
the kink's part). A variance of 0 (a zero vector) gives the activation's value at 0; its gradient is 0 for the
piecewise linear activations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zbkernels.infinite import activations, dual_forms
from zbkernels.infinite.activations import Activation
from zbkernels.infinite.dual_series import Scalar

_DTYPES = (torch.float32, torch.float64)
Name = str | Scalar | Activation  # what names an activation


def _check(op: str, **tensors: object) -> None:
    dtypes = set()
    for name, t in tensors.items():
        if t is None:
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: expected {name} to be a tensor, got {type(t).__name__}")
        if t.dtype not in _DTYPES:
            raise TypeError(f"{op}: expected {name} of dtype float32 or float64, got {t.dtype}")
        dtypes.add(t.dtype)
    if len(dtypes) > 1:
        raise TypeError(f"{op}: expected tensors of one dtype, got {', '.join(sorted(map(str, dtypes)))}")


def covariance(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The variances and the covariance of w·x and w·y for w ~ N(0, I), and the squared sine of the angle of x and y.

    The sine comes from the unit vectors' difference and sum, sin = |a - b| |a + b| / 2, so that an angle has an error
    of some eps however small it is. Found from the three inner products it has one of eps / angle, up to sqrt(eps):
    measured in float64 on 20 features, E[s' s'] of ReLU is 1e-10 off at an angle of 2e-7 from those and 6e-18 from
    this; in float32 4e-5 off at an angle of 2e-5, and 8e-9.

    Args:
        x, y: [..., d], float32 or float64; leading dimensions broadcast.

    Returns:
        (x·x, x·y, y·y, sin²), each of the leading dimensions; sin² is 1 where a vector is 0.
    """
    _check("covariance", x=x, y=y)
    q11, q22 = x.square().sum(-1), y.square().sum(-1)
    a, b = (v / torch.where(q <= 0, 1, dual_forms.safe_sqrt(q))[..., None] for v, q in ((x, q11), (y, q22)))
    sin2 = (a - b).square().sum(-1) * (a + b).square().sum(-1) / 4
    none = (q11 <= 0) | (q22 <= 0)
    return q11, (x * y).sum(-1), q22, torch.where(none, 1, sin2.clamp(max=1))


def dual(activation: Name, q11: Tensor, q12: Tensor, q22: Tensor, *, sin2: Tensor | None = None) -> Tensor:
    """E[s(u) s(v)] for Gaussian (u, v) of mean 0 with these variances and this covariance.

    Args:
        activation: a name (see :mod:`zbkernels.infinite.activations`), a callable, or an :class:`Activation`.
        q11, q12, q22: float32 or float64 tensors that broadcast.
        sin2: the squared sine of the angle, where it is known better than 1 - q12²/(q11 q22) tells
            (:func:`covariance`).

    Raises:
        TypeError: not tensors of one of these dtypes, or of two.
        ValueError: an unknown activation, or (ToleranceError) one that could not be summed to its tolerance.
    """
    _check("dual", q11=q11, q12=q12, q22=q22, sin2=sin2)
    sin2 = dual_forms.sine_squared(q11, q12, q22) if sin2 is None else sin2
    return activations.named(activation, "dual").dual(q11, q12, q22, sin2)


def dual_derivative(
    activation: Name, q11: Tensor, q12: Tensor, q22: Tensor, *, sin2: Tensor | None = None
) -> Tensor:
    """E[s'(u) s'(v)], which is also the derivative of :func:`dual` by q12 (equation 55). Arguments as there."""
    _check("dual_derivative", q11=q11, q12=q12, q22=q22, sin2=sin2)
    sin2 = dual_forms.sine_squared(q11, q12, q22) if sin2 is None else sin2
    return activations.named(activation, "dual_derivative").dual_derivative(q11, q12, q22, sin2)


def _unit(c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one = torch.ones_like(c)
    return (
        one,
        c,
        one,
        dual_forms.lifted((1 - c) * (1 + c)),
    )  # no cancellation: 1 - c is exact where it is small


def g(activation: Name, c: Tensor) -> Tensor:
    """The dual activation at unit norm: E[s(u) s(v)] for variances 1 and covariance c (equation 51)."""
    _check("g", c=c)
    return activations.named(activation, "g").dual(*_unit(c))


def f(activation: Name, c: Tensor) -> Tensor:
    """c·g'(c) (equation 50): the kernel of the thesis' network, of which the first layer trains, at unit norm."""
    _check("f", c=c)
    return c * activations.named(activation, "f").dual_derivative(*_unit(c))
