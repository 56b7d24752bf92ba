"""``ConvReLUPool2d``: ``nn.Conv2d(bias=False)``, its activation and a pool as one layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from zbkernels.nn.no_bias import check_no_bias
from zbkernels.ops._geometry import Geometry, IntOrPair, pair
from zbkernels.ops.conv_relu_pool2d import conv_relu_pool2d, resolve_padding
from zbkernels.ops.conv_relu_pool2d_nap import conv_relu_pool2d_nap


class ConvReLUPool2d(nn.Module):
    """``pool(act(conv2d(x, weight)))`` without a bias; a checkpoint of ``nn.Conv2d(bias=False)`` loads into it.

    The first nine arguments are ``nn.Conv2d``'s, of which ``bias`` and ``padding_mode`` have one value; the pool's are
    those of ``nn.MaxPool2d`` and ``nn.AvgPool2d``.

    Args:
        pool: ``"max"``, ``"avg"`` or ``"none"``.
        negative_slope: of the activation, in [0, 1]; 0 is ReLU.

    Shape: x [N, C, H, W] or [C, H, W] -> [N, K, P, Q] or [K, P, Q]. ``weight`` [K, C/groups, R, S] starts as
    ``nn.Conv2d``'s does.

    Raises:
        ValueError: a bias or another padding mode; arguments of the wrong form or range, as
            :func:`zbkernels.conv_relu_pool2d` says.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: IntOrPair | str = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        *,
        pool: str = "max",
        pool_kernel: IntOrPair = 2,
        pool_stride: IntOrPair | None = None,
        pool_padding: IntOrPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        negative_slope: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "ConvReLUPool2d"
        check_no_bias(name, bias)
        if padding_mode != "zeros":
            raise ValueError(f"{name}: expected padding_mode='zeros', got {padding_mode!r}; pad x before it")
        kernel = pair(name, "kernel_size", kernel_size, 1)
        if in_channels < 1 or out_channels < 1 or groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: expected channels divisible by groups, got in_channels={in_channels}, "
                f"out_channels={out_channels}, groups={groups}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel
        self.stride = pair(name, "stride", stride, 1)
        self.padding: str | tuple[int, int] = (
            padding if isinstance(padding, str) else pair(name, "padding", padding, 0)
        )
        self.dilation = pair(name, "dilation", dilation, 1)
        self.groups = groups
        self.pool_arguments: dict[str, Any] = {
            "pool": pool,
            "pool_kernel": pool_kernel,
            "pool_stride": pool_stride,
            "pool_padding": pool_padding,
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
            "negative_slope": negative_slope,
        }
        shape = (out_channels, in_channels // groups, *kernel)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # What is wrong with the arguments is said now, not at the first batch.
        resolve_padding(name, self.weight, self.weight, self.stride, self.padding, self.dilation)
        Geometry.of(name, **self.pool_arguments)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight as ``nn.Conv2d`` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def effective_weight(self) -> torch.Tensor:
        """What x is convolved with; a layer that scales its weight first overrides this."""
        return self.weight

    def _arguments(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """``residual`` [N, K, H1, W1], of the un-pooled map's shape, is added before the activation."""
        return conv_relu_pool2d(
            x, self.effective_weight(), *self._arguments(), **self.pool_arguments, residual=residual
        )

    def forward_nap(
        self, x: torch.Tensor, units: str = "relu", residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and each input's signature; see :func:`zbkernels.conv_relu_pool2d_nap`."""
        return conv_relu_pool2d_nap(
            x,
            self.effective_weight(),
            *self._arguments(),
            **self.pool_arguments,
            units=units,
            residual=residual,
        )

    def extra_repr(self) -> str:
        """As ``nn.Conv2d`` prints itself: what differs from the defaults."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        if self.padding != (0, 0):
            text += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        pool = self.pool_arguments
        text += f", pool={pool['pool']!r}"
        if pool["pool"] != "none":
            text += f", pool_kernel={pool['pool_kernel']}"
            if pool["pool_stride"] is not None:
                text += f", pool_stride={pool['pool_stride']}"
            if pool["pool_padding"] not in (0, (0, 0)):
                text += f", pool_padding={pool['pool_padding']}"
            if pool["ceil_mode"]:
                text += ", ceil_mode=True"
        if pool["pool"] == "avg" and not pool["count_include_pad"]:
            text += ", count_include_pad=False"
        if pool["negative_slope"]:
            text += f", negative_slope={pool['negative_slope']}"
        return text
