"""linear -> ReLU in one pass: forward, training step, and with packed signs.

The cases are in zbkernels/benchmarking/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "linear"


def bench_linear_relu(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
