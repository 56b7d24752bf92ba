"""``NTKRegressor`` and ``NTKClassifier`` in scikit-learn's own hands."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from zbkernels.infinite import ConvergenceError, kernel_matrix, ntk

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_digits, make_regression
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from zbkernels.infinite import NTKClassifier, NTKRegressor

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # checks feed what estimators warn of
]


@parametrize_with_checks(
    [NTKRegressor(), NTKRegressor(kernel="nngp", time=5.0, normalize=True), NTKClassifier(depth=2, b_std=0.1)]
)
def test_the_contract_of_scikit_learn(estimator, check) -> None:
    check(estimator)


X, Y = make_regression(60, 5, n_targets=2, noise=0.1, random_state=0)


def test_is_kernel_ridge_regression_with_the_ntk() -> None:
    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return ntk(torch.from_numpy(a), torch.from_numpy(b), depth=2).numpy()

    K = kernel(X, X)
    alpha = 1e-3 * np.diag(K).mean()
    want = KernelRidge(alpha=alpha, kernel="precomputed").fit(K[:40, :40], Y[:40]).predict(K[40:, :40])
    alpha_of_40 = alpha / np.diag(K[:40, :40]).mean()
    got = NTKRegressor(depth=2, diag_reg=alpha_of_40).fit(X[:40], Y[:40]).predict(X[40:])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_nngp_is_a_gaussian_process_with_its_standard_deviation() -> None:
    """depth 0 is the linear kernel, which scikit-learn has: w_std² x·y / d."""
    noise = 0.3
    scale = 5**-0.5
    linear = GaussianProcessRegressor(
        DotProduct(sigma_0=0.0, sigma_0_bounds="fixed"), alpha=noise, optimizer=None
    )
    want = linear.fit(X[:40] * scale, Y[:40, 0]).predict(X[40:] * scale, return_std=True)
    diagonal = np.square(X[:40]).sum(1).mean() / 5
    ours = NTKRegressor(kernel="nngp", depth=0, w_std=1.0, diag_reg=noise / diagonal).fit(X[:40], Y[:40, 0])
    got = ours.predict(X[40:], return_std=True)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_shapes_dtypes_and_return_std() -> None:
    for dtype in (np.float32, np.float64):
        fit = NTKRegressor(b_std=0.1).fit(X.astype(dtype), Y)
        mean, std = fit.predict(X[:3].astype(dtype), return_std=True)
        assert mean.shape == std.shape == (3, 2) and mean.dtype == std.dtype == dtype
        assert (std >= 0).all() and std.max() < 0.05  # training inputs: every network fits them
    mean, std = NTKRegressor(time=0.0).fit(X, Y[:, 0]).predict(X[:4], return_std=True)
    assert mean.shape == std.shape == (4,) and not mean.any() and (std > 0.1).all()


def test_pipeline_grid_search_and_clone() -> None:
    digits, labels = load_digits(return_X_y=True)
    digits, labels = digits[:300], labels[:300]
    pipeline = make_pipeline(StandardScaler(), NTKClassifier(normalize=True))
    grid = {
        "ntkclassifier__depth": [1, 3],
        "ntkclassifier__time": [None, 0.01],
        "ntkclassifier__kernel": ["ntk", "nngp"],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(digits, labels)
    assert search.best_score_ > 0.85
    assert cross_val_score(clone(search.best_estimator_), digits, labels, cv=3).mean() > 0.85
    best = clone(search.best_estimator_[-1])
    assert best.get_params() == search.best_estimator_[-1].get_params() and not hasattr(best, "ensemble_")
    assert best.set_params(depth=5).depth == 5
    classes = np.array(["zero", "one"])[labels[labels < 2]]
    two = NTKClassifier().fit(digits[labels < 2], classes)
    assert set(two.predict(digits)) == {"zero", "one"} and two.decision_function(digits).shape == (300,)


def test_without_the_matrix_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = {}
    for limit in (4096, 0):
        monkeypatch.setattr(kernel_matrix, "DENSE_LIMIT", limit)
        fits[limit] = NTKRegressor(tol=1e-9, diag_reg=1e-3).fit(X, Y).predict(X[:9])
    np.testing.assert_allclose(fits[0], fits[4096], rtol=1e-6, atol=1e-6)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="NTKRegressor: expected diag_reg >= 0, got -1"):
        NTKRegressor(diag_reg=-1).fit(X, Y)
    with pytest.raises(ConvergenceError, match="larger shift"):
        NTKRegressor(diag_reg=0).fit(np.vstack([X, X]), np.vstack([Y, Y]))
    with pytest.raises(
        ValueError, match=r"NTKClassifier: expected at least two classes, got one class: 0\.0$"
    ):
        NTKClassifier().fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="expected t to be a number >= 0"):
        NTKRegressor(time=-1).fit(X, Y)


def test_the_package_does_without_scikit_learn() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import zbkernels.infinite as infinite\n"
        "try:\n    infinite.NTKRegressor\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "NTKRegressor and NTKClassifier need scikit-learn" in done.stdout, done.stderr


def test_a_grid_of_numpy_numbers() -> None:
    x = np.random.default_rng(0).standard_normal((30, 4))
    grid = {"depth": np.arange(1, 3), "w_std": np.float32([1, 1.5]), "diag_reg": np.float32([1e-3])}
    search = GridSearchCV(NTKRegressor(time=np.int64(100)), grid, cv=2, error_score="raise")
    assert np.isfinite(search.fit(x, x[:, 0] ** 2).best_score_)


@pytest.mark.filterwarnings("error")
def test_normalized_inputs_of_any_size_and_read_only_ones() -> None:
    x = np.random.default_rng(0).standard_normal((30, 4))
    y = x[:, 0] ** 2
    expected = NTKRegressor(normalize=True).fit(x, y).predict(x[:5])
    for size in (1e-200, 1e200):
        scaled = x * size
        scaled.setflags(write=False)
        found = NTKRegressor(normalize=True).fit(scaled, y).predict(scaled[:5])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_diag_reg_that_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"^NTKRegressor: expected diag_reg >= 0, got '1e-3'"):
        NTKRegressor(diag_reg="1e-3").fit(np.eye(4), np.ones(4))
