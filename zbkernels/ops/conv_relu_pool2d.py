"""``conv_relu_pool2d``: bias-free convolution, activation and pooling in one pass, never keeping the un-pooled map.

Reading order: the schemas, the pure-torch forward and backward that fix every meaning, then what the dispatcher
needs (fake, vmap, autograd), then samples and the public function. The formats of ``code`` and ``sig`` are in
``csrc/conv_relu_pool/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from zbkernels.ops import _backend
from zbkernels.ops._geometry import Geometry, IntOrPair, check, memory_format, pair
from zbkernels.ops._op import (
    Op,
    Sample,
    autocast_operands,
    below_autograd,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops.linear_relu import activation
from zbkernels.ops.nap_pack import pack_last, words_for
from zbkernels.ops.nap_unpack import unpack_last

SCHEMA = (
    "conv_relu_pool2d(Tensor x, Tensor weight, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
    'int groups=1, *, str pool="max", int[2] pool_kernel=2, int[]? pool_stride=None, int[2] pool_padding=0, '
    "bool ceil_mode=False, bool count_include_pad=True, float negative_slope=0.0) -> Tensor"
)
FORWARD_SCHEMA = (
    "_conv_relu_pool2d_forward(Tensor x, Tensor weight, int[2] stride, int[2] padding, int[2] dilation, "
    "int groups, *, str pool, int[2] pool_kernel, int[2] pool_stride, int[2] pool_padding, bool ceil_mode, "
    "bool count_include_pad, float negative_slope, bool need_code, str units) -> (Tensor, Tensor, Tensor)"
)
BACKWARD_SCHEMA = (
    "_conv_relu_pool2d_backward(Tensor grad, Tensor x, Tensor weight, Tensor code, int[2] stride, "
    "int[2] padding, int[2] dilation, int groups, *, str pool, int[2] pool_kernel, int[2] pool_stride, "
    "int[2] pool_padding, bool ceil_mode, bool count_include_pad, float negative_slope, bool need_x, "
    "bool need_weight) -> (Tensor, Tensor)"
)

Tensors2 = tuple[torch.Tensor, torch.Tensor]
Tensors3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# --- the meaning, in torch ------------------------------------------------------------------------------------


def _conv(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    # A kernel of one position ignores its dilation, which may then be of any size.
    dilation = tuple(1 if weight.shape[d + 2] == 1 else g.dilation[d] for d in (0, 1))
    return F.conv2d(x, weight, None, g.stride, g.padding, dilation, g.groups)


def _pool(act: torch.Tensor, g: Geometry) -> torch.Tensor:
    if g.pool == "max":
        return F.max_pool2d(act, g.pool_kernel, g.pool_stride, g.pool_padding, ceil_mode=g.ceil_mode)
    if g.pool == "avg":
        return F.avg_pool2d(
            act, g.pool_kernel, g.pool_stride, g.pool_padding, g.ceil_mode, g.count_include_pad
        )
    return act


def value_reference(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """``pool(act(conv2d(x, weight)))``, differentiable any number of times."""
    y = _pool(activation(_conv(x, weight, g), g.negative_slope), g)
    return y.contiguous(memory_format=memory_format(x))


def _window_position(act: torch.Tensor, g: Geometry) -> torch.Tensor:
    """Where in its window each max-pooled value stands: i * kw + j, int64 [..., P, Q]."""
    _, index = F.max_pool2d(
        act, g.pool_kernel, g.pool_stride, g.pool_padding, ceil_mode=g.ceil_mode, return_indices=True
    )
    row, column = index // act.shape[-1], index % act.shape[-1]
    p = torch.arange(index.shape[-2], device=act.device)[:, None]
    q = torch.arange(index.shape[-1], device=act.device)
    i = row - (p * g.pool_stride[0] - g.pool_padding[0])
    j = column - (q * g.pool_stride[1] - g.pool_padding[1])
    return i * g.pool_kernel[1] + j


def forward_reference(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, need_code: bool, units: str
) -> Tensors3:
    """(y, code, sig) with every meaning spelt out; the kernels are held to this."""
    _backend.note_kernel("reference")
    pre = _conv(x, weight, g)
    act = activation(pre, g.negative_slope)
    y = _pool(act, g).contiguous(memory_format=memory_format(x))
    code = x.new_empty(0, dtype=torch.uint8)
    sig = x.new_empty(0, dtype=torch.int64)
    keeps_gradient = pre > 0
    if g.negative_slope == 0:
        keeps_gradient = (
            keeps_gradient | pre.isnan()
        )  # relu passes the gradient of a NaN, leaky_relu scales it
    if need_code and g.pool != "max":
        code = pack_last(keeps_gradient.flatten(-2))
    if g.pool == "max" and (need_code or units == "winner"):
        position = _window_position(act, g)
        if need_code:
            if g.negative_slope == 0:
                code = torch.where((y > 0) | y.isnan(), 1 + position, 0)
            else:
                code = 1 + 2 * position + (~(y > 0)).long()  # the sign of the winner is that of y
            code = code.to(g.code_dtype()).contiguous(memory_format=memory_format(x))
    if units:
        batch = x.shape[:1] if x.dim() == 4 else ()
        if units == "winner":
            number = torch.where(y > 0, 1 + position, 0)
            on = ((number.unsqueeze(-1) >> torch.arange(g.unit_bits(units), device=x.device)) & 1).bool()
        else:
            on = (act if units == "relu" else y) > 0
        per_input = on.numel() // max(1, x.shape[0]) if batch else on.numel()
        shape = (*batch, g.unit_count(units, weight.shape[0], g.map_size(x, weight)))
        sig = pack_last(on.contiguous().view(shape) if per_input else on.new_empty(shape))
    return y, code, sig


def backward_reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    g: Geometry,
    need_x: bool,
    need_weight: bool,
) -> Tensors2:
    """(grad_x, grad_weight), differentiable in grad, x and weight with the pattern held fixed."""
    _backend.note_kernel("reference")
    grad_pre = _pool_adjoint(grad, code, g, g.map_size(x, weight))
    batched = x.dim() == 4
    inputs = (grad_pre, x) if batched else (grad_pre.unsqueeze(0), x.unsqueeze(0))
    dilation = [1 if weight.shape[d + 2] == 1 else g.dilation[d] for d in (0, 1)]
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        *inputs,
        weight,
        None,
        g.stride,
        g.padding,
        dilation,
        False,
        [0, 0],
        g.groups,
        [need_x, need_weight, False],
    )
    if need_x:
        grad_x = grad_x if batched else grad_x.squeeze(0)
        grad_x = grad_x.contiguous(memory_format=memory_format(x))
    if need_weight:
        grad_weight = grad_weight.contiguous(memory_format=memory_format(weight))
    nothing = x.new_empty(0)
    return grad_x if need_x else nothing, grad_weight if need_weight else nothing


def _pool_adjoint(
    grad: torch.Tensor, code: torch.Tensor, g: Geometry, map_size: tuple[int, int]
) -> torch.Tensor:
    """The gradient of the pre-activations [..., H1, W1], in gather form: one slice a window position."""
    h1, w1 = map_size
    if g.pool != "max":
        on = unpack_last(code, h1 * w1).unflatten(-1, (h1, w1))
        if g.pool == "avg":
            grad = _avg_pool_adjoint(grad, g, map_size)
        return torch.where(on, grad, grad * g.negative_slope)
    (kh, kw), (sh, sw), (ph, pw) = g.pool_kernel, g.pool_stride, g.pool_padding
    p, q = grad.shape[-2:]
    code = code.long()
    if g.negative_slope > 0:
        position = (code - 1) // 2
        grad = torch.where((code - 1) % 2 == 0, grad, grad * g.negative_slope)
    else:
        position = code - 1
    rows = max((p - 1) * sh + kh, ph + h1)
    columns = max((q - 1) * sw + kw, pw + w1)
    padded = grad.new_zeros(*grad.shape[:-2], rows, columns)
    for i in range(kh):
        for j in range(kw):
            here = torch.where(position == i * kw + j, grad, 0)
            padded[..., i : i + (p - 1) * sh + 1 : sh, j : j + (q - 1) * sw + 1 : sw] += here
    return padded[..., ph : ph + h1, pw : pw + w1]


def _avg_pool_adjoint(grad: torch.Tensor, g: Geometry, map_size: tuple[int, int]) -> torch.Tensor:
    shape_only = grad.new_empty(1).expand(*grad.shape[:-2], *map_size)
    return torch.ops.aten.avg_pool2d_backward(
        grad, shape_only, g.pool_kernel, g.pool_stride, g.pool_padding, g.ceil_mode, g.count_include_pad, None
    )


# --- the three ops as the dispatcher calls them ---------------------------------------------------------------


def reference(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g = Geometry.of("conv_relu_pool2d", *args, **kwargs)
    check("conv_relu_pool2d", x, weight, g)
    _backend.note_kernel("reference")
    return value_reference(x, weight, g)


def _forward_op(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    g = Geometry.of("_conv_relu_pool2d_forward", *args, **kwargs)
    check("_conv_relu_pool2d_forward", x, weight, g, units)
    return forward_reference(x, weight, g, need_code, units)


def _backward_op(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    g = Geometry.of("_conv_relu_pool2d_backward", *args, **kwargs)
    check("_conv_relu_pool2d_backward", x, weight, g)
    return backward_reference(grad, x, weight, code, g, need_x, need_weight)


def empty_results(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, need_code: bool, units: str
) -> Tensors3:
    """Uninitialised (y, code, sig) of the right shapes, dtypes and strides."""
    batch, k = x.shape[:-3], weight.shape[0]
    h1, w1 = g.map_size(x, weight)
    shape = (*batch, k, *g.pooled_size((h1, w1)))
    y = x.new_empty(shape).contiguous(memory_format=memory_format(x))
    code = x.new_empty(0, dtype=torch.uint8)
    if need_code and g.pool == "max":
        code = y.new_empty(shape, dtype=g.code_dtype()).contiguous(memory_format=memory_format(x))
    elif need_code:
        code = x.new_empty((*batch, k, words_for(h1 * w1)), dtype=torch.int64)
    sig = x.new_empty(0, dtype=torch.int64)
    if units:
        sig = x.new_empty((*batch, words_for(g.unit_count(units, k, (h1, w1)))), dtype=torch.int64)
    return y, code, sig


def fake(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g = Geometry.of("conv_relu_pool2d", *args, **kwargs)
    check("conv_relu_pool2d", x, weight, g)
    return empty_results(x, weight, g, False, "")[0]


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    g = Geometry.of("_conv_relu_pool2d_forward", *args, **kwargs)
    check("_conv_relu_pool2d_forward", x, weight, g, units)
    return empty_results(x, weight, g, need_code, units)


def _backward_fake(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    def like(t: torch.Tensor, needed: bool) -> torch.Tensor:
        if not needed:
            return x.new_empty(0)
        return t.new_empty(t.shape).contiguous(memory_format=memory_format(t))

    return like(x, need_x), like(weight, need_weight)


# --- autograd -------------------------------------------------------------------------------------------------


class Passes(NamedTuple):
    """The two kernels that training needs, with the arguments of the internal ops."""

    forward: Callable[..., Tensors3]
    backward: Callable[..., Tensors2]


def _registered_forward(*args: Any, **kwargs: Any) -> Tensors3:
    with below_autograd():
        return torch.ops.zb._conv_relu_pool2d_forward(*args, **kwargs)


def _registered_backward(*args: Any, **kwargs: Any) -> Tensors2:
    with below_autograd():
        return torch.ops.zb._conv_relu_pool2d_backward(*args, **kwargs)


REGISTERED = Passes(_registered_forward, _registered_backward)


class ConvReLUPoolFunction(torch.autograd.Function):
    """(y, code, sig) of any pair of passes; only y has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: Passes,
        x: torch.Tensor,
        weight: torch.Tensor,
        g: Geometry,
        need_code: bool,
        units: str,
    ) -> Tensors3:
        y, code, sig = passes.forward(
            x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units=units
        )
        ctx.passes, ctx.geometry = passes, g
        ctx.save_for_backward(x, weight, code)
        shown = code if need_code else code.new_empty(0, dtype=torch.uint8)
        ctx.mark_non_differentiable(shown, sig)
        return y, shown, sig

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_unused: Any) -> tuple[Any, ...]:
        x, weight, code = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad[1:3]
        grad_x, grad_weight = differentiable_backward(
            ctx.passes, grad, x, weight, code, ctx.geometry, need_x, need_weight
        )
        return None, grad_x if need_x else None, grad_weight if need_weight else None, None, None, None


class ConvReLUPoolBackwardFunction(torch.autograd.Function):
    """The backward pass as a function of its own: its gradient is that of the pure-torch backward."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: Passes,
        grad: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        code: torch.Tensor,
        g: Geometry,
        need_x: bool,
        need_weight: bool,
    ) -> Tensors2:
        ctx.geometry, ctx.needs = g, (need_x, need_weight)
        ctx.save_for_backward(grad, x, weight, code)
        out = passes.backward(
            grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=need_x, need_weight=need_weight
        )
        ctx.mark_non_differentiable(*(t for t, needed in zip(out, ctx.needs, strict=True) if not needed))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        higher = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = [t if higher else t.detach().requires_grad_(t.is_floating_point()) for t in saved]
            out = backward_reference(*inputs, ctx.geometry, *ctx.needs)
            wanted = [i for i in range(3) if ctx.needs_input_grad[1 + i] and inputs[i].requires_grad]
            pairs = [(o, v) for o, v, needed in zip(out, grads, ctx.needs, strict=True) if needed]
            pairs = [(o, v) for o, v in pairs if o.requires_grad]
            found: tuple[Any, ...] = ()
            if wanted and pairs:
                found = torch.autograd.grad(
                    [o for o, _ in pairs],
                    [inputs[i] for i in wanted],
                    [v for _, v in pairs],
                    create_graph=higher,
                    allow_unused=True,
                )
        result: list[Any] = [None, None, None]
        for i, value in zip(wanted, found):
            result[i] = value
        return None, *result, None, None, None, None


def differentiable_backward(
    passes: Passes,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    g: Geometry,
    need_x: bool,
    need_weight: bool,
) -> Tensors2:
    if needs_grad(grad, x, weight):
        return ConvReLUPoolBackwardFunction.apply(passes, grad, x, weight, code, g, need_x, need_weight)
    return passes.backward(
        grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=need_x, need_weight=need_weight
    )


def autograd(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if transforms_active(x, weight):
        return reference(x, weight, *args, **kwargs)
    if needs_grad(x, weight):
        g = Geometry.of("conv_relu_pool2d", *args, **kwargs)
        check("conv_relu_pool2d", x, weight, g)
        return ConvReLUPoolFunction.apply(REGISTERED, x, weight, g, False, "")[0]
    with below_autograd():
        return torch.ops.zb.conv_relu_pool2d(x, weight, *args, **kwargs)


def _forward_autograd(
    x: torch.Tensor, weight: torch.Tensor, *args: Any, need_code: bool, units: str, **kwargs: Any
) -> Tensors3:
    if transforms_active(x, weight):
        return _forward_op(x, weight, *args, need_code=need_code, units=units, **kwargs)
    if needs_grad(x, weight):
        g = Geometry.of("_conv_relu_pool2d_forward", *args, **kwargs)
        check("_conv_relu_pool2d_forward", x, weight, g, units)
        return ConvReLUPoolFunction.apply(REGISTERED, x, weight, g, need_code, units)
    return _registered_forward(x, weight, *args, need_code=need_code, units=units, **kwargs)


def _backward_autograd(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    code: torch.Tensor,
    *args: Any,
    need_x: bool,
    need_weight: bool,
    **kwargs: Any,
) -> Tensors2:
    if transforms_active(grad, x, weight):
        return _backward_op(grad, x, weight, code, *args, need_x=need_x, need_weight=need_weight, **kwargs)
    g = Geometry.of("_conv_relu_pool2d_backward", *args, **kwargs)
    return differentiable_backward(REGISTERED, grad, x, weight, code, g, need_x, need_weight)


# --- vmap -----------------------------------------------------------------------------------------------------


def vmap(
    info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, weight: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    return fold_batch("conv_relu_pool2d", info, in_dims, x, weight, *args, **kw)


def fold_batch(
    name: str,
    info: Any,
    in_dims: tuple[Any, ...],
    x: torch.Tensor,
    weight: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Batched inputs become a larger N; batched weights are looped over."""
    if in_dims[1] is not None:
        return vmap_by_loop(name)(info, in_dims, x, weight, *args, **kwargs)
    x = x.movedim(in_dims[0], 0)  # [B, N, C, H, W] or [B, C, H, W]
    batched = x.dim() == 5
    out = getattr(torch.ops.zb, name)(x.flatten(0, 1) if batched else x, weight, *args, **kwargs)
    if isinstance(out, torch.Tensor):
        return out.unflatten(0, x.shape[:2]) if batched else out, 0
    return tuple(t.unflatten(0, x.shape[:2]) if batched else t for t in out), (0,) * len(out)


# --- samples --------------------------------------------------------------------------------------------------


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    """The cases at which kernels of this kind fail in public trackers; see the design's list."""
    gen = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).to(device, dtype)

    def call(label: str, x: torch.Tensor, weight: torch.Tensor, smooth: bool = True, **kwargs: Any) -> Sample:
        return Sample(label, (x, weight), kwargs, smooth)

    cl = torch.channels_last
    yield call("plain", draw(2, 3, 8, 8), draw(4, 3, 3, 3))
    yield call("same padding", draw(2, 3, 8, 8), draw(4, 3, 3, 3), padding=1)
    yield call("5x5", draw(2, 1, 9, 10), draw(3, 1, 5, 5), padding=2)
    yield call("channels_last", draw(2, 3, 8, 8).to(memory_format=cl), draw(5, 3, 3, 3), padding=1)
    yield call(
        "both channels_last", draw(2, 4, 7, 6).to(memory_format=cl), draw(5, 4, 3, 3).to(memory_format=cl)
    )
    yield call("weight channels_last", draw(2, 3, 6, 6), draw(5, 3, 3, 3).to(memory_format=cl))
    yield call("sliced", draw(2, 3, 12, 9)[:, :, ::2, 1:], draw(5, 3, 3, 3), padding=1)
    yield call("transposed", draw(2, 3, 7, 9).transpose(2, 3), draw(4, 3, 3, 3))
    yield call("expanded", draw(1, 1, 8, 8).expand(3, 2, 8, 8), draw(1, 2, 3, 3).expand(4, 2, 3, 3))
    yield call(
        "odd storage offset", draw(2 * 3 * 64 + 3)[3:].view(2, 3, 8, 8), draw(109)[1:].view(4, 3, 3, 3)
    )
    yield call("unbatched", draw(3, 8, 8), draw(4, 3, 3, 3), padding=1)
    yield call("no images", draw(0, 3, 8, 8), draw(4, 3, 3, 3))
    yield call("no images, channels_last", draw(0, 3, 8, 8).to(memory_format=cl), draw(4, 3, 3, 3))
    yield call("one channel", draw(1, 1, 6, 6).to(memory_format=cl), draw(1, 1, 3, 3))
    yield call("one pixel", draw(2, 5, 1, 1), draw(3, 5, 1, 1), pool="none")
    for channels in (7, 16, 17, 33):
        yield call(f"{channels} channels", draw(2, channels, 5, 5), draw(channels, channels, 3, 3), padding=1)
    yield call("kernel larger than the image", draw(2, 2, 3, 3), draw(3, 2, 5, 5), padding=2)
    yield call("1x1", draw(2, 5, 6, 6), draw(6, 5, 1, 1))
    yield call("even kernel", draw(2, 3, 7, 7), draw(4, 3, 2, 4), padding=(1, 2))
    yield call("stride", draw(2, 3, 11, 12), draw(4, 3, 3, 3), stride=2, padding=1)
    yield call("stride larger than the kernel", draw(2, 3, 13, 12), draw(4, 3, 2, 2), stride=(3, 4))
    yield call("dilation", draw(2, 3, 11, 10), draw(4, 3, 3, 3), dilation=(2, 3), padding=2)
    yield call("huge dilation of one position", draw(2, 3, 4, 4), draw(4, 3, 1, 1), dilation=2**31 - 1)
    yield call("groups", draw(2, 6, 8, 8), draw(4, 3, 3, 3), groups=2, padding=1)
    yield call("depthwise", draw(2, 5, 8, 8), draw(10, 1, 3, 3), groups=5, padding=1)
    yield call("odd size", draw(2, 3, 9, 7), draw(4, 3, 3, 3), padding=1)
    yield call("odd size, ceil_mode", draw(2, 3, 9, 7), draw(4, 3, 3, 3), padding=1, ceil_mode=True)
    yield call(
        "last window starts inside",
        draw(1, 2, 6, 6),
        draw(3, 2, 1, 1),
        pool_kernel=2,
        pool_stride=(3, 3),
        pool_padding=1,
        ceil_mode=True,
    )
    overlapping = {"pool_kernel": 3, "pool_stride": (2, 2), "pool_padding": 1}
    yield call("overlapping pool", draw(2, 3, 11, 11), draw(4, 3, 3, 3), padding=1, **overlapping)
    yield call("stem", draw(1, 3, 20, 18), draw(4, 3, 7, 7), stride=2, padding=3, **overlapping)
    yield call("pool stride larger", draw(2, 3, 11, 12), draw(4, 3, 3, 3), pool_kernel=2, pool_stride=(3, 3))
    yield call("uneven pool", draw(2, 3, 10, 11), draw(4, 3, 3, 3), pool_kernel=(2, 3), pool_stride=(1, 2))
    yield call("large window", draw(1, 2, 18, 18), draw(3, 2, 3, 3), pool_kernel=16)
    yield call("slope", draw(2, 3, 8, 8), draw(4, 3, 3, 3), negative_slope=0.1, padding=1)
    yield call("slope, overlapping", draw(2, 3, 9, 9), draw(4, 3, 3, 3), negative_slope=0.3, **overlapping)
    yield call(
        "slope, large window", draw(1, 2, 14, 14), draw(3, 2, 3, 3), negative_slope=0.3, pool_kernel=12
    )
    yield call("slope 1", draw(2, 3, 8, 8), draw(4, 3, 3, 3), negative_slope=1.0)
    yield call("no pool", draw(2, 3, 8, 7), draw(4, 3, 3, 3), pool="none", padding=1)
    yield call(
        "no pool, slope",
        draw(2, 3, 8, 9).to(memory_format=cl),
        draw(4, 3, 3, 3),
        pool="none",
        negative_slope=0.2,
    )
    yield call("average", draw(2, 3, 8, 8), draw(4, 3, 3, 3), pool="avg", padding=1)
    yield call("average, channels_last", draw(2, 3, 9, 8).to(memory_format=cl), draw(4, 3, 3, 3), pool="avg")
    for include in (True, False):
        yield call(
            f"average, padded, ceil_mode, count_include_pad={include}",
            draw(2, 3, 10, 9),
            draw(4, 3, 3, 3),
            pool="avg",
            ceil_mode=True,
            count_include_pad=include,
            negative_slope=0.1,
            **overlapping,
        )
    negative = -torch.rand(2, 3, 8, 8, generator=gen).to(device, dtype) - 0.1
    ones = torch.ones(4, 3, 3, 3, device=device, dtype=dtype)
    yield call("all-negative windows", negative, ones, False, padding=1)
    yield call(
        "all-negative windows, slope", negative, ones, False, padding=1, negative_slope=0.1, **overlapping
    )
    whole = torch.randint(-1, 2, (2, 3, 8, 8), generator=gen).to(device, dtype)
    yield call("ties", whole, torch.ones(2, 3, 1, 1, device=device, dtype=dtype), False)
    yield call(
        "ties, slope, overlapping", whole, ones[:, :, :1, :1], False, negative_slope=0.5, **overlapping
    )
    special = draw(2, 3, 8, 8)
    special[0, 1, 4, 4] = float("nan")
    special[1, 0, 2, 3] = float("inf")
    special[1, 2, 6, 6] = -float("inf")
    for pool in ("max", "avg", "none"):
        yield call(f"NaN and inf, {pool}", special, draw(4, 3, 3, 3), False, pool=pool, padding=1)
    yield call("NaN and inf, slope", special, draw(4, 3, 3, 3), False, padding=1, negative_slope=0.1)
    two = special.clone()
    two[0, :, 2:4, 2:4] = float("nan")
    yield call("window of NaN", two, draw(3, 1, 1, 1), False, groups=3)
    zeros = torch.tensor([[[[-0.0, 0.0], [-0.0, -0.0]]]]).to(device, dtype)
    yield call("zeros of both signs", zeros, torch.ones(1, 1, 1, 1, device=device, dtype=dtype), False)
    tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    small = torch.tensor([[[[tiny, -tiny], [0.0, 4 * tiny]]]], dtype=torch.float64).to(device, dtype)
    yield call("subnormals", small, torch.ones(1, 1, 1, 1, device=device, dtype=dtype), False, pool="none")
    big = torch.full((1, 2, 4, 4), torch.finfo(dtype).max / 2, device=device, dtype=dtype)
    yield call("overflow", big, torch.full((2, 2, 3, 3), 2.0, device=device, dtype=dtype), False)


def _forward_samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    for number, s in enumerate(samples(device, dtype)):
        g = Geometry.of("_conv_relu_pool2d_forward", **s.kwargs)
        winner = g.pool == "max" and g.negative_slope == 0
        units = ("", "relu", "output", "winner" if winner else "relu")[number % 4]
        kwargs = {**g.pool_kwargs(), "need_code": number % 3 != 0, "units": units}
        yield Sample(f"{s.label}, units={units!r}", (*s.args, *g.conv_args()), kwargs, s.smooth)


def _backward_samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(1)
    for number, s in enumerate(samples(device, dtype)):
        x, weight = s.args
        g = Geometry.of("_conv_relu_pool2d_backward", **s.kwargs)
        y, code, _ = forward_reference(x, weight, g, True, "")
        grad = torch.randn(y.shape, generator=gen).to(device, dtype)
        kind = number % 4
        if kind == 1:
            grad = grad.flatten()[:1].expand(grad.shape) if grad.numel() else grad
        elif kind == 2 and grad.dim() == 4:
            grad = grad.to(memory_format=torch.channels_last)
        elif kind == 3:
            grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
        needs = {"need_x": number % 5 != 1, "need_weight": number % 5 != 2}
        yield Sample(s.label, (grad, x, weight, code, *g.conv_args()), {**g.pool_kwargs(), **needs}, s.smooth)


# --- the public function --------------------------------------------------------------------------------------


def resolve_padding(
    op: str, x: Any, weight: Any, stride: IntOrPair, padding: IntOrPair | str, dilation: IntOrPair
) -> tuple[Any, IntOrPair]:
    """(x, padding in numbers) for ``"same"`` and ``"valid"``, as ``F.conv2d`` has them."""
    if not isinstance(padding, str):
        return x, padding
    if padding == "valid":
        return x, 0
    if padding != "same":
        raise ValueError(f"{op}: expected padding to be an int, two ints, 'same' or 'valid', got {padding!r}")
    if pair(op, "stride", stride, 1) != (1, 1):
        raise ValueError(f"{op}: padding='same' needs stride 1, got {stride!r}")
    steps = pair(op, "dilation", dilation, 1)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 4:
        return x, 0  # the check that follows says what is wrong
    total = [steps[d] * (weight.shape[d + 2] - 1) for d in (0, 1)]
    if any(t % 2 for t in total):  # an even kernel: the odd row or column goes to the far side
        x = F.pad(x, (0, total[1] % 2, 0, total[0] % 2))
    return x, (total[0] // 2, total[1] // 2)


def normalise(
    op: str,
    x: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    units: str,
    **pool: Any,
) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """Autocast, "same" padding, forms and checks: what every public call goes through first."""
    x, weight = autocast_operands(x, weight)
    x, padding = resolve_padding(op, x, weight, stride, padding, dilation)
    g = Geometry.of(op, stride, padding, dilation, groups, **pool)
    check(op, x, weight, g, units)
    return x, weight, g


def conv_relu_pool2d(
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
) -> torch.Tensor:
    """``pool(act(conv2d(x, weight, None, …)))`` in one pass (equation 1 of the zero-bias paper, one layer of it).

    The arguments mean what they mean in ``F.conv2d``, ``F.max_pool2d`` and ``F.avg_pool2d``. The un-pooled map
    is never kept: training saves one byte (a position) for each pooled output.

    Args:
        x: [N, C, H, W] or [C, H, W], float32, float64, float16 or bfloat16, any strides.
        weight: [K, C/groups, R, S], of x's dtype and device.
        padding: an int, two ints, ``"same"`` or ``"valid"``.
        pool: ``"max"``, ``"avg"`` or ``"none"``.
        negative_slope: of the activation, in [0, 1]; 0 is ReLU.

    Returns:
        [N, K, P, Q] (or [K, P, Q]) of x's dtype, channels_last where x is. NaN passes through ReLU and pool.

    Raises:
        TypeError: not tensors of one of these dtypes.
        ValueError: shapes, devices or arguments that don't fit; the message says what was got.

    Example:
        >>> import torch, zbkernels as zb
        >>> x, w = torch.randn(8, 3, 32, 32), torch.randn(16, 3, 3, 3)
        >>> zb.conv_relu_pool2d(x, w, padding="same").shape
        torch.Size([8, 16, 16, 16])
    """
    x, weight, g = normalise(
        "conv_relu_pool2d",
        x,
        weight,
        stride,
        padding,
        dilation,
        groups,
        "",
        pool=pool,
        pool_kernel=pool_kernel,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        negative_slope=negative_slope,
    )
    kernel = _backend.forced_kernel(
        OP, x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units=""
    )
    if kernel is None:
        return torch.ops.zb.conv_relu_pool2d(x, weight, *g.conv_args(), **g.pool_kwargs())
    return run_passes(kernel.run, x, weight, g, "")[0]


def run_passes(passes: Passes, x: torch.Tensor, weight: torch.Tensor, g: Geometry, units: str) -> Tensors3:
    """A pair of passes outside the dispatcher, with gradients where they are wanted."""
    if needs_grad(x, weight):
        return ConvReLUPoolFunction.apply(passes, x, weight, g, False, units)
    return passes.forward(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units=units)


def kernel_arguments(op: str, units: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """For ``zb.explain``: the arguments of a public call as the kernels' ``can_run`` takes them."""

    def arguments(
        x: Any,
        weight: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
        *,
        units: str = units,
        **pool: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, weight, g = normalise(op, x, weight, stride, padding, dilation, groups, units, **pool)
        return (x, weight, *g.conv_args()), {
            **g.pool_kwargs(),
            "need_code": needs_grad(x, weight),
            "units": units,
        }

    return arguments


triton_forward = _backend.triton_function("conv_relu_pool", "forward")
triton_backward = _backend.triton_function("conv_relu_pool", "backward")

KERNELS = (
    _backend.library_kernel("cpu"),
    _backend.library_kernel("cuda"),
    _backend.triton_kernel("conv_relu_pool", Passes(triton_forward, triton_backward)),
    _backend.reference_kernel(Passes(_forward_op, _backward_op)),
)


def _cuda_fallback(x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    g = Geometry.of("conv_relu_pool2d", *args, **kwargs)
    return triton_forward(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units="")[0]


OP = Op(
    "conv_relu_pool2d",
    SCHEMA,
    reference,
    samples,
    public=conv_relu_pool2d,
    kernels=KERNELS,
    normalise=kernel_arguments("conv_relu_pool2d", ""),
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, autocast=True, cuda_fallback=_cuda_fallback)

FORWARD_OP = Op("_conv_relu_pool2d_forward", FORWARD_SCHEMA, _forward_op, _forward_samples)
register(
    FORWARD_OP,
    fake=_forward_fake,
    vmap=vmap_by_loop(FORWARD_OP.name),
    autograd=_forward_autograd,
    cuda_fallback=triton_forward,
)

BACKWARD_OP = Op("_conv_relu_pool2d_backward", BACKWARD_SCHEMA, _backward_op, _backward_samples)
register(
    BACKWARD_OP,
    fake=_backward_fake,
    vmap=vmap_by_loop(BACKWARD_OP.name),
    autograd=_backward_autograd,
    cuda_fallback=triton_backward,
)
