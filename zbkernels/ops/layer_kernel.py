"""``layer_kernel``: the kernel of one finite ReLU layer between x and y = cos(t) x + sin(t) p, over angles t.

With W the layer's weights, its pre-activations at y are cos(t) W x + sin(t) W p: two products with W serve all angles.
For random weights of mean zero and many units the normalised value is (sin t + (pi - t) cos t) / pi (Cho & Saul 2009,
the arc-cosine kernel of degree 1); "Invariance of Weight Distributions in Rectified MLPs" (Tsuchida et al., ICML 2018)
and its successor on trained networks measure how near a layer comes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import (
    FLOATING,
    Op,
    Sample,
    below_autograd,
    define,
    graph_below_autograd,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops._opaque import opaque_kernels

SCHEMA = (
    "layer_kernel(Tensor u, Tensor v, Tensor angles, Tensor? bias=None, *, bool normalized=True) -> Tensor"
)
_POSITIONAL = "Tensor u, Tensor v, Tensor angles, Tensor? bias, bool normalized"
_BACKWARD = f"_layer_kernel_backward(Tensor grad, {_POSITIONAL}) -> (Tensor, Tensor, Tensor, Tensor)"


def check(u: Any, v: Any, angles: Any, bias: Any = None, *, normalized: Any = True) -> None:
    given = {"u": u, "v": v, "angles": angles, **({} if bias is None else {"bias": bias})}
    for name, t in given.items():
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"layer_kernel: expected {name} to be a tensor, got {type(t).__name__}")
        if t.dtype not in FLOATING or t.layout != torch.strided:
            raise TypeError(
                f"layer_kernel: expected {name} of dtype float32, float64, float16 or bfloat16 (dense), "
                f"got {t.dtype} ({t.layout})"
            )
        if name != "angles" and t.dtype != u.dtype:
            raise TypeError(f"layer_kernel: expected u and {name} of one dtype, got {u.dtype} and {t.dtype}")
        if t.device != u.device:
            raise ValueError(
                f"layer_kernel: expected u and {name} on one device, got {u.device} and {t.device}"
            )
    if not isinstance(normalized, bool):
        raise TypeError(f"layer_kernel: expected normalized to be a bool, got {normalized!r}")
    if u.dim() != 2:
        raise ValueError(f"layer_kernel: expected u of shape [P, n], got {list(u.shape)}")
    if v.shape != u.shape:
        raise ValueError(f"layer_kernel: expected v of u's shape {list(u.shape)}, got {list(v.shape)}")
    if angles.dim() not in (1, 2) or (angles.dim() == 2 and angles.shape[0] != u.shape[0]):
        raise ValueError(
            f"layer_kernel: expected angles of shape [A] or [P, A] with P = {u.shape[0]}, "
            f"got {list(angles.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != u.shape[1]):
        raise ValueError(
            f"layer_kernel: expected bias of shape [n] with n = {u.shape[1]}, got {list(bias.shape)}"
        )


# --- the reference --------------------------------------------------------------------------------------------------


def plain(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    normalized: bool = True,
) -> torch.Tensor:
    """In plain torch, one angle after another: the temporaries of each are of u's size."""
    dtype, wide = u.dtype, torch.promote_types(u.dtype, torch.float32)
    u, v = u.to(wide), v.to(wide)
    b = None if bias is None else bias.to(wide)
    on_x = (u if b is None else u + b).relu()  # [P, n]
    length_x = on_x.square().sum(1).sqrt()
    values = []
    for c, s in zip(*(f(angles.double()).to(wide).unbind(-1) for f in (torch.cos, torch.sin)), strict=True):
        y = c.unsqueeze(-1) * u + s.unsqueeze(-1) * v  # [P, n]
        on_y = (y if b is None else y + b).relu()
        total = (on_x * on_y).sum(1)
        values.append(total / (length_x * on_y.square().sum(1).sqrt()) if normalized else total / u.shape[1])
    return torch.stack(values, -1).to(dtype) if values else u.new_zeros((u.shape[0], 0), dtype=dtype)


def reference(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    check(u, v, angles, bias, normalized=normalized)
    _backend.note_kernel("reference")
    with torch.autocast(u.device.type, enabled=False):
        return plain(u, v, angles, bias, normalized)


def fake(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    check(u, v, angles, bias, normalized=normalized)
    return u.new_empty((u.shape[0], angles.shape[-1]))


# --- gradients ------------------------------------------------------------------------------------------------------

_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def _backward_run(
    grad: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None,
    normalized: bool,
) -> tuple[torch.Tensor, ...]:
    """Through the plain values of one angle at a time; of no bias the gradient is an empty tensor."""
    inputs = [t.detach() for t in (u, v, angles, bias) if t is not None]
    wide = torch.promote_types(u.dtype, torch.float32)
    totals = [torch.zeros(t.shape, dtype=torch.promote_types(t.dtype, wide), device=t.device) for t in inputs]
    with graph_below_autograd(), torch.enable_grad(), torch.autocast(u.device.type, enabled=False):
        for i in range(angles.shape[-1]):
            here = [t.to(total.dtype) for t, total in zip(inputs, totals, strict=True)]
            here[2] = here[2][..., i : i + 1]
            here = [t.detach().requires_grad_() for t in here]
            value = plain(here[0], here[1], here[2], here[3] if len(here) == 4 else None, normalized)
            parts = torch.autograd.grad(value, here, grad.detach()[:, i : i + 1].to(value.dtype))
            for k, part in enumerate(parts):
                into = totals[k][..., i : i + 1] if k == 2 else totals[k]
                into += part
    found = [total.to(t.dtype) for total, t in zip(totals, inputs, strict=True)]
    return (*found, *([u.new_empty(0)] if bias is None else []))


def _backward_fake(
    grad: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None,
    normalized: bool,
) -> tuple[torch.Tensor, ...]:
    of_bias = u.new_empty(0 if bias is None else bias.shape)
    return u.new_empty(u.shape), v.new_empty(v.shape), angles.new_empty(angles.shape), of_bias


define(_BACKWARD, _backward_run, _backward_fake)


def _differentiable_backward(grad: torch.Tensor, inputs: _Inputs, normalized: bool) -> list[Any]:
    """The same, differentiable again: the graph of all angles at once."""
    given = [t for t in inputs if t is not None]
    with torch.enable_grad():
        # Views, so that the gradients stay apart where u is v.
        seen = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in given]
        value = plain(seen[0], seen[1], seen[2], seen[3] if len(seen) == 4 else None, normalized)
        if not value.requires_grad:  # no angles
            return [torch.zeros_like(t) for t in given]
        return list(torch.autograd.grad(value, seen, grad, create_graph=True))


class LayerKernelFunction(torch.autograd.Function):
    """Differentiates any forward kernel."""

    @staticmethod
    def forward(ctx: Any, run: Any, *args: Any) -> torch.Tensor:
        *inputs, ctx.normalized = args
        ctx.save_for_backward(*inputs)
        return run(*args)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled() and needs_grad(grad, *inputs):
            found = _differentiable_backward(grad, inputs, ctx.normalized)
        else:
            found = list(torch.ops.zb._layer_kernel_backward(grad, *inputs, ctx.normalized))
        found += [None] * (4 - len(found))
        needed = ctx.needs_input_grad[1:5]
        return None, *(g if need else None for g, need in zip(found, needed, strict=True)), None


def _registered(u: torch.Tensor, v: torch.Tensor, angles: torch.Tensor, bias: Any, normalized: bool) -> Any:
    with below_autograd():
        return torch.ops.zb.layer_kernel(u, v, angles, bias, normalized=normalized)


def _run(run: Any, *args: Any) -> torch.Tensor:
    """A forward kernel, with gradients where they are wanted."""
    if needs_grad(*args[:4]):
        return LayerKernelFunction.apply(run, *args)
    return run(*args)


def autograd(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    if transforms_active(u, v, angles, bias):
        return reference(u, v, angles, bias, normalized=normalized)
    return _run(_registered, u, v, angles, bias, normalized)


def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any, normalized: bool = True) -> tuple[Any, int]:
    """A batch of layers without biases is more pairs for one call."""
    bias = args[3] if len(args) > 3 else None
    if bias is not None or info.batch_size == 0:
        return vmap_by_loop("layer_kernel")(info, in_dims, *args, normalized=normalized)
    u, v, angles = (
        t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
        for t, d in zip(args[:3], in_dims[:3], strict=True)
    )
    B, P, n = u.shape
    A = angles.shape[-1]
    if in_dims[2] is None and angles.dim() == 2:
        angles = angles[0]
    elif angles.dim() == 2:
        angles = angles.unsqueeze(1).expand(B, P, A)
    rows = angles if angles.dim() == 1 else angles.reshape(B * P, A)
    value = torch.ops.zb.layer_kernel(
        u.reshape(B * P, n), v.reshape(B * P, n), rows, None, normalized=normalized
    )
    return value.view(B, P, A), 0


# --- the public op --------------------------------------------------------------------------------------------------


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    def over(count: int) -> torch.Tensor:
        return torch.linspace(0.1, 3.0, count).to(device, dtype)

    raw = {"normalized": False}
    yield Sample("plain", (draw(3, 40), draw(3, 40), over(5)))
    yield Sample("not normalised", (draw(3, 40), draw(3, 40), over(5)), raw)
    yield Sample("bias", (draw(3, 40), draw(3, 40), over(5), draw(40)))
    yield Sample("bias, not normalised", (draw(3, 40), draw(3, 40), over(5), draw(40)), raw)
    yield Sample("angles of each pair", (draw(3, 40), draw(3, 40), draw(3, 4)))
    yield Sample("one angle", (draw(4, 33), draw(4, 33), over(1)))
    yield Sample("more angles than registers", (draw(2, 65), draw(2, 65), over(37), draw(65)))
    yield Sample("one pair, many units", (draw(1, 5000), draw(1, 5000), over(3)), smooth=False)
    yield Sample("many pairs", (draw(70, 17), draw(70, 17), over(9)))
    yield Sample("one unit", (draw(9, 1), draw(9, 1), over(4)), smooth=False)
    yield Sample("zero, right and straight angles", (draw(3, 40), draw(3, 40), over(3).round() * 1.5707963))
    yield Sample("angles of other turns", (draw(3, 40), draw(3, 40), draw(6) * 50))
    yield Sample("transposed", (draw(40, 3).t(), draw(40, 3).t(), draw(5, 3).t(), draw(40)))
    yield Sample("every other unit", (draw(3, 80)[:, ::2], draw(3, 80)[:, 1::2], over(8)[::2], draw(80)[::2]))
    yield Sample("every other pair", (draw(6, 20)[::2], draw(6, 20)[::2], draw(6, 4)[::2]))
    yield Sample("expanded", (draw(1, 20).expand(4, 20), draw(4, 20), draw(1, 3).expand(4, 3)))
    yield Sample("one bias for all", (draw(4, 20), draw(4, 20), over(3), draw(1).expand(20)))
    yield Sample("odd storage offset", (draw(63)[3:].view(3, 20), draw(61)[1:].view(3, 20), over(4)[1:]))
    yield Sample("no pairs", (draw(0, 7), draw(0, 7), over(3)))
    yield Sample("no angles", (draw(3, 7), draw(3, 7), over(0)))
    yield Sample("no units", (draw(3, 0), draw(3, 0), over(3)))
    x = draw(3, 20)
    yield Sample("x with itself", (x, x, over(4)), smooth=False)
    yield Sample("no unit is on", (-draw(2, 20).abs(), draw(2, 20), over(3)), smooth=False)
    yield Sample("no unit is on, not normalised", (-draw(2, 20).abs(), draw(2, 20), over(3)), raw, False)
    strange = draw(4, 20)
    strange[1, 3], strange[2, 4], strange[3, 5] = float("nan"), float("inf"), -float("inf")
    yield Sample("not a number, infinities", (strange, draw(4, 20), over(3)), smooth=False)
    yield Sample("not a number in v", (draw(4, 20), strange, over(3), draw(20)), smooth=False)
    yield Sample("not a number in the bias", (draw(2, 20), draw(2, 20), over(3), strange[1]), smooth=False)
    yield Sample("not a number in the angles", (draw(4, 20), draw(4, 20), strange[:, 2:6]), smooth=False)
    yield Sample("wider", (draw(9, 700), draw(9, 700), over(12), draw(700)), smooth=False)


def layer_kernel(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    """The kernel of a ReLU layer between x and y = cos(t) x + sin(t) p, for many pairs and angles.

    With a = relu(u + b) and r(t) = relu(cos(t) u + sin(t) v + b) the value is sum(a r) / (|a| |r|), the cosine between
    the two activations; with ``normalized=False`` it is sum(a r) / n. Sums run over the n units, in float32 at least;
    cos(t) and sin(t) are taken in float64 and rounded to what the sums run in.

    Where no unit is on at x or at y, the cosine has no value: 0/0 is NaN, as is any value without units. Squares are
    summed as they are: float32 sums want the largest activation between about 1e-18 and 1e17, and beyond that the
    cosine loses digits and becomes NaN. It does not depend on the lengths of x and y (without a bias): scale them.

    Args:
        u: [P, n], the pre-activations W x of P inputs without their bias; float32, float64, float16 or bfloat16.
        v: [P, n], W p, of u's dtype and device.
        angles: [A], or [P, A] where each pair has its own; radians, any of these dtypes.
        bias: [n], of u's dtype, or None.

    Returns:
        [P, A], of u's dtype. Differentiable in all four.

    Raises:
        TypeError: not tensors of one of these dtypes.
        ValueError: shapes or devices that don't fit.
    """
    check(u, v, angles, bias, normalized=normalized)
    chosen = _backend.choose_kernel(OP, u, v, tuple(angles.shape), bias is not None, normalized)
    if chosen is None:
        return torch.ops.zb.layer_kernel(u, v, angles, bias, normalized=normalized)
    if chosen.name != "reference" and transforms_active(angles, bias):
        raise RuntimeError(
            f"layer_kernel: backend {chosen.name!r} can't run this call: torch.func transforms and forward-mode AD see "
            "through the op only with backend 'auto'"
        )
    return _run(chosen.run, u, v, angles, bias, normalized)


def _reference_forward(
    u: torch.Tensor, v: torch.Tensor, angles: torch.Tensor, bias: torch.Tensor | None, normalized: bool
) -> torch.Tensor:
    return reference(u, v, angles, bias, normalized=normalized)


def _emulated_forward(
    u: torch.Tensor, v: torch.Tensor, angles: torch.Tensor, bias: torch.Tensor | None, normalized: bool
) -> torch.Tensor:
    return _backend.emulated_function("layer_kernel")(u, v, angles, bias, normalized=normalized)


# Their ``can_run`` takes (u, v, shape of angles, whether there is a bias, normalized); ``run`` the tensors.
TRITON = _backend.triton_kernel("layer_kernel", _backend.triton_function("layer_kernel", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "layer_kernel"),
    _backend.library_kernel("cuda", "layer_kernel"),
    TRITON,
    *_backend.emulated_kernels(_emulated_forward),
    _backend.reference_kernel(_reference_forward),
)


def _cuda_fallback(
    u: torch.Tensor,
    v: torch.Tensor,
    angles: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    refused = TRITON.can_run(u, v, tuple(angles.shape), bias is not None, normalized)
    return (_reference_forward if refused else TRITON.run)(u, v, angles, bias, normalized)


def _arguments(
    u: Any, v: Any, angles: Any, bias: Any = None, *, normalized: bool = True
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For ``zb.explain``: a public call's arguments as the kernels' ``can_run`` takes them."""
    check(u, v, angles, bias, normalized=normalized)
    return (u, v, tuple(angles.shape), bias is not None, normalized), {}


OPAQUE = opaque_kernels(
    "layer_kernel",
    KERNELS,
    f"layer_kernel({_POSITIONAL}) -> Tensor",
    lambda u, v, angles, bias, normalized: fake(u, v, angles, bias, normalized=normalized),
    can_run_args=lambda u, v, angles, bias, normalized: (
        (u, v, tuple(angles.shape), bias is not None, normalized),
        {},
    ),
)

OP = Op(
    "layer_kernel",
    SCHEMA,
    reference,
    samples,
    public=layer_kernel,
    normalise=_arguments,
    kernels=KERNELS,
    opaque=OPAQUE,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd, cuda_fallback=_cuda_fallback)
