"""The Markdown of the ``regions`` experiment, from the metrics alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zbkernels.experiments.region_counts import LINES, PLANES, WINDOW
from zbkernels.experiments.regions_claims import (
    OFF,
    ORIGIN,
    Count,
    average,
    depths,
    in_plane,
    on_line,
    sizes,
    verdicts,
)
from zbkernels.report import markdown_table, mean, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, counts of untrained networks, counts during training."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## Untrained: patterns along a line\n", _lines(metrics)]
    parts += ["## Untrained: patterns in a plane\n", _planes(metrics)]
    parts += ["## While training\n", _training(metrics)]
    return "\n".join(parts)


def of_variant(units: Sequence[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    return [unit for unit in units if unit["variant"] == variant]


def _heading(metrics: dict[str, Any]) -> str:
    data, training = metrics["data"], metrics["training"]
    seeds = sorted({unit["seed"] for unit in metrics["untrained"]})
    lines = [
        f"# regions, preset {metrics['preset']}\n",
        f"- Images: **{data['title']}**, {data['inputs']} pixels in [0, 1]; lines and planes go "
        f"through test images.",
        f"- Networks: fully connected, the hidden units divided evenly among the hidden layers; "
        f"{training['initialisation']}; "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']}, {training['epochs']} "
        f"epochs, batch "
        f"{training['batch_size']}, {data['train_images']:,} images.",
        f"- {metrics['lines']} lines and {metrics['planes']} "
        f"plane{'s' if metrics['planes'] > 1 else ''} of each kind a network. "
        + "; ".join(f"*{kind}*: {what}" for kind, what in {**LINES, **PLANES}.items() if kind != ORIGIN)
        + f"; *{ORIGIN}*: {LINES[ORIGIN]}, {PLANES[ORIGIN]}.",
        f"- Counts are exact, in float64: breakpoints of lines, polygons of planes. Of a plane a "
        f"window counts that reaches "
        f"{WINDOW:g} norms of the largest image. A pattern of a single point or line does not count.",
    ]
    if data["note"]:
        lines.append(f"- Note on the data: {data['note']}.")
    return "\n".join(lines) + "\n"


def _lines(metrics: dict[str, Any]) -> str:
    kinds = ("between images", "through images", "random", ORIGIN)
    columns = [(variant, kind) for kind in kinds for variant in LABELS]
    header = ["neurons", "hidden layers"] + [f"{kind}, {LABELS[variant]}" for variant, kind in columns]
    return markdown_table(
        header, _rows(metrics, [], [(variant, on_line(kind)) for variant, kind in columns], "{:,.1f}")
    )


def _planes(metrics: dict[str, Any]) -> str:
    columns = [(variant, kind) for kind in (ORIGIN, OFF) for variant in LABELS]
    header = ["neurons", "hidden layers", "neurons² / 2", "2·neurons"]
    header += [f"{kind}, {LABELS[variant]}" for variant, kind in columns]
    guides = [lambda n: n * n / 2, lambda n: 2 * n]
    return markdown_table(
        header, _rows(metrics, guides, [(variant, in_plane(kind)) for variant, kind in columns], "{:,.0f}")
    )


def _rows(
    metrics: dict[str, Any], guides: Sequence[Any], columns: Sequence[tuple[str, Count]], form: str
) -> list[list[str]]:
    """A row for each size and depth: the guides (functions of the size), then each column's mean "
    "over the seeds."""
    units = metrics["untrained"]
    rows = []
    for size in sizes(units):
        for depth in depths(units):
            cells = [str(size), str(depth), *(f"{guide(size):,.0f}" for guide in guides)]
            for variant, count in columns:
                there = of_variant(units, variant)
                cells.append(form.format(average(there, count, neurons=size, depth=depth)) if there else "-")
            rows.append(cells)
    return rows


def _training(metrics: dict[str, Any]) -> str:
    header = [
        "network",
        "neurons",
        "epoch",
        "test accuracy (%)",
        "line through images",
        "line through the origin",
    ]
    header += ["plane through the origin", "plane off the origin"]
    rows = []
    for variant, label in LABELS.items():
        units = of_variant(metrics["trained"], variant)
        for depth in depths(units):
            chosen = [unit for unit in units if unit["depth"] == depth]
            for index, seen in enumerate(chosen[0]["watched"]):
                epoch = seen["epoch"]
                watched = [unit["watched"][index] for unit in chosen]
                accuracy = (
                    f"{mean([u['accuracies'][epoch - 1] for u in chosen]):.2f}" if epoch else "untrained"
                )
                counts = [on_line("through images"), on_line(ORIGIN), in_plane(ORIGIN), in_plane(OFF)]
                forms = ["{:,.1f}", "{:,.1f}", "{:,.0f}", "{:,.0f}"]
                rows.append(
                    [
                        f"{label}, {depth} hidden layer{'s' if depth > 1 else ''}",
                        str(chosen[0]["neurons"]),
                        str(epoch),
                        accuracy,
                        *(
                            form.format(mean([count(w) for w in watched]))
                            for form, count in zip(forms, counts, strict=True)
                        ),
                    ]
                )
    return markdown_table(header, rows)
