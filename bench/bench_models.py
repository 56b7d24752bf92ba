"""Whole networks: logits, and one training step.

The cases are in zbkernels/benchmarking/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable

from zbkernels.benchmarking.cases import Case

SUITE = "models"


def bench_models(case: Case, race: Callable[[Case], None]) -> None:
    race(case)
