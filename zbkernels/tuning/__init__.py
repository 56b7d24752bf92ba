"""``zb tune``: measures the candidates of the Triton kernels on a card and keeps the fastest.

``workloads.py`` holds the calls that are tuned, ``tuner.py`` tries and times the candidates of one after the other,
``command.py`` shows it. What is found goes to :mod:`zbkernels.triton.results`, where the kernels look it up.
Nothing here is imported by ``import zbkernels``.
"""

from __future__ import annotations

from zbkernels.tuning.tuner import Row, TuningError, tune
from zbkernels.tuning.workloads import Prepared, Workload, workloads

__all__ = ["Prepared", "Row", "TuningError", "Workload", "tune", "workloads"]
