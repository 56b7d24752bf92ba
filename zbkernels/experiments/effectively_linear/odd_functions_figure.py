"""The picture of the ``odd-functions`` experiment: a target along the circle, and errors by target and network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zbkernels.experiments.effectively_linear.odd_functions_report import cases, of_case
from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS
from zbkernels.report import mean

_STYLE = {
    "two-layer": ("#1f6f8b", "o", "two layers"),
    "two-layer-leaky": ("#6fb3c7", "D", "two layers, slope 0.3"),
    "three-layer": ("#2f8f7f", "^", "three layers"),
    "four-layer": ("#7a5aa6", "v", "four layers"),
    "two-layer-biased": ("#c2571a", "s", "two layers with biases"),
}
_DRAWN = ("dead-zone", "sine")  # the first of these that the run has in two dimensions
_FAINT = "#8a8a8a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: the profile, then a panel for each dimension."""
    from matplotlib.figure import Figure

    dimensions = sorted({fit["dimension"] for fit in metrics["fits"]})
    profiled = [t for t in _DRAWN if of_case(metrics, t, 2)]
    panels = len(dimensions) + bool(profiled)
    canvas = Figure(figsize=(4.6 * panels, 5.2), layout="constrained")
    grid = list(canvas.subplots(1, panels, squeeze=False)[0])
    if profiled:
        _draw_profile(grid.pop(0), metrics, profiled[0])
    for axes, dimension in zip(grid, dimensions, strict=True):
        _draw_errors(axes, metrics, dimension)
    handles, labels = grid[-1].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9.5)
    canvas.suptitle(
        f"Odd targets on symmetric inputs: networks without biases, and with them ({metrics['preset']})",
        fontsize=12.5,
    )
    canvas.savefig(path, dpi=110, format="png")


def _draw_profile(axes: Any, metrics: dict[str, Any], target: str) -> None:
    profile = of_case(metrics, target, 2)[0]["profile"]
    degrees = [360 * i / (len(profile["target"]) - 1) for i in range(len(profile["target"]))]
    axes.plot(degrees, profile["target"], color="#333333", lw=4.5, alpha=0.25)
    axes.plot(degrees, profile["linear"], color=_FAINT, lw=4.5, alpha=0.45)
    for kind in ("two-layer", "three-layer"):
        if kind in profile:
            axes.plot(degrees, profile[kind], color=_STYLE[kind][0], lw=1.6)
    axes.set(xlabel="angle on the unit circle (degrees)", ylabel="output", xticks=range(0, 361, 90))
    axes.set_title(
        f"{ODD_TARGETS[target].title} (broad, dark), best linear map\n(broad, light), networks of two and three layers",
        loc="left",
        fontsize=10.5,
    )
    _tidy(axes)


def _draw_errors(axes: Any, metrics: dict[str, Any], dimension: int) -> None:
    targets = [target for target, d in cases(metrics) if d == dimension]
    kinds = metrics["kinds"]
    for place, target in enumerate(targets):
        fits = of_case(metrics, target, dimension)
        linear = mean([fit["linear"] for fit in fits])
        axes.plot(
            [place - 0.42, place + 0.42],
            [linear] * 2,
            color="#333333",
            lw=1.3,
            label="best linear map" if place == 0 else None,
        )
        for k, kind in enumerate(kinds):
            colour, marker, label = _STYLE[kind]
            shift = (k - (len(kinds) - 1) / 2) * 0.16
            axes.plot(
                [place + shift] * len(fits),
                [fit["networks"][kind]["error"] for fit in fits],
                marker,
                ms=5.5,
                color=colour,
                mew=0,
                label=label if place == 0 else None,
            )
    axes.set_xticks(
        range(len(targets)), [ODD_TARGETS[t].title for t in targets], rotation=30, ha="right", fontsize=9
    )
    highest = max(fit["linear"] for fit in metrics["fits"])
    axes.set(xlim=(-0.6, len(targets) - 0.4), ylim=(-0.03, math.ceil(10 * highest + 0.3) / 10))
    axes.set_ylabel("error, of the mean square of the target")
    axes.set_title(f"{dimension} dimensions", loc="left", fontsize=10.5)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
