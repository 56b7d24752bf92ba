"""conv_relu_pool2d in Triton, forward with position codes and signatures, and backward.

Two kernels: `conv_tiles` for 16 channels or more in and out of a group and 2x2 windows side by side (or
none), and the general one here for everything. Where every window's positions are needed only for their
maximum or their sum, either does it all in one pass and no un-pooled map exists. Two cases need a bit of
every un-pooled unit: the signature of units="relu", and the saved bits of average pooling. The tiles pack
those too, since there each unit lies in one window. Elsewhere one launch writes the activation map with its
bits and a second one pools that map, so that a bit is always that of the very value that was pooled.

Backward: a kernel expands the pooled gradient through pool and activation (each position gathers from the
windows it lies in: one order, no atomics), and the two adjoints of the convolution are torch's own
convolution_backward, with cuDNN held to deterministic algorithms.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from zbkernels.ops import _tf32
from zbkernels.ops._backend import note_kernel
from zbkernels.ops._geometry import Geometry, Pair, adjoint_operands, memory_format
from zbkernels.triton import conv_tiles, nap_pack
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import INT32_MAX, cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.signature import join_planes, winner_signature


def can_run(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    *,
    pool: str = "max",
    pool_kernel: Pair = (2, 2),
    pool_stride: Pair = (2, 2),
    pool_padding: Pair = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    negative_slope: float = 0.0,
    need_code: bool = False,
    units: str = "",
    with_residual: bool = False,
) -> str | None:
    """None if `forward` and `backward` can run on these arguments, else the reason.

    Sizes in memory are 64-bit throughout; coordinates within one image are 32-bit, so one padded side of an
    image, one filter and one pooling window are limited to 2**31 - 1 elements.
    """
    op = "conv_relu_pool2d"
    reason = cannot_run(op, x, weight) or wrong_dtype(op, x)
    if reason is not None:
        return reason
    for d, side in enumerate("HW"):
        # a coordinate is looked at up to one pooling window beyond the padded image
        reach = x.shape[-2 + d] + 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1)
        if pool != "none":
            reach += (2 * pool_padding[d] + pool_kernel[d] + pool_stride[d]) * stride[d]
        if reach > INT32_MAX:
            return f"{op}: {side} with its padding and windows spans {reach}, Triton's kernel counts it in 32 bits"
    if weight.shape[1] * weight.shape[2] * weight.shape[3] > INT32_MAX - 64:
        return f"{op}: a filter of {tuple(weight.shape[1:])} is larger than 2**31 elements"
    if pool != "none" and 2 * pool_kernel[0] * pool_kernel[1] > INT32_MAX:
        return f"{op}: a window of {tuple(pool_kernel)} has more positions than an int32 code can tell apart"
    return None


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    residual: torch.Tensor | None = None,
    *,
    pool: str,
    pool_kernel: Pair,
    pool_stride: Pair,
    pool_padding: Pair,
    ceil_mode: bool,
    count_include_pad: bool,
    negative_slope: float,
    need_code: bool,
    units: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pool(act(conv2d(x, weight) + residual)) with what the backward needs and the sign pattern.

    x: [N, C, H, W] or [C, H, W], weight: [K, C/groups, R, S], residual (or None): of the un-pooled map's shape, one
    dtype of float32, float64, float16, bfloat16, any strides. Products are accumulated in float32 (float64 for
    float64) and rounded to the dtype before the residual and the activation; those of float32 are TF32 only in
    `conv_tiles`, where torch's switch for convolutions allows it and no signature is asked for.
    Returns
      y: [N, K, P, Q], channels_last where x is and not contiguous as well;
      code: with need_code, for max pooling uint8 (int32 for a window whose codes pass 255) of y's shape and
      strides;
        for "avg" and "none" int64 [N, K, ceil(H1*W1/64)], bit = the activation's gradient factor is 1;
      sig: with units of "relu", "output" or "winner" int64 [N, ceil(F/64)].
    What isn't asked for is an empty tensor [0]. An unbatched x gives results without N.
    """
    g = Geometry.of(
        "conv_relu_pool2d",
        stride,
        padding,
        dilation,
        groups,
        pool=pool,
        pool_kernel=pool_kernel,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        negative_slope=negative_slope,
    )
    batched = x.dim() == 4
    images = x if batched else x.unsqueeze(0)
    added = residual if residual is None or batched else residual.unsqueeze(0)
    layout = memory_format(x)
    tf32 = x.dtype == torch.float32 and not units and _tf32.allowed("conv")
    of_map = (pool == "avg" and need_code) or (pool != "none" and units == "relu")
    if of_map and (added is not None or not conv_tiles.packs_map(images, weight, g)):
        whole = g._replace(pool="none", pool_kernel=(1, 1), pool_stride=(1, 1), pool_padding=(0, 0))
        need_factor = need_code and pool == "avg"
        act, factor, sig = _fused(
            images, weight, whole, layout, added, need_factor, "relu" if units == "relu" else "", tf32
        )
        y, code = _pool_map(act, g, layout, need_code and pool == "max")
        if need_factor:
            code = factor
        if units == "output":
            sig = nap_pack.forward(y)
    else:
        y, code, sig = _fused(images, weight, g, layout, added, need_code or units == "winner", units, tf32)
    if units == "winner":
        sig = winner_signature(y, code, g)
    if not need_code:
        code = torch.empty(0, dtype=torch.uint8, device=x.device)
    if not units:
        sig = torch.empty(0, dtype=torch.int64, device=x.device)
    if batched:
        return y, code, sig
    return y.squeeze(0), code.squeeze(0) if need_code else code, sig.squeeze(0) if units else sig


def _fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    layout: torch.memory_format,
    residual: torch.Tensor | None,
    need_code: bool,
    units: str,
    tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One launch of a fused kernel: y, the code, and the signature of units "relu" or "output".

    What isn't needed comes back as y itself, which stands in for it as the kernel's argument.
    """
    need_sig = units in ("relu", "output")
    reason = conv_tiles.can_run(x, weight, g, residual is not None)
    note_kernel(f"triton: conv_relu_pool.forward ({'tiles' if reason is None else f'general: {reason}'})")
    if reason is None:
        map_sig = units == "relu" and g.pool != "none"
        output_sig = need_sig and not map_sig
        return conv_tiles.forward(
            x,
            weight,
            g,
            layout,
            residual,
            need_code=need_code,
            map_sig=map_sig,
            output_sig=output_sig,
            tf32=tf32,
        )
    return _general(x, weight, g, layout, residual, need_code, need_sig)


def _general(
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    layout: torch.memory_format,
    residual: torch.Tensor | None,
    need_code: bool,
    need_sig: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The general kernel, where no bit of a map that is pooled is asked for."""
    from zbkernels.triton.kernels import conv

    (N, _, H, W), (K, group_in, R, S) = x.shape, weight.shape
    H1, W1 = g.map_size(x, weight)
    P, Q = g.pooled_size((H1, W1))
    pooled = P * Q
    plane_words = ceil_div(pooled, 64)
    y = torch.empty((N, K, P, Q), dtype=x.dtype, device=x.device, memory_format=layout)
    code = y
    if need_code and g.pool == "max":
        code = torch.empty((N, K, P, Q), dtype=g.code_dtype(), device=x.device, memory_format=layout)
    # Bits are packed along a plane, its rows padded to whole words. A map much smaller than a word would
    # leave the tile nearly empty; its bits are packed from y instead.
    in_kernel = plane_words * 64 <= 2 * pooled
    pack_factor = need_code and g.pool == "none" and in_kernel
    pack_units = need_sig and in_kernel
    factor = planes = y
    if pack_factor:
        factor = torch.empty((N, K, plane_words), dtype=torch.int64, device=x.device)
    if pack_units:
        planes = torch.empty((N, K, plane_words), dtype=torch.int64, device=x.device)
    rows_per_image = plane_words * 64 if pack_units or pack_factor else pooled

    group_out = K // g.groups
    use_dot = x.dtype != torch.float64 and group_out >= 16
    rows = N * rows_per_image
    config = _general_config(x, rows, K, g, use_dot, pack_units or pack_factor)
    block_m, block_n = config.constants["BLOCK_M"], config.constants["BLOCK_N"]
    column_blocks = g.groups * ceil_div(group_out, block_n) if use_dot else ceil_div(K, block_n)
    if y.numel() > 0:
        start(
            conv.conv_act_pool_kernel,
            ceil_div(rows, block_m) * column_blocks,
            x,
            weight,
            y if residual is None else residual,
            y,
            code,
            planes.view(torch.int32) if pack_units else y,
            factor.view(torch.int32) if pack_factor else y,
            N,
            H,
            W,
            K,
            H1,
            W1,
            Q,
            pooled,
            rows_per_image,
            group_in,
            group_out,
            R,
            S,
            *x.stride(),
            *weight.stride(),
            *(y if residual is None else residual).stride(),
            *y.stride(),
            *g.stride,
            *g.padding,
            *g.dilation,
            *g.pool_kernel,
            *g.pool_stride,
            *g.pool_padding,
            POOL=g.pool,
            COUNT_PAD=g.count_include_pad,
            SLOPE=g.negative_slope,
            ADDS=residual is not None,
            WANT_CODE=code is not y,
            UNIT_BITS=pack_units,
            FACTOR_BITS=pack_factor,
            USE_DOT=use_dot,
            **config.constants,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    if need_code and g.pool == "none":
        if not pack_factor:  # [planes, units]; a copy of a small map where y is channels_last
            factor = nap_pack.pack(y.reshape(N * K, pooled), nan_is_on=g.negative_slope == 0)
        code = factor.view(N, K, plane_words)
    sig = y
    if need_sig:
        sig = join_planes(planes, K * pooled, pooled) if pack_units else nap_pack.forward(y)
    return y, code, sig


def _general_config(x: torch.Tensor, rows: int, K: int, g: Geometry, use_dot: bool, packs: bool) -> Config:
    """The general kernel's blocks: pooled outputs × channels × elements of a filter at once.

    Accumulator, best value and winner are registers, which keeps blocks small. With packs they are whole
    words long.
    """
    group_in, group_out = x.shape[1] // g.groups, K // g.groups
    step = 16 if x.dtype == torch.float32 else 32
    # The short sum of a thin layer has nothing to overlap, and its gathered addresses take the registers.
    stages = 1 if group_in < 16 else 2

    def dot_blocks() -> list[Config]:
        n = power_of_two(group_out, 16, 64)
        heights = (64,) if packs else (power_of_two(rows, 16, 64), 32)
        return [
            Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_E": step}, 8 if m * n > 1024 else 4, stages)
            for m in heights
        ]

    def plain_blocks() -> list[Config]:
        """Threads go along channels first: many of them where those are dense in memory, or share what is
        loaded."""
        along_channels = memory_format(x) == torch.channels_last
        widths = (16,) if packs else (64, 16) if along_channels else (16, 4) if group_out >= 16 else (4, 16)
        return [
            Config(
                {
                    "BLOCK_M": power_of_two(rows, 16, 1024 // n) if not packs else 64,
                    "BLOCK_N": n,
                    "BLOCK_E": step,
                }
            )
            for n in (power_of_two(K, 1, width) for width in widths)
        ]

    shape_class = f"general K{group_out} C{group_in} g{g.groups} M2^{rows.bit_length()} {g.pool}"
    if packs:
        shape_class += " bits"
    return choose("conv_relu_pool2d", x.device, x.dtype, shape_class, dot_blocks if use_dot else plain_blocks)


def _pool_map(
    act: torch.Tensor, g: Geometry, layout: torch.memory_format, need_code: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pools an activation map [N, K, H1, W1]: y, and the position codes of max pooling (else y itself)."""
    from zbkernels.triton.kernels import pool

    N, K, H1, W1 = act.shape
    P, Q = g.pooled_size((H1, W1))
    y = torch.empty((N, K, P, Q), dtype=act.dtype, device=act.device, memory_format=layout)
    code = y
    if need_code:
        code = torch.empty((N, K, P, Q), dtype=g.code_dtype(), device=act.device, memory_format=layout)
    block_m, block_n = _map_tile(N * P * Q, K, layout)
    if y.numel() > 0:
        start(
            pool.pool_map_kernel,
            ceil_div(N * P * Q, block_m) * ceil_div(K, block_n),
            act,
            y,
            code,
            N,
            K,
            H1,
            W1,
            Q,
            P * Q,
            *act.stride(),
            *y.stride(),
            *g.pool_kernel,
            *g.pool_stride,
            *g.pool_padding,
            POOL=g.pool,
            COUNT_PAD=g.count_include_pad,
            SLOPE=g.negative_slope,
            WANT_CODE=code is not y,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
        )
    return y, code


def _map_tile(rows: int, channels: int, layout: torch.memory_format) -> Pair:
    """Positions and channels of a program that moves a map: long in the direction that is dense in memory."""
    if layout == torch.channels_last:
        block_n = power_of_two(channels, 1, 64)
        return power_of_two(rows, 1, 1024 // block_n), block_n
    block_m = power_of_two(rows, 1, 256)
    return block_m, power_of_two(channels, 1, 1024 // block_m)


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    *,
    pool: str,
    pool_kernel: Pair,
    pool_stride: Pair,
    pool_padding: Pair,
    ceil_mode: bool,
    count_include_pad: bool,
    negative_slope: float,
    need_x: bool,
    need_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and weight from that of y and the code of `forward`.

    grad has y's shape, any strides (0 included). Each result has the shape of its tensor and is channels_last
    where that one is and not contiguous as well; one that isn't needed is an empty [0]. Deterministic. The
    expansion of grad to the un-pooled map is Triton's; the adjoints of the convolution are torch's
    convolution_backward, which follows torch's switches for TF32.
    """
    g = Geometry.of(
        "conv_relu_pool2d",
        stride,
        padding,
        dilation,
        groups,
        pool=pool,
        pool_kernel=pool_kernel,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        negative_slope=negative_slope,
    )
    grad_x, grad_weight = x.new_empty(0), x.new_empty(0)
    if not (need_x or need_weight):
        return grad_x, grad_weight
    batched = x.dim() == 4
    if not batched:
        grad, code = grad.unsqueeze(0), code.unsqueeze(0)
    grad_pre = _expand(grad, code, g, g.map_size(x, weight), memory_format(x))
    with _deterministic_cudnn():
        adjoints = torch.ops.aten.convolution_backward(
            *adjoint_operands(grad_pre, x if batched else x.unsqueeze(0), weight, g.stride),
            None,
            g.stride,
            g.padding,
            # a filter of one position ignores its dilation, which may then be of any size
            [1 if weight.shape[2 + d] == 1 else g.dilation[d] for d in (0, 1)],
            False,
            [0, 0],
            groups,
            [need_x, need_weight, False],
        )
    if need_x:
        grad_x = adjoints[0] if batched else adjoints[0].squeeze(0)
        grad_x = grad_x.contiguous(memory_format=memory_format(x))
    if need_weight:
        grad_weight = adjoints[1].contiguous(memory_format=memory_format(weight))
    return grad_x, grad_weight


def _expand(
    grad: torch.Tensor, code: torch.Tensor, g: Geometry, map_size: Pair, layout: torch.memory_format
) -> torch.Tensor:
    """The gradient before the activation, [N, K, H1, W1], from that of y, [N, K, P, Q]."""
    from zbkernels.triton.kernels import pool

    N, K, P, Q = grad.shape
    H1, W1 = map_size
    grad_pre = torch.empty((N, K, H1, W1), dtype=grad.dtype, device=grad.device, memory_format=layout)
    code_strides = code.stride() if g.pool == "max" else (*code.stride()[:2], 0, 0)
    rows = N * H1 * W1
    block_m, block_n = _map_tile(rows, K, layout)
    if grad_pre.numel() > 0:
        start(
            pool.expand_kernel,
            ceil_div(rows, block_m) * ceil_div(K, block_n),
            grad,
            code,
            grad_pre,
            N,
            K,
            H1,
            W1,
            P,
            Q,
            H1 * W1,
            *grad.stride(),
            *code_strides,
            *grad_pre.stride(),
            *g.pool_kernel,
            *g.pool_stride,
            *g.pool_padding,
            ceil_div(g.pool_kernel[0], g.pool_stride[0]),
            ceil_div(g.pool_kernel[1], g.pool_stride[1]),
            POOL=g.pool,
            COUNT_PAD=g.count_include_pad,
            SLOPE=g.negative_slope,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
        )
    return grad_pre


_cudnn_lock = threading.Lock()


@contextlib.contextmanager
def _deterministic_cudnn() -> Iterator[None]:
    """Keeps cuDNN to algorithms without atomics. Its switch is one for the process, hence the lock: two
    backward passes in two threads must not restore each other's setting."""
    with _cudnn_lock:
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = before
