"""``dual_matvec``: the NNGP or NTK matrix of an infinitely wide network times vectors, without the matrix.

The reference computes the matrix of :mod:`zbkernels.infinite.kernels` tile by tile, so that it needs memory for a
tile beyond its arguments. So does the backward: with respect to v it is the product with the transpose, which is the
same op with x1 and x2 exchanged; with respect to x1 and x2 each tile is computed once more and differentiated, in an op
of its own. The gradient of a gradient, and what torch.func's transforms see, keeps all tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.infinite import gram, kernels
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
from zbkernels.ops.dual_gram import samples as gram_samples

SCHEMA = (
    'dual_matvec(Tensor x1, Tensor x2, Tensor v, *, str kernel="nngp", str activation="relu", int depth=1, '
    'float w_std=1.4142135623730951, float b_std=0.0, str train="all") -> Tensor'
)
_BACKWARD = (
    "_dual_matvec_backward(Tensor grad, Tensor x1, Tensor x2, Tensor v, "
    f"{OPTIONS_SCHEMA_TYPES}) -> (Tensor, Tensor)"
)


def check(x1: Any, x2: Any, v: Any, **options: Any) -> None:
    check_options("dual_matvec", x1, x2, **options)
    if not isinstance(v, torch.Tensor):
        raise TypeError(f"dual_matvec: expected v to be a tensor, got {type(v).__name__}")
    if v.dtype != x1.dtype:
        raise TypeError(f"dual_matvec: expected v of x1's dtype {x1.dtype}, got {v.dtype}")
    if v.layout != torch.strided:
        raise TypeError(f"dual_matvec: expected v to be a dense (strided) tensor, got {v.layout}")
    if v.device != x1.device:
        raise ValueError(f"dual_matvec: expected v on x1's device {x1.device}, got {v.device}")
    if v.dim() != 2 or v.shape[0] != x2.shape[0]:
        raise ValueError(
            f"dual_matvec: expected v of shape [{x2.shape[0]}, p], a row for each of x2's, got {list(v.shape)}"
        )


# --- the reference --------------------------------------------------------------------------------------------------


def tile_rows(device: torch.device) -> int:
    """Of a square tile: on a CPU its dozen temporaries stay in the caches, a GPU is filled."""
    return 512 if device.type == "cpu" else 4096


class _Tiles:
    """The tiles of K(x1, x2), row by row of tiles; equal rows are found once, for the whole."""

    def __init__(self, x1: torch.Tensor, x2: torch.Tensor, rest: tuple[Any, ...]) -> None:
        self.x1, self.x2 = x1, x2
        kind, *options = rest
        self.kind, self.options = (
            kind,
            dict(zip(("activation", "depth", "w_std", "b_std", "train"), options, strict=True)),
        )
        self.labels: tuple[torch.Tensor, torch.Tensor] | None = None
        if not transforms_active(x1, x2):
            if same_tensor(x1, x2):
                label = gram.row_labels(x1)
                self.labels = label, label
            else:
                label = gram.row_labels(torch.cat([x1.detach(), x2.detach()]))
                self.labels = label[: len(x1)], label[len(x1) :]

    def rows(self) -> Iterator[slice]:
        size = tile_rows(self.x1.device)
        return (slice(i, i + size) for i in range(0, len(self.x1), size))

    def columns(self) -> Iterator[slice]:
        size = tile_rows(self.x1.device)
        return (slice(j, j + size) for j in range(0, len(self.x2), size))

    def of(self, a: torch.Tensor, b: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """The tile of the rows ``a`` of x1 and ``b`` of x2."""
        equal = None
        if self.labels is not None:
            equal = gram.labelled(self.labels[0][rows], self.labels[1][columns])
        return kernels.tile(self.kind, a, b, equal, **self.options)

    def first_of_equal(self) -> torch.Tensor | None:
        """For each row of x1 the first that is equal to it; None where that is not known."""
        return None if self.labels is None else gram.first_within(self.labels[0])


def product(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    """In plain torch, tile by tile; tiles are summed in float64."""
    tiles = _Tiles(x1, x2, rest)
    parts = [v.new_zeros((0, v.shape[1]))]
    with torch.autocast(x1.device.type, enabled=False):
        for rows in tiles.rows():
            a = x1[rows]
            total = torch.zeros((len(a), v.shape[1]), dtype=torch.float64, device=v.device)
            for columns in tiles.columns():
                K = tiles.of(a, x2[columns], rows, columns)
                total = total + gram.products(K, v[columns].mT)
            parts.append(total.to(v.dtype))
    y = torch.cat(parts)
    first = tiles.first_of_equal()
    return y if first is None else gram.replaced(y, y.detach()[first])  # equal rows of x1 bit for bit


def reference(
    x1: torch.Tensor,
    x2: torch.Tensor,
    v: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    rest = (kernel, activation, depth, w_std, b_std, train)
    check(x1, x2, v, **by_name(rest))
    _backend.note_kernel("reference")
    return product(x1, x2, v, *rest)


def fake(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    check(x1, x2, v, **options)
    return x1.new_empty((x1.shape[0], v.shape[1]))


# --- gradients ------------------------------------------------------------------------------------------------------


def _backward_run(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """With respect to x1 and x2, a tile at a time."""
    grad, x1, x2, v = (t.detach() for t in (grad, x1, x2, v))
    g1 = torch.zeros(x1.shape, dtype=torch.float64, device=x1.device)
    g2 = torch.zeros(x2.shape, dtype=torch.float64, device=x2.device)
    tiles = _Tiles(x1, x2, rest)
    with graph_below_autograd(), torch.enable_grad(), torch.autocast(x1.device.type, enabled=False):
        for rows in tiles.rows():
            for columns in tiles.columns():
                a, b = x1[rows].detach().requires_grad_(), x2[columns].detach().requires_grad_()
                outer = gram.products(grad[rows], v[columns])  # what the loss has for each number of the tile
                for total, part in zip(
                    (g1[rows], g2[columns]),
                    torch.autograd.grad(tiles.of(a, b, rows, columns), (a, b), outer),
                    strict=True,
                ):
                    total += part
    return g1.to(x1.dtype), g2.to(x2.dtype)


def _backward_fake(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return x1.new_empty(x1.shape), x2.new_empty(x2.shape)


define(_BACKWARD, _backward_run, _backward_fake)


def _differentiable_backward(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """All three gradients, through the plain product, and differentiable again."""
    with torch.enable_grad():
        # Views, so that the gradients stay apart where x1 is x2.
        inputs = tuple(t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in (x1, x2, v))
        return torch.autograd.grad(product(*inputs, *rest), inputs, grad, create_graph=True)


class DualMatvecFunction(torch.autograd.Function):
    """Differentiates any forward kernel."""

    @staticmethod
    def forward(
        ctx: Any, run: Any, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any
    ) -> torch.Tensor:
        ctx.run, ctx.rest = run, rest
        ctx.save_for_backward(x1, x2, v)
        return run(x1, x2, v, **by_name(rest))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x1, x2, v = ctx.saved_tensors
        need1, need2, need_v = ctx.needs_input_grad[1:4]
        g1 = g2 = gv = None
        if torch.is_grad_enabled() and needs_grad(grad, x1, x2, v):
            g1, g2, gv = _differentiable_backward(grad, x1, x2, v, *ctx.rest)
        else:
            if need1 or need2:
                g1, g2 = torch.ops.zb._dual_matvec_backward(grad, x1, x2, v, *ctx.rest)
            if need_v:
                gv = ctx.run(x2, x1, grad, **by_name(ctx.rest))
        needed = (g if need else None for g, need in ((g1, need1), (g2, need2), (gv, need_v)))
        return None, *needed, *(None for _ in ctx.rest)


def _registered(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    with below_autograd():
        return torch.ops.zb.dual_matvec(x1, x2, v, **options)


def _run(
    run: Any, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, rest: tuple[Any, ...]
) -> torch.Tensor:
    """A forward kernel, with gradients where they are wanted."""
    if needs_grad(x1, x2, v):
        return DualMatvecFunction.apply(run, x1, x2, v, *rest)
    return run(x1, x2, v, **by_name(rest))


def autograd(
    x1: torch.Tensor,
    x2: torch.Tensor,
    v: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    rest = (kernel, activation, depth, w_std, b_std, train)
    if transforms_active(x1, x2, v):
        return reference(x1, x2, v, **by_name(rest))
    return _run(_registered, x1, x2, v, rest)


# --- the public op --------------------------------------------------------------------------------------------------


_CHECKED_THERE = ("leaky_relu:0.1", "abs", "identity", "gelu", "sin", "cos", "sin+cos", "wider", "expanded")


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    for sample in gram_samples(device, dtype):
        x1, x2 = sample.args
        # The gradients of a gram matrix by its inputs are checked there; here those of a few are.
        smooth = sample.smooth and sample.label not in _CHECKED_THERE
        yield Sample(sample.label, (x1, x2, draw(len(x2), 3)), sample.kwargs, smooth)
    x, y = draw(5, 7), draw(6, 7)
    ntk = {"kernel": "ntk", "depth": 2, "b_std": 0.3}
    yield Sample("one vector", (x, y, draw(6, 1)), ntk)
    yield Sample("no vectors", (x, y, draw(6, 0)), ntk)
    yield Sample("more vectors than a register holds", (x, y, draw(6, 37)), ntk)
    yield Sample("transposed vectors", (x, y, draw(3, 6).t()), ntk)
    yield Sample("every other vector", (x, y, draw(6, 8)[:, ::2]), ntk)
    yield Sample("expanded vectors", (x, y, draw(6, 1).expand(6, 4)), ntk)
    yield Sample("odd storage offset of the vectors", (x, y, draw(19)[1:].view(6, 3)), ntk)
    v = draw(6, 3)
    v[2, 1] = float("nan")
    yield Sample("not a number in a vector", (x, y, v), ntk, smooth=False)
    v = draw(6, 3)
    v[2, 1] = float("inf")
    yield Sample("infinity in a vector", (x, y, v), ntk, smooth=False)


def dual_matvec(
    x1: torch.Tensor,
    x2: torch.Tensor,
    v: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> torch.Tensor:
    """K(x1, x2) @ v for the kernel of an infinitely wide fully connected network, of which no matrix is formed.

    Memory beyond the arguments and the result is that of a few tiles and copies of x1 and x2, forward and backward;
    the gradient of a gradient alone needs that of the matrix. Equal rows of x1 have equal results, bit for bit.

    Args:
        x1: [N, d], float32 or float64, any strides.
        x2: [M, d], of x1's dtype and device.
        v: [M, p], likewise; p may be 0.
        kernel, activation, depth, w_std, b_std, train: as in :func:`zbkernels.dual_gram`.

    Returns:
        [N, p], of x1's dtype.

    Raises:
        TypeError: not tensors of one of these dtypes; an activation that is no name.
        ValueError: shapes or devices that don't fit, or another option.
    """
    rest = (kernel, activation, depth, w_std, b_std, train)
    check(x1, x2, v, **by_name(rest))
    chosen = _backend.choose_kernel(OP, x1, x2, v.shape[1], *rest)
    if chosen is None:
        if seen_through(activation, x1, x2, v):
            return reference(x1, x2, v, **by_name(rest))
        return torch.ops.zb.dual_matvec(x1, x2, v, **by_name(rest))
    if chosen.name != "reference" and transforms_active(v):
        raise RuntimeError(
            f"dual_matvec: backend {chosen.name!r} can't run this call: torch.func transforms and forward-mode AD see "
            "through the op only with backend 'auto'"
        )
    return _run(lambda x1, x2, v, **options: chosen.run(x1, x2, v, *options.values()), x1, x2, v, rest)


def _reference_forward(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    return reference(x1, x2, v, **by_name(rest))


# What compiled kernels call for an activation that they have no form of.
define(
    f"_dual_matvec_reference(Tensor x1, Tensor x2, Tensor v, {OPTIONS_SCHEMA_TYPES}) -> Tensor",
    _reference_forward,
    lambda x1, x2, v, *rest: fake(x1, x2, v, **by_name(rest)),
)


def _emulated_forward(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _backend.emulated_function("dual_matvec")(x1, x2, v, **by_name(rest))


# Their ``can_run`` takes (x1, x2, p, *options), p being the width of v; ``run`` takes v itself.
TRITON = _backend.triton_kernel("dual_matvec", _backend.triton_function("dual_matvec", "forward"))
KERNELS = (
    library_kernel("cpu", "dual_matvec"),
    library_kernel("cuda", "dual_matvec"),
    TRITON,
    *_backend.emulated_kernels(_emulated_forward),
    _backend.reference_kernel(_reference_forward),
)


def _cuda_fallback(x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    rest = in_order(options)
    run = _reference_forward if TRITON.can_run(x1, x2, v.shape[1], *rest) else TRITON.run
    return run(x1, x2, v, *rest)


def _arguments(x1: Any, x2: Any, v: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For ``zb.explain``: a public call's arguments as the kernels' ``can_run`` takes them."""
    check(x1, x2, v, **options)
    return (x1, x2, v.shape[1]), options


OPAQUE = opaque_kernels(
    "dual_matvec",
    KERNELS,
    f"dual_matvec(Tensor x1, Tensor x2, Tensor v, {OPTIONS_SCHEMA_TYPES}) -> Tensor",
    lambda x1, x2, v, *rest: fake(x1, x2, v, **by_name(rest)),
    can_run_args=lambda x1, x2, v, *rest: ((x1, x2, v.shape[1], *rest), {}),
)

OP = Op(
    "dual_matvec",
    SCHEMA,
    reference,
    samples,
    public=dual_matvec,
    normalise=_arguments,
    kernels=KERNELS,
    dtypes=kernels.DTYPES,
    opaque=OPAQUE,
)
register(OP, fake=fake, vmap=vmap_by_loop("dual_matvec"), autograd=autograd, cuda_fallback=_cuda_fallback)
