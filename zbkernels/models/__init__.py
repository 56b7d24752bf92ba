"""Architectures as rows of configuration, and one function that builds them with or without bias."""

from zbkernels.models.build import build, initialise, parameter_count
from zbkernels.models.rows import ARCHITECTURES, Architecture, Conv, Linear

__all__ = ["ARCHITECTURES", "Architecture", "Conv", "Linear", "build", "initialise", "parameter_count"]
