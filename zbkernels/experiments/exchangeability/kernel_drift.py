"""How far layers' kernels go from the arc-cosine kernel in training, and their row means, over epsilon and alpha.

Figures 4, 8, 10, 13 and 15 of "Exchangeability and Kernel Invariance in Trained MLPs", Sections 5.1 and 5.2, Appendices
E and G: Δk, the mean squared distance of a layer's normalised kernel to the arc-cosine kernel after the last iteration,
and (E^n)² = max_j (mean_i W_ji)². What is trained, and what is ours where the paper is silent: :mod:`.sweeps`.
"""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.base import Experiment, RunContext
from zbkernels.experiments.exchangeability import kernel_drift_figure, kernel_drift_report
from zbkernels.experiments.exchangeability.sweep_units import PRESETS, trained
from zbkernels.experiments.exchangeability.sweeps import VARIANTS


def run(context: RunContext) -> dict[str, Any]:
    """Train the sweeps, or take what ``trained-kernels`` trained, and return the metrics."""
    base, results = trained(context)
    runs = []
    for unit, result in results:
        for found in result["runs"]:
            first, last = found["looks"][0], found["looks"][-1]
            runs.append(
                {
                    "sweep": unit.sweep.key,
                    "seed": unit.seed,
                    "value": found["value"],
                    "diverged": found["diverged"],
                    "dead": last["dead"],
                    "underflow": max(look["underflow"] for look in found["looks"]),
                    "loss": [first["test_loss"], last["test_loss"]],
                    "drift": {kind: [first["drift"][kind], last["drift"][kind]] for kind in first["drift"]},
                    "undefined": last["undefined"],
                    "row_means": [first["row_means"], last["row_means"]],
                }
            )
    return {"experiment": "kernel-drift", **base, "runs": runs}


EXPERIMENT = Experiment(
    name="kernel-drift",
    title="Figures 4, 8, 10, 13, 15: how far kernels drift in training, over epsilon and the step size",
    source="Exchangeability and Kernel Invariance in Trained MLPs, Section 5.2, Figures 4, 8, 10, 13 and 15",
    presets=PRESETS,
    variants=VARIANTS,
    run=run,
    table=kernel_drift_report.table,
    figure=kernel_drift_figure.figure,
    any_precision=True,
    any_engine=True,
)
