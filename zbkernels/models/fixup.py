"""Fixup's convolutions and classifier: residual learning without normalisation (Zhang et al., 2019).

As "Scalar Invariant Networks with Zero Bias" (Appendix B) has it: a scalar multiplier before each convolution and each
ReLU of a branch, the branch's last layer and the classifier start at 0, and its other layers are scaled by
L^(-1/(2m-2)) for L blocks of m layers. The twin with biases has a scalar shift in the same places, as the Fixup paper.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.nn import ConvReLUPool2d


class FixupConv2d(nn.Conv2d):
    """``m'·conv(m·x + b) + b'`` with scalars m, b, m', b' [1].

    A convolution is linear, so that the multipliers, of either sign, become part of its weight where nothing stands
    between: ``relu(m'·conv(m·x, w)) = relu(conv(x, m·m'·w))``. The weight is the smaller tensor.

    Args:
        relu: a ReLU follows, which m' stands before; else there is no m'.
        shift: b and b' exist (they start at 0); else there are none.
        start_scale: what :func:`zbkernels.models.initialise` multiplies the weight with.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        relu: bool,
        shift: bool,
        start_scale: float,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        self.start_scale = start_scale
        self.multiplier = nn.Parameter(torch.ones(1))
        self.relu_multiplier = nn.Parameter(torch.ones(1)) if relu else None
        self.shift = nn.Parameter(torch.zeros(1)) if shift else None
        self.relu_shift = nn.Parameter(torch.zeros(1)) if shift else None

    def reset_parameters(self) -> None:
        """What a network that was made on the meta device starts with: the scaled weight, and the scalars."""
        super().reset_parameters()
        _start(self)

    def reset_scalars(self) -> None:
        """Multipliers to 1, shifts to 0, in place."""
        _fill(1.0, self.multiplier, self.relu_multiplier)
        _fill(0.0, self.shift, self.relu_shift)

    def effective_weight(self) -> torch.Tensor:
        """What x is convolved with where there are no shifts."""
        return self.weight * _product(self.multiplier, self.relu_multiplier)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shift is None or self.relu_shift is None:
            return F.conv2d(x, self.effective_weight(), None, self.stride, self.padding)
        x = x * self.multiplier + self.shift
        weight = self.weight if self.relu_multiplier is None else self.weight * self.relu_multiplier
        return F.conv2d(x, weight, None, self.stride, self.padding) + self.relu_shift


class FixupConvReLU2d(ConvReLUPool2d):
    """:class:`FixupConv2d` without shifts, and the ReLU after it, as one op.

    Args:
        relu: that ReLU belongs to the branch, so that a multiplier stands before it; else it follows the block's sum.
    """

    def __init__(self, *arguments: Any, relu: bool, start_scale: float) -> None:
        super().__init__(*arguments, pool="none")
        self.start_scale = start_scale
        self.multiplier = nn.Parameter(torch.ones(1))
        self.relu_multiplier = nn.Parameter(torch.ones(1)) if relu else None

    def reset_parameters(self) -> None:
        """What a network that was made on the meta device starts with: the scaled weight, and the scalars."""
        super().reset_parameters()
        _start(self)

    def reset_scalars(self) -> None:
        """Multipliers to 1, in place."""
        _fill(1.0, self.multiplier, self.relu_multiplier)

    def effective_weight(self) -> torch.Tensor:
        return self.weight * _product(self.multiplier, self.relu_multiplier)


class FixupLinear(nn.Linear):
    """A classifier that starts at 0."""

    start_scale = 0.0

    def reset_parameters(self) -> None:
        """The weight to 0; a bias as ``nn.Linear`` draws it."""
        super().reset_parameters()
        nn.init.zeros_(self.weight)


class ScalarShift(nn.Module):
    """``x + shift`` with a scalar [1] that starts at 0: Fixup's bias outside of a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def reset_scalars(self) -> None:
        """The shift to 0, in place."""
        _fill(0.0, self.shift)

    reset_parameters = reset_scalars

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


def _start(layer: FixupConv2d | FixupConvReLU2d) -> None:
    if "multiplier" not in layer._parameters:  # torch's own constructor calls
        return
    layer.reset_scalars()
    with torch.no_grad():
        layer.weight.mul_(layer.start_scale)


def _product(multiplier: torch.Tensor, relu_multiplier: torch.Tensor | None) -> torch.Tensor:
    return multiplier if relu_multiplier is None else multiplier * relu_multiplier


def _fill(value: float, *scalars: torch.Tensor | None) -> None:
    with torch.no_grad():
        for scalar in scalars:
            if scalar is not None:
                scalar.fill_(value)
