"""Markdown of the experiment ``exchangeability``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.exchangeability.symmetry_tests import SIDES
from zbkernels.experiments.exchangeability.symmetry_claims import START, verdicts
from zbkernels.report import markdown_table, verdict_table

_SOME_STEPS = 5  # columns of the table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run."""
    parts = [
        _heading(metrics),
        "## Claims\n",
        verdict_table(verdicts(metrics)),
        "## Permuted before training\n",
        *(_permuted(metrics, precision) for precision in ("float64", "float32")),
        "## Tests of the ensembles\n",
        _ensembles(metrics),
        "## Power\n",
        _power(metrics),
    ]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    layers = metrics["layers"]
    side = round(layers[0] ** 0.5)
    rates = ", ".join(f"{name} {rate:g}" for name, rate in metrics["rates"].items())
    return (
        f"# exchangeability, preset {metrics['preset']}\n\n"
        f"- {data['title']}, shrunk to {side}×{side} pixels.{note}\n"
        f"- Autoencoders {'-'.join(map(str, layers))} without biases, ReLU after every layer, He's normal weights, "
        f"mean squared error, batches of {metrics['batch']}, the same for all networks; step sizes {rates}; other "
        "hyper-parameters are Keras' defaults. The paper proves and gives no number here.\n"
        f"- Ensembles of {metrics['networks']} networks, {metrics['steps']:,} steps; permutation tests with "
        f"{metrics['permutations']:,} permutations (entries: half), so that p is at least "
        f"{1 / (metrics['permutations'] + 1):.1g}.\n"
    )


def _permuted(metrics: dict[str, Any], precision: str) -> str:
    steps = [row["step"] for row in metrics["permuted"][0][precision]["rows"]][1:]
    wanted = min(_SOME_STEPS, len(steps))
    chosen = sorted({round(i * (len(steps) - 1) / max(wanted - 1, 1)) for i in range(wanted)})
    header = [
        f"{precision}, distance after steps",
        *(f"{steps[i]:,}" for i in chosen),
        f"one rounding, after {steps[-1]:,}",
    ]
    rows = []
    for found in metrics["permuted"]:
        points = found[precision]["rows"][1:]
        cells = [f"{points[i]['permuted']:.1e}" for i in chosen]
        rows.append([found["rule"], *cells, f"{points[-1]['rounded']:.1e}"])
        for name, label in (
            ("inputs", "first layer's columns too"),
            ("uneven", "steps by the unit's number"),
        ):
            if name in points[-1]:
                rows.append([f"{found['rule']}: {label}", *(f"{points[i][name]:.1e}" for i in chosen), "-"])
    return (
        markdown_table(header, rows)
        + "\n‖difference‖/‖weights‖, the largest of the networks; last column: a network and itself with one unit of "
        "rounding added to each weight before training.\n"
    )


def _ensembles(metrics: dict[str, Any]) -> str:
    header = ["ensemble", "layer"]
    for side in SIDES:
        header += [f"{side}: p", "mean", "energy", "pairs", "uneven (%)", "single (%)"]
    header += ["entries: p", "rows alone: p"]
    rows = []
    for found in metrics["ensembles"]:
        name = "before training" if found["name"] == START else found["name"]
        for layer in found["layers"]:
            cells = [name, str(layer["layer"])]
            for side in SIDES:
                one = layer[side]
                parts = (f"{one['parts'][key]:.3g}" for key in ("mean", "energy", "pairs"))
                cells += [f"**{one['p']:.3g}**", *parts]
                cells += [f"{100 * one['unevenness']:.1f}", f"{100 * one['single']:.1f}"]
            for key in ("entries", "linked"):
                cells.append("-" if layer[key] is None else f"{layer[key]:.3g}")
            rows.append(cells)
    return (
        markdown_table(header, rows)
        + "\np of the joined test and of its three statistics; uneven: standard deviation of the expected mean squares "
        "of rows or columns, relative, chance taken off; single: networks that are rejected at 5 % one by one, by the "
        "pixels' variance in the data or by the units' numbers; entries: all permuted; rows alone: the rows of the "
        "layer before, while this layer's columns stay.\n"
    )


def _power(metrics: dict[str, Any]) -> str:
    found = metrics["power"]["rows"]
    sizes = sorted({row["size"] for row in found if row["size"]})
    header = ["planted in one column", "networks", *(f"{100 * size:g} %" for size in sizes)]
    rows = []
    for kind, what in (("scale", "scaled"), ("shift", "shifted"), ("pair", "correlated with another")):
        for networks in sorted({row["networks"] for row in found}):
            shares = {
                row["size"]: f"{100 * row['rejected'] / row['trials']:.0f}"
                for row in found
                if row["kind"] == kind and row["networks"] == networks and row["size"]
            }
            rows.append([what, str(networks), *(shares[size] for size in sizes)])
    none = [row for row in found if row["size"] == 0]
    said = ", ".join(
        f"{100 * row['rejected'] / row['trials']:.0f} % at {row['networks']} networks" for row in none
    )
    return (
        markdown_table(header, rows)
        + f"\nShare of the trials that reject at 5 %, in %. Nothing planted: {said}. Shifted: in standard deviations "
        "of the weights. The weights are those of the second layer trained by "
        f"{metrics['power']['rule']}, rows and columns of each permuted anew in each trial.\n"
    )
