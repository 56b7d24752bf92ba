"""What ``conv_relu_pool2d`` means, in torch: the forward and backward that every kernel is held to.

The formats of ``code`` and ``sig`` are in ``csrc/conv_relu_pool/README.md``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from zbkernels.ops import _backend
from zbkernels.ops._geometry import Geometry, adjoint_operands, memory_format
from zbkernels.ops.linear_relu import activation
from zbkernels.ops.nap_pack import pack_last
from zbkernels.ops.nap_unpack import unpack_last

Tensors2 = tuple[torch.Tensor, torch.Tensor]
Tensors3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _conv(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    return F.conv2d(x, weight, None, g.stride, g.padding, used_dilation(weight, g), g.groups)


def used_dilation(weight: torch.Tensor, g: Geometry) -> tuple[int, int]:
    """A kernel of one position ignores its dilation, which may then be of any size."""
    rows, columns = (1 if g.dilation[d] == 1 or weight.shape[d + 2] == 1 else g.dilation[d] for d in (0, 1))
    return rows, columns


def _pool(act: torch.Tensor, g: Geometry) -> torch.Tensor:
    if g.pool == "max":
        return F.max_pool2d(act, g.pool_kernel, g.pool_stride, g.pool_padding, ceil_mode=g.ceil_mode)
    if g.pool == "avg":
        return F.avg_pool2d(
            act, g.pool_kernel, g.pool_stride, g.pool_padding, g.ceil_mode, g.count_include_pad
        )
    return act


def _pre(x: torch.Tensor, weight: torch.Tensor, g: Geometry, residual: torch.Tensor | None) -> torch.Tensor:
    pre = _conv(x, weight, g)
    return pre if residual is None else pre + residual


def value_reference(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``pool(act(conv2d(x, weight) + residual))``, differentiable any number of times."""
    return _act_pool(_pre(x, weight, g, residual), x, g)


def in_any_format(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, residual: torch.Tensor | None
) -> torch.Tensor:
    """The same values in the memory format that torch's operations leave them in; it asks for no size and no stride,
    so ``g.dilation`` is already :func:`used_dilation`'s."""
    pre = F.conv2d(x, weight, None, g.stride, g.padding, g.dilation, g.groups)
    return _pool(activation(pre if residual is None else pre + residual, g.negative_slope), g)


def _act_pool(pre: torch.Tensor, x: torch.Tensor, g: Geometry) -> torch.Tensor:
    return _pool(activation(pre, g.negative_slope), g).contiguous(memory_format=memory_format(x))


def by_steps(x: torch.Tensor, weight: torch.Tensor, g: Geometry, residual: torch.Tensor) -> torch.Tensor:
    """The same with the op for the convolution alone, for whoever has to see the sum and each unit."""
    linear = torch.ops.zb.conv_relu_pool2d(x, weight, *g.conv_args(), pool="none", negative_slope=1.0)
    return _act_pool(linear + residual, x, g)


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
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    need_code: bool,
    units: str,
    residual: torch.Tensor | None = None,
) -> Tensors3:
    """(y, code, sig) with every meaning spelt out; the kernels are held to this."""
    _backend.note_kernel("reference")
    pre = _pre(x, weight, g, residual)
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
    images = (grad_pre, x) if batched else (grad_pre.unsqueeze(0), x.unsqueeze(0))
    dilation = [1 if weight.shape[d + 2] == 1 else g.dilation[d] for d in (0, 1)]
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        *adjoint_operands(*images, weight, g.stride),
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


def residual_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, code: torch.Tensor, g: Geometry
) -> torch.Tensor:
    """That of the pre-activations, to which the residual was added; differentiable in grad."""
    return _pool_adjoint(grad, code, g, g.map_size(x, weight))


def activation_gradient(grad: torch.Tensor, y: torch.Tensor, negative_slope: float) -> torch.Tensor:
    """The gradient of the pre-activations from y = act(pre), whose sign is theirs; differentiable in grad."""
    if negative_slope == 1:
        return grad
    if negative_slope == 0:
        return torch.ops.aten.threshold_backward(grad, y.detach(), 0)
    return torch.ops.aten.leaky_relu_backward(grad, y.detach(), negative_slope, True)


def _pool_adjoint(
    grad: torch.Tensor, code: torch.Tensor, g: Geometry, map_size: tuple[int, int]
) -> torch.Tensor:
    """The gradient of the pre-activations [..., H1, W1], in gather form: one slice a window position."""
    h1, w1 = map_size
    if g.pool != "max":
        on = unpack_last(code, h1 * w1).unflatten(-1, (h1, w1))
        if g.pool == "avg":
            grad = _avg_pool_adjoint(grad, g, map_size)
        # Not a product at slope 0: an infinite gradient behind a unit that is off is 0, not NaN.
        return torch.where(on, grad, grad * g.negative_slope if g.negative_slope else 0)
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
