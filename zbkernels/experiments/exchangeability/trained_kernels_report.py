"""The Markdown of the ``trained-kernels`` experiment, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.exchangeability.kernel_drift_claims import named
from zbkernels.experiments.exchangeability.kernel_drift_report import heading_lines
from zbkernels.experiments.exchangeability.measures import CENTRED, NON_ZERO, ZERO
from zbkernels.experiments.exchangeability.trained_kernels_claims import drifts, runs_of, verdicts
from zbkernels.report import markdown_table, mean, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then two tables for each sweep."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for sweep in metrics["sweeps"]:
        parts += [f"## {named(metrics, sweep)}\n", _sweep(metrics, sweep)]
        bounds = _bounds(metrics, sweep)
        if bounds:
            parts.append(bounds)
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    looks = ", ".join(f"{iteration:,}" for iteration in metrics["measured_after"])
    lines = [
        f"# trained-kernels, preset {metrics['preset']}\n",
        *heading_lines(metrics),
        f"- Looked at after iterations {looks}; figures are of seed {metrics['seeds'][0]}, a file for each sweep "
        "beside figure.png.",
        "- Inputs: non-zero, Procedure 1 without its lettered steps; zero, with them; centred, x less its mean and p "
        "at a right angle to it and to (1, …, 1), so that no coordinate dominates as -sum does (ours).",
        "- Bounds: distance of the layer's kernel of unit vectors from equation 9, beside (10) twice and (11) mended, "
        "and beside the bound by row means, which needs no limit; means over pairs and angles in units of the kernel "
        "at angle 0; NaN where E[W₁ W₂] is estimated as negative.",
        "- The paper shows these in figures, without numbers; so there is nothing to subtract from.",
    ]
    return "\n".join(lines) + "\n"


def _sweep(metrics: dict[str, Any], sweep: dict[str, Any]) -> str:
    layers = range(metrics["layers"])
    header = [sweep["symbol"], "test loss"]
    header += [*(f"Δk non-zero, layer {i + 1}" for i in layers), "whole network"]
    header += [*(f"Δk zero, layer {i + 1}" for i in layers), "Δk centred, layers' mean"]
    runs = runs_of(metrics, sweep["key"])
    rows = [["start", *_cells(runs, 0, layers)]] if runs else []
    for value in sorted({run["value"] for run in runs}):
        rows.append([f"{value:g}", *_cells([run for run in runs if run["value"] == value], -1, layers)])
    return markdown_table(header, rows)


def _cells(runs: list[dict[str, Any]], look: int, layers: range) -> list[str]:
    """Means over the seeds whose networks have a number."""
    first = list({run["seed"]: run for run in runs}.values())
    columns: list[list[float | None]] = [[run["looks"][look]["test_loss"] for run in first]]
    columns += [[drifts(run, NON_ZERO, look)[i] for run in first] for i in layers]
    columns.append([run["looks"][look]["drift"][NON_ZERO][-1] for run in first])
    columns += [[drifts(run, ZERO, look)[i] for run in first] for i in layers]
    columns.append([_mean(drifts(run, CENTRED, look)) for run in first])
    return [_cell(column) for column in columns]


def _bounds(metrics: dict[str, Any], sweep: dict[str, Any]) -> str:
    """First and last look of the networks at the ends of the list."""
    keys = ("gap", "bound", "row_mean_gap", "row_mean_bound")
    header = [f"{sweep['symbol']}, inputs, layer", "gap at the start", "(10) and (11)"]
    header += ["gap by row means", "bound by row means", "gap at the end", "(10) and (11)"]
    header += ["gap by row means", "bound by row means"]
    rows = []
    for run in runs_of(metrics, sweep["key"]):
        looks = run.get("bounds")
        if not looks or looks[0] is None:
            continue
        for kind in (NON_ZERO, ZERO):
            for i in range(metrics["layers"]):
                found = [look[kind][i] or {} for look in (looks[0], looks[-1])]
                numbers = [layer.get(key) for layer in found for key in keys]
                rows.append([f"{run['value']:g}, {kind}, {i + 1}", *(_cell([n], "NaN") for n in numbers)])
    return markdown_table(header, rows) if rows else ""


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return mean(numbers) if numbers else None


def _cell(values: list[float | None], none: str = "") -> str:
    number = _mean(values)
    return none if number is None else f"{number:.3g}"
