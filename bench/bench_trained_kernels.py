"""Kernels of trained layers over angles, and the training that they are measured along.

The cases are in zbkernels/benchmarking/trained_kernel_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "trained-kernels"


def bench_trained_kernels(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
