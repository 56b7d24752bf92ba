"""Gradients of ``conv_relu_pool2d`` over any pair of kernels, of any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zbkernels.ops import _tf32
from zbkernels.ops._conv_reference import (
    Tensors2,
    Tensors3,
    activation_gradient,
    backward_reference,
    residual_gradient,
)
from zbkernels.ops._geometry import Geometry
from zbkernels.ops._op import below_autograd, needs_grad


class Passes(NamedTuple):
    """The two kernels that training needs, with the arguments of the internal ops."""

    forward: Callable[..., Tensors3]
    backward: Callable[..., Tensors2]


def _registered_forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Tensors3:
    if x.is_cuda:
        _tf32.follow()
    with below_autograd():
        return torch.ops.zb._conv_relu_pool2d_forward(x, *args, **kwargs)


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
        residual: torch.Tensor | None,
    ) -> Tensors3:
        y, code, sig = passes.forward(
            x, weight, *g.conv_args(), residual, **g.pool_kwargs(), need_code=True, units=units
        )
        ctx.passes, ctx.geometry = passes, g
        # Without a pool the residual's gradient is told by y's signs, which lie as the gradient does.
        by_y = residual is not None and ctx.needs_input_grad[6] and g.pool == "none"
        ctx.save_for_backward(x, weight, code, *([y] if by_y else []))
        shown = code if need_code else code.new_empty(0, dtype=torch.uint8)
        ctx.mark_non_differentiable(shown, sig)
        return y, shown, sig

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_unused: Any) -> tuple[Any, ...]:
        x, weight, code, *kept = ctx.saved_tensors
        need_x, need_weight, need_residual = (ctx.needs_input_grad[i] for i in (1, 2, 6))
        grad_x = grad_weight = grad_residual = None
        g = ctx.geometry
        if need_residual and kept:
            grad_residual = activation_gradient(grad, kept[0], g.negative_slope)
            # The gradients of a 1x1 convolution are matrix products of just that; those of larger filters gain by
            # the zeros in it, which the kernels find by the code.
            if weight.shape[2] == weight.shape[3] == 1:
                grad, g = grad_residual, g._replace(negative_slope=1.0)
        elif need_residual:
            grad_residual = residual_gradient(grad, x, weight, code, g)
        if need_x or need_weight:
            grad_x, grad_weight = differentiable_backward(
                ctx.passes, grad, x, weight, code, g, need_x, need_weight
            )
        return (
            None,
            grad_x if need_x else None,
            grad_weight if need_weight else None,
            None,
            None,
            None,
            grad_residual,
        )


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
            grad, x, weight, code = inputs
            out = backward_reference(grad, x, weight, code, ctx.geometry, *ctx.needs)
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
        for i, value in zip(wanted, found):  # noqa: B905 (nothing is found where nothing hangs together)
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


def run_passes(
    passes: Passes,
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    units: str,
    residual: torch.Tensor | None,
) -> Tensors3:
    """A pair of passes outside the dispatcher, with gradients where they are wanted."""
    if needs_grad(x, weight, residual):
        return ConvReLUPoolFunction.apply(passes, x, weight, g, False, units, residual)
    return passes.forward(
        x, weight, *g.conv_args(), residual, **g.pool_kwargs(), need_code=False, units=units
    )
