"""Benchmarks: the ops of this package against the best that can be had elsewhere.

One row of a table is one *problem* (an op or a whole network, a shape, a dtype, forward or training step). For each:

1. every contestant's result is checked against a float64 reference (``check.py``); a wrong one is not timed;
2. all contestants are timed interleaved, A B C A B C ..., in one process and one run (``timing.py``);
3. the row holds medians, the ratio to the best competitor, GFLOP/s or GB/s, and how near the time is to the
   floor given by ceilings measured in the same run (``ceilings.py``).

``zb bench`` and ``python -m zbkernels.benchmarking`` print the table; ``pytest bench`` is the
pytest-benchmark front over the same problems. Nothing here is imported by ``import zbkernels``, and the
competing engines (ONNX Runtime, OpenVINO) are imported only when a problem asks for them: one that is not
installed is shown as such and never stops a run.
"""

from __future__ import annotations

from zbkernels.benchmarking.cases import SUITES, select
from zbkernels.benchmarking.runner import Settings, measure, run

__all__ = ["SUITES", "Settings", "measure", "run", "select"]
