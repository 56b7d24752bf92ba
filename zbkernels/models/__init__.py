"""Architectures as rows of configuration, and one function that builds them with or without bias."""

from zbkernels.models.build import build, initialise, parameter_count
from zbkernels.models.kernels import layer_kernels
from zbkernels.models.network import Network, from_pretrained
from zbkernels.models.rows import ARCHITECTURES, Architecture, Conv, Linear, Residual, ResNet
from zbkernels.models.torchvision_checkpoint import load_torchvision_resnet

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Conv",
    "Linear",
    "Network",
    "ResNet",
    "Residual",
    "build",
    "from_pretrained",
    "initialise",
    "layer_kernels",
    "load_torchvision_resnet",
    "parameter_count",
]
