"""``dual_solve``: (K(x, x) + shift I)^-1 y for the kernel of an infinitely wide fully connected network.

Made of ``dual_gram``, ``dual_matvec`` and torch, so one implementation serves every device, and a backend is that of
these ops; :mod:`zbkernels.infinite.solve` has it. The gradient is implicit: with a = A^-1 y and w = A^-1 g for the
incoming g, that of y is w, and that of x is the gradient of -wᵀ K(x, x) a at fixed w and a. It differentiates again,
where the matrix' tiles are kept. torch.func's transforms see a dense solve.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.infinite import kernel_matrix, kernels
from zbkernels.infinite.fully_connected import FullyConnected
from zbkernels.infinite.kernel_matrix import KernelMatrix
from zbkernels.ops import _backend
from zbkernels.ops._dual_options import NAMES, OPTIONS_SCHEMA_TYPES, by_name, check_options
from zbkernels.ops._op import (
    Kernel,
    Op,
    Sample,
    below_autograd,
    needs_grad,
    register,
    transforms_active,
    vmap_by_loop,
)
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops.dual_gram import KERNELS as GRAM_KERNELS
from zbkernels.ops.dual_matvec import KERNELS as MATVEC_KERNELS
from zbkernels.ops.dual_matvec import dual_matvec

SCHEMA = (
    'dual_solve(Tensor x, Tensor y, *, str kernel="nngp", str activation="relu", int depth=1, '
    'float w_std=1.4142135623730951, float b_std=0.0, str train="all", float shift=0.0, float tol=1e-6) -> Tensor'
)


def check(x: Any, y: Any, *, shift: Any = 0.0, tol: Any = 1e-6, **options: Any) -> None:
    check_options("dual_solve", x, x, **options)
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"dual_solve: expected y to be a tensor, got {type(y).__name__}")
    if y.dtype != x.dtype:
        raise TypeError(f"dual_solve: expected y of x's dtype {x.dtype}, got {y.dtype}")
    if y.layout != torch.strided:
        raise TypeError(f"dual_solve: expected y to be a dense (strided) tensor, got {y.layout}")
    if y.device != x.device:
        raise ValueError(f"dual_solve: expected y on x's device {x.device}, got {y.device}")
    if y.dim() != 2 or y.shape[0] != x.shape[0]:
        raise ValueError(
            f"dual_solve: expected y of shape [{x.shape[0]}, p], a row for each of x's, got {list(y.shape)}"
        )
    for name, value, least in (("shift", shift, "at least 0"), ("tol", tol, "more than 0")):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (name == "tol" and value == 0):
            raise ValueError(f"dual_solve: expected {name} to be a finite number, {least}, got {value!r}")


def _dense(x: torch.Tensor, y: torch.Tensor, rest: tuple[Any, ...], shift: float) -> torch.Tensor:
    """Plain torch without a look at the data, which transforms don't allow; in float64, as the solver."""
    options = by_name(rest)
    kind, train = options.pop("kernel"), options.pop("train")
    with torch.autocast(x.device.type, enabled=False):
        wide = x.double()
        K = kernels.nngp(wide, **options) if kind == "nngp" else kernels.ntk(wide, train=train, **options)
        eye = torch.eye(len(x), dtype=K.dtype, device=K.device)
        return torch.linalg.solve(K + shift * eye, y.double()).to(y.dtype)


def reference(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
    shift: float = 0.0,
    tol: float = 1e-6,
) -> torch.Tensor:
    rest = (kernel, activation, depth, w_std, b_std, train)
    check(x, y, **by_name(rest), shift=shift, tol=tol)
    if transforms_active(x, y):
        return _dense(x, y, rest, shift)
    from zbkernels.infinite.solve import solve  # its parts are many, and most programs never come here

    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        network = FullyConnected(activation, depth, w_std, b_std, train)
        found = solve("dual_solve", KernelMatrix(x.detach(), shift, network, kernel), y.detach(), tol)
        return y.new_empty(y.shape).copy_(found)


def fake(x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
    check(x, y, **options)
    return y.new_empty(y.shape)


def _named(rest: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((*NAMES, "shift", "tol"), rest, strict=True))


class DualSolveFunction(torch.autograd.Function):
    """Implicit differentiation of any forward."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor, y: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.run, ctx.rest = run, rest
        a = run(x, y, **_named(rest))
        ctx.save_for_backward(x, a)
        return a

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, a = ctx.saved_tensors
        need_x, need_y = ctx.needs_input_grad[1:3]
        options, gx = ctx.rest[:-2], None
        w = _run(ctx.run, x, grad, ctx.rest)
        if need_x:
            if torch.is_grad_enabled() and needs_grad(w, x, a):
                with torch.enable_grad():
                    x1, x2 = x.view_as(x), x.view_as(x)  # so that the two gradients stay apart
                    product = dual_matvec(x1, x2, a, **by_name(options))
                    g1, g2 = torch.autograd.grad(product, (x1, x2), -w, create_graph=True)
            else:
                g1, g2 = torch.ops.zb._dual_matvec_backward(-w, x, x, a, *options)
            gx = g1 + g2
        return None, gx, w if need_y else None, *(None for _ in ctx.rest)


def vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, y: torch.Tensor, **options: Any) -> Any:
    """One solve for each element; none for an empty batch, where zeros in x's place could not be solved for."""
    if info.batch_size:
        return vmap_by_loop("dual_solve")(info, in_dims, x, y, **options)
    shape = [size for i, size in enumerate(y.shape) if i != in_dims[1]]
    return y.new_empty([0, *shape]), 0


def _registered(x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
    with below_autograd():
        return torch.ops.zb.dual_solve(x, y, **options)


def _run(run: Any, x: torch.Tensor, y: torch.Tensor, rest: tuple[Any, ...]) -> torch.Tensor:
    """A forward, with gradients where they are wanted."""
    if needs_grad(x, y):
        return DualSolveFunction.apply(run, x, y, *rest)
    return run(x, y, **_named(rest))


def autograd(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
    shift: float = 0.0,
    tol: float = 1e-6,
) -> torch.Tensor:
    rest = (kernel, activation, depth, w_std, b_std, train, shift, tol)
    if transforms_active(x, y):
        return reference(x, y, **_named(rest))
    return _run(_registered, x, y, rest)


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    # Finite differences of four are enough: the others differ in what they are made of.
    ntk = {"kernel": "ntk", "depth": 2, "b_std": 0.3, "shift": 0.1}
    yield Sample("plain", (draw(6, 7), draw(6, 3)))
    yield Sample("ntk, shifted", (draw(6, 7), draw(6, 3)), ntk)
    yield Sample(
        "the first layer trains", (draw(6, 7), draw(6, 2)), {"kernel": "ntk", "train": "first"}, smooth=False
    )
    yield Sample("erf", (draw(5, 9), draw(5, 2)), {"activation": "erf:2", "kernel": "ntk", "depth": 2})
    yield Sample(
        "linear, more inputs than features",
        (draw(9, 4), draw(9, 2)),
        {"depth": 0, "shift": 1.0},
        smooth=False,
    )
    yield Sample("one input", (draw(1, 7), draw(1, 2)), {"shift": 0.5}, smooth=False)
    yield Sample("one right-hand side", (draw(6, 7), draw(6, 1)), ntk)
    yield Sample("no right-hand sides", (draw(6, 7), draw(6, 0)), ntk, smooth=False)
    yield Sample("no inputs", (draw(0, 7), draw(0, 3)), ntk, smooth=False)
    yield Sample("transposed", (draw(7, 6).t(), draw(3, 6).t()), ntk, smooth=False)
    yield Sample(
        "odd storage offset", (draw(6 * 7 + 3)[3:].view(6, 7), draw(19)[1:].view(6, 3)), ntk, smooth=False
    )
    x, y = draw(4, 7), draw(8, 3)
    yield Sample("equal rows", (torch.cat([x, x]), y), {"kernel": "ntk", "shift": 0.5}, smooth=False)
    points = torch.tensor([[3.0, 4], [3, 4], [-3, -4], [0, 0], [6, 8]]).to(device, dtype)
    yield Sample("antipodes, zero, duplicates", (points, draw(5, 2)), {"shift": 1.0}, smooth=False)
    zeros = draw(6, 3)
    zeros[:, 1] = 0
    yield Sample("a right-hand side of zeros", (draw(6, 7), zeros), ntk, smooth=False)
    strange = draw(6, 3)
    strange[2, 1] = float("nan")
    yield Sample("not a number in y", (draw(6, 7), strange), ntk, smooth=False)
    strange = draw(6, 7)
    strange[2, 1] = float("inf")
    yield Sample("infinity in x", (strange, draw(6, 3)), ntk, smooth=False)


def dual_solve(
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
    shift: float = 0.0,
    tol: float = 1e-6,
) -> torch.Tensor:
    """a = (K(x, x) + shift I)^-1 y: the weights of kernel regression (equation 20 of the thesis).

    Up to 4096 inputs by a Cholesky factorisation in float64; beyond, without the matrix, by conjugate gradients with
    a Nystrom preconditioner of rank 512: steps in x's dtype, residuals in float64, memory O(N). Gradients with respect
    to x and y are implicit, from another such solve.

    Args:
        x: [N, d], float32 or float64, any strides.
        y: [N, p], of x's dtype and device; p may be 0.
        kernel, activation, depth, w_std, b_std, train: as in :func:`zbkernels.dual_gram`.
        shift: added to the diagonal, in K's own units; >= 0. A singular K needs it: equal inputs, zero inputs without
            biases, more inputs than features where the activation is linear.
        tol: of each column's relative residual ‖(K + shift I) a - y‖ / ‖y‖, verified in float64 for K of the inputs in
            float64. The result is then rounded to y's dtype, which in float32 leaves a residual of about
            1e-7 ‖K‖ ‖a‖ / (sqrt(N) ‖y‖).

    Returns:
        [N, p], of y's dtype. A column of y that is not finite gives NaN; x that is not gives NaN everywhere; a column
        of zeros gives zeros.

    Raises:
        TypeError: not tensors of one of these dtypes; an activation that is no name.
        ValueError: shapes or devices that don't fit, or another option.
        ConvergenceError (a RuntimeError): K + shift I is singular, or ``tol`` was not reached, here or in the backward;
            says how far it came and what helps.
    """
    rest = (kernel, activation, depth, w_std, b_std, train, shift, tol)
    check(x, y, **_named(rest))
    chosen = _backend.choose_kernel(OP, x, y, *rest)
    if chosen is None:
        return torch.ops.zb.dual_solve(x, y, **_named(rest))
    return _run(lambda x, y, **options: chosen.run(x, y, *options.values()), x, y, rest)


def _forward(x: torch.Tensor, y: torch.Tensor, *rest: Any) -> torch.Tensor:
    return reference(x, y, **_named(rest))


def _on_the_backend_of_its_parts(name: str, hidden: bool) -> Kernel:
    """Runs where the op that makes the matrix, or its products, runs."""

    def can_run(x: Any, y: Any, *rest: Any, **options: Any) -> str | None:
        options = {**_named(rest), **options} if rest else dict(options)
        options.pop("shift", None)
        options.pop("tol", None)
        small = len(x) <= kernel_matrix.DENSE_LIMIT
        kernel = next((k for k in (GRAM_KERNELS if small else MATVEC_KERNELS) if k.name == name), None)
        if kernel is None:
            return "dual_gram has no kernel there"
        return kernel.can_run(*((x, x) if small else (x, x, y.shape[1])), **options)

    return Kernel(name, can_run, _forward, hidden=hidden)


KERNELS = tuple(_on_the_backend_of_its_parts(k.name, k.hidden) for k in MATVEC_KERNELS)


def _arguments(x: Any, y: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For ``zb.explain``: a public call's arguments as the kernels' ``can_run`` takes them."""
    check(x, y, **options)
    return (x, y), options


OPAQUE = opaque_kernels(
    "dual_solve",
    KERNELS,
    f"dual_solve(Tensor x, Tensor y, {OPTIONS_SCHEMA_TYPES}, float shift, float tol) -> Tensor",
    lambda x, y, *rest: fake(x, y, **_named(rest)),
)

OP = Op(
    "dual_solve",
    SCHEMA,
    reference,
    samples,
    public=dual_solve,
    normalise=_arguments,
    kernels=KERNELS,
    dtypes=kernels.DTYPES,
    opaque=OPAQUE,
    composite=True,
)
register(OP, fake=fake, vmap=vmap, autograd=autograd)
