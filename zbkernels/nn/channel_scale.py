"""``ChannelScale``: what is left of a batch norm in evaluation without its shift."""

from __future__ import annotations

import torch
from torch import nn


class ChannelScale(nn.Module):
    """``x · weight / sqrt(running_var + eps)`` for each channel: batch normalisation without running mean and shift.

    It has the keys of a batch norm's ``state_dict`` that it needs, with the same values. ``weight`` is trained on;
    ``running_var`` stays, in training mode too.

    Args:
        weight: of the batch norm, [C]; None where it has none.
        running_var: of the batch norm, [C].

    Shape: x [N, C, ...] -> the same.
    """

    weight: nn.Parameter | None
    running_var: torch.Tensor

    def __init__(self, weight: nn.Parameter | None, running_var: torch.Tensor, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_parameter("weight", weight)
        self.register_buffer("running_var", running_var)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (self.running_var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        return x * scale.reshape(-1, *[1] * (x.dim() - 2)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.running_var.shape[0]}, eps={self.eps}"
