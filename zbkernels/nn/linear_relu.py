"""``LinearReLU``: ``nn.Linear(bias=False)`` and its activation as one layer."""

from __future__ import annotations

import math

import torch
from torch import nn

from zbkernels.nn.no_bias import check_no_bias
from zbkernels.ops.linear_relu import linear_relu
from zbkernels.ops.linear_relu_nap import linear_relu_nap


class LinearReLU(nn.Module):
    """``relu(x @ weight.T)`` without a bias; a checkpoint of ``nn.Linear(bias=False)`` loads into it.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of the result.
        negative_slope: of the activation, in [0, 1]; 0 is ReLU, 1 none (a network's last layer). Stands where
            ``nn.Linear`` has its bias, so False is taken as that.
        bias: False, as where ``nn.Linear`` is replaced.

    Shape: x [..., in_features] -> [..., out_features]. ``weight`` [out_features, in_features] starts as
    ``nn.Linear``'s does.

    Raises:
        ValueError: a bias, negative sizes, or a slope outside [0, 1].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        negative_slope: float = 0.0,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_no_bias("LinearReLU", bias)
        if isinstance(negative_slope, bool):
            check_no_bias("LinearReLU", negative_slope)
        if in_features < 0 or out_features < 0:
            raise ValueError(
                f"LinearReLU: expected sizes of at least 0, got {in_features} and {out_features}"
            )
        if not 0 <= negative_slope <= 1:
            raise ValueError(f"LinearReLU: expected 0 <= negative_slope <= 1, got {negative_slope!r}")
        self.in_features = in_features
        self.out_features = out_features
        self.negative_slope = float(negative_slope)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight as ``nn.Linear`` does."""
        if self.weight.numel():
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear_relu(x, self.weight, self.negative_slope)

    def forward_nap(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and its units' signature; see :func:`zbkernels.linear_relu_nap`."""
        return linear_relu_nap(x, self.weight, self.negative_slope)

    def extra_repr(self) -> str:
        slope = f", negative_slope={self.negative_slope}" if self.negative_slope else ""
        return f"in_features={self.in_features}, out_features={self.out_features}{slope}"
