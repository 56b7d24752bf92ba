"""Infinitely wide networks: dual activations, and the kernels of fully connected networks (NNGP and NTK)."""

from zbkernels.infinite import dual
from zbkernels.infinite.activations import Activation, from_callable
from zbkernels.infinite.dual_expectation import ToleranceError
from zbkernels.infinite.fused import nngp, ntk

__all__ = ["Activation", "ToleranceError", "dual", "from_callable", "nngp", "ntk"]
