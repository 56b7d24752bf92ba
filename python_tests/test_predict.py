"""``zbkernels.infinite.predict``: against the formulas written down, against trained wide networks, at the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zbkernels.infinite import ConvergenceError, FullyConnected, kernel_matrix, nngp, ntk, predict
from zbkernels.infinite.lanczos import decay, flow, largest_eigenvalue

pytestmark = pytest.mark.usefixtures("one_thread")
NET = FullyConnected("relu", depth=2, b_std=0.2)
SAME = {"depth": 2, "b_std": 0.2}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


X, Y, Z = draw(40, 8), draw(40, 2, seed=1), draw(7, 8, seed=2)


@pytest.fixture(params=["with the matrix", "without"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", 0)
    return request.param


def written_down(get: str, time: float, shift: float, train: str = "all") -> tuple[Tensor, Tensor]:
    """(mean, covariance) by the formulas of the module, with a matrix exponential."""
    Kxx, Kzx, Kzz = nngp(X, **SAME), nngp(Z, X, **SAME), nngp(Z, **SAME)
    tangent = {"train": train, **SAME}
    Txx, Tzx = (Kxx, Kzx) if get == "nngp" else (ntk(X, **tangent), ntk(Z, X, **tangent))
    eye = torch.eye(40, dtype=X.dtype)
    A = Txx + shift * eye
    B = torch.linalg.inv(A)
    if math.isfinite(time):
        B = B @ (eye - torch.linalg.matrix_exp(-time * A))
    middle = Kxx + shift * eye if get == "nngp" else Kxx
    cross = Tzx @ B @ Kzx.mT
    return Tzx @ B @ Y, Kzz - cross - cross.mT + Tzx @ B @ middle @ B @ Tzx.mT


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("get", ["ntk", "nngp"])
def test_mean_and_covariance_are_those_written_down(way: str, get: str, shift: float) -> None:
    fit = predict.gradient_descent_mse_ensemble(NET, X, Y, learning_rate=3.0, shift=shift, tol=1e-10)
    for t in (None, 0, 1.0, 100, 1e5):
        mean, covariance = written_down(get, math.inf if t is None else 3.0 * t / Y.numel(), shift)
        torch.testing.assert_close(fit(t, Z, get), mean, rtol=1e-6, atol=1e-8)
        found = fit(t, Z, get, compute_cov=True)
        torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.covariance, covariance, rtol=1e-6, atol=1e-7)
        diagonal = fit(t, Z, get, compute_cov="diagonal").covariance
        torch.testing.assert_close(diagonal, covariance.diagonal(), rtol=1e-6, atol=1e-7)


def test_columns_are_taken_in_turn_where_their_spaces_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", 0)
    found = []
    for numbers in (2**27, 128 * 40 * 3):
        monkeypatch.setattr("zbkernels.infinite.kernel_flow._NUMBERS", numbers)
        monkeypatch.setattr("zbkernels.infinite.predict._NUMBERS", numbers // 128)
        fit = predict.gradient_descent_mse_ensemble(NET, X, Y, reduction="sum", tol=1e-9)
        found.append([*fit(2.0, Z, compute_cov=True), fit(2.0, Z, compute_cov="diagonal").covariance])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def test_infinity_is_the_limit_and_zero_is_the_start(way: str) -> None:
    fit = predict.gradient_descent_mse_ensemble(NET, X, Y, reduction="sum", tol=1e-9)
    late, last = fit(1e9, Z, compute_cov=True), fit(None, Z, compute_cov=True)
    torch.testing.assert_close(late.mean, last.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(late.covariance, last.covariance, rtol=1e-5, atol=1e-5)
    first = fit(0, Z, compute_cov=True)
    assert torch.equal(first.mean, torch.zeros_like(first.mean))
    torch.testing.assert_close(first.covariance, nngp(Z, **SAME))


def test_training_inputs_are_fitted_at_the_rate_of_the_eigenvalues(way: str) -> None:
    """Equation 12 of the thesis: y - u(t) = exp(-H t)(y - u(0)), in the mean over u(0)."""
    net, H = FullyConnected(train="first"), ntk(X, train="first")
    fit = predict.gradient_descent_mse_ensemble(net, X, Y, reduction="sum", tol=1e-10)
    for t in (0.1, 1.0, 7.0):
        torch.testing.assert_close(Y - fit(t), torch.linalg.matrix_exp(-H * t) @ Y, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(fit(), Y, rtol=1e-6, atol=1e-6)
    assert fit(None, X, compute_cov="diagonal").covariance.max() < 1e-5  # every network fits them


def test_units_of_time() -> None:
    fits = [
        predict.gradient_descent_mse_ensemble(NET, X, Y, learning_rate=rate, reduction=reduction)
        for rate, reduction in ((0.5, "mean"), (0.5 / Y.numel(), "sum"), (1.0, "mean"))
    ]
    want = fits[0](10, Z)
    torch.testing.assert_close(fits[1](10, Z), want)
    torch.testing.assert_close(fits[2](5, Z), want)
    torch.testing.assert_close(fits[0]([5, 10.0], Z)[1], want)
    several = fits[0]([5, 10.0], Z, compute_cov=True)
    assert several.mean.shape == (2, 7, 2) and several.covariance.shape == (2, 7, 7)


def test_gaussian_process_posterior(way: str) -> None:
    noise = 0.25
    found = predict.gp_inference(NET, X, Y, shift=noise, tol=1e-10)(x_test=Z, get="nngp", compute_cov=True)
    A = nngp(X, **SAME) + noise * torch.eye(40, dtype=X.dtype)
    K = nngp(Z, X, **SAME)
    torch.testing.assert_close(found.mean, K @ torch.linalg.solve(A, Y), rtol=1e-6, atol=1e-7)
    want = nngp(Z, **SAME) - K @ torch.linalg.solve(A, K.mT)
    torch.testing.assert_close(found.covariance, want, rtol=1e-6, atol=1e-7)


def test_wide_networks_are_trained_to_it() -> None:
    """200 networks of width 1024, full-batch gradient descent: mean and variance within four standard errors."""
    d, width, count, steps, rate = 8, 1024, 200, 30, 0.1
    x, y, z = draw(3, d, seed=5), draw(3, 1, seed=6), draw(3, d, seed=7)
    everything = torch.cat([x, z])
    W, a = draw(count, d, width, seed=8), draw(count, width, 1, seed=9)
    first, second = (2 / d) ** 0.5, (2 / width) ** 0.5
    for _ in range(steps):
        h = first * x @ W
        s = h.clamp_min(0)
        back = second * (second * s @ a - y)
        gW = first * x.mT @ ((back @ a.mT) * (h > 0))
        a, W = a - rate * s.mT @ back, W - rate * gW
    outputs = (second * (first * everything @ W).clamp_min(0) @ a)[:, :, 0].mT  # [inputs, networks]
    # Steps, not a flow: (1 - rate λ)^steps in place of exp(-rate steps λ).
    eye = torch.eye(3, dtype=x.dtype)
    T, K = ntk(x), nngp(x)
    assert rate * torch.linalg.eigvalsh(T)[-1] < 1
    left = torch.linalg.matrix_power(eye - rate * T, steps)
    B = torch.linalg.solve(T, eye - left)
    Tz, Kz = ntk(everything, x), nngp(everything, x)
    mean = Tz @ B @ y
    variance = (nngp(everything) - 2 * Tz @ B @ Kz.mT + Tz @ B @ K @ B.mT @ Tz.mT).diagonal()
    error = (variance / count).sqrt()[:, None]
    assert ((outputs.mean(1, keepdim=True) - mean).abs() < 4 * error + 0.02).all()
    of_tests = (outputs.var(1) / variance)[3:]  # what is left on training inputs is of the order of 1/width
    assert ((of_tests - 1).abs() < 4 * (2 / count) ** 0.5).all()
    # And the flow itself, where the steps are small enough for it to be the same.
    fit = predict.gradient_descent_mse_ensemble(FullyConnected(), x, y, learning_rate=1e-4, reduction="sum")
    small = torch.linalg.matrix_power(eye - 1e-4 * T, 20_000)
    torch.testing.assert_close(
        fit(20_000, everything), Tz @ torch.linalg.solve(T, eye - small) @ y, rtol=1e-3, atol=1e-3
    )


def test_shapes_dtypes_and_one_output(way: str) -> None:
    fit = predict.gradient_descent_mse_ensemble(NET, X.float(), Y[:, 0].float(), tol=1e-5)
    assert fit(None, Z.float()).shape == (7,) and fit(None, Z.float()).dtype == torch.float32
    assert fit(3.0, Z[:0].float(), compute_cov=True).covariance.shape == (0, 0)
    both = predict.gradient_descent_mse_ensemble(NET, X, Y, tol=1e-9)(None, Z)[:, 0]
    torch.testing.assert_close(fit(None, Z.float()).double(), both, rtol=1e-3, atol=1e-3)


def test_callables_and_the_standard_parametrisation(way: str) -> None:
    options = {"parametrization": "standard", "width": 64.0}
    if way == "with the matrix":  # a callable's dual activations take long, and each product has them anew
        options["activation"] = torch.sin
    x, y, z = X[:12], Y[:12], Z[:3]
    net = FullyConnected(**options)
    fit = predict.gradient_descent_mse_ensemble(net, x, y, shift=0.1, tol=1e-10)
    A = ntk(x, **options) + 0.1 * torch.eye(12, dtype=x.dtype)
    want = ntk(z, x, **options) @ torch.linalg.solve(A, y)
    torch.testing.assert_close(fit(None, z), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.diagonal(x), ntk(x, **options).diagonal(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("train", ["all", "first"])
@pytest.mark.parametrize("activation", ["relu", "erf:2", "gelu", "sin+cos", "abs"])
def test_the_diagonal_is_the_matrix_diagonal(activation: str, train: str) -> None:
    net = FullyConnected(activation, 3, 1.2, 0.4, train)
    for get in ("nngp", "ntk"):
        torch.testing.assert_close(net.diagonal(X, get), net(X, get=get).diagonal(), rtol=1e-12, atol=1e-12)


# --- the Lanczos method ---------------------------------------------------------------------------------------------


def test_the_bound_holds_and_restarts_do_not_change_the_flow() -> None:
    A = ntk(X) + 0.01 * torch.eye(40, dtype=X.dtype)
    values, vectors = torch.linalg.eigh(A)
    for t in (0.01, 0.3, 5.0):
        want = vectors @ (decay(values, t)[:, None] * (vectors.mT @ Y))
        for basis in (16, 32, 128):
            found = flow(lambda v: A @ v, Y, t, tol=1e-7, basis=basis)
            error = (A @ (found.weights - want)).norm(dim=0) / Y.norm(dim=0)
            assert found.t == t and (error <= found.bound + 1e-12).all() and found.bound.max() <= 1e-7


def test_singular_matrices_zeros_and_closed_spaces() -> None:
    A = torch.diag(torch.tensor([0.0, 0.0, 1.0, 4.0], dtype=torch.float64))
    y = torch.tensor([[1.0, 0, 1], [0, 0, 0], [2, 0, 0], [0, 0, 0]], dtype=torch.float64)
    found = flow(lambda v: A @ v, y, 3.0, tol=1e-10)
    want = decay(A.diagonal(), 3.0)[:, None] * y
    torch.testing.assert_close(found.weights, want, rtol=1e-9, atol=1e-12)
    assert float(decay(torch.tensor([0.0]), 3.0)) == 3.0


def test_a_time_out_of_reach_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.diag(torch.logspace(-6, 3, 200, dtype=torch.float64))
    found = flow(lambda v: A @ v, draw(200, 1), 1e5, tol=1e-9, basis=8, max_products=40)
    assert 0 < found.t < 1e5 and found.products <= 40
    monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", 0)
    monkeypatch.setattr("zbkernels.infinite.kernel_flow.MAX_PRODUCTS", 40)
    monkeypatch.setattr("zbkernels.infinite.kernel_flow.flow", lambda *a, **k: found)
    fit = predict.gradient_descent_mse_ensemble(NET, X, Y, reduction="sum")
    with pytest.raises(
        ConvergenceError, match=r"expected gradient flow up to time 100000 .* in 40 products, got to"
    ):
        fit(1e5, Z)


def test_largest_learning_rate() -> None:
    net = FullyConnected(depth=2)
    top = float(torch.linalg.eigvalsh(ntk(X, depth=2))[-1])
    assert predict.max_learning_rate(net, X, outputs=2) == pytest.approx(2 * 80 / top, rel=1e-9)
    assert predict.max_learning_rate(net, X, reduction="sum") == pytest.approx(2 / top, rel=1e-9)
    assert predict.max_learning_rate(net, torch.zeros(3, 4)) == math.inf
    assert largest_eigenvalue(lambda v: v, torch.zeros(0)) == 0


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"y_train": Y[:3]}, ValueError, r"expected y_train of shape \[40, p\] or \[40\], got \[3, 2\]"),
        (
            {"y_train": Y.float()},
            TypeError,
            "expected y_train to be a tensor of torch.float64 on cpu, got torch.float32",
        ),
        ({"y_train": Y.numpy()}, TypeError, "expected y_train to be a tensor of .* got ndarray"),
        ({"x_train": X / 0}, ValueError, "expected x_train to be finite"),
        ({"x_train": X[:0], "y_train": Y[:0]}, ValueError, "expected at least one training input, got none"),
        (
            {"kernel_fn": ntk},
            TypeError,
            "expected kernel_fn to be a zbkernels.infinite.FullyConnected, got function",
        ),
        ({"learning_rate": 0}, ValueError, "expected learning_rate to be a finite number > 0, got 0"),
        ({"reduction": "none"}, ValueError, "expected reduction to be 'mean' or 'sum', got 'none'"),
        ({"shift": -1}, ValueError, "expected shift to be a finite number, at least 0, got -1"),
        ({"tol": 0}, ValueError, "expected tol to be a finite number, more than 0, got 0"),
    ],
)
def test_bad_training_input(change: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^gradient_descent_mse_ensemble: {text}"):
        predict.gradient_descent_mse_ensemble(**{"kernel_fn": NET, "x_train": X, "y_train": Y, **change})


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"t": -1}, ValueError, "expected t to be a number >= 0 or None"),
        ({"t": "late"}, ValueError, "expected t to be a number"),
        ({"get": "both"}, ValueError, "expected 'nngp' or 'ntk', got 'both'"),
        (
            {"compute_cov": "full"},
            ValueError,
            "expected compute_cov to be True, False or 'diagonal', got 'full'",
        ),
        ({"x_test": Z[:, :3]}, ValueError, "expected x1 and x2 of as many features"),
        ({"x_test": Z.float()}, TypeError, "expected x1 and x2 of one dtype"),
    ],
)
def test_bad_test_input(change: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^gp_inference: {text}"):
        predict.gp_inference(NET, X, Y)(**{"x_test": Z, **change})


def test_singular_kernels_say_what_to_do(way: str) -> None:
    x = torch.cat([X, X[:1]])
    fit = predict.gradient_descent_mse_ensemble(NET, x, torch.cat([Y, Y[1:2]]))
    with pytest.raises(ConvergenceError, match=r"^gradient_descent_mse_ensemble: .* larger shift"):
        fit(None, Z)
    assert fit(50.0, Z).isfinite().all()  # a flow has a place at every time
    with pytest.raises(ValueError, match="FullyConnected: expected parametrization to be"):
        FullyConnected(parametrization="mup")
    with pytest.raises(ValueError, match="FullyConnected: expected width"):
        FullyConnected(width=0)
    with pytest.raises(ValueError, match="FullyConnected: expected depth"):
        FullyConnected(depth=-1)


def test_numbers_of_numpy_and_several_times() -> None:
    """As parameter grids and ranges of times are made of."""
    net = FullyConnected("relu", depth=np.int64(2), b_std=np.float32(0.5))
    assert net == FullyConnected("relu", depth=2, b_std=0.5)
    assert ntk(X, depth=np.int64(2), b_std=np.float32(0.5)).equal(ntk(X, depth=2, b_std=0.5))
    fit = predict.gradient_descent_mse_ensemble(NET, X, Y, shift=np.float32(0.5))
    expected = fit([0.0, 10.0], Z)
    for times in (np.array([0, 10]), torch.tensor([0.0, 10.0]), range(0, 11, 10)):
        assert fit(times, Z).equal(expected)
    for time in (np.int64(10), np.float32(10), torch.tensor(10)):
        assert fit(time, Z).equal(expected[1])


@pytest.mark.parametrize("compute_cov", [1, "no", np.True_, torch.ones(2)])
def test_what_is_no_word_for_a_covariance_is_refused(compute_cov: Any) -> None:
    with pytest.raises(ValueError, match="expected compute_cov to be True, False or 'diagonal'"):
        predict.gp_inference(NET, X, Y)(None, Z, compute_cov=compute_cov)


def test_no_times_and_no_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^gp_inference: expected at least one time, got none"):
        predict.gp_inference(NET, X, Y)([], Z)
    with pytest.raises(ValueError, match="expected outputs to be an int >= 1, got 0"):
        predict.max_learning_rate(NET, X, outputs=0)


@pytest.mark.parametrize("compute_cov", [True, "diagonal"])
@pytest.mark.parametrize("get", ["ntk", "nngp"])
def test_covariances_of_float32_inputs_are_exact_near_the_training_inputs(get: str, compute_cov: Any) -> None:
    x, y = X.float(), Y.float()
    z = x + 1e-4 * draw(40, 8, seed=3, dtype=torch.float32)
    found, exact = (
        predict.gradient_descent_mse_ensemble(NET, a, b)(None, c, get, compute_cov).covariance
        for a, b, c in ((x, y, z), (x.double(), y.double(), z.double()))
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "network", [FullyConnected(torch.tanh, 1), FullyConnected("relu", 2, parametrization="standard")]
)
def test_products_of_blocks_ignore_autocast_and_check_their_vectors(network: FullyConnected) -> None:
    x, v = X.float(), Y.float()
    expected = network.matvec(x, x, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network.matvec(x, x, v).equal(expected)
    with pytest.raises(ValueError, match=r"expected v of shape \[40, p\]"):
        network.matvec(x, x, v[:3])
    with pytest.raises(TypeError, match="expected v of x1's dtype"):
        network.matvec(x, x, v.double())
    for bad in (x[0], x.half()):
        with pytest.raises((TypeError, ValueError), match=r"^FullyConnected: expected x1 of"):
            network.diagonal(bad)
