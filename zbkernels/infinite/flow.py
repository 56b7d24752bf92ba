"""Gradient flow of a linearised network in closed form, where its feature matrix fits into memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.infinite.linearized import LinearizedNet

_CHUNK_BYTES = 1 << 28  # of features that are computed at a time
MAX_BYTES = 1 << 32


def features(net: LinearizedNet, x: Any, *, max_bytes: int = MAX_BYTES) -> Tensor:
    """∂u/∂θ at θ(0), the feature matrix (thesis, section 7.2).

    Args:
        net: whose model treats each input of a batch by itself.
        x: the inputs, a tensor [n, …], or a tuple of such where the model takes several.

    Returns:
        [n, outputs, P]: outputs of an input in row-major order, P numbers of Δθ in the order of ``net.delta``.

    Raises:
        ValueError: no inputs, or not as many of each; or the matrix would have more than ``max_bytes``: the message
            has the sizes.
        TypeError: the model returns anything but one tensor.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    initial = net.initial_parameters()
    n, size = len(inputs[0]), sum(value.numel() for value in initial.values())
    if n == 0 or any(len(t) != n for t in inputs):
        raise ValueError(
            "features: expected at least one input, and as many of each, got "
            + " and ".join(str(list(t.shape)) for t in inputs)
        )
    with torch.no_grad():
        u = net.initial(*(t[:1] for t in inputs))
    if not isinstance(u, Tensor):
        raise TypeError(f"features: expected the model to return one tensor, got {type(u).__name__}")
    outputs = u[0].numel()
    row = outputs * size * u.element_size()
    if n * row > max_bytes:
        raise ValueError(
            f"features: {n} inputs x {outputs} outputs x {size:,} parameters of {u.dtype} need {n * row:,} bytes, "
            f"expected at most max_bytes={max_bytes:,}; train the LinearizedNet by an optimizer instead"
        )

    def one(parameters: dict[str, Tensor], *single: Tensor) -> Tensor:
        return net.outputs_at(parameters, *(t[None] for t in single)).reshape(-1)

    def rows(*part: Tensor) -> Tensor:
        derivative = torch.func.vmap(torch.func.jacrev(one), (None, *(0 for _ in part)))(initial, *part)
        return torch.cat([value.flatten(2) for value in derivative.values()], 2)

    chunk = max(1, _CHUNK_BYTES // max(row, 1))
    matrix = u.new_empty((n, outputs, size))
    for start in range(0, n, chunk):
        matrix[start : start + chunk] = rows(*(t[start : start + chunk] for t in inputs)).detach()
    return matrix


@dataclass(frozen=True)
class GradientFlow:
    """Where training on ½‖y - Δu(X)‖², summed over inputs and outputs, takes Δθ: see :func:`gradient_flow`."""

    _net: LinearizedNet
    _start: Tensor  # [P], Δθ when it was solved
    _features: Tensor  # [n·outputs, P] = U S Vᵀ; what follows is float64
    _vectors: Tensor  # U
    _values: Tensor  # S
    _right: Tensor | None  # Vᵀ, or None where it is not kept
    _residual: Tensor  # y - output, [n·outputs]

    def at(self, t: float) -> dict[str, Tensor]:
        """Δθ after time ``t`` of dΔθ/dt = -∂L/∂Δθ (equations 10 to 14), ``math.inf`` for the end (15), by name.

        At the end it is the least change that fits best: directions with singular values below rounding stay.

        Raises:
            ValueError: a time below 0 or NaN.
        """
        if not t >= 0:
            raise ValueError(f"GradientFlow.at: expected a time >= 0, got {t!r}")
        return self._after(
            -torch.expm1(-(self._values**2) * t) if t < math.inf else torch.ones_like(self._values)
        )

    def after_steps(self, steps: int, lr: float) -> dict[str, Tensor]:
        """Δθ after so many full-batch steps of gradient descent, by name.

        Raises:
            ValueError: lr·s² > 2 for the largest singular value s: descent diverges; or negative numbers.
        """
        largest = float(self._values.max()) ** 2
        most = 2 / largest if largest > 0 else math.inf
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0 or not 0 <= lr <= most:
            raise ValueError(
                f"GradientFlow.after_steps: expected a whole number of steps >= 0 and 0 <= lr <= {most:.3g}, "
                f"got {steps!r} and {lr!r}"
            )
        done = lr * self._values**2  # by one step
        small = done < 0.5  # 1 - done would round away what little there is
        slow = -torch.expm1(steps * torch.log1p(-torch.where(small, done, 0)))
        return self._after(torch.where(small, slow, 1 - (1 - done) ** steps))

    def load(self, delta: dict[str, Tensor]) -> None:
        """Put a Δθ into the network this was solved for, which then predicts with it."""
        with torch.no_grad():
            for name, parameter in self._net.delta.named_parameters():
                parameter.copy_(delta[name])

    def _after(self, share: Tensor) -> dict[str, Tensor]:
        """``share``: how much of the way each direction has gone."""
        rows, size = self._features.shape
        # Below this a singular value is rounding: the features' own, or that of the decomposition.
        rounding = min(rows, size) * torch.finfo(self._features.dtype).eps
        least = self._values.max() * max(rounding, max(rows, size) * torch.finfo(share.dtype).eps)
        way = torch.where(self._values > least, share / self._values, 0) * (self._vectors.mT @ self._residual)
        if self._right is not None:
            moved = self._right.mT @ way
        else:  # V = Fᵀ U / S
            weights = self._vectors @ torch.where(self._values > least, way / self._values, 0)
            parts = self._features.split(_columns(rows), 1)
            moved = torch.cat([part.double().mT @ weights for part in parts])
        flat = self._start + moved.to(self._start.dtype)
        parameters = dict(self._net.delta.named_parameters())
        sizes = [parameter.numel() for parameter in parameters.values()]
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(parameters.items(), flat.split(sizes), strict=True)
        }


def _columns(rows: int) -> int:
    """Of the features, that are taken to float64 at a time."""
    return max(1, _CHUNK_BYTES // (8 * rows))


def _singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """U, S and Vᵀ, in float64. Below it, LAPACK's would be off by 2e-4 of the largest at four million columns.

    Wide float32 matrices go without Vᵀ, which would be twice their size; S down to their own rounding is enough then.
    """
    rows, size = matrix.shape
    if matrix.dtype == torch.float64 or rows > size:
        U, S, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        return U, S, Vh
    # The squares of float32 numbers keep their digits in float64, and so does the matrix of the rows' products.
    gram = matrix.new_zeros((rows, rows), dtype=torch.float64)
    for part in matrix.split(_columns(rows), 1):
        wide = part.double()
        gram.addmm_(wide, wide.mT)
    squares, U = torch.linalg.eigh(gram)
    return U, squares.clamp(min=0).sqrt(), None


def gradient_flow(net: LinearizedNet, x: Any, y: Tensor, *, max_bytes: int = MAX_BYTES) -> GradientFlow:
    """Solve the training of ``net`` on ½‖y - net(x)‖² from its present Δθ, for all times at once.

    By the singular vectors of the feature matrix, in float64: O(min(n·outputs, P)² · max(n·outputs, P)) operations.
    The matrix is kept; of float64, or with fewer parameters than equations, its right vectors too.

        flow = gradient_flow(net, x, y)
        flow.load(flow.at(math.inf))        # the net now predicts as after endless training

    Args:
        net: whose model treats each input of a batch by itself (in evaluation mode nearly every one does).
        x: [n, …], or a tuple of such where the model takes several inputs.
        y: the targets, of the shape of ``net(x)``.
        max_bytes: that the feature matrix may have.

    Raises:
        ValueError: no inputs, targets of another shape, or a feature matrix that does not fit (as :func:`features`).
    """
    inputs = x if isinstance(x, tuple) else (x,)
    matrix = features(net, x, max_bytes=max_bytes).flatten(0, 1)
    with torch.no_grad():
        output = net(*inputs)
    if output.shape != y.shape:
        raise ValueError(
            f"gradient_flow: expected targets of the output's shape {list(output.shape)}, got {list(y.shape)}"
        )
    start = torch.cat([parameter.detach().flatten() for parameter in net.delta.parameters()])
    residual = (y.detach().double() - output.double()).flatten()
    return GradientFlow(net, start, matrix, *_singular(matrix), residual)
