"""conv -> ReLU -> pool in one pass: forward, training step, and with packed signs.

The cases are in zbkernels/benchmarking/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "conv"


def bench_conv_relu_pool(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
