"""The inner products of the inputs, and what keeps a kernel matrix exact where inputs are equal.

Rounding must not tell equal inputs apart: the angle between them would come out as sqrt(eps) instead of 0, which is an
error of 1e-4 in a float32 NTK, and the rows of duplicates would differ. So rows that are equal are found once, and
after each step what belongs to them is set to the same number. Values only: gradients go where they would have gone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from zbkernels.ops._op import transforms_active


class _Replace(torch.autograd.Function):
    """The second tensor, with the gradient of the first: they differ by rounding alone."""

    @staticmethod
    def forward(value: Tensor, replacement: Tensor) -> Tensor:
        return replacement.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def replaced(value: Tensor, replacement: Tensor) -> Tensor:
    """``replacement``, with the gradient of ``value``: they differ by rounding alone."""
    if transforms_active(value):  # which may look from within an op, where torch knows no autograd functions
        return (
            value + (replacement - value).detach()
        )  # exact, as numbers so near to each other are subtracted
    return _Replace.apply(value, replacement)


@dataclasses.dataclass(frozen=True)
class EqualRows:
    """Which rows of x1 and x2 are equal.

    ``first``: int64 [N + M] (or [N] where there is no x2), for each row the first one equal to it; None where all
    differ. ``pairs``: bool [N, M], which rows of x1 equal which rows of x2; None where no pair is.
    """

    size: int  # N
    first: Tensor | None
    pairs: Tensor | None
    symmetric: bool

    def variances(self, q: Tensor) -> Tensor:
        """[N + M] or [N], one number for equal rows."""
        return q if self.first is None else replaced(q, q.detach()[self.first])

    def split(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 1] for the rows and [1, M] for the columns."""
        return q[: self.size, None], (q if self.symmetric else q[self.size :])[None, :]

    def covariances(self, q12: Tensor, q11: Tensor) -> Tensor:
        """q12 [N, M] with the variance q11 [N, 1] where the rows are equal."""
        if self.pairs is None:
            return q12
        return replaced(q12, torch.where(self.pairs, q11.detach(), q12.detach()))

    def kernel(self, k: Tensor) -> Tensor:
        """The finished matrix: equal rows of inputs have equal rows and columns; with one set of inputs symmetric."""
        if self.symmetric:
            k = k.triu() + k.triu(1).mT
        if self.first is None:
            return k
        rows = self.first[: self.size]
        # A row of x2 may be the same as one of x1: within x2, the first there stands for all.
        columns = rows if self.symmetric else first_within(self.first[self.size :])
        return replaced(k, k.detach()[rows][:, columns])


def first_within(labels: Tensor) -> Tensor:
    """For each label the position of the first one equal to it."""
    found, which = torch.unique(labels, return_inverse=True)
    places = torch.arange(len(labels), device=labels.device)
    first = torch.full((len(found),), len(labels), device=labels.device).scatter_reduce_(
        0, which, places, "amin"
    )
    return first[which]


def row_labels(x: Tensor) -> Tensor:
    """int64 [N]: one number for rows that are equal number by number (0 and -0 are; NaN is equal to nothing)."""
    x = x.detach()
    strange = x.isnan().any(1)
    number = torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)
    alone = torch.where(strange, number, 0)[:, None]  # sets each row with a NaN apart
    keys = torch.cat([torch.where(strange[:, None], 0, x), alone], 1)
    return torch.unique(keys, dim=0, return_inverse=True)[1]


def labelled(labels1: Tensor, labels2: Tensor | None) -> EqualRows:
    """From the labels of the rows of x1 and of x2; None where x2 is x1."""
    N, same = len(labels1), labels2 is None
    labels = labels1 if labels2 is None else torch.cat([labels1, labels2])
    if len(labels) == 0:
        return EqualRows(N, None, None, same)
    first = first_within(labels)
    pairs = labels1[:, None] == (labels1 if labels2 is None else labels2)[None, :]
    distinct = bool((first == torch.arange(len(labels), device=labels.device)).all())
    return EqualRows(N, None if distinct else first, pairs if bool(pairs.any()) else None, same)


def equal_rows(x1: Tensor, x2: Tensor | None) -> EqualRows:
    """Which rows are equal (see :func:`row_labels`).

    torch.func transforms see no rows, and so find no equal ones but those of the diagonal.
    """
    N, same = len(x1), x2 is None
    if transforms_active(x1, *(() if x2 is None else (x2,))):
        return EqualRows(N, None, torch.eye(N, dtype=torch.bool, device=x1.device) if same else None, same)
    if x2 is None:
        return labelled(row_labels(x1), None)
    labels = row_labels(torch.cat([x1.detach(), x2.detach()]))
    return labelled(labels[:N], labels[N:])


def products(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 @ x2.T, in full float32 whatever torch's switches for TF32 and bfloat16 allow."""
    where = "cuda" if x1.is_cuda else "mkldnn"
    if x1.dtype == torch.float32 and torch._C._get_fp32_precision_getter(where, "matmul") in ("tf32", "bf16"):
        return (x1.double() @ x2.double().mT).to(x1.dtype)
    return x1 @ x2.mT


def inner_products(
    x1: Tensor, x2: Tensor | None, equal: EqualRows | None = None
) -> tuple[EqualRows, Tensor, Tensor]:
    """(equal rows, the squares x·x [N + M], or [N] without x2, and the products x·y [N, M]).

    ``equal``: which rows are, where that is known.
    """
    with torch.autocast(x1.device.type, enabled=False):  # angles need all the digits there are
        equal = equal_rows(x1, x2) if equal is None else equal
        other = x1 if x2 is None else x2
        squares = equal.variances((x1 if x2 is None else torch.cat([x1, x2])).square().sum(1))
        return equal, squares, equal.covariances(products(x1, other), equal.split(squares)[0])
