"""Equations 50 to 65 of "Linearized Difference Networks as Approximate Kernel Methods", each against an integral.

Those that do not hold as printed (57, 62) are shown not to hold, beside the form that does.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gaussian import double_integral, single_integral

from zbkernels.infinite import dual
from zbkernels.infinite.activations import Activation, named

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = (
    "relu",
    "leaky_relu:0.1",
    "abs",
    "identity",
    "erf",
    "erf:2",
    "gelu",
    "sin",
    "cos",
    "sin+cos",
    "sigmoid",
    "tanh",
    "sigmoid_erf",
    "tanh_erf",
)
CORRELATIONS = (-0.85, -0.3, 0.0, 0.5, 0.9)
C = torch.tensor(CORRELATIONS, dtype=torch.float64)
TIGHT = {"rtol": 0.0, "atol": 1e-11}

every = pytest.mark.parametrize("name", NAMES)


def integrals(s1: object, s2: object) -> torch.Tensor:
    return torch.tensor([double_integral(s1, s2, c) for c in CORRELATIONS], dtype=torch.float64)


def slope_of_g(s: Activation) -> torch.Tensor:
    """g'(c) by central differences of fourth order."""
    h = 1e-3
    return (8 * (dual.g(s, C + h) - dual.g(s, C - h)) - (dual.g(s, C + 2 * h) - dual.g(s, C - 2 * h))) / (
        12 * h
    )


@every
def test_equations_51_and_52_g_is_the_double_integral(name: str) -> None:
    torch.testing.assert_close(dual.g(name, C), integrals(named(name), named(name)), **TIGHT)


@every
def test_equation_50_f_is_c_times_the_dual_of_the_derivative(name: str) -> None:
    s = named(name)
    torch.testing.assert_close(dual.f(name, C), C * integrals(s.derivative, s.derivative), **TIGHT)


@every
def test_equations_50_and_55_that_dual_is_the_derivative_of_g(name: str) -> None:
    torch.testing.assert_close(dual.f(name, C), C * slope_of_g(named(name)), rtol=0, atol=1e-8)
    c = C.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(dual.g(name, c).sum(), c)
    torch.testing.assert_close(C * by_autograd, dual.f(name, C), **TIGHT)


@pytest.mark.parametrize("name", ["erf", "gelu", "sin+cos", "sigmoid", "tanh"])
def test_equations_53_and_54_the_hermite_series(name: str) -> None:
    """The coefficients by Gauss-Hermite quadrature and numpy's polynomials, independent of the package's own."""
    s = named(name)
    z, w = np.polynomial.hermite_e.hermegauss(150)
    values = s(torch.from_numpy(z)).numpy()
    total = np.zeros(len(C))
    for k in range(60):
        he = np.polynomial.hermite_e.hermeval(z, [0.0] * k + [1.0])
        gamma = (w * values * he).sum() / math.sqrt(2 * math.pi * math.factorial(k))
        total += C.numpy() ** k * gamma**2
    torch.testing.assert_close(dual.g(name, C), torch.from_numpy(total), rtol=0, atol=1e-7)


@every
def test_equation_56_scaling(name: str) -> None:
    s = named(name).with_(scale=-1.7)
    torch.testing.assert_close(dual.g(s, C), 1.7**2 * dual.g(name, C), **TIGHT)
    torch.testing.assert_close(dual.f(s, C), 1.7**2 * dual.f(name, C), **TIGHT)
    torch.testing.assert_close(dual.g(s, C), integrals(s, s), **TIGHT)


@every
@pytest.mark.parametrize("sign", [1, -1])
def test_equation_57_an_offset_adds_2_b_times_the_mean(name: str, sign: int) -> None:
    """As printed, with sqrt(g(0)) = |E[s]| for E[s], it is wrong wherever E[s] < 0."""
    b, s = 0.6, named(name).with_(scale=sign)
    moved = s.with_(offset=b)
    want, mean = integrals(moved, moved), single_integral(s)
    torch.testing.assert_close(dual.g(moved, C), want, **TIGHT)
    torch.testing.assert_close(dual.g(s, C) + b**2 + 2 * b * mean, want, **TIGHT)
    g_at_0 = dual.g(s, torch.zeros(1, dtype=torch.float64)).clamp(min=0)
    printed = dual.g(s, C) + b**2 + 2 * b * g_at_0.sqrt()
    if mean < -1e-3:
        torch.testing.assert_close(printed - want, torch.full_like(C, -4 * b * mean), rtol=0, atol=1e-6)
    else:
        torch.testing.assert_close(printed, want, rtol=0, atol=1e-6)  # the root of a rounded 0


def test_equation_58_f_of_relu() -> None:
    want = integrals(named("relu").derivative, named("relu").derivative) * C
    torch.testing.assert_close(C / 2 * (1 - torch.acos(C) / math.pi), want, **TIGHT)
    torch.testing.assert_close(dual.f("relu", C), want, **TIGHT)


def test_equation_59_g_of_relu() -> None:
    printed = ((1 - C * C).sqrt() + C * (math.pi - torch.acos(C))) / (2 * math.pi)
    torch.testing.assert_close(printed, integrals(torch.relu, torch.relu), **TIGHT)
    torch.testing.assert_close(dual.g("relu", C), printed, **TIGHT)


def test_equations_60_and_61_sine_plus_cosine_is_the_gaussian_kernel() -> None:
    s = named("sin+cos")
    torch.testing.assert_close(torch.exp(C - 1), integrals(s, s), **TIGHT)
    torch.testing.assert_close(C * torch.exp(C - 1), C * integrals(s.derivative, s.derivative), **TIGHT)
    torch.testing.assert_close(dual.g(s, C), torch.exp(C - 1), **TIGHT)
    torch.testing.assert_close(dual.f(s, C), C * torch.exp(C - 1), **TIGHT)
    g = torch.Generator().manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 6, 5, generator=g, dtype=torch.float64), dim=2)
    torch.testing.assert_close(
        dual.dual(s, *dual.covariance(x, y)[:3]), torch.exp(-(x - y).square().sum(1) / 2), **TIGHT
    )


@pytest.mark.parametrize(("a", "gamma", "b"), [(1.0, 1.0, 0.0), (1.5, 2.0, 0.4), (-0.7, 0.5, -1.0)])
def test_equations_62_and_63_erf(a: float, gamma: float, b: float) -> None:
    """63 holds as printed. 62 holds without its b²: an offset has no derivative."""
    s = named("erf").with_(scale=a, gain=gamma, offset=b)
    root = ((1 + 1 / (2 * gamma**2)) ** 2 - C * C) ** -0.5
    printed_g = 2 * a**2 / math.pi * torch.atan(C * root) + b**2
    torch.testing.assert_close(printed_g, integrals(s, s), **TIGHT)
    torch.testing.assert_close(dual.g(s, C), printed_g, **TIGHT)
    want = C * integrals(s.derivative, s.derivative)
    torch.testing.assert_close(2 * a**2 * C / math.pi * root, want, **TIGHT)
    torch.testing.assert_close(dual.f(s, C), want, **TIGHT)
    printed_f = 2 * a**2 * C / math.pi * root + b**2
    torch.testing.assert_close(printed_f - want, torch.full_like(C, b**2), **TIGHT)


@pytest.mark.parametrize(
    ("name", "near", "apart", "g_apart", "f_apart"),
    [("sigmoid", "sigmoid_erf", 0.00974, 0.00189, 0.00238), ("tanh", "tanh_erf", 0.0195, 0.00171, 0.00949)],
)
def test_equations_64_and_65_erf_in_place_of_sigmoid_and_tanh(
    name: str, near: str, apart: float, g_apart: float, f_apart: float
) -> None:
    """How near "very well" is: the largest distances of the functions themselves and of their duals on [-1, 1]."""
    x = torch.linspace(-10, 10, 4001, dtype=torch.float64)
    c = torch.linspace(-1, 1, 41, dtype=torch.float64)
    found = (
        (named(name)(x) - named(near)(x)).abs().max().item(),
        (dual.g(name, c) - dual.g(near, c)).abs().max().item(),
        (dual.f(name, c) - dual.f(near, c)).abs().max().item(),
    )
    assert found == pytest.approx((apart, g_apart, f_apart), rel=0.01)
