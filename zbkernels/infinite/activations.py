"""Activations of infinitely wide networks: by name, or any callable; scaled, shifted and with a gain.

=================  ==========================================================================================
``relu``           max(x, 0); closed form (equations 58, 59)
``leaky_relu:a``   max(x, a·x); ``leaky_relu`` is a = 0.01, as in torch
``abs``            |x|
``identity``       x
``erf:g``          erf(g·x), ``erf`` is g = 1 (equations 62, 63)
``gelu``           x Phi(x), as torch's without ``approximate``
``sin``, ``cos``   and ``sin+cos`` (equations 60, 61)
``sigmoid``        the Hermite series (equation 53) with error control
``tanh``           the same
``sigmoid_erf``    (erf(x/2.4) + 1)/2, near the sigmoid (equation 64); closed form
``tanh_erf``       erf(x/1.2), near tanh (equation 65); closed form
=================  ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from zbkernels.infinite import dual_forms
from zbkernels.infinite.dual_expectation import METHODS, Control, Smooth, expectation, slope_of
from zbkernels.infinite.dual_forms import Form
from zbkernels.infinite.dual_series import Scalar


@dataclasses.dataclass(frozen=True)
class Activation:
    """``offset + scale · s(gain · x)``, s being one of the table's or a callable.

    Attributes:
        name: of s.
        base: s itself, on tensors of any shape.
        slope: its derivative.
        form: its closed form, or None.
        control: how expectations are computed where there is no closed form.
    """

    name: str
    base: Scalar
    slope: Scalar
    form: Form | None = None
    control: Control | None = None
    scale: float = 1.0
    offset: float = 0.0
    gain: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return self.offset + self.scale * self.base(self.gain * x)

    def derivative(self, x: Tensor) -> Tensor:
        return self.scale * self.gain * self.slope(self.gain * x)

    def with_(self, *, scale: float = 1.0, offset: float = 0.0, gain: float = 1.0) -> Activation:
        """``offset + scale · self(gain · x)``."""
        return dataclasses.replace(
            self, scale=scale * self.scale, offset=offset + scale * self.offset, gain=gain * self.gain
        )

    def dual(self, q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        """E[self(u) self(v)]; equations 56 and 57, the second with E[s] where the thesis has sqrt(g(0))."""
        q11, q12, q22 = (self.gain**2 * q for q in (q11, q12, q22))
        if self.form is not None:
            value = self.form.dual(q11, q12, q22, sin2)
        else:
            value = expectation(self._smooth(), self._smooth(), q11, q12, q22, self._control())
        value = self.scale**2 * value
        if self.offset:
            value = value + self.offset * self.scale * (self._mean(q11) + self._mean(q22)) + self.offset**2
        return value

    def dual_derivative(self, q11: Tensor, q12: Tensor, q22: Tensor, sin2: Tensor) -> Tensor:
        """E[self'(u) self'(v)]: the offset has no part in it."""
        q11, q12, q22 = (self.gain**2 * q for q in (q11, q12, q22))
        if self.form is not None:
            value = self.form.derivative(q11, q12, q22, sin2)
        else:
            s = self._smooth().derivative()
            value = expectation(s, s, q11, q12, q22, self._control())
        return (self.scale * self.gain) ** 2 * value

    def _mean(self, q: Tensor) -> Tensor:
        if self.form is not None:
            return self.form.mean(q)
        one = Smooth(torch.ones_like, torch.zeros_like)
        return expectation(self._smooth(), one, q, torch.zeros_like(q), torch.ones_like(q), self._control())

    def _smooth(self) -> Smooth:
        return Smooth(self.base, self.slope)

    def _control(self) -> Control:
        return self.control if self.control is not None else Control(self.name)


def from_callable(
    function: Scalar,
    derivative: Scalar | None = None,
    *,
    name: str | None = None,
    tolerance: float | None = None,
    method: str = "auto",
) -> Activation:
    """An activation of any function that acts on each element alone, e.g. ``torch.nn.functional.silu``.

    Its expectations are summed by the Hermite series or by Gauss quadrature until a bound on the error, relative to
    sqrt(E[s(u)²] E[s(v)²]), is at most ``tolerance``. A kink or a jump at 0 is what the quadrature is made for. One
    elsewhere converges slowly: expect to need a tolerance of 1e-4. Where the derivative jumps, gradients *of the NTK*
    with respect to the inputs lack the part that the jump has; NNGP, NTK and the NNGP's gradients do not.

    Args:
        function: of a tensor of any shape, differentiable by torch; growing no faster than a polynomial.
        derivative: the same for its derivative; found by differentiation where it is None. At a jump of the function
            itself it is what these say, without the jump: the NTK is that of such networks as they train.
        tolerance: None is 1e-12 in float64 and 1e-7 in float32.
        method: "series" (with a true bound), "quadrature" (with the difference of two rules), or "auto": the first,
            and the second for the pairs of inputs where its bound is too large.

    Raises:
        ValueError: another method, or a tolerance that is not positive.
        TypeError: not a callable; later, where it is evaluated, one that does not keep shape and dtype.
    """
    if not callable(function):
        raise TypeError(f"from_callable: expected a callable, got {function!r}")
    found = name or str(getattr(function, "__name__", type(function).__name__))
    if method not in METHODS:
        raise ValueError(f"from_callable: expected method to be one of {', '.join(METHODS)}, got {method!r}")
    if tolerance is not None and (not isinstance(tolerance, (int, float)) or not tolerance > 0):
        raise ValueError(f"from_callable: expected a tolerance above 0, got {tolerance!r}")
    base = _of_each_element(found, function)
    slope = (
        slope_of(base) if derivative is None else _of_each_element(f"the derivative of {found}", derivative)
    )
    return Activation(found, base, slope, control=Control(found, tolerance, method))


def _of_each_element(name: str, function: Scalar) -> Scalar:
    """``function`` on a copy, since it may work in place (``torch.nn.SELU(inplace=True)``); its result is checked."""

    def values(x: Tensor) -> Tensor:
        y = function(x.clone())
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            got = f"{y.dtype} {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise TypeError(
                f"{name}: expected a tensor of {x.dtype} {list(x.shape)}, the function of each element, got {got}"
            )
        return y

    return values


def _closed(name: str, function: Scalar, slope: Scalar, form: Form) -> Activation:
    return Activation(name, function, slope, form)


def _relu() -> Activation:
    return _closed("relu", torch.relu, lambda x: (x > 0).to(x.dtype), dual_forms.leaky_relu(0.0))


def _leaky_relu(slope: float = 0.01) -> Activation:
    return _closed(
        f"leaky_relu:{slope:g}",
        lambda x: torch.where(x > 0, x, slope * x),
        lambda x: slope + (1 - slope) * (x > 0).to(x.dtype),
        dual_forms.leaky_relu(slope),
    )


def _erf(gain: float = 1.0) -> Activation:
    base = _closed("erf", torch.erf, lambda x: (2 / math.sqrt(math.pi)) * torch.exp(-x * x), dual_forms.erf())
    return base.with_(gain=gain)


def _gelu() -> Activation:
    return _closed(
        "gelu",
        torch.nn.functional.gelu,
        lambda x: torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi),
        dual_forms.gelu(),
    )


def _logistic_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


_NAMED: dict[str, Callable[..., Activation]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "abs": lambda: _closed("abs", torch.abs, torch.sign, dual_forms.absolute()),
    "identity": lambda: _closed("identity", lambda x: x, torch.ones_like, dual_forms.identity()),
    "erf": _erf,
    "gelu": _gelu,
    "sin": lambda: _closed("sin", torch.sin, torch.cos, dual_forms.sine()),
    "cos": lambda: _closed("cos", torch.cos, lambda x: -torch.sin(x), dual_forms.cosine()),
    "sin+cos": lambda: _closed(
        "sin+cos",
        lambda x: torch.sin(x) + torch.cos(x),
        lambda x: torch.cos(x) - torch.sin(x),
        dual_forms.sine_plus_cosine(),
    ),
    "sigmoid": lambda: from_callable(torch.sigmoid, _logistic_slope, name="sigmoid"),
    "tanh": lambda: from_callable(torch.tanh, lambda x: 4 * _logistic_slope(2 * x), name="tanh"),
    "sigmoid_erf": lambda: dataclasses.replace(_erf(1 / 2.4), scale=0.5, offset=0.5),
    "tanh_erf": lambda: _erf(1 / 1.2),
}
_WITH_NUMBER = ("leaky_relu", "erf")


def named(activation: str | Scalar | Activation, caller: str = "activation") -> Activation:
    """The :class:`Activation` of a name, of a callable, or itself.

    Raises:
        ValueError: an unknown name, or a number that does not fit it. The message starts with ``caller``.
        TypeError: neither a string nor a callable.
    """
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str):
        if not callable(activation):
            raise TypeError(f"{caller}: expected activation to be a name or a callable, got {activation!r}")
        return from_callable(activation)
    name, colon, number = activation.partition(":")
    if name not in _NAMED:
        raise ValueError(
            f"{caller}: expected activation to be one of {', '.join(_NAMED)} or a callable, got {activation!r}"
        )
    if not colon:
        return _NAMED[name]()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if name not in _WITH_NUMBER or not math.isfinite(value):
        raise ValueError(
            f"{caller}: expected a finite number after 'leaky_relu:' or 'erf:' and after no other name, "
            f"got {activation!r}"
        )
    return _NAMED[name](value)
