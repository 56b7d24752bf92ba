"""The layer around which a residual network is built."""

from __future__ import annotations

import torch
from torch import nn


class Sum(nn.Module):
    """``x + inside(x)``; ``inside`` must keep the shape of x."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inside(x)
