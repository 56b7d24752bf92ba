"""Preconditioned conjugate gradients for several right-hand sides at once, with a true residual at the end.

Every column has its own recurrence; they share the products, which is where the time goes. The residual that a
recurrence carries drifts from y - A x by rounding. So each start goes only as far as its dtype carries; then the true
residual is computed in float64, and the next start is on what is left (iterative refinement). It ends where the true
residual is below the tolerance, or where a start no longer halves it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

MAX_ITERATIONS = 1000
_ROOM = 0.5  # a start aims at this part of the tolerance
_REACH = {torch.float32: 1e-4, torch.float64: 1e-12}  # and reduces the residual by no more than this


@dataclasses.dataclass(frozen=True)
class Solution:
    """``x`` [N, p] and ``residual`` [p], ‖y - A x‖ / ‖y‖ (0 where y is), both float64; ``iterations``."""

    x: Tensor
    residual: Tensor
    iterations: int


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    y: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor] = torch.clone,
    tol: float,
    dtype: torch.dtype = torch.float64,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """Solves A x = y for A symmetric and positive definite.

    Args:
        product: v [N, p] to A v, in v's dtype: float64 for residuals, ``dtype`` for the steps.
        y: [N, p] float64, finite.
        precondition: v [N, p] of ``dtype`` to P^-1 v, P symmetric and positive definite.
        tol: of each column's ‖y - A x‖ / ‖y‖.
        dtype: of the steps, float32 or float64.
        max_iterations: steps in all, one product each; one more product for each start.

    Returns:
        What was reached; it is for the caller to compare ``residual`` with ``tol``.
    """
    size = norms(y)
    one = torch.where(size > 0, size, 1)
    x, r = torch.zeros_like(y), y
    residual, done = size / one, 0
    while done < max_iterations and (residual > tol).any():
        scale = torch.where(residual > 0, residual, 1) * one
        wanted = torch.clamp(_ROOM * tol * one / scale, min=_REACH[dtype])
        wanted = torch.where(residual > tol, wanted, torch.inf)
        step, iterations = _start(product, (r / scale).to(dtype), precondition, wanted, max_iterations - done)
        done += iterations
        candidate = x + scale * step.double()
        r_new = y - product(candidate)
        new = norms(r_new) / one
        better = new < residual
        unfinished = residual > tol
        before = residual
        x, r = torch.where(better, candidate, x), torch.where(better, r_new, r)
        residual = torch.where(better, new, residual)
        if not (residual <= torch.clamp(0.5 * before, min=tol))[unfinished].all():
            break
    return Solution(x, residual, done)


def norms(v: Tensor) -> Tensor:
    """[p] float64, of the columns of v [N, p]."""
    return torch.linalg.vector_norm(v, dim=0, dtype=torch.float64)


def _start(
    product: Callable[[Tensor], Tensor],
    y: Tensor,
    precondition: Callable[[Tensor], Tensor],
    wanted: Tensor,
    max_iterations: int,
) -> tuple[Tensor, int]:
    """One run from x = 0 until every column's carried residual is at most ``wanted`` [p], or none can go on."""
    x, r = torch.zeros_like(y), y.clone()
    z = precondition(r)
    p, rz = z.clone(), _dots(r, z)
    going = norms(r) > wanted
    iterations = 0
    while iterations < max_iterations and going.any():
        Ap = product(p)
        iterations += 1
        curvature = _dots(p, Ap)
        going = (
            going & (curvature > 0) & (rz > 0)
        )  # else rounding has used up what A or P has of definiteness
        alpha = torch.where(going, rz / curvature, 0).to(x.dtype)
        x += alpha * p
        r -= alpha * Ap
        going = going & (norms(r) > wanted)
        z = precondition(r)
        rz, before = _dots(r, z), rz
        p = z + torch.where(going, rz / before, 0).to(x.dtype) * p
    return x, iterations


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """[p] float64: the products of the columns of a and b, summed in float64."""
    return torch.einsum("np,np->p", a.double(), b.double())
