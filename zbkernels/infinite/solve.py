"""(K(x, x) + shift I)^-1 y: Cholesky where the matrix is small, preconditioned conjugate gradients beyond."""

from __future__ import annotations

import torch
from torch import Tensor

from zbkernels.infinite import kernel_matrix
from zbkernels.infinite.conjugate_gradients import Solution, conjugate_gradients, norms
from zbkernels.infinite.gram import first_within, row_labels
from zbkernels.infinite.kernel_matrix import KernelMatrix
from zbkernels.infinite.preconditioner import nystrom


class ConvergenceError(RuntimeError):
    """No solution within the tolerance; the message says what was reached and what to do."""


def solve(op: str, matrix: KernelMatrix, y: Tensor, tol: float) -> Tensor:
    """A with (K + shift I) A = y, to a relative residual of at most ``tol`` in each column.

    Args:
        op: the name that errors begin with.
        matrix: K + shift I.
        y: [N, p], of x's device.
        tol: bound of ‖(K + shift I) a - y‖ / ‖y‖, computed in float64 from the solution before any rounding to
            another dtype.

    Returns:
        [N, p] float64. A column of y that is not finite gives NaN, and so does an x that is not finite, everywhere; a
        column of zeros gives zeros.

    Raises:
        ConvergenceError: the matrix is singular, or the tolerance was not reached.
    """
    finite = y.isfinite().all(0)
    if not bool(matrix.x.isfinite().all()):
        return torch.full(y.shape, torch.nan, dtype=torch.float64, device=y.device)
    wanted = torch.where(finite, y, 0).double()
    if len(matrix) == 0 or not wanted.any():
        return torch.where(finite, wanted, torch.nan)
    if matrix.shift == 0:
        _check_rows(op, matrix)
    if len(matrix) <= kernel_matrix.DENSE_LIMIT:
        found = _dense(op, matrix, wanted, tol)
    else:
        solution = conjugate_gradients(
            matrix.product, wanted, precondition=nystrom(matrix), tol=tol, dtype=matrix.x.dtype
        )
        _accept(op, matrix, solution, tol, f"{solution.iterations} iterations of conjugate gradients")
        found = solution.x
    return torch.where(finite, found, torch.nan)


def factor(op: str, matrix: KernelMatrix, K: Tensor) -> Tensor:
    """The lower Cholesky factor of K [N, N], the dense form of ``matrix``.

    Raises:
        ConvergenceError: K is not positive definite.
    """
    L, info = torch.linalg.cholesky_ex(K)
    if int(info):
        raise ConvergenceError(
            f"{op}: expected K(x, x) + {matrix.shift:g} I to be positive definite, got a pivot that is not at row "
            f"{int(info) - 1} of {len(matrix)} (nearly equal inputs, or fewer features than the "
            f"kernel needs, make it singular); pass {_larger(matrix)}"
        )
    return L


def _check_rows(op: str, matrix: KernelMatrix) -> None:
    """Raises ConvergenceError where K alone is singular for a reason that shows in x: before any work, not after."""
    first = first_within(row_labels(matrix.x))
    repeated = (first != torch.arange(len(first), device=first.device)).nonzero().flatten()
    if len(repeated):
        later = int(repeated[0])
        raise ConvergenceError(
            f"{op}: expected inputs that differ where the shift is 0, got equal ones at rows {int(first[later])} and "
            f"{later}, which make K(x, x) singular; pass {_larger(matrix)}"
        )
    dead = (matrix.diagonal() == 0).nonzero().flatten()
    if len(dead):
        raise ConvergenceError(
            f"{op}: expected a kernel that is positive at each input where the shift is 0, got 0 at row {int(dead[0])} "
            f"(a zero input without biases?); pass {_larger(matrix)}"
        )


def _dense(op: str, matrix: KernelMatrix, y: Tensor, tol: float) -> Tensor:
    K = matrix.dense()
    L = factor(op, matrix, K)
    x = torch.cholesky_solve(y, L)
    size = torch.where(norms(y) > 0, norms(y), 1)
    residual = norms(y - K @ x) / size
    if (residual > tol).any():  # one step of refinement, where rounding left more than is allowed
        better = x + torch.cholesky_solve(y - K @ x, L)
        x, residual = better, norms(y - K @ better) / size
    _accept(op, matrix, Solution(x, residual, 1), tol, "a Cholesky factorisation")
    return x


def _accept(op: str, matrix: KernelMatrix, solution: Solution, tol: float, after: str) -> None:
    worst = float(solution.residual.max())
    if worst <= tol:
        return
    wider = "" if matrix.x.dtype == torch.float64 else ", or x and y in float64"
    raise ConvergenceError(
        f"{op}: expected a relative residual of at most {tol:g}, got {worst:.2g} after {after} for {len(matrix)} "
        f"inputs; pass {_larger(matrix)}{wider}, or a larger tol"
    )


def _larger(matrix: KernelMatrix) -> str:
    scale = float(matrix.diagonal().double().mean())
    return f"a larger shift (the mean of K's diagonal is {scale:.3g})"
