"""Infinitely wide networks: dual activations, kernels of fully connected networks, predictions; finite ones near them.

``FullyConnected`` is a network as its two kernels (NNGP and NTK); ``predict`` trains infinite ensembles of it in closed
form; ``NTKRegressor`` and ``NTKClassifier`` are the same as estimators for scikit-learn, where that is installed.
``DifferenceNet`` and ``LinearizedNet`` bring finite networks, of any module, near that limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zbkernels._lazy import lazy

if TYPE_CHECKING:
    from zbkernels.infinite import dual, predict
    from zbkernels.infinite.activations import Activation, from_callable
    from zbkernels.infinite.difference import DifferenceNet
    from zbkernels.infinite.dual_expectation import ToleranceError
    from zbkernels.infinite.estimators import NTKClassifier as NTKClassifier
    from zbkernels.infinite.estimators import NTKRegressor as NTKRegressor
    from zbkernels.infinite.flow import GradientFlow, features, gradient_flow
    from zbkernels.infinite.fully_connected import FullyConnected
    from zbkernels.infinite.fused import nngp, ntk
    from zbkernels.infinite.linearized import LinearizedNet
    from zbkernels.infinite.solve import ConvergenceError

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
    # The ops need a few of the modules only, and the estimators need scikit-learn.
    _MODULES = {
        "activations": ("Activation", "from_callable"),
        "difference": ("DifferenceNet",),
        "dual_expectation": ("ToleranceError",),
        "estimators": ("NTKClassifier", "NTKRegressor"),
        "flow": ("GradientFlow", "features", "gradient_flow"),
        "fully_connected": ("FullyConnected",),
        "fused": ("nngp", "ntk"),
        "linearized": ("LinearizedNet",),
        "solve": ("ConvergenceError",),
    }
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "dual": "",
            "predict": "",
            **{name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names},
        },
    )
