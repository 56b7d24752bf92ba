"""The Markdown of the ``kernel-drift`` experiment, from the metrics alone."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from zbkernels.exchangeability.row_means import expected_by_chance
from zbkernels.experiments.exchangeability.kernel_drift_claims import (
    by_value,
    drift,
    named,
    normalised,
    row_mean,
    runs_of,
    state,
    verdicts,
)
from zbkernels.report import markdown_table, mean, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then a table for each sweep."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for sweep in metrics["sweeps"]:
        parts += [f"## {named(metrics, sweep)}\n", _sweep(metrics, sweep)]
    return "\n".join(parts)


def heading_lines(metrics: dict[str, Any]) -> list[str]:
    """What both experiments on these trainings say of them."""
    sets = "; ".join(
        f"{found['title']}, {found['images']:,} images, all layers {found['width']:,} wide"
        for found in metrics["data"].values()
    )
    seeds = metrics["seeds"]
    lines = [
        f"- Data: {sets}.",
        f"- Networks: autoencoders of {metrics['layers']} layers, ReLU after each, He's normal weights; mean squared "
        f"error, batch {metrics['batch']}, {metrics['iterations']:,} iterations, {metrics['precision']}; "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))} (of sweeps that are not the paper's the "
        "first alone where it says so).",
        "- Optimisers in Keras' form but where torch's is named: beta 0.9 and 0.999, rho 0.9, schedule decay 0.004.",
        "- Ours, as the paper is silent: no biases but in the sweep that has them (0 at the start), ReLU after the "
        "last layer, the loss's mean over pixels, the order of the images, and x and y of Procedure 1 shown to layers "
        f"2 to {metrics['layers']} as they are.",
        f"- Kernels: {metrics['pairs']} pairs from test images, 19 angles from 0 to 180°, Procedure 1 mended (p is "
        "normalised after the lettered steps); without zero sums unless it says so.",
    ]
    notes = {found["note"] for found in metrics["data"].values() if found["note"]}
    lines += [f"- {note}" for note in sorted(notes)]
    if metrics["iterations"] < 19_000 or any(found["width"] < 784 for found in metrics["data"].values()):
        lines.append(
            "- **Not the paper's size:** that is 3,072 wide on CIFAR-10, 784 on MNIST and 19,000 iterations, "
            "`--preset paper`. Images averaged to fewer pixels keep every layer as wide as the image."
        )
    return lines


def status(runs: list[dict[str, Any]]) -> str:
    """ "stable", or how many are not and since when."""
    counts = Counter(state(run) for run in runs)
    if set(counts) == {"stable"}:
        return "stable"
    words = [f"{counts[name]} {name}" for name in ("stable", "unstable", "dead", "diverged") if counts[name]]
    since = [run["diverged"] for run in runs if run["diverged"] is not None]
    return ", ".join(words) + (f" (iteration {min(since):,})" if since else "")


def _heading(metrics: dict[str, Any]) -> str:
    lines = [
        f"# kernel-drift, preset {metrics['preset']}\n",
        *heading_lines(metrics),
        "- Δk: mean over pairs and angles of the squared distance between a layer's normalised kernel and the "
        "arc-cosine kernel (of the whole network: the iterated one). (E^n)²: the greatest squared mean of a unit's "
        'weights. Means over seeds. A finite layer has both at the start: the row "start". Independent weights of '
        f"variance 2/in have (E^n)² near {_by_chance(metrics)}.",
        "- The paper shows these in figures, without numbers; so there is nothing to subtract from.",
        "- State: diverged, the loss became no number; dead, all outputs are 0; unstable, the loss has not fallen.",
    ]
    return "\n".join(lines) + "\n"


def _by_chance(metrics: dict[str, Any]) -> str:
    widths = [found["width"] for found in metrics["data"].values()]
    return ", ".join(f"{expected_by_chance(n, n, (2 / n) ** 0.5):.2g} at width {n:,}" for n in widths)


def _sweep(metrics: dict[str, Any], sweep: dict[str, Any]) -> str:
    runs = runs_of(metrics, sweep["key"])
    layers = range(metrics["layers"])
    header = [sweep["symbol"], *(f"Δk, layer {layer + 1}" for layer in layers), "Δk, whole"]
    header += [*(f"(E^n)², layer {layer + 1}" for layer in layers), "Δk, 0 to 1", "(E^n)², 0 to 1"]
    header += ["test loss", "state", "underflow"]
    quantities: list[Any] = [partial(drift, layer=layer) for layer in [*layers, len(layers)]]
    quantities += [partial(row_mean, layer=layer) for layer in layers]
    columns = [by_value(runs, quantity) for quantity in quantities]
    columns += [_to_unit(by_value(runs, drift)), _to_unit(by_value(runs, row_mean))]
    columns.append(by_value(runs, lambda run: run["loss"][1]))
    rows = [_start(metrics, runs)]
    for value in sorted({run["value"] for run in runs}):
        of = [run for run in runs if run["value"] == value]
        cells = [_cell(column.get(value)) for column in columns]
        rows.append([f"{value:g}", *cells, status(of), str(max(run["underflow"] for run in of))])
    return markdown_table(header, rows)


def _to_unit(found: dict[float, list[float]]) -> dict[float, list[float]]:
    if not found:
        return {}
    scaled = normalised([mean(numbers) for numbers in found.values()])
    return {value: [number] for value, number in zip(found, scaled, strict=True)}


def _start(metrics: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """Before training, which is the same for all values."""
    layers = range(metrics["layers"])
    first = {run["seed"]: run for run in runs}.values()

    def at_start(quantity: Any, layer: int) -> str:
        return _cell([n for n in (quantity(run, layer, look=0) for run in first) if n is not None])

    cells = [at_start(drift, layer) for layer in [*layers, len(layers)]]
    cells += [at_start(row_mean, layer) for layer in layers]
    return ["start", *cells, "", "", _cell([run["loss"][0] for run in first]), "", ""]


def _cell(numbers: list[float] | None) -> str:
    return f"{mean(numbers):.3g}" if numbers else ""
