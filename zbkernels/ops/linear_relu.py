"""``linear_relu``: a bias-free linear layer and its activation, and the autograd it shares with the NAP form.

The output tells everything the backward needs (the sign of the pre-activation), so nothing else is saved.
The backward is torch's own activation gradient and two matrix products on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zbkernels.ops import _backend, _choice, _onnx_tracing, _tf32
from zbkernels.ops._op import (
    Op,
    Sample,
    autocast_operands,
    below_autograd,
    check_operands,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import linear_class

SCHEMA = "linear_relu(Tensor x, Tensor weight, float negative_slope=0.0) -> Tensor"


def check(op: str, x: Any, weight: Any, negative_slope: Any) -> None:
    check_operands(op, x, weight)
    if weight.dim() != 2:
        raise ValueError(f"{op}: expected weight of shape [out, in], got {list(weight.shape)}")
    if x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{op}: expected x of shape [..., in] with in = {weight.shape[1]} of weight {list(weight.shape)}, "
            f"got {list(x.shape)}"
        )
    if not isinstance(negative_slope, (int, float)) or not 0 <= negative_slope <= 1:
        raise ValueError(f"{op}: expected 0 <= negative_slope <= 1, got {negative_slope!r}")


def activation(pre: torch.Tensor, negative_slope: float) -> torch.Tensor:
    """relu at slope 0 (leaky_relu would turn -inf into NaN there), leaky_relu above, nothing at 1."""
    if negative_slope == 0:
        return torch.relu(pre)
    return pre if negative_slope == 1 else torch.nn.functional.leaky_relu(pre, negative_slope)


def reference(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    check("linear_relu", x, weight, negative_slope)
    _backend.note_kernel("reference")
    return activation(torch.nn.functional.linear(x, weight), negative_slope)


def fake(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    check("linear_relu", x, weight, negative_slope)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    if in_dims[1] is None:
        return torch.ops.zb.linear_relu(args[0].movedim(in_dims[0], 0), *args[1:]), 0
    return vmap_by_loop("linear_relu")(info, in_dims, *args)


# (x, weight, slope, need_sig) -> (y, sig); sig is empty where it isn't needed.
Forward = Callable[[torch.Tensor, torch.Tensor, float, bool], tuple[torch.Tensor, torch.Tensor]]


class LinearReLUFunction(torch.autograd.Function):
    """Differentiates any forward kernel; the gradient of the gradient comes out of the torch ops below."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Forward, x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, sig = kernel(x, weight, slope, need_sig)
        ctx.slope = slope
        ctx.save_for_backward(x, weight, y)
        ctx.mark_non_differentiable(sig)
        return y, sig

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _grad_sig: Any) -> tuple[Any, ...]:
        x, weight, y = ctx.saved_tensors
        if ctx.slope == 0:
            grad = torch.ops.aten.threshold_backward(
                grad, y, 0
            )  # keeps the gradient where y is NaN, as torch's
        elif ctx.slope != 1:
            grad = torch.ops.aten.leaky_relu_backward(grad, y, ctx.slope, True)
        grad_x = grad @ weight if ctx.needs_input_grad[1] else None
        grad_weight = None
        if ctx.needs_input_grad[2]:
            rows = math.prod(x.shape[:-1])  # -1 would be ambiguous with no features or no units
            grad_weight = grad.reshape(rows, weight.shape[0]).t() @ x.reshape(rows, weight.shape[1])
        return None, grad_x, grad_weight, None, None


def registered_forward(
    x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.is_cuda:
        _tf32.follow()
    with below_autograd():
        if need_sig:
            return torch.ops.zb.linear_relu_nap(x, weight, slope)
        return torch.ops.zb.linear_relu(x, weight, slope), x.new_empty(0, dtype=torch.int64)


def autograd(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    if transforms_active(x, weight):
        return reference(x, weight, negative_slope)
    if needs_grad(x, weight):
        return LinearReLUFunction.apply(registered_forward, x, weight, negative_slope, False)[0]
    return registered_forward(x, weight, negative_slope, False)[0]


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    yield Sample("plain", (draw(5, 7), draw(70, 7)))
    yield Sample("slope 0.1", (draw(5, 7), draw(9, 7), 0.1))
    yield Sample("slope 1", (draw(5, 7), draw(9, 7), 1.0))
    yield Sample("one input", (draw(7), draw(9, 7)))
    yield Sample("leading dimensions", (draw(2, 3, 7), draw(64, 7)))
    yield Sample("one feature", (draw(5, 1), draw(1, 1)))
    yield Sample("transposed", (draw(7, 5).t(), draw(7, 9).t(), 0.1))
    yield Sample("every other column", (draw(5, 14)[:, ::2], draw(9, 14)[:, ::2]))
    yield Sample("expanded", (draw(1, 7).expand(4, 7), draw(1, 7).expand(9, 7)))
    yield Sample("odd storage offset", (draw(5 * 7 + 3)[3:].view(5, 7), draw(9 * 7 + 1)[1:].view(9, 7)))
    yield Sample("no rows", (draw(0, 7), draw(9, 7)))
    yield Sample("no features", (draw(5, 0), draw(9, 0)))
    yield Sample("no units", (draw(5, 7), draw(0, 7)))
    rows = torch.tensor([[1.0], [-1.0], [0.0], [-0.0], [float("nan")], [float("inf")], [-float("inf")]])
    one = torch.ones(3, 1, device=device, dtype=dtype)
    yield Sample("zeros, NaN, inf", (rows.to(device, dtype), one), smooth=False)
    yield Sample("zeros, NaN, inf with slope", (rows.to(device, dtype), one, 0.5), smooth=False)
    yield Sample("wider", (draw(33, 100), draw(130, 100)))


def linear_relu(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    """``act(x @ weight.T)``: one hidden layer of a bias-free network (equation 5 of the zero-bias paper).

    Args:
        x: [..., in], float32, float64, float16 or bfloat16, any strides.
        weight: [out, in], of x's dtype and device.
        negative_slope: in [0, 1]; 0 is ReLU, 1 the identity (a network's last layer).

    Returns:
        [..., out], of x's dtype.

    Raises:
        TypeError: not tensors of one of these dtypes.
        ValueError: shapes or devices that don't fit, or a slope outside [0, 1].
    """
    if not torch.compiler.is_dynamo_compiling() and _onnx_tracing.active():
        x, weight = autocast_operands(x, weight)
        with _onnx_tracing.paused():
            check("linear_relu", x, weight, negative_slope)
        return activation(torch.nn.functional.linear(x, weight), negative_slope)
    x, weight = autocast_operands(x, weight)
    check("linear_relu", x, weight, negative_slope)
    kernel = _backend.choose_kernel(OP, x, weight, negative_slope)
    if kernel is None and not _choice.unseen(x, weight):
        return torch.ops.zb.linear_relu(x, weight, negative_slope)
    forward = registered_forward if kernel is None else kernel.run
    return run_kernel(forward, x, weight, negative_slope, False)[0]


def run_kernel(
    forward: Forward, x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """A forward kernel outside the dispatcher, with gradients where they are wanted."""
    if needs_grad(x, weight):
        return LinearReLUFunction.apply(forward, x, weight, slope, need_sig)
    return forward(x, weight, slope, need_sig)


def _reference_forward(
    x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y = reference(x, weight, slope)
    from zbkernels.ops.nap_pack import pack_last

    return y, pack_last(y > 0) if need_sig else x.new_empty(0, dtype=torch.int64)


def _triton_forward(
    x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend.triton_function("linear_relu", "forward")(x, weight, slope, need_sig=need_sig)


def _emulated_forward(
    x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if need_sig:
        return _backend.emulated_function("linear_relu_nap")(x, weight, slope)
    y = _backend.emulated_function("linear_relu")(x, weight, slope)
    return y, x.new_empty(0, dtype=torch.int64)


KERNELS = (
    _backend.library_kernel("cpu"),
    _backend.library_kernel("cuda"),
    _backend.triton_kernel("linear_relu", _triton_forward),
    *_backend.emulated_kernels(_emulated_forward),
    _backend.reference_kernel(_reference_forward),
)


def kernel_arguments(op: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """For ``zb.explain``: the arguments of a public call as the kernels' ``can_run`` takes them."""

    def arguments(x: Any, weight: Any, negative_slope: Any = 0.0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, weight = autocast_operands(x, weight)
        check(op, x, weight, negative_slope)
        return (x, weight, negative_slope), {}

    return arguments


def _cuda_fallback(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> torch.Tensor:
    return _triton_forward(x, weight, negative_slope, False)[0]


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor, slope: float, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    sig_shape = (*x.shape[:-1], (weight.shape[0] + 63) // 64) if need_sig else (0,)
    return y, x.new_empty(sig_shape, dtype=torch.int64)


OPAQUE = opaque_kernels(
    "linear_relu",
    KERNELS,
    "linear_relu(Tensor x, Tensor weight, float slope, bool need_sig) -> (Tensor, Tensor)",
    _forward_fake,
    can_run_args=lambda x, weight, slope, need_sig: ((x, weight, slope), {}),
)


def shape_class(x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0) -> str:
    return linear_class(x, weight) + (" train" if needs_grad(x, weight) else "")


OP = Op(
    "linear_relu",
    SCHEMA,
    reference,
    samples,
    public=linear_relu,
    normalise=kernel_arguments("linear_relu"),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=OPAQUE,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, autocast=True, cuda_fallback=_cuda_fallback)
