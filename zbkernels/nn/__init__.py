"""Drop-in layers: the names, arguments, state_dict and repr that users of ``torch.nn`` expect; and ``remove_bias``."""

from typing import TYPE_CHECKING

from zbkernels._lazy import lazy
from zbkernels.nn.channel_scale import ChannelScale
from zbkernels.nn.conv_relu_pool import ConvReLUPool2d
from zbkernels.nn.linear_relu import LinearReLU
from zbkernels.nn.remove_bias import RemovalReport, remove_bias

__all__ = ["ChannelScale", "ConvReLUPool2d", "LinearReLU", "RemovalReport", "remove_bias"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, {"fusion": ""})
