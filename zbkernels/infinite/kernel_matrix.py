"""The matrix K(x, x) + shift I as a solver sees it: products, columns, its diagonal; whole only where it is small."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from zbkernels.infinite.fully_connected import FullyConnected

DENSE_LIMIT = 4096
"""Up to so many inputs the matrix is formed and factored, in float64.

Memory decides, not time: a Cholesky factorisation costs as much as a few products without the matrix (n³/3 operations
against 2 n² d for each), and conjugate gradients take tens of these. Matrix and factor of 4096 inputs are 256 MiB;
beyond, what is kept grows with n alone.
"""


@dataclasses.dataclass(frozen=True)
class KernelMatrix:
    """K(x, x) + shift I for the kernel "nngp" or "ntk" (``kind``) of a network.

    ``x``: [N, d], float32 or float64. Products and columns are computed in the dtype that is asked for, so that a
    residual can be exact to float64 where the steps towards it are taken in float32.
    """

    x: Tensor
    shift: float
    network: FullyConnected
    kind: str

    def __len__(self) -> int:
        return len(self.x)

    def product(self, v: Tensor) -> Tensor:
        """(K + shift I) v, [N, p] of v [N, p], without the matrix; in v's dtype."""
        x = self.x.to(v.dtype)
        product = self.network.matvec(x, x, v, self.kind)
        return product.add_(v, alpha=self.shift) if self.shift else product

    def columns(self, chosen: Tensor) -> Tensor:
        """[N, k], of x's dtype: the columns of K (without the shift) at ``chosen`` [k] int64."""
        return self.network(self.x, self.x[chosen], self.kind)

    def diagonal(self) -> Tensor:
        """[N], of x's dtype: that of K, without the shift."""
        return self.network.diagonal(self.x, self.kind)

    def dense(self) -> Tensor:
        """[N, N] float64: K + shift I."""
        x = self.x.double()
        K = self.network(x, x, self.kind)
        K.diagonal().add_(self.shift)
        return K
