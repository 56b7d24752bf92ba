"""Kernels of infinitely wide networks: the matrix, and its product with vectors.

The cases are in zbkernels/benchmarking/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "infinite"


def bench_infinite(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
