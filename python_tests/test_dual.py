"""Dual activations beyond unit norm: values, gradients, edges, error bounds, bad input."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from gaussian import double_integral
from hypothesis import given, settings
from hypothesis import strategies as st

from zbkernels.infinite import ToleranceError, dual, from_callable
from zbkernels.infinite.activations import named
from zbkernels.infinite.dual_expectation import Control, evaluate

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSED = ("relu", "leaky_relu:0.1", "abs", "identity", "erf", "erf:2", "gelu", "sin", "cos", "sin+cos")
PIECEWISE = ("relu", "leaky_relu:0.1", "abs", "identity")
every = pytest.mark.parametrize("name", (*CLOSED, "sigmoid", "tanh"))
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
f64 = torch.float64


def column(*values: float, dtype: torch.dtype = f64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


# --- values -----------------------------------------------------------------------------------------------------


@every
def test_any_variances_against_the_double_integral(name: str) -> None:
    s = named(name)
    for q11, q22, c in ((0.3, 2.5, 0.7), (4.0, 0.05, -0.8), (1.7, 1.7, 0.9), (2.0, 3.0, 0.0)):
        q = column(q11), column(c * (q11 * q22) ** 0.5), column(q22)
        for got, s1 in ((dual.dual(name, *q), s), (dual.dual_derivative(name, *q), s.derivative)):
            assert got.item() == pytest.approx(double_integral(s1, s1, c, q11, q22), rel=1e-10, abs=1e-11)


@every
def test_means_against_the_integral(name: str) -> None:
    """Of an offset, with different variances on the two sides."""
    s = named(name).with_(offset=0.7, scale=1.3, gain=0.8)
    got = dual.dual(s, column(0.4), column(-0.5), column(2.0)).item()
    assert got == pytest.approx(double_integral(s, s, -0.5 / 0.8**0.5, 0.4, 2.0), rel=1e-10)
    derivative = dual.dual_derivative(s, column(0.4), column(-0.5), column(2.0)).item()
    want = double_integral(s.derivative, s.derivative, -0.5 / 0.8**0.5, 0.4, 2.0)
    assert derivative == pytest.approx(want, rel=1e-10)


@every
def test_the_function_and_its_slope_belong_together(name: str) -> None:
    x = torch.linspace(-3, 3, 24, dtype=f64, requires_grad=True)  # no 0 among them
    s = named(name)
    torch.testing.assert_close(torch.autograd.grad(s(x).sum(), x)[0], s.derivative(x.detach()))


@pytest.mark.parametrize("sign", [1, -1])
def test_relu_near_one_against_forty_digits(sign: int) -> None:
    """Measured: at most 9e-17 for f and 8e-17 for g. From acos(c) in float64, f would be 1e-9 off at 1 - 1e-15."""
    with mpmath.workdps(40):
        for k in range(1, 16):
            c = column(sign * (1 - 10.0**-k))
            exact = mpmath.mpf(c.item())
            angle = mpmath.acos(exact)
            g = (mpmath.sqrt(1 - exact**2) + exact * (mpmath.pi - angle)) / (2 * mpmath.pi)
            f = exact / 2 * (1 - angle / mpmath.pi)
            assert abs(dual.g("relu", c).item() - g) < 2e-16, k
            assert abs(dual.f("relu", c).item() - f) < 2e-16, k


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-7), (f64, 2e-16)])
def test_small_angles_of_vectors_against_forty_digits(dtype: torch.dtype, bound: float) -> None:
    g = torch.Generator().manual_seed(0)
    x, step = torch.randn(2, 20, generator=g, dtype=dtype)
    with mpmath.workdps(40):
        for k in range(0, 13, 2):
            for side in (3, -3):
                y = side * x + 10.0**-k * step
                a, b = ([mpmath.mpf(v.item()) for v in t] for t in (x, y))
                aa, ab, bb = (mpmath.fdot(p, q) for p, q in ((a, a), (a, b), (b, b)))
                exact = (1 - mpmath.atan2(mpmath.sqrt(aa * bb - ab * ab), ab) / mpmath.pi) / 2
                q11, q12, q22, sin2 = dual.covariance(x, y)
                got = dual.dual_derivative("relu", q11, q12, q22, sin2=sin2)
                assert abs(got.item() - exact) < bound, (k, side)
                from_three = dual.dual_derivative("relu", q11, q12, q22)
                assert abs(from_three.item() - exact) < torch.finfo(dtype).eps ** 0.5, (k, side)


@every
@settings(max_examples=10, deadline=None, derandomize=True)
@given(q11=st.floats(1e-3, 9), q22=st.floats(1e-3, 9), c=st.floats(-1, 1))
def test_cauchy_schwarz_and_symmetry(name: str, q11: float, q22: float, c: float) -> None:
    a, b, q12 = column(q11), column(q22), column(c * (q11 * q22) ** 0.5)
    for f in (dual.dual, dual.dual_derivative):
        value = f(name, a, q12, b)
        assert torch.equal(value, f(name, b, q12, a))
        bound = (f(name, a, a, a) * f(name, b, b, b)).clamp(min=0).sqrt()
        assert value.abs() <= bound * (1 + 1e-9) + 1e-12


@both_dtypes
def test_very_large_and_very_small_variances(dtype: torch.dtype) -> None:
    """Products of variances would overflow and underflow; quotients do not."""
    for scale in (1e30, 1e-30):
        q = column(scale, dtype=dtype), column(scale / 2, dtype=dtype), column(scale, dtype=dtype)
        one = column(1.0, dtype=dtype), column(0.5, dtype=dtype), column(1.0, dtype=dtype)
        torch.testing.assert_close(dual.dual("relu", *q) / scale, dual.dual("relu", *one))
        torch.testing.assert_close(dual.dual_derivative("relu", *q), dual.dual_derivative("relu", *one))
    huge = dual.dual("erf", *(column(v, dtype=dtype) for v in (1e30, 5e29, 1e30)))
    torch.testing.assert_close(huge, column(1 / 3, dtype=dtype))  # erf is a sign there: 2/pi asin(1/2)


# --- edges ------------------------------------------------------------------------------------------------------


@both_dtypes
@every
def test_plus_and_minus_one_and_beyond_by_rounding(name: str, dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    over = one + 4 * torch.finfo(dtype).eps
    for sign in (1, -1):
        for f in (dual.g, dual.f):
            edge, beyond, within = f(name, sign * one), f(name, sign * over), f(name, sign * (2 - over))
            assert edge.isfinite().all() and beyond.isfinite().all()
            torch.testing.assert_close(beyond, edge, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(within, edge, rtol=2e-3, atol=2e-3)
    s = named(name)
    second_moment = double_integral(lambda x: s(x) ** 2, torch.ones_like, 0.0)
    assert dual.g(name, one).item() == pytest.approx(second_moment, rel=1e-6)


@both_dtypes
@pytest.mark.parametrize("name", (*CLOSED, "sigmoid"))
def test_gradients_are_finite_at_every_edge(name: str, dtype: torch.dtype) -> None:
    over = 1 + 4 * torch.finfo(dtype).eps
    q11 = column(1, 1, 1, 1, 0, 0, 3, 1, dtype=dtype)
    q12 = column(1, -1, over, -over, 0, 0, 3, 1 - 1e-7, dtype=dtype)
    q22 = column(1, 1, 1, 1, 0, 2, 3, 1, dtype=dtype)
    for f in (dual.dual, dual.dual_derivative):
        leaves = [t.clone().requires_grad_() for t in (q11, q12, q22)]
        value = f(name, *leaves)
        assert value.isfinite().all()
        first = torch.autograd.grad(value.sum(), leaves, create_graph=True)
        assert all(t.isfinite().all() for t in first)
        if name == "identity":
            continue  # its gradients are constants
        second = torch.autograd.grad(sum((t * t).sum() for t in first), leaves, allow_unused=True)
        assert all(t is None or t.isfinite().all() for t in second)


@every
def test_the_gradient_at_equal_inputs_is_the_derivative_kernel(name: str) -> None:
    """Smooth in q12 up to the edge, so one-sided differences agree with it."""
    q = column(1.5)
    q12 = q.clone().requires_grad_()
    (slope,) = torch.autograd.grad(dual.dual(name, q, q12, q).sum(), q12)
    torch.testing.assert_close(slope, dual.dual_derivative(name, q, q, q), rtol=1e-10, atol=1e-12)


@every
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_past_plus_or_minus_one_keeps_the_gradient(name: str, sign: int) -> None:
    def slopes(c: float) -> list[float]:
        q = [column(v).requires_grad_() for v in (1.0, sign * c, 1.0)]
        return [t.item() for t in torch.autograd.grad(dual.dual(name, *q).sum(), q)]

    over = 1 + 4 * torch.finfo(f64).eps
    want = dual.dual_derivative(name, column(1.0), column(float(sign)), column(1.0)).item()
    past, before = slopes(over), slopes(1 - 1e-9)
    assert past[1] == pytest.approx(want, abs=1e-7)
    assert past == pytest.approx(before, abs=1e-4)  # the square root of 1e-9 is what a kink adds
    c = column(sign * over).requires_grad_()
    assert torch.autograd.grad(dual.g(name, c).sum(), c)[0].item() == pytest.approx(want, abs=1e-7)


def test_the_kink_of_the_derivative_kernel_has_the_symmetric_value() -> None:
    """1/2 - angle/(2 pi) falls on both sides of angle 0: along a line through the point the slopes are ∓1/(2 pi)."""
    x = column(3, 4).requires_grad_()
    y = column(3, 4)

    def value(x: torch.Tensor) -> torch.Tensor:
        return dual.dual_derivative("relu", x @ x, x @ y, y @ y)

    (slope,) = torch.autograd.grad(value(x), x)
    assert slope.tolist() == [0, 0]
    step = 1e-5 * column(-4, 3)
    one, other = ((value(x + s) - value(x)).item() / 1e-5 for s in (step, -step))
    assert one == pytest.approx(-1 / (2 * math.pi), rel=1e-3) and other == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize("name", PIECEWISE)
def test_zero_vectors(name: str) -> None:
    zero, one = column(0.0), column(1.0)
    assert dual.dual(name, zero, zero, one).item() == dual.dual(name, zero, zero, zero).item() == 0
    left = {"relu": 0.0, "leaky_relu:0.1": 0.1, "abs": 0.0, "identity": 1.0}[name]  # torch's slope at 0
    mean = {"relu": 0.5, "leaky_relu:0.1": 0.55, "abs": 0.0, "identity": 1.0}[name]
    assert dual.dual_derivative(name, zero, zero, one).item() == pytest.approx(left * mean)
    assert dual.dual_derivative(name, zero, zero, zero).item() == pytest.approx(left**2)
    leaves = [t.clone().requires_grad_() for t in (zero, zero, one)]
    grads = torch.autograd.grad(dual.dual(name, *leaves).sum(), leaves)
    assert [g.item() for g in grads] == [0, 1 if name == "identity" else 0, 0]


@pytest.mark.parametrize("name", ["erf", "gelu", "sin", "cos", "sin+cos", "sigmoid", "tanh"])
def test_a_zero_vector_gives_the_activation_at_zero(name: str) -> None:
    s, zero, two = named(name), column(0.0), column(2.0)
    at_zero = s(zero).item()
    mean = double_integral(s, torch.ones_like, 0.0, 2.0)
    assert dual.dual(name, zero, zero, two).item() == pytest.approx(at_zero * mean, abs=1e-12)
    assert dual.dual(name, zero, zero, zero).item() == pytest.approx(at_zero**2, abs=1e-12)
    slope = s.derivative(zero).item()
    assert dual.dual_derivative(name, zero, zero, zero).item() == pytest.approx(slope**2, abs=1e-12)


@every
def test_nan_comes_out_as_nan_and_nowhere_else(name: str) -> None:
    nan = float("nan")
    q = column(nan, 1, 1, 1), column(0.5, nan, 0.5, 0.5), column(1, 1, nan, 1)
    for f in (dual.dual, dual.dual_derivative):
        assert f(name, *q).isnan().tolist() == [True, True, True, False]
    for f in (dual.g, dual.f):
        assert f(name, column(nan, 0.5)).isnan().tolist() == [True, False]
    assert dual.covariance(column(nan, 1), column(1, 1))[3].isnan()


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", (*CLOSED, "sigmoid"))
def test_gradcheck(name: str) -> None:
    q = [t.requires_grad_() for t in (column(0.8, 2.0), column(0.5, -1.1), column(1.5, 0.9))]
    quick = {"fast_mode": True, "check_undefined_grad": False}
    for f in (dual.dual, dual.dual_derivative):
        assert torch.autograd.gradcheck(lambda *q: f(name, *q), q, **quick)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda *q: f(name, *q), q, **quick)  # noqa: B023


@pytest.mark.parametrize("name", CLOSED)
def test_torch_func_sees_through_the_closed_forms(name: str) -> None:
    c = column(-0.5, 0.3, 0.9)
    want = dual.f(name, c) / c
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda c: dual.g(name, c)))(c), want)
    torch.testing.assert_close(
        torch.func.jvp(lambda c: dual.g(name, c), (c,), (torch.ones_like(c),))[1], want
    )


def test_gradients_of_broadcast_variances() -> None:
    q11, q22 = column(0.5, 1.0, 2.0)[:, None].requires_grad_(), column(1.0, 3.0)[None, :].requires_grad_()
    q12 = 0.1 * torch.ones(3, 2, dtype=f64)
    grads = [
        torch.autograd.grad(dual.dual(s, q11, q12, q22).sum(), (q11, q22))
        for s in ("erf", from_callable(torch.erf))
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


# --- callables: the error bound ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("method", ["auto", "quadrature"])
def test_a_callable_equals_the_closed_form(name: str, method: str) -> None:
    s = named(name)
    same = from_callable(s, s.derivative, method=method)
    q11, q22 = column(0.3, 1.0, 2.0, 5.0, 1.0, 2.0), column(0.5, 1.0, 3.0, 0.1, 1.0, 2.0)
    q12 = column(0.9, -0.99, 0.5, 0.0, 1.0, -1.0) * (q11 * q22).sqrt()
    for f in (dual.dual, dual.dual_derivative):
        torch.testing.assert_close(f(same, q11, q12, q22), f(s, q11, q12, q22), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["relu", "erf", "tanh", "abs"])
def test_the_bound_of_the_series_holds_and_is_not_idle(name: str) -> None:
    s = named(name)
    c = torch.linspace(-1, 1, 21, dtype=f64)
    one = torch.ones(1, dtype=f64)
    exact = dual.g(from_callable(s, s.derivative, method="quadrature"), c)
    for degree_is_enough in (1e-1, 1e-3, 1e-4):
        control = Control(name, degree_is_enough, "series")
        value, bound = evaluate(s, s, one, c, one, control, f64)
        error = (value - exact).abs()
        assert (error <= bound + 1e-13).all()
        assert (bound <= degree_is_enough * dual.g(name, one)).all()
        assert error.max() > 1e-14  # it was cut off: at +1 the bound is the error
        torch.testing.assert_close(bound[-1], error[-1], rtol=1e-3, atol=1e-13)


def test_a_tolerance_that_cannot_be_met_is_an_error() -> None:
    clipped = from_callable(lambda x: x.clamp(-1, 1), name="clipped")
    q = column(1.0)
    with pytest.raises(ToleranceError, match=r"clipped: expected a relative error of at most 1e-12, got "):
        dual.dual(clipped, q, q, q)
    rough = from_callable(lambda x: x.clamp(-1, 1), tolerance=1e-3)
    want = double_integral(lambda x: x.clamp(-1, 1), torch.ones_like, 0.0)
    assert want == pytest.approx(0, abs=1e-3)
    exact = 1 - 2 * math.exp(-0.5) / (2 * math.pi) ** 0.5  # E[min(x², 1)] by parts
    erf = math.erf(0.5**0.5)
    exact = erf - 2 * math.exp(-0.5) / (2 * math.pi) ** 0.5 + (1 - erf)
    assert dual.dual(rough, q, q, q).item() == pytest.approx(exact, rel=1e-3)
    with pytest.raises(ToleranceError, match="method 'series'"):
        dual.dual(from_callable(torch.relu, method="series"), q, q, q)


def test_callables_without_a_derivative_and_with_steep_parts() -> None:
    silu = from_callable(torch.nn.functional.silu)
    q = column(2.0), column(1.0), column(1.0)
    f = torch.nn.functional.silu
    assert dual.dual(silu, *q).item() == pytest.approx(double_integral(f, f, 0.5**0.5, 2.0, 1.0), rel=1e-10)
    steep = named("tanh").with_(gain=30.0)
    value = dual.g(steep, column(1.0, 0.5))
    assert value[1].item() == pytest.approx(2 / math.pi * math.asin(0.5), rel=1e-2)  # nearly a sign
    elu = from_callable(torch.nn.functional.elu)
    e = torch.nn.functional.elu
    assert dual.dual(elu, *q).item() == pytest.approx(double_integral(e, e, 0.5**0.5, 2.0, 1.0), rel=1e-10)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "error", "text"),
    [
        ("swish2", ValueError, "g: expected activation to be one of relu, .* got 'swish2'"),
        ("relu:0.1", ValueError, "g: expected a finite number after 'leaky_relu:'.* got 'relu:0.1'"),
        ("leaky_relu:steep", ValueError, "got 'leaky_relu:steep'"),
        ("erf:nan", ValueError, "got 'erf:nan'"),
        (3, TypeError, "g: expected activation to be a name or a callable, got 3"),
    ],
)
def test_unknown_activations(activation: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        dual.g(activation, column(0.5))


def test_bad_tensors_and_options() -> None:
    q = column(1.0)
    with pytest.raises(TypeError, match=r"dual: expected q12 of dtype float32 or float64, got torch.float16"):
        dual.dual("relu", q, q.half(), q)
    with pytest.raises(
        TypeError, match=r"dual_derivative: expected tensors of one dtype, got torch\.float32, "
    ):
        dual.dual_derivative("relu", q, q.float(), q)
    with pytest.raises(TypeError, match="g: expected c to be a tensor, got float"):
        dual.g("relu", 0.5)
    with pytest.raises(
        ValueError, match="from_callable: expected method to be one of auto, series, quadrature"
    ):
        from_callable(torch.relu, method="magic")
    with pytest.raises(ValueError, match="from_callable: expected a tolerance above 0, got 0"):
        from_callable(torch.relu, tolerance=0)
