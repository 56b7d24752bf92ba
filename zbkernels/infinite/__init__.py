"""Infinitely wide networks: dual activations, the kernels of fully connected networks (NNGP and NTK), and finite
networks that come near them (difference networks and linearised ones, of any module)."""

from zbkernels.infinite import dual
from zbkernels.infinite.activations import Activation, from_callable
from zbkernels.infinite.difference import DifferenceNet
from zbkernels.infinite.dual_expectation import ToleranceError
from zbkernels.infinite.gradient_flow import GradientFlow, features, gradient_flow
from zbkernels.infinite.kernels import nngp, ntk
from zbkernels.infinite.linearized import LinearizedNet

__all__ = [
    "Activation",
    "DifferenceNet",
    "GradientFlow",
    "LinearizedNet",
    "ToleranceError",
    "dual",
    "features",
    "from_callable",
    "gradient_flow",
    "nngp",
    "ntk",
]
