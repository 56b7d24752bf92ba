"""Sign patterns as 64-bit words: packing and unpacking, distances, nearest rows, frequencies,
hashes, groups.

The cases are in zbkernels/benchmarking/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "nap"


def bench_nap(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
