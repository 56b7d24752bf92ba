"""A preconditioner from a few columns of the matrix (Nystrom approximation), memory O(N · rank).

For columns C = K(x, x_S) of a sample S of the inputs and W = K(x_S, x_S), K is near C W^-1 Cᵀ = L Lᵀ. The
preconditioner is P = L Lᵀ + δ I with δ = shift + trace(K - L Lᵀ)/N, the mean of what the approximation leaves out: P
has the large eigenvalues of the matrix, and δ stands for all the others. (Williams and Seeger 2001; Frangella, Tropp
and Udell 2023 for its use in conjugate gradients.) A partial Cholesky factorisation with greedy pivots needs the
columns one by one, and took no fewer iterations for MNIST's NTK.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from zbkernels.infinite.gram import products
from zbkernels.infinite.kernel_matrix import KernelMatrix

RANK = 512
"""As much memory as 512 more features of the inputs; the columns cost 512/N of one product."""


@dataclasses.dataclass(frozen=True)
class Preconditioner:
    """P^-1 for P = Q diag(values) Qᵀ + δ (I - Q Qᵀ), with Q [N, r] orthonormal and values [r, 1]."""

    Q: Tensor
    values: Tensor
    delta: float

    def __call__(self, v: Tensor) -> Tensor:
        """P^-1 v, [N, p]."""
        Qt = self.Q.mT
        inner = products(Qt, v.mT)
        outer = v - products(self.Q, inner.mT)
        outer -= products(self.Q, products(Qt, outer.mT).mT)  # what rounding left of Q would be divided by δ
        return outer.div_(self.delta).add_(products(self.Q, (inner / self.values).mT))


def nystrom(matrix: KernelMatrix, rank: int = RANK) -> Preconditioner:
    """The one above, of x's dtype and of at most a quarter of N columns.

    Inputs are drawn without replacement, each as likely as its diagonal entry is large, from a generator seeded with 0.
    """
    diagonal = matrix.diagonal()
    likely = diagonal.double().clamp_min(0).cpu()
    rank = min(rank, len(matrix) // 4, int((likely > 0).sum()))
    eps = torch.finfo(diagonal.dtype).eps
    if rank == 0:
        scale = matrix.shift + float(likely.mean()) if len(matrix) else 1.0
        return Preconditioner(diagonal.new_zeros(len(matrix), 0), diagonal.new_zeros(0, 1), scale or 1.0)
    chosen = torch.multinomial(likely, rank, generator=torch.Generator().manual_seed(0)).to(diagonal.device)
    C = matrix.columns(chosen)
    spectrum, vectors = torch.linalg.eigh(C[chosen].double())
    kept = spectrum > 10 * eps * spectrum[-1]  # equal inputs, and what rounding made of the smallest
    L = C @ (vectors[:, kept] / spectrum[kept].sqrt()).to(C.dtype)
    left = (diagonal - L.square().sum(1)).clamp_min(0)
    Q, R = torch.linalg.qr(L)
    values, vectors = torch.linalg.eigh(R.double() @ R.double().mT)
    delta = matrix.shift + max(float(left.double().mean()), eps * float(values[-1]))
    return Preconditioner(Q @ vectors.to(L.dtype), (values.clamp_min(0) + delta)[:, None].to(L.dtype), delta)
