"""The convolutions of normaliser-free ResNets: scaled weight standardisation (Brock et al., 2021, sections 3 and 4).

A block computes ``X + alpha·G(X/beta)``, where beta is the standard deviation that X has at initialisation by
expectation, and G keeps the variance: its ReLUs are followed by the factor :data:`RELU_GAIN`, its weights are
standardised. That acts on weights alone, so that the network without biases stays homogeneous. The fixed factors alpha,
1/beta and RELU_GAIN become part of the convolution's weight, which they commute with.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.nn import ConvReLUPool2d

# 1 / the standard deviation of relu(z), z from N(0, 1): its variance is (1 - 1/π) / 2
RELU_GAIN = (2 / (1 - 1 / torch.pi)) ** 0.5
_LEAST_NORM = 1e-2  # a filter of equal weights has no variance to divide by


def standardized(weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Each filter of ``weight`` [K, C, R, S] with mean 0 and sum of squares ``gain``² ([K, 1, 1, 1])."""
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    # the root of variance · fan-in; torch.var_mean alone takes longer than all of this
    norm = torch.linalg.vector_norm(centred, dim=(1, 2, 3), keepdim=True)
    return centred * (gain / norm.clamp(min=_LEAST_NORM))


class StandardizedConv2d(nn.Conv2d):
    """``output_scale · (conv(input_scale · x) + bias)`` with a standardised weight and a learned gain [K, 1, 1, 1]."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = False,
        input_scale: float = 1.0,
        output_scale: float = 1.0,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)
        self.input_scale, self.output_scale = input_scale, output_scale
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def reset_parameters(self) -> None:
        """What a network that was made on the meta device starts with: the weight, and the gains."""
        super().reset_parameters()
        if "gain" in self._parameters:  # not yet in torch's own constructor
            self.reset_scalars()

    def reset_scalars(self) -> None:
        """Gains to 1, in place."""
        nn.init.ones_(self.gain)

    def effective_weight(self) -> torch.Tensor:
        return standardized(self.weight, self.gain * (self.input_scale * self.output_scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias * self.output_scale
        return F.conv2d(x, self.effective_weight(), bias, self.stride, self.padding)


class StandardizedConvReLU2d(ConvReLUPool2d):
    """:class:`StandardizedConv2d` without a bias, and the activation and the pool after it, as one op."""

    def __init__(
        self, *arguments: Any, input_scale: float = 1.0, output_scale: float = 1.0, **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.input_scale, self.output_scale = input_scale, output_scale
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def reset_parameters(self) -> None:
        """What a network that was made on the meta device starts with: the weight, and the gains."""
        super().reset_parameters()
        if "gain" in self._parameters:  # not yet in torch's own constructor
            self.reset_scalars()

    def reset_scalars(self) -> None:
        """Gains to 1, in place."""
        nn.init.ones_(self.gain)

    def effective_weight(self) -> torch.Tensor:
        return standardized(self.weight, self.gain * (self.input_scale * self.output_scale))
