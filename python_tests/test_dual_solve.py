"""``zb.dual_solve``: what test_ops.py does not ask of every op, on both sides of the border between its two ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zbkernels as zb
from zbkernels.infinite import kernel_matrix, ntk
from zbkernels.infinite.conjugate_gradients import conjugate_gradients
from zbkernels.infinite.fully_connected import FullyConnected
from zbkernels.infinite.kernel_matrix import KernelMatrix
from zbkernels.infinite.preconditioner import nystrom
from zbkernels.infinite.solve import ConvergenceError

pytestmark = pytest.mark.usefixtures("one_thread")
NTK = {"kernel": "ntk", "depth": 2, "b_std": 0.3}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=["cholesky", "conjugate gradients"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "cholesky":
        monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", 0)
    return request.param


def arc_cosine_ntk(x: np.ndarray) -> np.ndarray:
    """The NTK of one hidden ReLU layer, w_std = sqrt(2), no biases (Cho and Saul 2009), in numpy alone."""
    norms = np.linalg.norm(x, axis=1)
    outer = np.outer(norms, norms)
    c = np.clip(x @ x.T / outer, -1, 1)
    angle = np.arccos(c)
    k1 = outer * (np.sqrt(1 - c**2) + c * (np.pi - angle)) / np.pi
    k0 = (np.pi - angle) / np.pi
    return 2 / x.shape[1] * (k1 + x @ x.T * k0)


def test_against_numpy(way: str) -> None:
    x, y = draw(120, 10), draw(120, 4, seed=1)
    K = arc_cosine_ntk(x.numpy())
    for shift in (0.0, 0.7):
        want = np.linalg.solve(K + shift * np.eye(120), y.numpy())
        got = zb.dual_solve(x, y, kernel="ntk", shift=shift, tol=1e-9)
        assert np.abs(got.numpy() - want).max() < 1e-7 * np.abs(want).max()


def test_float32_is_solved_to_the_tolerance_in_float64(way: str) -> None:
    """What is lost is the rounding of the result: a float32 solve loses 1e3 times as much here."""
    x, y = draw(150, 10, dtype=torch.float32), draw(150, 3, seed=1, dtype=torch.float32)
    got = zb.dual_solve(x, y, **NTK)
    assert got.dtype == torch.float32
    K = ntk(x.double(), depth=2, b_std=0.3)
    want = torch.linalg.solve(K, y.double())
    naive = torch.linalg.solve(ntk(x, depth=2, b_std=0.3), y)
    error = (got - want).norm() / want.norm()
    assert error < 1e-6 < (naive - want).norm() / want.norm()


def test_both_ways_reach_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = draw(100, 12), draw(100, 5, seed=1)
    y[:, 3] *= 1e-6  # the residual is each column's own
    K = zb.dual_gram(x, x, **NTK)
    for limit in (0, 4096):
        monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", limit)
        for tol in (1e-3, 1e-6, 1e-10):
            a = zb.dual_solve(x, y, **NTK, tol=tol)
            assert ((K @ a - y).norm(dim=0) / y.norm(dim=0)).max() <= 1.001 * tol


@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_gradients_are_those_of_a_dense_solve(way: str, shift: float) -> None:
    x, y = draw(9, 6).requires_grad_(), draw(9, 2, seed=1).requires_grad_()
    r = draw(9, 2, seed=2)
    got = zb.dual_solve(x, y, **NTK, shift=shift, tol=1e-12)
    K = ntk(x, depth=2, b_std=0.3) + shift * torch.eye(9, dtype=x.dtype)
    want = torch.linalg.solve(K, y)
    torch.testing.assert_close(got, want)
    first = [torch.autograd.grad((out * r).sum(), (x, y), create_graph=True) for out in (got, want)]
    for a, b in zip(*first, strict=True):
        torch.testing.assert_close(a, b)
    second = [torch.autograd.grad((gx.square().sum() + gy.square().sum()), (x, y)) for gx, gy in first]
    for a, b in zip(*second, strict=True):
        torch.testing.assert_close(a, b)


def test_one_gradient_wanted(way: str) -> None:
    x, y = draw(8, 6), draw(8, 2, seed=1)
    leaf = y.clone().requires_grad_()
    (g,) = torch.autograd.grad(zb.dual_solve(x, leaf, **NTK, tol=1e-12).sum(), leaf)
    torch.testing.assert_close(g, zb.dual_solve(x, torch.ones_like(y), **NTK, tol=1e-12))
    leaf = x.clone().requires_grad_()
    zb.dual_solve(leaf, y, **NTK).sum().backward()
    assert leaf.grad.isfinite().all() and leaf.grad.abs().max() > 0


def test_transforms_and_compile() -> None:
    x, y = draw(5, 4), draw(5, 2, seed=1)
    func = torch.func
    for op in (zb.dual_solve, torch.ops.zb.dual_solve):
        want = op(x, y, **NTK)
        tangent = func.jvp(lambda y: op(x, y, **NTK), (y,), (y,))[1]  # noqa: B023
        torch.testing.assert_close(tangent, want)
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(op(leaf, y, **NTK).sum(), leaf)
        torch.testing.assert_close(func.grad(lambda x: op(x, y, **NTK).sum())(x), g)  # noqa: B023

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return zb.dual_solve(x, y, **NTK).square().sum()

    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for a, b in zip(*(torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_changes_nothing(way: str) -> None:
    x, y = draw(30, 6, dtype=torch.float32), draw(30, 2, seed=1, dtype=torch.float32)
    want = zb.dual_solve(x, y, **NTK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(zb.dual_solve(x, y, **NTK), want)


# --- singular, zero, not a number -----------------------------------------------------------------------------------


def test_equal_inputs_need_a_shift(way: str) -> None:
    x, y = draw(20, 6), draw(22, 2, seed=1)
    x = torch.cat([x, x[3:4], x[3:4]])
    with pytest.raises(
        ConvergenceError, match=r"^dual_solve: .* got equal ones at rows 3 and 20, .* larger shift"
    ):
        zb.dual_solve(x, y, **NTK)
    a = zb.dual_solve(x, y, **NTK, shift=0.5)
    K = zb.dual_gram(x, x, **NTK)
    torch.testing.assert_close(K @ a + 0.5 * a, y, rtol=1e-5, atol=1e-5)


def test_zero_inputs(way: str) -> None:
    x, y = draw(12, 6), draw(12, 2, seed=1)
    x[4] = 0
    with pytest.raises(ConvergenceError, match=r"dual_solve: .* got 0 at row 4 .*zero input without biases"):
        zb.dual_solve(x, y)
    torch.testing.assert_close(zb.dual_solve(x, y, shift=0.5)[4], y[4] / 0.5, rtol=1e-5, atol=1e-5)
    assert zb.dual_solve(x, y, b_std=0.1).isfinite().all()
    zeros = torch.zeros_like(y)
    assert torch.equal(zb.dual_solve(x, zeros, shift=0.1), zeros)
    assert torch.equal(
        zb.dual_solve(torch.zeros_like(x), zeros), zeros
    )  # every a solves it; zero is the least


def test_what_is_singular_though_no_inputs_are_equal(way: str) -> None:
    """A linear kernel of 4 features with 30 inputs: y has a part that no a reaches."""
    x, y = draw(30, 4), draw(30, 2, seed=1)
    with pytest.raises(ConvergenceError, match=r"^dual_solve: expected .* pass a larger shift"):
        zb.dual_solve(x, y, depth=0)
    assert zb.dual_solve(x, y, depth=0, shift=0.1).isfinite().all()


def test_not_a_number(way: str) -> None:
    x, y = draw(12, 6), draw(12, 3, seed=1)
    want = zb.dual_solve(x, y, **NTK)
    for bad in (math.nan, math.inf):
        strange = y.clone()
        strange[5, 1] = bad
        got = zb.dual_solve(x, strange, **NTK)
        assert got[:, 1].isnan().all()
        torch.testing.assert_close(got[:, [0, 2]], want[:, [0, 2]], rtol=1e-4, atol=1e-4)
        strange = x.clone()
        strange[5, 1] = bad
        assert zb.dual_solve(strange, y, **NTK).isnan().all()


def test_a_tolerance_out_of_reach_says_what_was_reached(way: str) -> None:
    x, y = draw(40, 3), draw(40, 2, seed=1)
    x[20:] = x[:20] + 1e-9 * draw(20, 3, seed=2)
    with pytest.raises(ConvergenceError, match="dual_solve: expected") as caught:
        zb.dual_solve(x.float(), y.float(), tol=1e-13)
    assert "larger shift (the mean of K's diagonal is" in str(caught.value)


# --- the solver -----------------------------------------------------------------------------------------------------


def test_the_preconditioner_saves_iterations() -> None:
    x, y = draw(600, 40), draw(600, 3, seed=1)
    matrix = KernelMatrix(x, 0.0, FullyConnected(), "ntk")
    K = matrix.dense()
    plain = conjugate_gradients(lambda v: K @ v, y, tol=1e-8)
    better = conjugate_gradients(lambda v: K @ v, y, precondition=nystrom(matrix), tol=1e-8)
    assert better.iterations < 0.7 * plain.iterations
    torch.testing.assert_close(better.x, plain.x, rtol=1e-5, atol=1e-7)
    assert better.residual.max() <= 1e-8


def test_the_preconditioner_is_symmetric_positive_and_near_the_matrix() -> None:
    x = draw(200, 5)
    matrix = KernelMatrix(x, 0.3, FullyConnected(depth=2), "nngp")
    inverse = nystrom(matrix, 50)(torch.eye(200, dtype=x.dtype))
    torch.testing.assert_close(inverse, inverse.mT)
    spectrum = torch.linalg.eigvals(inverse @ matrix.dense()).real
    exact = torch.linalg.eigvalsh(matrix.dense())
    assert spectrum.min() > 0 and spectrum.max() / spectrum.min() < 0.1 * exact[-1] / exact[0]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(-5, 2),
    st.integers(0, 10**6),
)
def test_conjugate_gradients_on_any_spectrum(
    n: int, p: int, dtype: torch.dtype, low: float, seed: int
) -> None:
    Q = torch.linalg.qr(draw(n, n, seed=seed)).Q
    A = (Q * torch.logspace(low, 2, n, dtype=torch.float64)) @ Q.mT
    y = draw(n, p, seed=seed + 1)
    products = {torch.float64: A, torch.float32: A.float()}
    found = conjugate_gradients(lambda v: products[v.dtype] @ v, y, tol=1e-5, dtype=dtype)
    true = (y - A @ found.x).norm(dim=0) / y.norm(dim=0)
    torch.testing.assert_close(true, found.residual, rtol=1e-3, atol=1e-12)
    if dtype == torch.float64 or low > -3:  # float32 steps need eps · condition < 1
        assert found.residual.max() <= 1e-5


def test_products_stop_at_the_limit() -> None:
    calls = []
    A = torch.diag(torch.logspace(-6, 0, 50, dtype=torch.float64))

    def product(v: Tensor) -> Tensor:
        calls.append(v)
        return A @ v

    found = conjugate_gradients(product, draw(50, 1), tol=1e-12, max_iterations=7)
    assert found.iterations == 7 and len(calls) <= 9 and found.residual.max() > 1e-12


@pytest.mark.parametrize(
    ("y", "options", "error", "text"),
    [
        (
            draw(3, 2),
            {"shift": -1.0},
            ValueError,
            "expected shift to be a finite number, at least 0, got -1.0",
        ),
        (draw(3, 2), {"shift": math.nan}, ValueError, "expected shift to be a finite number"),
        (draw(3, 2), {"tol": 0}, ValueError, "expected tol to be a finite number, more than 0, got 0"),
        (draw(3, 2), {"depth": -1}, ValueError, "expected depth to be an int >= 0"),
        (draw(3, 2), {"kernel": "gp"}, ValueError, "expected kernel to be 'nngp' or 'ntk', got 'gp'"),
        (draw(4, 2), {}, ValueError, r"expected y of shape \[3, p\], a row for each of x's, got \[4, 2\]"),
        (draw(3), {}, ValueError, r"expected y of shape \[3, p\]"),
        (draw(3, 2).float(), {}, TypeError, "expected y of x's dtype torch.float64, got torch.float32"),
        (draw(3, 2).to_sparse(), {}, TypeError, "expected y to be a dense"),
        (draw(3, 2).to("meta"), {}, ValueError, "expected y on x's device cpu, got meta"),
        (draw(3, 2).numpy(), {}, TypeError, "expected y to be a tensor, got ndarray"),
    ],
)
def test_bad_input(y: Tensor, options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^dual_solve: {text}"):
        zb.dual_solve(draw(3, 4, seed=5), y, **options)
