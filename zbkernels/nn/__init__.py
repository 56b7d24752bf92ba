"""Drop-in layers: the names, arguments, state_dict and repr that users of ``torch.nn`` expect."""

from zbkernels.nn.conv_relu_pool import ConvReLUPool2d
from zbkernels.nn.linear_relu import LinearReLU

__all__ = ["ConvReLUPool2d", "LinearReLU"]
