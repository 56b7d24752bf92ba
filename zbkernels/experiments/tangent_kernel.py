"""H∞ of the thesis for rows of unit norm, in tiles: the tangent kernel of a ReLU network whose first layer trains.

H∞_ij = f(x_i·x_j) with f(c) = c (π - acos c)/(2π) (equations 8 and 58). The whole matrix is never there: 60,000 rows
would take 14 GB in float32. It is symmetric, so a pass takes the tiles of the lower triangle only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

DIAGONAL = 0.5  # f(1)
_ROUNDING = 8  # eps, of the inner product of a row of norm 1 with itself


def tangent_of(cosines: Tensor) -> Tensor:
    """f of each cosine, in the place of ``cosines``.

    What rounding may have kept from 1 counts as 1: else equal inputs would be sqrt(eps) apart. Beyond -1 is -1.
    """
    cosines.masked_fill_(cosines > 1 - _ROUNDING * torch.finfo(cosines.dtype).eps, 1).clamp_(min=-1)
    angle_left = cosines.acos().neg_().add_(math.pi)
    return cosines.mul_(angle_left).div_(2 * math.pi)


def edges_of(size: int, block: int) -> list[tuple[int, int]]:
    """(start, stop) of the blocks of ``size`` rows; the last may be smaller."""
    return list(pairwise([*range(0, size, block), size])) if size else []


def tangent_tile(x: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """H∞ between two blocks of rows of ``x`` [n, d]; 1/2 exactly on the diagonal of the whole."""
    tile = tangent_of(x[slice(*rows)] @ x[slice(*columns)].mT)
    if rows == columns:
        tile.fill_diagonal_(DIAGONAL)
    return tile


def tangent_matvec(x: Tensor, v: Tensor, block: int = 2000) -> Tensor:
    """H∞ v without the matrix, each tile for both triangles; memory beyond the result is O(block²).

    Args:
        x: [n, d], rows of unit norm.
        v: [n, p], of x's dtype.

    Returns:
        [n, p].
    """
    out = torch.zeros_like(v)
    edges = edges_of(len(x), block)
    for index, rows in enumerate(edges):
        for columns in edges[: index + 1]:
            tile = tangent_tile(x, rows, columns)
            out[slice(*rows)] += tile @ v[slice(*columns)]
            if rows != columns:
                out[slice(*columns)] += tile.mT @ v[slice(*rows)]
    return out


def largest_eigenvalue(x: Tensor) -> float:
    """λ_max of H∞ from below: one power step from x's leading left singular vector, which is near, then the Rayleigh
    quotient. For x [n, d]; two products with H∞."""
    v = x @ torch.linalg.eigh(x.mT @ x)[1][:, -1:]
    v = tangent_matvec(x, v / v.norm())
    v = v / v.norm()
    return float(v.mT @ tangent_matvec(x, v))


def nearest_pair(x: Tensor, block: int = 2000) -> tuple[float, int, int]:
    """The largest cosine of two different rows, and which they are, the later one first."""
    best = (-math.inf, 0, 0)
    for rows, columns, cosines in _cosines(x, block):
        value, place = cosines.flatten().max(0)
        if float(value) > best[0]:
            row, column = divmod(int(place), cosines.shape[1])
            best = (float(value), rows[0] + row, columns[0] + column)
    return best


def _cosines(x: Tensor, block: int) -> Iterator[tuple[tuple[int, int], tuple[int, int], Tensor]]:
    edges = edges_of(len(x), block)
    for index, rows in enumerate(edges):
        for columns in edges[: index + 1]:
            cosines = x[slice(*rows)] @ x[slice(*columns)].mT
            if rows == columns:
                cosines.fill_diagonal_(-math.inf)
            yield rows, columns, cosines
