"""Infinitely wide networks as estimators for scikit-learn: ``NTKRegressor`` and ``NTKClassifier``.

This module needs scikit-learn (the extra ``zbkernels[experiments]``); the rest of the package does not import it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from zbkernels.infinite.fully_connected import FullyConnected
from zbkernels.infinite.predict import Gaussian, gradient_descent_mse_ensemble

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.preprocessing import LabelBinarizer
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "NTKRegressor and NTKClassifier need scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error


class _NTKEstimator(BaseEstimator):
    """What both share: parameters, the fitted ensemble, predictions as numpy arrays."""

    def __init__(
        self,
        *,
        kernel: str = "ntk",
        activation: Any = "relu",
        depth: int = 1,
        w_std: float = math.sqrt(2),
        b_std: float = 0.0,
        train: str = "all",
        diag_reg: float = 1e-6,
        time: float | None = None,
        normalize: bool = False,
        tol: float = 1e-6,
        device: str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.activation = activation
        self.depth = depth
        self.w_std = w_std
        self.b_std = b_std
        self.train = train
        self.diag_reg = diag_reg
        self.time = time
        self.normalize = normalize
        self.tol = tol
        self.device = device

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(np.require(X, requirements=["C", "W"])).to(
            self.device
        )  # a copy where X can't be written to
        if self.normalize:
            largest = x.abs().amax(1, keepdim=True)
            x = x / torch.where(largest > 0, largest, 1)  # its squares neither overflow nor underflow
            norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            x = x * (x.shape[1] ** 0.5 / torch.where(norms > 0, norms, 1))
        return x

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        """y: [N, p] or [N], of X's dtype."""
        network = FullyConnected(self.activation, self.depth, self.w_std, self.b_std, self.train)
        x = self._inputs(X)
        targets = torch.from_numpy(np.ascontiguousarray(y)).to(x)
        if not isinstance(self.diag_reg, (int, float, np.number)) or not self.diag_reg >= 0:
            raise ValueError(f"{type(self).__name__}: expected diag_reg >= 0, got {self.diag_reg!r}")
        shift = float(self.diag_reg) * float(network.diagonal(x.double(), self.kernel).mean())
        self.ensemble_ = gradient_descent_mse_ensemble(
            network, x, targets, reduction="sum", shift=shift, tol=self.tol
        )
        self.ensemble_(self.time, x[:1], self.kernel)  # solves for the weights, and keeps them

    def _predict(self, X: Any, variance: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        x = self._inputs(X).to(self.ensemble_.x)
        found = self.ensemble_(self.time, x, self.kernel, "diagonal" if variance else False)
        if isinstance(found, Gaussian):
            return found.mean.cpu().numpy(), found.covariance.cpu().numpy()
        return found.cpu().numpy(), None


_PARAMETERS = """
    Parameters:
        kernel: "ntk", all layers train (or what ``train`` says); "nngp", the read-out alone (a Gaussian process).
        activation, depth, w_std, b_std, train: the network, as in :func:`zbkernels.infinite.ntk`.
        diag_reg: added to the kernel matrix' diagonal, as a part of that diagonal's mean; for "nngp" so much noise in
            the targets. More than 0 for data with equal rows.
        time: of gradient flow on sum((y - f)²)/2, >= 0; None trains to the end.
        normalize: scale each input to the norm sqrt(d), d the number of features (a row of zeros stays).
        tol: relative residual where there are more than 4096 inputs, which are solved for without the matrix.
        device: torch's, for all computations.

    Inputs in float32 stay so; everything else is made float64.
"""


class NTKRegressor(RegressorMixin, _NTKEstimator):
    __doc__ = f"""Regression by an infinite ensemble of infinitely wide networks.
{_PARAMETERS}
    Attributes:
        ensemble_: the fitted :class:`zbkernels.infinite.predict.Ensemble`.
        n_features_in_: of the inputs.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> NTKRegressor:
        """X: [N, d], y: [N] or [N, p].

        Raises:
            ValueError, TypeError: what scikit-learn or the network refuses.
            ConvergenceError: the kernel matrix is singular (equal inputs need ``diag_reg`` > 0); ``tol`` not reached.
        """
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=X.dtype))
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean, shaped as y; with ``return_std`` also the standard deviation of one network's output, so shaped.

        That is over the initial weights ("ntk"), or the posterior's ("nngp"), without the noise.
        """
        mean, variance = self._predict(X, variance=return_std)
        if variance is None:
            return mean
        std = np.sqrt(variance)
        return mean, std if mean.ndim == 1 else np.repeat(std[:, None], mean.shape[1], axis=1)


class NTKClassifier(ClassifierMixin, _NTKEstimator):
    __doc__ = f"""Classification by regression on one-hot targets of mean zero: 1 - 1/classes, and -1/classes elsewhere.
{_PARAMETERS}
    Attributes:
        classes_: the labels, sorted.
        ensemble_: the fitted :class:`zbkernels.infinite.predict.Ensemble`.
        n_features_in_: of the inputs.
    """

    def fit(self, X: Any, y: Any) -> NTKClassifier:
        """X: [N, d], y: [N] labels. Raises as :meth:`NTKRegressor.fit`."""
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        binarizer = LabelBinarizer().fit(y)
        self.classes_ = binarizer.classes_
        if len(self.classes_) < 2:
            raise ValueError(
                f"NTKClassifier: expected at least two classes, got one class: {self.classes_.tolist()[0]!r}"
            )
        hot = binarizer.transform(y).astype(X.dtype)
        if hot.shape[1] == 1:
            hot = np.hstack([1 - hot, hot])
        self._fit(X, hot - 1 / len(self.classes_))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """[N, classes], the networks' mean outputs; for two classes [N], that of the second less that of the first."""
        scores = self._predict(X)[0]  # raises before there are classes
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """[N]: the label of the largest output; of a tie the first."""
        best = self._predict(X)[0].argmax(1)
        return self.classes_[best]
