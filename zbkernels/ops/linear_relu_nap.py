"""``linear_relu_nap``: ``linear_relu`` and the activation pattern of its units in the same pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend, _choice
from zbkernels.ops._op import (
    Op,
    Sample,
    autocast_operands,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops._shape_class import linear_class
from zbkernels.ops.linear_relu import (
    KERNELS,
    OPAQUE,
    LinearReLUFunction,
    check,
    kernel_arguments,
    registered_forward,
    run_kernel,
)
from zbkernels.ops.linear_relu import fake as plain_fake
from zbkernels.ops.linear_relu import reference as plain_reference
from zbkernels.ops.linear_relu import samples as plain_samples
from zbkernels.ops.nap_pack import pack_last, words_for

SCHEMA = "linear_relu_nap(Tensor x, Tensor weight, float negative_slope=0.0) -> (Tensor, Tensor)"


def reference(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    check("linear_relu_nap", x, weight, negative_slope)
    y = plain_reference(x, weight, negative_slope)
    return y, pack_last(y.detach() > 0)


def fake(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    check("linear_relu_nap", x, weight, negative_slope)
    y = plain_fake(x, weight, negative_slope)
    return y, x.new_empty((*x.shape[:-1], words_for(weight.shape[0])), dtype=torch.int64)


def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    if in_dims[1] is None:
        return torch.ops.zb.linear_relu_nap(args[0].movedim(in_dims[0], 0), *args[1:]), (0, 0)
    return vmap_by_loop("linear_relu_nap")(info, in_dims, *args)


def autograd(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    if transforms_active(x, weight):
        return reference(x, weight, negative_slope)
    if needs_grad(x, weight):
        return LinearReLUFunction.apply(registered_forward, x, weight, negative_slope, True)
    return registered_forward(x, weight, negative_slope, True)


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    return plain_samples(device, dtype)


def linear_relu_nap(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`zbkernels.linear_relu` with the signature of each row: bit j of word k is ``y[..., 64k + j] > 0``.

    The bits are those of the values returned, never computed in TF32. Under autocast both are of the lower
    precision, so a unit near 0 can be on where it is off in float32. ``y`` is differentiable.

    Args:
        x: [..., in], float32, float64, float16 or bfloat16, any strides.
        weight: [out, in], of x's dtype and device.
        negative_slope: in [0, 1].

    Returns:
        y [..., out] of x's dtype, and int64 [..., ceil(out/64)].

    Raises:
        TypeError: not tensors of one of these dtypes.
        ValueError: shapes or devices that don't fit, or a slope outside [0, 1].
    """
    x, weight = autocast_operands(x, weight)
    check("linear_relu_nap", x, weight, negative_slope)
    kernel = _backend.choose_kernel(OP, x, weight, negative_slope)
    if kernel is None and not _choice.unseen(x, weight):
        return torch.ops.zb.linear_relu_nap(x, weight, negative_slope)
    return run_kernel(registered_forward if kernel is None else kernel.run, x, weight, negative_slope, True)


def _cuda_fallback(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend.triton_function("linear_relu", "forward")(x, weight, negative_slope, need_sig=True)


def shape_class(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> str:
    """Without the number of rows, and the same in training: a row's pattern depends on neither."""
    return linear_class(x, weight, batch=False)


OP = Op(
    "linear_relu_nap",
    SCHEMA,
    reference,
    samples,
    public=linear_relu_nap,
    normalise=kernel_arguments("linear_relu_nap"),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=OPAQUE,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, autocast=True, cuda_fallback=_cuda_fallback)
