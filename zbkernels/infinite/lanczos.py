"""A^-1 (I - exp(-t A)) y without the matrix A: where gradient flow is at time t, by the Lanczos method.

On the Krylov space of m products V, where A V = V T + β v e_mᵀ, the flow c' = y - A c is that of the small tridiagonal
T. What the space leaves out is β (φ_m) v for φ = T^-1 (I - exp(-t T)) e_1: its entries do not change sign in time, so
2 β |φ_m| bounds the error of A c and of exp(-t A) y alike, before the work on it is done (Hochbruck and Lubich 1997
have this residual). If it is too large for the time wanted, the flow goes a part of it and starts again from
there, so that memory is O(N · m) for each column of y.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from zbkernels.infinite.conjugate_gradients import norms

BASIS = 128
MAX_PRODUCTS = 2000
_CHECK_EVERY = 8


@dataclasses.dataclass(frozen=True)
class Flow:
    """``weights`` [N, p] at time ``t``, no later than asked for; ``bound`` [p] of the error, see :func:`flow`."""

    weights: Tensor
    t: float
    bound: Tensor
    products: int


def flow(
    product: Callable[[Tensor], Tensor],
    y: Tensor,
    t: float,
    *,
    tol: float,
    basis: int = BASIS,
    max_products: int = MAX_PRODUCTS,
) -> Flow:
    """c(t) = A^-1 (I - exp(-t A)) y for A symmetric and positive semidefinite.

    Args:
        product: v [N, p] to A v, float64.
        y: [N, p] float64, finite.
        t: >= 0, finite.
        tol: of ‖A c - (I - exp(-t A)) y‖ / ‖y‖ in each column; rounding not counted.
        basis: products before the flow starts again.
        max_products: in all.

    Returns:
        Its ``t`` is less than asked for where ``max_products`` were not enough.
    """
    size = torch.where(norms(y) > 0, norms(y), 1)
    c, r = torch.zeros_like(y), y
    bound = torch.zeros_like(size)
    now, products = 0.0, 0
    while now < t and products + 2 <= max_products:
        if (
            (norms(r) / size + bound) <= tol
        ).all():  # the flow has come to rest: what is left is less than allowed
            return Flow(c, t, bound + norms(r) / size, products)
        space = _Space(product, r, min(basis, max_products - products - 1))
        step = space.grow_for(t - now, tol / t, size)
        c = c + space.weights(step)
        bound = bound + space.bound(step) / size
        now = t if step == t - now else now + step
        products += space.size + 1
        r = y - product(c)
    return Flow(c, now, bound, products)


def largest_eigenvalue(product: Callable[[Tensor], Tensor], like: Tensor, steps: int = 40) -> float:
    """That of A, from below, for ``product`` v [N, 1] to A v; ``like`` [N] gives N, dtype and device.

    From a start that is the same each time. Kernel matrices have one large eigenvalue far above the others, for which a
    few steps are enough; 40 make the error one of rounding there.
    """
    if len(like) == 0:
        return 0.0
    start = torch.rand(len(like), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    space = _Space(product, start.to(like), min(steps, len(like)))
    space.grow_to(space.most)
    return float(space.values.max())


class _Space:
    """The Krylov spaces of the columns of r [N, p], grown together; T of each is [m, m]."""

    def __init__(self, product: Callable[[Tensor], Tensor], r: Tensor, most: int) -> None:
        self.product, self.most = product, most
        self.length = norms(r)
        first = r / torch.where(self.length > 0, self.length, 1)
        self.V = [first]
        self.alpha: list[Tensor] = []
        self.beta: list[Tensor] = []

    def grow_to(self, size: int) -> None:
        """Adds vectors up to so many."""
        while self.size < size:
            self._add()
        self._decompose()

    @property
    def size(self) -> int:
        return len(self.alpha)

    def grow_for(self, t: float, rate: float, size: Tensor) -> float:
        """Adds vectors until the flow over t has a bound of at most ``rate`` * t * ``size``, or the space is full.

        Returns:
            The longest step found that has one of ``rate`` * step * ``size``: t or a part of it.
        """
        while self.size < self.most:
            self._add()
            if self.size % _CHECK_EVERY == 0 or self.size == self.most:
                self._decompose()
                if (self.bound(t) <= rate * t * size).all():
                    return t
        step = t
        while not (self.bound(step) <= rate * step * size).all():
            step /= 1.25
        return step

    def _add(self) -> None:
        """One more product; orthogonal to all before, twice, since rounding would let them drift."""
        v = self.V[-1]
        w = self.product(v)
        scale = norms(w)
        self.alpha.append((v * w).sum(0))
        for _ in range(2):
            basis = torch.stack(self.V)
            w = w - torch.einsum("mnp,mp->np", basis, torch.einsum("mnp,np->mp", basis, w))
        beta = norms(w)
        beta = torch.where(beta > 1e-14 * scale, beta, 0)  # the space is closed: nothing is left out
        self.beta.append(beta)
        self.V.append(torch.where(beta > 0, w / torch.where(beta > 0, beta, 1), 0))

    def _decompose(self) -> None:
        T = torch.diag_embed(torch.stack(self.alpha, 1))
        if self.size > 1:
            off = torch.diag_embed(torch.stack(self.beta[:-1], 1), 1)
            T = T + off + off.mT
        self.values, self.vectors = torch.linalg.eigh(T)  # [p, m], [p, m, m]

    def _phi(self, t: float) -> Tensor:
        """[p, m]: T^-1 (I - exp(-t T)) e_1."""
        return (self.vectors * decay(self.values, t)[:, None, :] * self.vectors[:, :1, :]).sum(2)

    def bound(self, t: float) -> Tensor:
        """[p]: of the error of a step of length t."""
        return 2 * self.beta[-1] * self._phi(t)[:, -1].abs() * self.length

    def weights(self, t: float) -> Tensor:
        """[N, p]: where the flow from 0 is after t."""
        return torch.einsum("mnp,pm->np", torch.stack(self.V[:-1]), self._phi(t)) * self.length


def decay(values: Tensor, t: float) -> Tensor:
    """(1 - exp(-t λ)) / λ for eigenvalues λ >= 0; t at 0 and, where rounding made λ negative, there too."""
    positive = values > 0
    safe = torch.where(positive, values, 1)
    return torch.where(positive, -torch.expm1(-t * safe) / safe, t)
