"""NNGP and NTK: against wide finite networks, against quadrature, and on what users elsewhere reported (29 to 34)."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gaussian import double_integral
from torch import Tensor
from wide_networks import empirical_kernels

from zbkernels.infinite import dual, dual_forms, from_callable, gram, nngp, ntk
from zbkernels.infinite.activations import named

pytestmark = pytest.mark.usefixtures("one_thread")

f64 = torch.float64
dtypes = pytest.mark.parametrize("dtype", [torch.float32, f64], ids=str)
both = pytest.mark.parametrize("kernel", [nngp, ntk])
ROOT2 = 2**0.5


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = f64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- finite networks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b_std", [0.0, 0.8])
@pytest.mark.parametrize("standard", [False, True], ids=["ntk", "standard"])
@pytest.mark.parametrize(
    ("activation", "depth", "first_only"),
    [("relu", 1, False), ("erf:1.5", 1, True), ("gelu", 2, False), ("tanh", 2, True), ("relu", 0, False)],
)
def test_wide_networks_agree_within_their_own_error(
    activation: str, depth: int, first_only: bool, standard: bool, b_std: float
) -> None:
    """The mean of 24 is within 5 of its standard errors, and 2/width for what a second layer adds at finite width."""
    x = torch.stack([draw(3), draw(3, seed=1), draw(3) + 0.1, 2 * draw(3, seed=2)])
    width, count = (512, 24) if depth < 2 else (256, 24)
    g = torch.Generator().manual_seed(7)
    options = {"depth": depth, "w_std": 1.3, "b_std": b_std}
    runs = [
        empirical_kernels(
            x,
            named(activation),
            width=width,
            standard=standard,
            first_only=first_only,
            generator=g,
            **options,
        )
        for _ in range(count)
    ]
    wanted = {"train": "first" if first_only else "all"}
    if standard:
        wanted |= {"parametrization": "standard", "width": width}
    limits = (
        nngp(x, activation=activation, **options),
        ntk(x, activation=activation, **options, **wanted),
    )
    for found, limit in zip(zip(*runs, strict=True), limits, strict=True):
        drawn = torch.stack(found)
        error = drawn.std(0) / count**0.5
        scale = limit.diag().max()
        slack = (2 / width if depth > 1 else 1e-12) * scale
        assert ((drawn.mean(0) - limit).abs() <= 5 * error + slack).all()
        assert (error <= 0.06 * scale).all()  # else this would show nothing


# --- quadrature -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activation", ["relu", "leaky_relu:0.2", "abs", "erf", "gelu", "sin", "sin+cos", "tanh"]
)
@pytest.mark.parametrize(("w_std", "b_std"), [(ROOT2, 0.0), (1.2, 0.5)])
def test_three_layers_by_the_double_integral(activation: str, w_std: float, b_std: float) -> None:
    """The recursion of the module's docstring, written once more with integrals, for one pair of inputs."""
    x, y = 1.5 * draw(4), draw(4, seed=2)
    s = named(activation)
    q11, q12, q22 = (b_std**2 + w_std**2 * (a @ b).item() / 4 for a, b in ((x, x), (x, y), (y, y)))
    t, first = q12, q12
    one = 1.0 if b_std else 0.0
    standard = (x @ y).item() + one
    for _ in range(3):
        c = q12 / (q11 * q22) ** 0.5
        slope = double_integral(s.derivative, s.derivative, c, q11, q22)
        value = double_integral(s, s, c, q11, q22)
        q12 = b_std**2 + w_std**2 * value
        q11, q22 = (
            b_std**2 + w_std**2 * double_integral(lambda x: s(x) ** 2, torch.ones_like, 0.0, q)
            for q in (q11, q22)
        )
        t, first = q12 + w_std**2 * slope * t, w_std**2 * slope * first
        standard = 1.5 * value + one + w_std**2 * slope * standard
    options = {"activation": activation, "depth": 3, "w_std": w_std, "b_std": b_std}
    a, b = x[None], y[None]
    assert nngp(a, b, **options).item() == pytest.approx(q12, rel=1e-9)
    assert ntk(a, b, **options).item() == pytest.approx(t, rel=1e-9)
    assert ntk(a, b, train="first", **options).item() == pytest.approx(first, rel=1e-9)
    got = ntk(a, b, parametrization="standard", width=1.5, **options)
    assert got.item() == pytest.approx(standard, rel=1e-9)


@pytest.mark.parametrize("name", ["relu", "erf:2", "sigmoid"])
def test_the_kernel_of_the_thesis(name: str) -> None:
    """Equation 8 at unit norm: H = f(x·y) (equation 58, 62) is the kernel of which the first layer trains."""
    x = torch.nn.functional.normalize(draw(6, 5), dim=1)
    got = ntk(x * 5**0.5, activation=name, w_std=1.0, train="first")
    torch.testing.assert_close(got, dual.f(name, (x @ x.t()).clamp(-1, 1)), rtol=0, atol=2e-8)
    got = nngp(x * 5**0.5, activation=name, w_std=1.0)
    torch.testing.assert_close(got, dual.g(name, (x @ x.t()).clamp(-1, 1)), rtol=0, atol=1e-14)


def test_relu_kernels_of_zero_bias_networks_are_homogeneous() -> None:
    x, y = draw(5, 7), draw(4, 7, seed=1)
    for kernel in (nngp, ntk):
        torch.testing.assert_close(kernel(3 * x, 0.5 * y, depth=3), 1.5 * kernel(x, y, depth=3))
        biased = kernel(3 * x, 0.5 * y, depth=3, b_std=0.5), 1.5 * kernel(x, y, depth=3, b_std=0.5)
        assert not torch.allclose(*biased, rtol=1e-2)


def test_depth_0_is_the_linear_model() -> None:
    x, y = draw(3, 4), draw(2, 4, seed=1)
    linear = 0.25 + 1.44 * x @ y.t() / 4
    for kernel in (nngp, ntk):
        torch.testing.assert_close(kernel(x, y, depth=0, w_std=1.2, b_std=0.5), linear)


# --- case 29: inputs that coincide ------------------------------------------------------------------------------

POINTS = ((3, 4), (3, 4), (-3, -4), (0, 0), (6, 8))


@dtypes
def test_case_29_values(dtype: torch.dtype) -> None:
    """w_std is sqrt(2), so that the read-out doubles what the report calls k1 and NTK."""
    x = torch.tensor(POINTS, dtype=dtype)
    for other in (None, x, x.clone()):
        k1, tangent = nngp(x, other) / 2, ntk(x, other) / 2
        torch.testing.assert_close(k1[0], k1.new_tensor([12.5, 12.5, 0, 0, 25]))
        torch.testing.assert_close(tangent[0], k1.new_tensor([25, 25, 0, 0, 50]))
        torch.testing.assert_close(k1[3], torch.zeros_like(k1[3]))
    q = x[0] @ x[0], x[0] @ x[2], x[2] @ x[2]
    assert dual.dual("relu", *q).item() == dual.dual_derivative("relu", *q).item() == 0  # antipodal


@dtypes
@both
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("activation", ["relu", "abs", "erf", "gelu"])
def test_case_29_gradients_are_finite(
    kernel: Callable[..., Tensor], depth: int, activation: str, dtype: torch.dtype
) -> None:
    for other in ("none", "itself", "detached"):
        x = torch.tensor(POINTS, dtype=dtype).requires_grad_()
        x2 = {"none": None, "itself": x, "detached": x.detach()}[other]
        value = kernel(x, x2, depth=depth, activation=activation) @ torch.ones(5, dtype=dtype)
        (grad,) = torch.autograd.grad(value.sum(), x)
        assert value.isfinite().all() and grad.isfinite().all()
        if activation == "relu":
            assert grad[3].tolist() == [0, 0]  # of the zero vector


def test_case_29_gradients_of_sums_are_finite() -> None:
    x = (torch.tensor(POINTS, dtype=f64) / 5).requires_grad_()
    for kernel in (nngp, ntk):
        (grad,) = torch.autograd.grad(kernel(x, depth=2, activation="sigmoid").sum(), x)
        assert grad.isfinite().all() and torch.equal(grad[0], grad[1])


@dtypes
@pytest.mark.parametrize(("kernel", "want"), [(nngp, (1.5, 2.0)), (ntk, (3.0, 4.0))])
def test_case_29_the_gradient_at_equal_inputs(
    kernel: Callable[..., Tensor], want: tuple[float, float], dtype: torch.dtype
) -> None:
    x = torch.tensor([[3, 4]], dtype=dtype).requires_grad_()
    (grad,) = torch.autograd.grad((kernel(x, x.detach()) / 2).sum(), x)
    torch.testing.assert_close(grad, grad.new_tensor([want]))
    (grad,) = torch.autograd.grad((kernel(x) / 2).sum(), x)
    torch.testing.assert_close(grad, 2 * grad.new_tensor([want]))  # both inputs move


@both
@pytest.mark.parametrize("activation", ["relu", "erf", "sigmoid"])
def test_gradcheck(kernel: Callable[..., Tensor], activation: str) -> None:
    x, y = draw(3, 4).requires_grad_(), draw(2, 4, seed=1).requires_grad_()
    quick = {"fast_mode": True, "check_undefined_grad": False}

    def both_forms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        options = {"activation": activation, "depth": 2, "b_std": 0.3}
        return kernel(x, y, **options), kernel(x, **options).tril(
            -1
        )  # the diagonal's kink is no place for steps

    assert torch.autograd.gradcheck(both_forms, (x, y), **quick)
    if activation != "sigmoid":
        assert torch.autograd.gradgradcheck(both_forms, (x, y), **quick)


# --- case 31: symmetric, positive semidefinite ------------------------------------------------------------------


@both
@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_case_31(kernel: Callable[..., Tensor], depth: int, precision: str) -> None:
    """200 points and 56 duplicates in the plane, in float32; the least eigenvalue measured is -2e-8 of the largest."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=g)
    copies = torch.randperm(200, generator=g)[:56]
    x = torch.cat([x, x[copies]])
    try:
        torch.set_float32_matmul_precision(precision)
        K = kernel(x, depth=depth)
        other = kernel(x[copies], x, depth=depth)
        alike = kernel(x, x.clone(), depth=depth)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(K, K.t())
    assert torch.equal(K[200:], K[copies]) and torch.equal(K[:, 200:], K[:, copies])
    assert torch.equal(K[copies, 200 + torch.arange(56)], K.diag()[copies])
    assert torch.equal(other[:, 200:], other[:, copies])
    torch.testing.assert_close(alike, K, rtol=1e-5, atol=1e-5 * K.max().item())
    eigenvalues = torch.linalg.eigvalsh(K.double())
    assert eigenvalues[0] >= -1e-6 * eigenvalues[-1]
    assert torch.linalg.cholesky_ex(K + 1e-4 * K.diag().mean() * torch.eye(256)).info == 0
    exact = kernel(x.double(), depth=depth)
    assert (K - exact).abs().max() <= 2e-4 * exact.max()  # of the small angles, sqrt(eps)


def test_case_31_symmetry_of_many_points() -> None:
    x = draw(4096, 9, dtype=torch.float32)
    K = nngp(x)
    assert torch.equal(K, K.t())
    part = ntk(x[:1025], depth=2)
    assert torch.equal(part, part.t())


@dtypes
def test_equal_rows_are_exact_in_deep_networks(dtype: torch.dtype) -> None:
    """Without care the angle of duplicates is sqrt(eps) from the second layer on, 1e-4 of the NTK in float32."""
    x = torch.cat([draw(33, 50, dtype=dtype)] * 2)
    for activation, w_std in (("relu", ROOT2), ("gelu", 1.4), ("abs", 1.0)):
        for K in (
            ntk(x, depth=6, w_std=w_std, b_std=0.1, activation=activation),
            ntk(x, x[:33].clone(), depth=6, w_std=w_std, b_std=0.1, activation=activation),
        ):
            assert torch.equal(K[:33], K[33:])
            assert torch.equal(K[33:, :33].diag(), K[:33, :33].diag())
    exact = 7 * (x.double() ** 2).sum(1) / 50 * 2  # depth + 1 layers, each keeps the norm
    torch.testing.assert_close(ntk(x, depth=6).diag(), exact.to(dtype), rtol=2e-6, atol=0)


def test_rounding_that_differs_from_entry_to_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a BLAS or a vector loop may round the last entries of a matrix otherwise than the first."""
    g = torch.Generator().manual_seed(0)

    def shaken(t: Tensor) -> Tensor:
        return t * (
            1 + 4 * torch.finfo(t.dtype).eps * (torch.rand(t.shape, generator=g, dtype=t.dtype) - 0.5)
        )

    relu, products = named("relu"), gram.products
    form = dual_forms.Form(lambda *q: shaken(relu.form.dual(*q)), relu.form.derivative, relu.form.mean)
    monkeypatch.setattr(gram, "products", lambda x, y: shaken(products(x, y)))
    rough = dataclasses.replace(relu, form=form)
    x = torch.cat([draw(10, 5)] * 2)
    for kernel in (nngp, ntk):
        for K in (kernel(x, activation=rough, depth=4), kernel(x, x[:10].clone(), activation=rough, depth=4)):
            assert torch.equal(K[:10], K[10:])
            torch.testing.assert_close(K[:, :10], kernel(x, depth=4)[:, :10], rtol=1e-12, atol=1e-13)
            if K.shape[1] == 20:
                assert torch.equal(K, K.t())


def test_products_are_of_full_precision() -> None:
    x, y = draw(9, 33, dtype=torch.float32), draw(8, 33, seed=1, dtype=torch.float32)
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(gram.products(x, y), (x.double() @ y.double().t()).float())
    finally:
        torch.set_float32_matmul_precision("highest")


def test_minus_zero_and_nan_rows() -> None:
    nan = float("nan")
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [nan, 1.0], [nan, 1.0], [1.0, 2.0]])
    K = ntk(x)
    assert torch.equal(K[0, [0, 1, 4]], K[1, [0, 1, 4]])
    bad = torch.zeros(5, 5, dtype=torch.bool)
    bad[2:4] = bad[:, 2:4] = True
    assert torch.equal(K.isnan(), bad)
    assert torch.equal(ntk(x[:1], x)[0].isnan(), bad[0])


# --- case 32: the pieces make the whole -------------------------------------------------------------------------


@both
def test_case_32_pieces_and_sizes(kernel: Callable[..., Tensor]) -> None:
    x, y = draw(500, 20, dtype=torch.float32), draw(30, 20, seed=1, dtype=torch.float32)
    whole = kernel(x, y, depth=2)
    exact = kernel(x.double(), y.double(), depth=2)
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
    for tile in (1, 64, 100, 499):
        pieces = torch.cat([kernel(part, y, depth=2) for part in x.split(tile)][: None if tile > 1 else 20])
        torch.testing.assert_close(pieces, whole[: len(pieces)], rtol=1e-5, atol=1e-5)
    assert kernel(x[:0], y).shape == (0, 30) and kernel(x, y[:0]).shape == (500, 0)
    assert kernel(x[:0]).shape == (0, 0) and kernel(x[:1]).shape == (1, 1)
    assert kernel(x[:0], y, activation="sigmoid").shape == (0, 30)


def test_layouts_and_gradients_of_one_side() -> None:
    x, y = draw(6, 10), draw(4, 10, seed=1)
    want = ntk(x, y, depth=2)
    wide = torch.empty(10, 14, dtype=f64).t()
    wide[1:13:2] = x
    torch.testing.assert_close(ntk(wide[1:13:2], y, depth=2), want, rtol=1e-13, atol=0)
    torch.testing.assert_close(ntk(y, x, depth=2), want.t(), rtol=1e-13, atol=0)
    y.requires_grad_()
    (grad,) = torch.autograd.grad(ntk(x, y, depth=2).sum(), y)
    assert grad.shape == y.shape and grad.abs().min() > 0


def test_autocast_does_not_touch_them() -> None:
    x = draw(8, 5, dtype=torch.float32)
    want = ntk(x, depth=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ntk(x, depth=2)
    assert got.dtype == torch.float32 and torch.equal(got, want)


def test_torch_func_transforms() -> None:
    x, y = draw(3, 4), draw(2, 4, seed=1)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(ntk(leaf, y, depth=2).sum(), leaf)
    got = torch.func.grad(lambda x: ntk(x, y, depth=2).sum())(x)
    torch.testing.assert_close(got, want)
    rows = torch.func.vmap(lambda r: ntk(r[None], y, depth=2)[0])(x)
    torch.testing.assert_close(rows, ntk(x, y, depth=2))
    tangent = torch.func.jvp(lambda x: nngp(x, y), (x,), (x,))[1]
    torch.testing.assert_close(tangent, nngp(x, y))  # homogeneous
    for kernel in (nngp, ntk):
        alone = torch.func.jvp(lambda x: kernel(x, depth=2), (x,), (x,))[1]  # noqa: B023
        torch.testing.assert_close(alone, 2 * kernel(x, depth=2))
        leaf = x.clone().requires_grad_()
        (want,) = torch.autograd.grad(kernel(leaf, depth=2).sum(), leaf)
        got = torch.func.grad(lambda x: kernel(x, depth=2).sum())(x)  # noqa: B023
        torch.testing.assert_close(got, want)
        batch = torch.stack([x, 2 * x])
        each = torch.stack([kernel(part, depth=2) for part in batch])
        torch.testing.assert_close(torch.func.vmap(lambda x: kernel(x, depth=2))(batch), each)  # noqa: B023


# --- case 34: no library needed ---------------------------------------------------------------------------------


def test_case_34_no_jax_needed() -> None:
    """The package imports and computes where jax and neural_tangents are missing, and where they are broken."""
    code = """
import sys
for name in ("jax", "jaxlib", "neural_tangents"):
    sys.modules[name] = None      # an import of it raises
import torch
from zbkernels.infinite import ntk
x = torch.tensor([[3.0, 4.0]])
assert abs(ntk(x).item() - 50) < 1e-4
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "jax" not in sys.modules


def test_against_neural_tangents() -> None:
    try:
        from neural_tangents import stax
    except Exception as error:  # broken installations raise anything
        pytest.skip(f"neural_tangents does not import: {type(error).__name__}: {error}")
    x = draw(6, 5, dtype=torch.float32)
    layers = [stax.Dense(1, W_std=1.3, b_std=0.4), stax.Relu()] * 3
    kernel = stax.serial(*layers, stax.Dense(1, W_std=1.3, b_std=0.4))[2](x.numpy(), None, ("nngp", "ntk"))
    for ours, theirs in ((nngp, kernel.nngp), (ntk, kernel.ntk)):
        got = ours(x, depth=3, w_std=1.3, b_std=0.4)
        torch.testing.assert_close(got, torch.tensor(theirs.tolist()), rtol=1e-3, atol=1e-3)


# --- callables and bad input ------------------------------------------------------------------------------------


def test_a_callable_in_deep_networks() -> None:
    x, y = draw(5, 4), draw(3, 4, seed=1)
    for name, f in (("relu", torch.relu), ("erf", torch.erf), ("gelu", torch.nn.functional.gelu)):
        same = from_callable(f)
        for kernel in (nngp, ntk):
            torch.testing.assert_close(
                kernel(x, y, activation=same, depth=2),
                kernel(x, y, activation=name, depth=2),
                rtol=1e-9,
                atol=1e-9,
            )
    assert nngp(x, activation=torch.relu).equal(nngp(x, activation=from_callable(torch.relu)))


def test_a_callable_that_works_in_place() -> None:
    x, y = draw(5, 4), draw(3, 4, seed=1)
    for kernel in (nngp, ntk):
        expected = kernel(x, y, activation=torch.nn.SELU())
        found = kernel(x, y, activation=torch.nn.SELU(inplace=True))
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda t: t.sum(), r"torch.float64 \[\]"),
        (lambda t: 1.0, "float"),
        (lambda t: t.float(), r"torch.float32 \["),
    ],
)
def test_a_callable_that_is_no_function_of_each_element(function: Callable[[Tensor], Any], got: str) -> None:
    with pytest.raises(TypeError, match=f"^it: expected a tensor of torch.float64 .*, got {got}"):
        nngp(draw(3, 4), activation=from_callable(function, name="it"))


@pytest.mark.parametrize(
    "function", [torch.nn.functional.silu, torch.nn.functional.softplus, torch.nn.functional.mish]
)
def test_gradients_of_the_ntk_of_a_callable(function: Callable[[Tensor], Tensor]) -> None:
    x, y = draw(2, 3).requires_grad_(), draw(2, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: ntk(x, y, activation=from_callable(function)), x, atol=1e-4)


def test_torch_func_transforms_of_a_callable() -> None:
    x, y = draw(3, 4), draw(2, 4, seed=1)
    for activation in (torch.tanh, "tanh"):

        def kernel(x: Tensor, activation: Any = activation) -> Tensor:
            return ntk(x, y, activation=activation, b_std=0.3)

        whole = kernel(x)
        apart = torch.func.vmap(lambda one: kernel(one[None])[0])(x)
        torch.testing.assert_close(apart, whole, rtol=1e-12, atol=1e-12)
        found, forward = torch.func.jvp(kernel, (x,), (torch.ones_like(x),))
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)
        reverse = torch.func.jacrev(kernel)(x).sum((2, 3))
        torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-9)
        each = torch.func.vmap(torch.func.grad(lambda one: kernel(one[None]).sum()))(x)
        torch.testing.assert_close(each, torch.func.grad(lambda x: kernel(x).sum())(x), rtol=1e-9, atol=1e-9)


def test_from_callable_refuses_what_is_none() -> None:
    with pytest.raises(TypeError, match=r"^from_callable: expected a callable, got 'relu'"):
        from_callable("relu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^from_callable: expected a tolerance above 0, got '1e-4'"):
        from_callable(torch.relu, tolerance="1e-4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x1": [[1.0]]}, TypeError, "expected x1 to be a tensor, got list"),
        (
            {"x1": torch.ones(3, 4).half()},
            TypeError,
            "expected x1 of dtype float32 or float64, got torch.float16",
        ),
        (
            {"x2": torch.ones(3, 4).double()},
            TypeError,
            "expected x1 and x2 of one dtype, got torch.float32 and",
        ),
        ({"x2": torch.ones(3, 5)}, ValueError, r"of as many features, got \[2, 4\] and \[3, 5\]"),
        (
            {"x1": torch.ones(4)},
            ValueError,
            r"expected x1 of shape \[inputs, features\], features > 0, got \[4\]",
        ),
        ({"x1": torch.ones(4, 0)}, ValueError, r"features > 0, got \[4, 0\]"),
        (
            {"x1": torch.ones(2, 4).to_sparse()},
            TypeError,
            r"x1 to be a dense \(strided\) tensor, got torch.sparse_coo",
        ),
        ({"depth": -1}, ValueError, "expected depth to be an int >= 0"),
        ({"depth": 1.0}, ValueError, "expected depth to be an int >= 0"),
        ({"w_std": -1.0}, ValueError, "expected w_std to be a finite number >= 0, got -1.0"),
        ({"b_std": float("nan")}, ValueError, "expected b_std to be a finite number >= 0, got nan"),
        ({"activation": "softplus"}, ValueError, "expected activation to be one of relu, "),
    ],
)
@both
def test_bad_input(kernel: Callable[..., Tensor], change: dict, error: type[Exception], text: str) -> None:
    arguments = {"x1": torch.ones(2, 4), "x2": torch.ones(3, 4)} | change
    x1, x2 = arguments.pop("x1"), arguments.pop("x2")
    with pytest.raises(error, match=f"{kernel.__name__}: .*{text}"):
        kernel(x1, x2, **arguments)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"train": "last"}, "ntk: expected train to be 'all' or 'first', got 'last'"),
        ({"parametrization": "mup"}, "ntk: expected parametrization to be 'ntk' or 'standard', got 'mup'"),
        ({"parametrization": "standard", "width": 0}, "ntk: expected width to be a finite number > 0, got 0"),
    ],
)
def test_bad_options_of_ntk(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ntk(torch.ones(2, 4), **change)
