"""``conv_relu_pool2d_nap``: ``conv_relu_pool2d`` and the activation pattern of its units in the same pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend, _choice
from zbkernels.ops._conv_autograd import REGISTERED, ConvReLUPoolFunction, run_passes
from zbkernels.ops._conv_reference import Tensors2, forward_reference
from zbkernels.ops._conv_samples import samples as plain_samples
from zbkernels.ops._geometry import UNITS, IntOrPair
from zbkernels.ops._op import Op, Sample, below_autograd, needs_grad, register, transforms_active
from zbkernels.ops.conv_relu_pool2d import (
    KERNELS,
    OPAQUE,
    Checked,
    checked,
    cpu_kernel,
    empty_results,
    fold_batch,
    kernel_arguments,
    kind_of,
    normalise,
    normalise_residual,
    residual_of,
    shape_class,
    spread,
    triton_forward,
)

NAME = "conv_relu_pool2d_nap"
SCHEMA = (
    "conv_relu_pool2d_nap(Tensor x, Tensor weight, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
    'int groups=1, Tensor? residual=None, *, str pool="max", int[2] pool_kernel=2, int[]? pool_stride=None, '
    "int[2] pool_padding=0, bool ceil_mode=False, bool count_include_pad=True, float negative_slope=0.0, "
    'str units="relu") -> (Tensor, Tensor)'
)


def _checked(x: torch.Tensor, weight: torch.Tensor, units: str, *args: Any, **kwargs: Any) -> Checked:
    return checked(NAME, x, weight, *args, units=units or "(empty)", **kwargs)


def reference(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, units: str = "relu", **kwargs: Any
) -> Tensors2:
    g, residual = _checked(x, weight, units, *args, **kwargs)
    y, _, sig = forward_reference(x, weight, g, False, units, residual)
    return y, sig


def fake(x: torch.Tensor, weight: torch.Tensor, *args: Any, units: str = "relu", **kwargs: Any) -> Tensors2:
    g, _ = _checked(x, weight, units, *args, **kwargs)
    y, _, sig = empty_results(x, weight, g, False, units)
    return y, sig


def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    return fold_batch(NAME, info, in_dims, *args, **kwargs)


def autograd(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, units: str = "relu", **kwargs: Any
) -> Tensors2:
    tensors = (x, weight, residual_of(args, kwargs))
    if transforms_active(*tensors):
        return reference(x, weight, *args, units=units, **kwargs)
    if needs_grad(*tensors):
        g, residual = _checked(x, weight, units, *args, **kwargs)
        y, _, sig = ConvReLUPoolFunction.apply(REGISTERED, x, weight, g, False, units, residual)
        return y, sig
    with below_autograd():
        return torch.ops.zb.conv_relu_pool2d_nap(x, weight, *args, units=units, **kwargs)


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    for s in plain_samples(device, dtype):
        for units in ("relu", "output", "winner"):
            if units == "winner" and (s.kwargs.get("pool", "max") != "max" or s.kwargs.get("negative_slope")):
                continue
            yield Sample(f"{s.label}, units={units!r}", s.args, {**s.kwargs, "units": units}, s.smooth)


def conv_relu_pool2d_nap(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    pool: str = "max",
    pool_kernel: IntOrPair = 2,
    pool_stride: IntOrPair | None = None,
    pool_padding: IntOrPair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    negative_slope: float = 0.0,
    units: str = "relu",
    residual: torch.Tensor | None = None,
) -> Tensors2:
    """:func:`zbkernels.conv_relu_pool2d` with each input's signature (Definition 1 of the zero-bias paper).

    Args:
        units: what counts as a unit. ``"relu"``: each value of the un-pooled map, K·H1·W1 bits. ``"output"``: each
            pooled output, K·P·Q bits. ``"winner"`` (max pooling with slope 0): for each pooled output the number
            0 (all off) or 1 + position of the winner, in ceil(log2(kh·kw + 1)) bits, lowest first; only this one
            fixes the linear map that the layer applies.

    The other arguments are those of :func:`zbkernels.conv_relu_pool2d`.

    Returns:
        y, and int64 [N, words] (or [words]). Units stand in C, H, W order whatever the memory format; a bit is
        exactly (value > 0) of the values that this call computed, never in TF32. Under autocast both are of the
        lower precision, so a unit near 0 can be on where it is off in float32. ``y`` is differentiable.

    Raises:
        TypeError: not tensors of one of the dtypes.
        ValueError: shapes, devices, units or arguments that don't fit; the message says what was got.
    """
    if units not in UNITS:
        raise ValueError(f"{NAME}: expected units to be one of {', '.join(UNITS)}, got {units!r}")
    x, weight, g = normalise(
        NAME,
        x,
        weight,
        stride,
        padding,
        dilation,
        groups,
        units,
        pool=pool,
        pool_kernel=pool_kernel,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        negative_slope=negative_slope,
    )
    if residual is not None:
        residual = normalise_residual(NAME, x, weight, residual, g)
    kernel = _backend.choose_kernel(OP, x, weight, g, units, *kind_of(residual))
    straight = kernel is None and needs_grad(x, weight, residual) and _choice.unseen(x, weight, residual)
    if kernel is None and not straight:
        added = () if residual is None else (residual,)
        kwargs = {**g.pool_kwargs(), "units": units}
        return torch.ops.zb.conv_relu_pool2d_nap(x, weight, *g.conv_args(), *added, **kwargs)
    y, _, sig = run_passes(REGISTERED if kernel is None else kernel.run, x, weight, g, units, residual)
    return y, sig


def _cuda_fallback(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, units: str = "relu", **kwargs: Any
) -> Tensors2:
    g, residual = _checked(x, weight, units, *args, **kwargs)
    kwargs = {**g.pool_kwargs(), "need_code": False, "units": units}
    y, _, sig = triton_forward(x, weight, *g.conv_args(), residual, **kwargs)
    return y, sig


OP = Op(
    NAME,
    SCHEMA,
    reference,
    samples,
    public=conv_relu_pool2d_nap,
    kernels=KERNELS,
    normalise=kernel_arguments(NAME, "relu"),
    spread=spread,
    shape_class=shape_class,
    opaque=OPAQUE,
    cpu_kernel=cpu_kernel,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, autocast=True, cuda_fallback=_cuda_fallback)
