"""Training by gradient flow as a linear map of the targets: weights c(t) = A^-1 (I - exp(-t A)) y, at any time.

A is K(x, x) + shift I. At time t the network of the limit gives f_z(0) + K(z, x) c(t), with y less what the network
gave at first in place of y (equations 9 to 16 of the thesis at t = infinity, where c = A^-1 y). The shift is a
penalty of shift/2 times the squared distance of the parameters from their start, added to ½‖y - f‖².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zbkernels.infinite import kernel_matrix
from zbkernels.infinite.kernel_matrix import KernelMatrix
from zbkernels.infinite.lanczos import BASIS, MAX_PRODUCTS, decay, flow
from zbkernels.infinite.solve import ConvergenceError, factor, solve

_NUMBERS = 2**27  # of the Krylov spaces of the columns taken together: 1 GiB in float64


class KernelFlow:
    """c(t) for any targets and times; what a small matrix is factored into is kept.

    Up to ``DENSE_LIMIT`` inputs by Cholesky (t infinite) or by eigenvectors (finite), in float64; beyond, by conjugate
    gradients or by Lanczos without the matrix.

    Args:
        name: that errors begin with.
        matrix: K(x, x) + shift I.
        tol: for what goes without the matrix, of ‖A c - (I - exp(-t A)) y‖ / ‖y‖ in each column.
    """

    def __init__(self, name: str, matrix: KernelMatrix, tol: float) -> None:
        self.name, self.matrix, self.tol = name, matrix, tol
        self._factor: Tensor | None = None
        self._spectrum: tuple[Tensor, Tensor] | None = None

    @property
    def is_dense(self) -> bool:
        return len(self.matrix) <= kernel_matrix.DENSE_LIMIT

    def weights(self, y: Tensor, t: float) -> Tensor:
        """c(t) [N, p] float64 for y [N, p] float64, finite; t in units of ½‖y - f‖², >= 0 or infinite.

        Raises:
            ConvergenceError: see :func:`zbkernels.infinite.solve.solve`; or the time was not reached.
        """
        if math.isinf(t):
            if not self.is_dense:
                return solve(self.name, self.matrix, y, self.tol)
            if self._factor is None:
                self._factor = factor(self.name, self.matrix, self.matrix.dense())
            return torch.cholesky_solve(y, self._factor)
        if self.is_dense:
            values, vectors = self.spectrum()
            return vectors @ (decay(values, t)[:, None] * (vectors.mT @ y))
        width = max(1, _NUMBERS // (BASIS * len(y)))
        return torch.cat([self._flow(part, t) for part in y.split(width, 1)], 1)

    def _flow(self, y: Tensor, t: float) -> Tensor:
        """Without the matrix, of so few columns that their Krylov spaces fit."""
        found = flow(self.matrix.product, y, t, tol=self.tol)
        if found.t < t:
            raise ConvergenceError(
                f"{self.name}: expected gradient flow up to time {t:g} (of ½‖y - f‖²) in {MAX_PRODUCTS} products, got "
                f"to {found.t:.3g}; pass an earlier time, a larger tol, or no time for the limit"
            )
        return found.weights

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """(eigenvalues [N], eigenvectors [N, N]) of the small matrix."""
        if self._spectrum is None:
            self._spectrum = torch.linalg.eigh(self.matrix.dense())
        return self._spectrum
