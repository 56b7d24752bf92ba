"""Architectures as rows of configuration, and one function that builds them with or without bias."""

from zbkernels.models.build import build, initialise, parameter_count
from zbkernels.models.kernels import layer_kernels
from zbkernels.models.rows import ARCHITECTURES, Architecture, Conv, Linear, Residual

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Conv",
    "Linear",
    "Residual",
    "build",
    "initialise",
    "layer_kernels",
    "parameter_count",
]
