"""What ``torch.onnx.export`` writes in place of an op: torch's own operations, of which it knows each.

Only the exporter is meant to look into this table; ``torch.compile`` (``_inductor.py``) and ``torch.export`` keep the
ops as they are. The NAP ops are not in it: no operation of ONNX packs bits into words, and the exporter says so by the
op's name. The older exporter, which traces, is not served from here but by the public functions (``_onnx_tracing.py``).

Fake tensors of symbolic sizes look into it too, unless torch's table of Python metas has the op: so that gets the op's
own fake. Else a compiled graph takes on what torch's operations ask of sizes (its convolution on a CPU asks whether the
batch is below 16, which is one compilation more) and the strides that they promise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table, meta_table, register_decomposition

from zbkernels.ops import _inductor
from zbkernels.ops._conv_reference import value_reference
from zbkernels.ops.conv_relu_pool2d import checked
from zbkernels.ops.conv_relu_pool2d import fake as _conv_fake
from zbkernels.ops.linear_relu import activation
from zbkernels.ops.linear_relu import fake as _linear_fake


def _conv_relu_pool2d(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g, residual = checked("conv_relu_pool2d", x, weight, *args, **kwargs)
    return value_reference(x, weight, g, residual)


def _linear_relu(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    return activation(torch.nn.functional.linear(x, weight), negative_slope)


def register() -> None:
    served = (
        (torch.ops.zb.conv_relu_pool2d.default, _conv_relu_pool2d, _conv_fake),
        (torch.ops.zb.linear_relu.default, _linear_relu, _linear_fake),
    )
    _inductor.keep_whole([op for op, *_ in served])
    for op, function, fake in served:
        if op not in decomposition_table:
            register_decomposition(op)(function)
        if op not in meta_table:
            register_decomposition(op, type="meta")(fake)
