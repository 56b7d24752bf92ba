"""The least eigenvalue of H∞ for tens of thousands of inputs, certified in float64.

A float32 Cholesky factor M = L Lᵀ of H∞ (:mod:`packed_cholesky`) gives, by block Lanczos on M⁻¹, vectors near those
of the least eigenvalues. Rayleigh-Ritz steps with products H∞ v in float64 then refine them: each adds M⁻¹ times the
residuals to the basis, which turns what the float32 matrix has wrong into an error of second order. What comes out:

- the Rayleigh quotient θ, an upper bound of λ_min;
- the residual ‖H∞ v - θ v‖: an eigenvalue lies within it of θ;
- λ_min(M) (1 - r) with r = ‖L⁻¹ (H∞ - M) L⁻ᵀ‖, the relative rounding of M: by Ostrowski a lower bound, as exact as
  r, which is estimated by power iteration. It says that no eigenvalue below θ was overlooked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments.packed_cholesky import NotPositiveDefiniteError, PackedCholesky
from zbkernels.experiments.tangent_kernel import tangent_matvec, tangent_tile
from zbkernels.experiments.units import kept_tensors
from zbkernels.tensor_file import save_tensors

SHIFTS = (0.0, 1e-3, 1e-1)  # added to the diagonal of M: the first with which it has a factor
BLOCK, STEPS = 6, 24  # of Lanczos: vectors at a time, and how often
KEPT = 24  # Ritz vectors that are refined
INNER = 10  # solves with M for one correction of them
PROBES = 6  # columns of the power iteration for the rounding of M
TOLERANCE, FLOOR = 1e-5, 1e-3  # of the residual, relative to the eigenvalue, or to FLOOR where that is larger
PRODUCTS = 5  # with H∞ in float64, at most


@dataclass
class Ritz:
    """What Rayleigh-Ritz makes of a basis: values [k] from the least, vectors [n, k], their residuals [n, k]."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor


def least_eigenvalue(
    x: Tensor, folder: Path | None, say: Callable[[str], None]
) -> tuple[dict[str, Any], Tensor]:
    """λ_min of H∞ for ``x`` [n, d] float64, rows of unit norm.

    Args:
        folder: where the factor and the Lanczos vectors are kept while at work (n²/2 float32 numbers); None: in memory.
        say: told of each step.

    Returns:
        (what was measured, the eigenvector [n] float64).
    """
    n, started = len(x), time.perf_counter()
    factor, shift = _factor(x.float(), folder, say)
    factored = time.perf_counter()
    values, q = _kept(folder, "lanczos", lambda: _lanczos(factor, min(KEPT, n)))
    say(f"λ_min of the float32 matrix {float(values[0]) - shift:.8f}")
    rounding = _Rounding(factor, shift)
    basis = product = torch.empty(n, 0, dtype=torch.float64)
    history: list[dict[str, float]] = []
    for number in range(1, PRODUCTS + 1):
        found = tangent_matvec(x, torch.cat([q, rounding.probes], 1))
        rounding.step(found[:, q.shape[1] :])
        basis, product = torch.cat([basis, q], 1), torch.cat([product, found[:, : q.shape[1]]], 1)
        ritz = _rayleigh_ritz(basis, product, min(KEPT, n))
        theta, residual = float(ritz.values[0]), float(ritz.residuals[:, 0].norm())
        history.append({"value": theta, "residual": residual})
        say(f"float64 product {number}: λ_min {theta:.10f}, residual {residual:.1e}")
        if residual <= TOLERANCE * max(abs(theta), FLOOR) or number == PRODUCTS:
            break
        q = _new_directions(basis, _corrections(factor, ritz, theta + shift))
        if not q.shape[1]:  # the basis is the whole space
            break
    vector = ritz.vectors[:, 0]
    result = {
        "value": theta,
        "residual": residual,
        "next": [float(value) for value in ritz.values[1:4]],
        "float32": float(values[0]) - shift,
        "shift": shift,
        "rounding": rounding.norm,
        "history": history,
        "participation": float(vector.pow(4).sum().reciprocal()),
        "largest": [int(i) for i in vector.abs().topk(2).indices],
        "seconds": {"factor": factored - started, "rest": time.perf_counter() - factored},
    }
    if folder is not None:
        for left in folder.glob("work-*"):
            left.unlink()
    return result, vector


def _factor(x: Tensor, folder: Path | None, say: Callable[[str], None]) -> tuple[PackedCholesky, float]:
    """The factor of H∞ + shift, and the least shift of :data:`SHIFTS` with which there is one."""
    for shift in SHIFTS:
        path = None if folder is None else folder / f"work-factor-{shift:g}.bin"

        def tile(rows: tuple[int, int], columns: tuple[int, int], shift: float = shift) -> Tensor:
            found = tangent_tile(x, rows, columns)
            if rows == columns:
                found.diagonal().add_(shift)
            return found

        def on_row(done: int, of: int) -> None:
            if done % 5 == 0 or done == of:
                say(f"Cholesky factor: block row {done} of {of}")

        try:
            return PackedCholesky(len(x), tile, path=path, on_row=on_row), shift
        except NotPositiveDefiniteError as error:
            say(f"shift {shift:g}: {error}")
            if shift == SHIFTS[-1]:
                raise
    raise AssertionError


def _lanczos(factor: PackedCholesky, kept: int) -> tuple[Tensor, Tensor]:
    """The ``kept`` least Ritz values of M [kept] and their vectors [n, kept], by block Lanczos on M⁻¹."""
    n = factor.size
    block = min(BLOCK, n)
    basis = torch.linalg.qr(_random(n, block))[0]
    images = torch.empty(n, 0, dtype=torch.float64)
    while True:
        image = factor.solve(basis[:, -block:].float()).double()
        images = torch.cat([images, image], 1)
        if basis.shape[1] >= min(STEPS * BLOCK, n - block + 1) and basis.shape[1] >= kept:
            break
        following = _new_directions(basis, image)
        block = following.shape[1]
        if not block:
            break
        basis = torch.cat([basis, following], 1)
    inner = basis.mT @ images
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    order = torch.arange(len(values) - 1, max(len(values) - 1 - kept, -1), -1)
    return values[order].reciprocal(), torch.linalg.qr(basis @ vectors[:, order])[0]


def _rayleigh_ritz(basis: Tensor, product: Tensor, kept: int) -> Ritz:
    """Of H∞, from orthonormal columns [n, m] and H∞ times them."""
    inner = basis.mT @ product
    values, turn = torch.linalg.eigh((inner + inner.mT) / 2)
    values, turn = values[:kept], turn[:, :kept]
    vectors = basis @ turn
    return Ritz(values, vectors, product @ turn - vectors * values)


class _Rounding:
    """‖L⁻¹ (H∞ - M) L⁻ᵀ‖ from below, by block power iteration; a step needs H∞ times :attr:`probes` [n, p]."""

    def __init__(self, factor: PackedCholesky, shift: float) -> None:
        self.factor, self.shift, self.norm = factor, shift, 0.0
        self.probes = self._lifted(_random(factor.size, min(PROBES, factor.size)))

    def _lifted(self, v: Tensor) -> Tensor:
        return self.factor.solve_upper(torch.linalg.qr(v)[0].float()).double()

    def step(self, product: Tensor) -> None:
        wrong = product + self.shift * self.probes - self.factor.multiply(self.probes)
        image = self.factor.solve_lower(wrong.float()).double()
        self.norm = max(self.norm, float(torch.linalg.matrix_norm(image, 2)))
        self.probes = self._lifted(image)


def _corrections(factor: PackedCholesky, ritz: Ritz, target: float) -> Tensor:
    """Near (M - target)⁻¹ of the residuals, outside of the Ritz vectors: the Neumann series in target · M⁻¹."""
    w = torch.zeros_like(ritz.residuals)
    for _ in range(INNER):
        w = factor.solve((ritz.residuals + target * w).float()).double()
        w -= ritz.vectors @ (ritz.vectors.mT @ w)
    return w


def _new_directions(basis: Tensor, w: Tensor) -> Tensor:
    """Orthonormal columns that with those of ``basis`` span w's; fewer where w's depend on each other."""
    for _ in range(2):
        w = w - basis @ (basis.mT @ w)
        size = w.norm(dim=0)
        w = w[:, size > 0] / size[size > 0]
        w, r = torch.linalg.qr(w)
        w = w[:, r.diagonal().abs() > 1e-10]
    return w


def _random(n: int, columns: int) -> Tensor:
    return torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _kept(folder: Path | None, name: str, work: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """What ``work`` gives, or gave a process before this one."""
    if folder is None:
        return work()
    path = folder / f"work-{name}.safetensors"
    if not path.exists():
        values, vectors = work()
        save_tensors(path, {"values": values, "vectors": vectors})
    found = kept_tensors(path)
    return found["values"], found["vectors"]
