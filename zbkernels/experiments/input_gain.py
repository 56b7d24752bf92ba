"""Images brought to the size for which the ResNets' initial weights are meant.

He's, Fixup's and NF's rules are derived for inputs of mean square 1. Pixels in [0, 1] have a mean square near 0.15, and
a network started by these rules then sits still for hundreds of steps. One multiplication mends that and keeps scalar
invariance; subtracting a mean, as is usual, would not. The paper does not say what it does.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from zbkernels.data import Dataset

_IMAGES = 1000  # that are looked at


class Gain(nn.Module):
    """``gain * x``, of a number that is not trained."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x

    def extra_repr(self) -> str:
        return f"{self.gain}"


def input_gain(data: Dataset) -> float:
    """What brings training images to mean square 1, to two digits: of 1,000 spread over the set."""
    count = min(_IMAGES, len(data.train))
    images, _ = data.train.batch(torch.arange(count) * len(data.train) // count)
    return float(f"{images.double().square().mean().rsqrt().item():.2g}")


def behind_gain(model: nn.Module, gain: float) -> nn.Sequential:
    """``model`` on images multiplied by ``gain``."""
    return nn.Sequential(OrderedDict(gain=Gain(gain), network=model))
