"""``dual_gram``: the NNGP or NTK matrix of an infinitely wide fully connected network.

The reference is :mod:`zbkernels.infinite.kernels`. The backward computes the matrix once more through it and
differentiates that, in an op of its own (which rows are equal depends on the data, so it can't be traced).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.infinite import kernels
from zbkernels.ops import _backend
from zbkernels.ops._dual_options import (
    OPTIONS_SCHEMA_TYPES,
    by_name,
    check_options,
    in_order,
    library_kernel,
    same_tensor,
    seen_through,
)
from zbkernels.ops._op import (
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
    'dual_gram(Tensor x1, Tensor x2, *, str kernel="nngp", str activation="relu", int depth=1, '
    'float w_std=1.4142135623730951, float b_std=0.0, str train="all") -> Tensor'
)
_BACKWARD = (
    f"_dual_gram_backward(Tensor grad, Tensor x1, Tensor x2, {OPTIONS_SCHEMA_TYPES}) -> (Tensor, Tensor)"
)


def check(x1: Any, x2: Any, **options: Any) -> None:
    check_options("dual_gram", x1, x2, **options)


def _plain(
    x1: torch.Tensor, x2: torch.Tensor | None, kernel: str, activation: str, depth: int, *scales: Any
) -> torch.Tensor:
    w_std, b_std, train = scales
    options: dict[str, Any] = {"activation": activation, "depth": depth, "w_std": w_std, "b_std": b_std}
    if kernel == "nngp":
        return kernels.nngp(x1, x2, **options)
    return kernels.ntk(x1, x2, train=train, **options)


def reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    check(x1, x2, kernel=kernel, activation=activation, depth=depth, w_std=w_std, b_std=b_std, train=train)
    _backend.note_kernel("reference")
    one = not transforms_active(x1, x2) and same_tensor(x1, x2) and not needs_grad(x1, x2)
    return _plain(x1, None if one else x2, kernel, activation, depth, w_std, b_std, train)


def fake(x1: torch.Tensor, x2: torch.Tensor, **options: Any) -> torch.Tensor:
    check(x1, x2, **options)
    return x1.new_empty((x1.shape[0], x2.shape[0]))


def _backward(grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Through the plain torch matrix; itself differentiable where x1, x2 or grad need a gradient."""
    again = torch.is_grad_enabled() and needs_grad(grad, x1, x2)
    with torch.enable_grad(), torch.autocast(x1.device.type, enabled=False):
        # Two views, so that the two gradients stay apart where x1 is x2.
        a, b = (t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_() for t in (x1, x2))
        return torch.autograd.grad(_plain(a, b, *rest), (a, b), grad, create_graph=again)


def _backward_fake(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return x1.new_empty(x1.shape), x2.new_empty(x2.shape)


def _backward_run(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    with graph_below_autograd():
        g1, g2 = _backward(grad.detach(), x1.detach(), x2.detach(), *rest)
    return g1.contiguous(), g2.contiguous()


define(_BACKWARD, _backward_run, _backward_fake)


class DualGramFunction(torch.autograd.Function):
    """Differentiates any forward kernel."""

    @staticmethod
    def forward(ctx: Any, run: Any, x1: torch.Tensor, x2: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.rest = rest
        ctx.save_for_backward(x1, x2)
        return run(x1, x2, **by_name(rest))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x1, x2 = ctx.saved_tensors
        if torch.is_grad_enabled() and needs_grad(grad, x1, x2):
            g1, g2 = _backward(grad, x1, x2, *ctx.rest)
        else:
            g1, g2 = torch.ops.zb._dual_gram_backward(grad, x1, x2, *ctx.rest)
        need1, need2 = ctx.needs_input_grad[1:3]
        return None, g1 if need1 else None, g2 if need2 else None, *(None for _ in ctx.rest)


def _registered(x1: torch.Tensor, x2: torch.Tensor, **options: Any) -> torch.Tensor:
    with below_autograd():
        return torch.ops.zb.dual_gram(x1, x2, **options)


def autograd(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    rest = (kernel, activation, depth, w_std, b_std, train)
    if transforms_active(x1, x2):
        return reference(x1, x2, **by_name(rest))
    return _run(_registered, x1, x2, rest)


def _run(run: Any, x1: torch.Tensor, x2: torch.Tensor, rest: tuple[Any, ...]) -> torch.Tensor:
    """A forward kernel, with gradients where they are wanted."""
    if needs_grad(x1, x2):
        return DualGramFunction.apply(run, x1, x2, *rest)
    return run(x1, x2, **by_name(rest))


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    yield Sample("plain", (draw(5, 7), draw(6, 7)))
    yield Sample("ntk", (draw(5, 7), draw(6, 7)), {"kernel": "ntk"})
    yield Sample(
        "ntk, three layers, biases", (draw(5, 7), draw(6, 7)), {"kernel": "ntk", "depth": 3, "b_std": 0.5}
    )
    yield Sample(
        "the first layer trains", (draw(5, 7), draw(6, 7)), {"kernel": "ntk", "depth": 2, "train": "first"}
    )
    yield Sample("no hidden layer", (draw(5, 7), draw(6, 7)), {"kernel": "ntk", "depth": 0, "w_std": 1.0})
    for name in ("leaky_relu:0.1", "abs", "identity", "erf:2", "gelu", "sin", "cos", "sin+cos"):
        yield Sample(
            name, (draw(4, 9), draw(3, 9)), {"kernel": "ntk", "activation": name, "depth": 2, "w_std": 1.2}
        )
    # Its backward is summed to 1e-12, and the steps of a gradient check of that one divide it by 1e-6.
    yield Sample("sigmoid", (draw(2, 9), draw(2, 9)), {"activation": "sigmoid"}, smooth=False)
    yield Sample("one feature", (draw(5, 1), draw(4, 1)), smooth=False)
    yield Sample("one input", (draw(1, 7), draw(1, 7)))
    yield Sample("transposed", (draw(7, 5).t(), draw(7, 9).t()))
    yield Sample("every other column", (draw(5, 14)[:, ::2], draw(9, 14)[:, ::2]))
    yield Sample("expanded", (draw(1, 7).expand(4, 7), draw(1, 7).expand(9, 7)))
    yield Sample("odd storage offset", (draw(5 * 7 + 3)[3:].view(5, 7), draw(9 * 7 + 1)[1:].view(9, 7)))
    yield Sample("no rows", (draw(0, 7), draw(9, 7)))
    yield Sample("no columns", (draw(5, 7), draw(0, 7)))
    x = draw(6, 7)
    yield Sample("with itself", (x, x), {"kernel": "ntk", "depth": 2}, smooth=False)
    yield Sample("equal rows", (torch.cat([x, x]), x.clone()), {"kernel": "ntk", "depth": 3}, smooth=False)
    points = torch.tensor([[3.0, 4], [3, 4], [-3, -4], [0, 0], [6, 8]]).to(device, dtype)
    yield Sample("antipodes, zero, duplicates", (points, points.clone()), {"kernel": "ntk"}, smooth=False)
    strange = torch.tensor([[1.0, 2], [float("nan"), 1], [0, 0]]).to(device, dtype)
    yield Sample("not a number", (strange, points), {"kernel": "ntk", "depth": 2}, smooth=False)
    endless = torch.tensor([[1.0, 2], [float("inf"), 1], [0, 0]]).to(device, dtype)
    for name in ("relu", "identity", "erf"):
        yield Sample(
            f"infinity, {name}", (endless, points), {"kernel": "ntk", "activation": name}, smooth=False
        )
    yield Sample("wider", (draw(33, 100), draw(70, 100)), {"kernel": "ntk", "depth": 3})


def dual_gram(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    """The kernel matrix of an infinitely wide fully connected network (:mod:`zbkernels.infinite.kernels`).

    Where x1 and x2 are the same tensor the result is symmetric bit for bit; equal inputs have equal rows.

    Args:
        x1: [N, d], float32 or float64, any strides.
        x2: [M, d], of x1's dtype and device.
        kernel: "nngp" or "ntk" (in the ntk parametrisation).
        activation: a name (see :mod:`zbkernels.infinite.activations`).
        depth: hidden layers.
        w_std, b_std: scales of all weights and biases; no biases where b_std is 0.
        train: "all" layers, or (for "ntk") the "first" alone.

    Returns:
        [N, M], of x1's dtype.

    Raises:
        TypeError: not tensors of one of these dtypes; an activation that is no name.
        ValueError: shapes or devices that don't fit, or another option.
    """
    rest = (kernel, activation, depth, w_std, b_std, train)
    check(x1, x2, **by_name(rest))
    chosen = _backend.choose_kernel(OP, x1, x2, *rest)
    if chosen is None:
        if seen_through(activation, x1, x2):
            return reference(x1, x2, **by_name(rest))
        return torch.ops.zb.dual_gram(x1, x2, **by_name(rest))
    return _run(lambda x1, x2, **options: chosen.run(x1, x2, *options.values()), x1, x2, rest)


def _reference_forward(x1: torch.Tensor, x2: torch.Tensor, *rest: Any) -> torch.Tensor:
    return reference(x1, x2, **by_name(rest))


# What compiled kernels call for an activation that they have no form of.
define(
    f"_dual_gram_reference(Tensor x1, Tensor x2, {OPTIONS_SCHEMA_TYPES}) -> Tensor",
    _reference_forward,
    lambda x1, x2, *rest: fake(x1, x2, **by_name(rest)),
)


def _emulated_forward(x1: torch.Tensor, x2: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _backend.emulated_function("dual_gram")(x1, x2, **by_name(rest))


TRITON = _backend.triton_kernel("dual_gram", _backend.triton_function("dual_gram", "forward"))
KERNELS = (
    library_kernel("cpu", "dual_gram"),
    library_kernel("cuda", "dual_gram"),
    TRITON,
    *_backend.emulated_kernels(_emulated_forward),
    _backend.reference_kernel(_reference_forward),
)


def _cuda_fallback(x1: torch.Tensor, x2: torch.Tensor, **options: Any) -> torch.Tensor:
    return _backend.or_reference(TRITON, _reference_forward)(x1, x2, *in_order(options))


def _arguments(x1: Any, x2: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For ``zb.explain``: a public call's arguments as the kernels' ``can_run`` takes them."""
    check(x1, x2, **options)
    return (x1, x2), options


OPAQUE = opaque_kernels(
    "dual_gram",
    KERNELS,
    f"dual_gram(Tensor x1, Tensor x2, {OPTIONS_SCHEMA_TYPES}) -> Tensor",
    lambda x1, x2, *rest: fake(x1, x2, **by_name(rest)),
)

OP = Op(
    "dual_gram",
    SCHEMA,
    reference,
    samples,
    public=dual_gram,
    normalise=_arguments,
    kernels=KERNELS,
    dtypes=kernels.DTYPES,
    opaque=OPAQUE,
)
register(OP, fake=fake, vmap=vmap_by_loop("dual_gram"), autograd=autograd, cuda_fallback=_cuda_fallback)
