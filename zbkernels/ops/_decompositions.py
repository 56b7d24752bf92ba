"""What ``torch.onnx.export`` writes in place of an op: torch's own operations, of which it knows each.

Only the exporter looks into this table; ``torch.compile`` and ``torch.export`` keep the ops as they are. The NAP ops
are not in it: no operation of ONNX packs bits into words, and the exporter says so by the op's name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table, register_decomposition

from zbkernels.ops._conv_reference import value_reference
from zbkernels.ops.conv_relu_pool2d import checked
from zbkernels.ops.linear_relu import activation


def _conv_relu_pool2d(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g, residual = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
    return value_reference(x, weight, g, residual)


def _linear_relu(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    return activation(torch.nn.functional.linear(x, weight), negative_slope)


def register() -> None:
    for op, function in (
        (torch.ops.zb.conv_relu_pool2d.default, _conv_relu_pool2d),
        (torch.ops.zb.linear_relu.default, _linear_relu),
    ):
        if op not in decomposition_table:
            register_decomposition(op)(function)
