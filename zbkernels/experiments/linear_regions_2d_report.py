"""The Markdown of the ``linear-regions-2d`` experiment, from the metrics alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zbkernels.experiments.direction_points import BOTH, DEGREES
from zbkernels.experiments.linear_regions_2d_claims import along, fits, verdicts
from zbkernels.report import markdown_table, verdict_table

LABELS = {"with-bias": "with bias", "without-bias": "without bias"}
# Whether a kind of network fits a direction, by the preprint's text, its caption, and the workshop version (text and
# caption alike).
SAID = {
    ("Dir 1", "with-bias"): ("can", "can", "can"),
    ("Dir 1", "without-bias"): ("cannot", "fails", "fails"),
    ("Dir 2", "with-bias"): ("can", "**fails**", "can"),
    ("Dir 2", "without-bias"): ("can", "**fails**", "can"),
}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, who fits what, the regions, the pieces along the rays."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## Who fits what\n", _fits(metrics)]
    parts += ["## Regions\n", _regions(metrics), "## Along the rays\n", _rays(metrics)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    training = metrics["training"]
    networks = sorted({(network["width"], network["network"]) for network in metrics["networks"]})
    seeds = sorted({network["seed"] for network in metrics["networks"]})
    sizes = ", ".join(f"{count} ({name})" for name, count in training["points"].items())
    lines = [
        f"# linear-regions-2d, preset {metrics['preset']}\n",
        "- Points of the plane in two classes, • and +. Along Dir 1 they are •, then +, then •, on the way out; along "
        "Dir 2 all •; the points around keep one class in each of four sectors. The paper gives no points, sizes or "
        "training: these are ours.",
        f"- Networks: {', '.join(name for _, name in networks)}, two outputs, whose difference is the logit before the "
        f"sigmoid; {training['initialisation']}; {'seeds' if len(seeds) > 1 else 'seed'} "
        f"{', '.join(map(str, seeds))}.",
        f"- Training: {training['optimizer']}, learning rate {training['lr']} along a cosine, {training['epochs']} "
        f"epochs of {training['repeats']} times all points, batch {training['batch_size']}; points: {sizes}.",
        "- A network fits a direction if its logit is below 0 at every • and above 0 at every + of the 12 points that "
        "are marked on it, which it was trained on.",
        "- Regions, breakpoints and logits along rays are exact, from the patterns, in float64.",
    ]
    return "\n".join(lines) + "\n"


def _fits(metrics: dict[str, Any]) -> str:
    header = ["direction, network", "preprint, text", "preprint, caption of Figure 6", "workshop version"]
    header += ["ours: alone", "ours: both and points around", "fewest, most of 12 points"]
    rows = []
    for (direction, variant), said in SAID.items():
        mine = [network for network in metrics["networks"] if network["variant"] == variant]
        if not mine:
            continue
        cells = []
        for chosen in (
            [n for n in mine if n["task"] != BOTH],
            [n for n in mine if n["task"] == BOTH],
        ):
            fit, tried = fits(chosen, direction)
            cells.append(f"{fit} of {tried} fit")
        fitted = [entry["fitted"] for entry in along(mine, direction)]
        rows.append([f"{direction}, {LABELS[variant]}", *said, *cells, f"{min(fitted)}, {max(fitted)}"])
    return markdown_table(header, rows) + "\nIn bold: what contradicts the text of its own paper.\n"


def _regions(metrics: dict[str, Any]) -> str:
    header = ["network", "seed", "regions", "bounded", "unbounded", "in the window", "reach the origin"]
    header += ["corners within", "grid points", "that differ", "on a border", "regions a grid point sees"]
    rows = []
    for network in metrics["networks"]:
        if network["task"] != BOTH:
            continue
        found, grid = network["regions"], network["regions"]["grid"]
        numbers = [
            network["seed"],
            found["all"],
            found["bounded"],
            found["all"] - found["bounded"],
            found["window"],
        ]
        numbers += [found["reach_origin"], f"±{found['corners_within']:g}"]
        numbers += [grid["points"], grid["differ"], grid["on_border"], grid["seen"]]
        rows.append([_name(network), *(n if isinstance(n, str) else f"{n:,}" for n in numbers)])
    return markdown_table(header, rows) + (
        f"\nOf the networks trained on both directions and the points around. The window is ±{metrics['half_side']:g} "
        "each way; regions are counted in the whole plane, and are bounded or not there.\n"
    )


def _rays(metrics: dict[str, Any]) -> str:
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("regions", lambda entry: f"{entry['pieces']}"),
        ("bends of the logit", lambda entry: f"{entry['bends']}"),
        ("regions of the whole line", lambda entry: f"{entry['pieces_of_line']}"),
        ("largest constant part", lambda entry: f"{entry['constant']:.3g}"),
    ]
    header = ["network, trained on", "seed"]
    header += [f"{direction}: {name}" for direction in DEGREES for name, _ in columns]
    rows = []
    for network in metrics["networks"]:
        cells = [f"{_name(network)}, {network['task']}", str(network["seed"])]
        for direction in DEGREES:
            entry = network["along"].get(direction)
            cells += [form(entry) if entry else "" for _, form in columns]
        rows.append(cells)
    return markdown_table(header, rows) + "\nA ray runs from the origin to infinity.\n"


def _name(network: dict[str, Any]) -> str:
    return f"{network['network'].replace('classes', '2')}, {LABELS[network['variant']]}"
