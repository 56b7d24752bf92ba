"""Infinitely wide networks: dual activations, kernels of fully connected networks, predictions; finite ones near them.

``FullyConnected`` is a network as its two kernels (NNGP and NTK); ``predict`` trains infinite ensembles of it in closed
form; ``NTKRegressor`` and ``NTKClassifier`` are the same as estimators for scikit-learn, where that is installed.
``DifferenceNet`` and ``LinearizedNet`` bring finite networks, of any module, near that limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zbkernels.infinite import dual, predict
from zbkernels.infinite.activations import Activation, from_callable
from zbkernels.infinite.difference import DifferenceNet
from zbkernels.infinite.dual_expectation import ToleranceError
from zbkernels.infinite.fully_connected import FullyConnected
from zbkernels.infinite.fused import nngp, ntk
from zbkernels.infinite.gradient_flow import GradientFlow, features, gradient_flow
from zbkernels.infinite.linearized import LinearizedNet
from zbkernels.infinite.solve import ConvergenceError

if TYPE_CHECKING:
    from zbkernels.infinite.estimators import NTKClassifier as NTKClassifier
    from zbkernels.infinite.estimators import NTKRegressor as NTKRegressor

__all__ = [
    "Activation",
    "ConvergenceError",
    "DifferenceNet",
    "FullyConnected",
    "GradientFlow",
    "LinearizedNet",
    "ToleranceError",
    "dual",
    "features",
    "from_callable",
    "gradient_flow",
    "nngp",
    "ntk",
    "predict",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The estimators, which need scikit-learn: imported when they are asked for."""
        if name in ("NTKClassifier", "NTKRegressor"):
            import importlib

            return getattr(importlib.import_module("zbkernels.infinite.estimators"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
