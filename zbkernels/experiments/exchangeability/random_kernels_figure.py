"""The picture of ``random-kernels``: Figure 2, heavy tails, deviations over size, Procedure 1, Hypothesis 3, inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zbkernels.experiments.exchangeability.random_layers import DENSITIES, NORMAL, UNIFORM

_BLUE, _ORANGE, _FAINT = "#1f6f8b", "#c2571a", "#8a8a8a"
_COLOURS = {
    "beta-0.5": "#8c3a3a",
    "beta-1": "#c2571a",
    "beta-2": "#1f6f8b",
    "beta-4": "#2f8f7f",
    "beta-8": "#7a5aa6",
    "beta-inf": "#e0a458",
    "t-2.5": "#6b8e23",
    "t-1.5": "#b03a78",
    "t-1": "#333333",
}


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: six panels."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(16, 9.4), layout="constrained")
    grid = canvas.subplots(2, 3)
    _draw_figure2(grid[0][0], metrics)
    _draw_heavy(grid[0][1], metrics)
    _draw_sizes(grid[0][2], metrics)
    _draw_angles(grid[1][0], metrics)
    _draw_hypothesis(grid[1][1], metrics)
    _draw_inputs(grid[1][2], metrics)
    canvas.suptitle(f"Kernels of layers with random weights ({metrics['preset']})", fontsize=12.5)
    canvas.savefig(path, dpi=100, format="png")


def _arc_cosine(angles: list[float]) -> list[float]:
    return [(math.sin(t) + (math.pi - t) * math.cos(t)) / math.pi for t in angles]


def _angle_axis(axes: Any, label: str = "angle θ between x and y") -> None:
    axes.set_xticks([0, math.pi / 2, math.pi], ["0", "π/2", "π"])
    axes.set_xlabel(label)


def _draw_figure2(axes: Any, metrics: dict[str, Any]) -> None:
    at = metrics["angles"]
    axes.plot(at, _arc_cosine(at), color=_FAINT, lw=1.4, label="arc-cosine kernel")
    layers = [x for x in metrics["layers"] if DENSITIES[x["density"]].third_moment]
    for place, layer in enumerate(layers):
        every = max(len(at) // 12, 1)
        chosen = range(
            (place * every) // max(len(layers), 1), len(at), every
        )  # side by side, not one over another
        axes.plot(
            [at[i] for i in chosen],
            [layer["curves"][0][i] for i in chosen],
            "o",
            ms=4.5,
            color=_COLOURS[layer["density"]],
            label=DENSITIES[layer["density"]].title,
        )
    shown = metrics["layers"][0]["shown"]
    axes.set(ylabel="normalised kernel")
    axes.set_title(f"Figure 2: one layer of {shown:,} inputs and units", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5)
    _angle_axis(axes)
    _tidy(axes)


def _draw_heavy(axes: Any, metrics: dict[str, Any]) -> None:
    at = metrics["angles"]
    axes.plot(at, _arc_cosine(at), color=_FAINT, lw=2.2, label="arc-cosine kernel", zorder=3)
    for layer in metrics["layers"]:
        if DENSITIES[layer["density"]].third_moment:
            continue
        for place, curve in enumerate(layer["curves"][:5]):
            label = DENSITIES[layer["density"]].title if not place else None
            axes.plot(at, curve, color=_COLOURS[layer["density"]], lw=1, alpha=0.85, label=label)
    axes.set(ylabel="normalised kernel")
    axes.set_title("Heavy tails: up to five layers of each", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5)
    _angle_axis(axes)
    _tidy(axes)


def _draw_sizes(axes: Any, metrics: dict[str, Any]) -> None:
    for layer in metrics["layers"]:
        rows = layer["sizes"]
        axes.plot(
            [row["size"] for row in rows],
            [row["rms"] for row in rows],
            "o-",
            ms=4,
            lw=1.5,
            color=_COLOURS[layer["density"]],
            label=DENSITIES[layer["density"]].title,
        )
    axes.set(xscale="log", yscale="log", xlabel="inputs and units", ylabel="deviation (root mean square)")
    axes.set_xticks(metrics["sizes"], [f"{size:,}" for size in metrics["sizes"]])
    axes.set_xticks([], minor=True)
    axes.set_title("Deviation from the arc-cosine kernel", loc="left", fontsize=10.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 8, high)  # room for the legend
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left")
    _tidy(axes)


def _draw_angles(axes: Any, metrics: dict[str, Any]) -> None:
    axes.plot([0, math.pi], [0, math.pi], color=_FAINT, lw=1, ls=(0, (1, 1.5)), label="as asked for")
    for name, colour, marker in (
        ("printed, zero sums", _ORANGE, "o"),
        ("mended, zero sums", _BLUE, "s"),
    ):
        rows = next(x["at"] for x in metrics["procedures"] if x["procedure"] == name)
        at = [row["angle"] for row in rows]
        means = [row["mean"] for row in rows]
        spans = [
            [row["mean"] - row["least"] for row in rows],
            [row["most"] - row["mean"] for row in rows],
        ]
        axes.errorbar(at, means, yerr=spans, fmt=marker, ms=5, lw=1.4, capsize=3, color=colour, label=name)
    axes.set(ylabel="angle got (mean, least to most)")
    axes.set_yticks([0, math.pi / 2, math.pi], ["0", "π/2", "π"])
    axes.set_title(f"Procedure 1 on {metrics['turned']:,} images", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5)
    _angle_axis(axes, "angle asked for")
    _tidy(axes)


def _draw_hypothesis(axes: Any, metrics: dict[str, Any]) -> None:
    found = metrics["sets"][0]["hypothesis3"]
    m = [row["coordinates"] for row in found]
    for kind, label, colour in (
        ("x, zero sums", "Procedure 1 with sums of 0", _ORANGE),
        ("images", "images as they are", _BLUE),
        ("x, centred", "images less their mean", "#7a5aa6"),
    ):
        axes.plot(m, [row[kind]["median"] for row in found], "o-", ms=4, lw=1.6, color=colour, label=label)
    first = found[0]["images"]["median"]
    line = [first * (value / m[0]) ** -0.25 for value in m]
    axes.plot(m, line, color=_FAINT, lw=1, ls=(0, (1, 1.5)), label="∝ m^(-1/4)")
    axes.set(xscale="log", yscale="log", xlabel="coordinates m", ylabel="m^(1/4) ‖x‖_∞/‖x‖ (median)")
    low, high = axes.get_ylim()
    axes.set_xticks(m, [f"{value:,}" for value in m])
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title(f"Hypothesis 3: {metrics['sets'][0]['title']}, zoomed", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5)
    _tidy(axes)


def _draw_inputs(axes: Any, metrics: dict[str, Any]) -> None:
    at = metrics["angles"]
    want = _arc_cosine(at)
    for layer in metrics["layers"]:
        if layer["density"] not in ("beta-0.5", NORMAL, UNIFORM):
            continue
        for inputs, style in (("zero sums, mended", "-"), ("zero sums, centred", (0, (1.5, 1.5)))):
            row = next(row for row in layer["inputs"] if row["inputs"] == inputs)
            off = [value - w for value, w in zip(row["mean"], want, strict=True)]
            label = DENSITIES[layer["density"]].title if style == "-" else None
            axes.plot(at, off, color=_COLOURS[layer["density"]], lw=1.7, ls=style, label=label)
    axes.axhline(0, color=_FAINT, lw=0.8)
    axes.set(ylabel="normalised kernel, from the arc-cosine kernel")
    axes.set_title(
        "At Procedure 1's inputs of sum 0 (—)\nand at images less their mean (···)", loc="left", fontsize=10.5
    )
    if axes.get_legend_handles_labels()[0]:  # none of these densities may have been asked for
        axes.legend(frameon=False, fontsize=8.5)
    _angle_axis(axes)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
