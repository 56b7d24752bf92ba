"""Infinitely wide networks: dual activations, kernels of fully connected networks, and predictions.

``FullyConnected`` is a network as its two kernels (NNGP and NTK); ``predict`` trains infinite ensembles of it in closed
form; ``NTKRegressor`` and ``NTKClassifier`` are the same as estimators for scikit-learn, where that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zbkernels.infinite import dual, predict
from zbkernels.infinite.activations import Activation, from_callable
from zbkernels.infinite.dual_expectation import ToleranceError
from zbkernels.infinite.fully_connected import FullyConnected
from zbkernels.infinite.kernels import nngp, ntk
from zbkernels.infinite.solve import ConvergenceError

if TYPE_CHECKING:
    from zbkernels.infinite.estimators import NTKClassifier as NTKClassifier
    from zbkernels.infinite.estimators import NTKRegressor as NTKRegressor

__all__ = [
    "Activation",
    "ConvergenceError",
    "FullyConnected",
    "ToleranceError",
    "dual",
    "from_callable",
    "nngp",
    "ntk",
    "predict",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The estimators, which need scikit-learn: imported when they are asked for."""
        if name in ("NTKClassifier", "NTKRegressor"):
            from zbkernels.infinite import estimators

            return getattr(estimators, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
