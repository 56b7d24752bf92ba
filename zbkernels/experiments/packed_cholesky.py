"""Cholesky factor of a large symmetric matrix in float32, of which only the lower triangle is ever in memory.

The factor of n = 60,000 takes 7.4 GB, half of the full matrix. Block row k of L is a rectangle [block, columns up to
and with the diagonal block]; the matrix is asked for one tile at a time, and each tile turns into a tile of L where it
lies (left-looking: a block row needs the rows above it and nothing below). With a path the rectangles lie in a mapped
file: what is finished there survives the process, and the next one goes on after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from zbkernels.experiments.base import ExperimentError
from zbkernels.experiments.tangent_kernel import edges_of
from zbkernels.files import read_sealed_json, write_sealed_json

Edges = tuple[int, int]


class NotPositiveDefiniteError(ArithmeticError):
    """A pivot was not positive: the matrix is singular or indefinite to float32's rounding."""


class PackedCholesky:
    """M = L Lᵀ with L in float32.

    Args:
        size: n.
        tile: (rows, columns) -> the matrix between these two blocks, float32.
        block: rows of a block.
        path: a file that holds the factor; None keeps it in memory.
        on_row: called after each block row, with its number and that of all.

    Raises:
        NotPositiveDefiniteError: M is not positive definite in float32.
        ExperimentError: no room on the disk.
    """

    def __init__(
        self,
        size: int,
        tile: Callable[[Edges, Edges], Tensor],
        *,
        block: int = 2000,
        path: Path | None = None,
        on_row: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        self.size, self.edges = size, edges_of(size, block)
        self.rows = self._allocate(path)
        finished = _Finished(path, size, block)
        for k in range(finished.rows, len(self.edges)):
            self._factor_row(k, tile)
            finished.keep(k + 1)
            on_row(k + 1, len(self.edges))

    def _allocate(self, path: Path | None) -> list[Tensor]:
        shapes = [(stop - start, stop) for start, stop in self.edges]
        numbers = sum(height * width for height, width in shapes)
        if path is None:
            flat = torch.empty(numbers)
        else:
            _reserve(path, 4 * numbers)
            flat = torch.from_file(str(path), shared=True, size=numbers)
        sizes = [height * width for height, width in shapes]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]

    def _factor_row(self, k: int, tile: Callable[[Edges, Edges], Tensor]) -> None:
        row = self.rows[k]
        for j, (start, stop) in enumerate(self.edges[: k + 1]):
            above = self.rows[j]
            place = row[:, start:stop]
            place.copy_(tile(self.edges[k], self.edges[j]))
            if start:
                place.addmm_(row[:, :start], above[:, :start].mT, alpha=-1)
            if j < k:
                place.copy_(torch.linalg.solve_triangular(above[:, start:].mT, place, upper=True, left=False))
        diagonal, info = torch.linalg.cholesky_ex(place)
        if int(info):
            raise NotPositiveDefiniteError(
                f"no Cholesky factor in float32: pivot {self.edges[k][0] + int(info)} of {self.size} is not positive"
            )
        place.copy_(diagonal)

    def solve(self, b: Tensor) -> Tensor:
        """M⁻¹ b for b [n, p], float32."""
        return self.solve_upper(self.solve_lower(b))

    def solve_lower(self, b: Tensor) -> Tensor:
        """L⁻¹ b."""
        x = b.clone()
        for row, (start, stop) in zip(self.rows, self.edges, strict=True):
            rest = x[start:stop] - row[:, :start] @ x[:start]
            x[start:stop] = torch.linalg.solve_triangular(row[:, start:], rest, upper=False)
        return x

    def solve_upper(self, b: Tensor) -> Tensor:
        """L⁻ᵀ b."""
        x = b.clone()
        for row, (start, stop) in reversed(list(zip(self.rows, self.edges, strict=True))):
            x[start:stop] = torch.linalg.solve_triangular(row[:, start:].mT, x[start:stop], upper=True)
            x[:start] -= row[:, :start].mT @ x[start:stop]
        return x

    def multiply(self, v: Tensor) -> Tensor:
        """M v for v [n, p] float64, summed in float64."""
        inner = torch.zeros_like(v)  # Lᵀ v
        for row, (start, stop) in zip(self.rows, self.edges, strict=True):
            for left, right in self.edges:
                if left < stop:
                    inner[left:right] += row[:, left:right].double().mT @ v[start:stop]
        out = torch.zeros_like(v)
        for row, (start, stop) in zip(self.rows, self.edges, strict=True):
            for left, right in self.edges:
                if left < stop:
                    out[start:stop] += row[:, left:right].double() @ inner[left:right]
        return out


def _reserve(path: Path, size: int) -> None:
    """Take ``size`` bytes of the disk for the file, and leave what it holds: a mapped file cannot say that it is full.

    Raises:
        ExperimentError: they are not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ExperimentError(
            f"{path}: {size / 1e9:.1f} GB for a Cholesky factor: {error.strerror}"
        ) from error


class _Finished:
    """How many block rows the file of a factor holds whole, in a JSON file beside it."""

    def __init__(self, path: Path | None, size: int, block: int) -> None:
        self.path = None if path is None else path.with_suffix(".json")
        self.rows, self._head = 0, {"size": size, "block": block}
        if self.path is not None and path is not None and self.path.exists() and path.exists():
            try:
                found = read_sealed_json(self.path)
            except ValueError:
                return  # a damaged file says nothing: the factor is computed anew
            if {key: found.get(key) for key in self._head} == self._head:
                self.rows = int(found["rows"])

    def keep(self, rows: int) -> None:
        self.rows = rows
        if self.path is not None:
            write_sealed_json(self.path, {**self._head, "rows": rows})
