"""Architectures as rows of configuration, and one function that builds them with or without bias."""

from zbkernels.models.build import build, initialise, parameter_count
from zbkernels.models.kernels import layer_kernels
from zbkernels.models.rows import ARCHITECTURES, Architecture, Conv, Linear, Residual, ResNet

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Conv",
    "Linear",
    "ResNet",
    "Residual",
    "build",
    "initialise",
    "layer_kernels",
    "parameter_count",
]
