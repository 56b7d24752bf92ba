"""The picture of the ``dual-activations`` experiment: f and g, how near erf comes, and the drawn means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.dual_activations_claims import allowed, in_errors, near_pairs

_COLOURS = {
    "relu": "#1f6f8b",
    "leaky_relu:0.1": "#69b3a2",
    "abs": "#7a5aa6",
    "gelu": "#2b2b2b",
    "identity": "#8a8a8a",
    "sin+cos": "#c9892b",
    "erf:2": "#8c3a3a",
    "sigmoid": "#5a5f9e",
    "sigmoid_erf": "#5a5f9e",
    "tanh": "#c2571a",
    "tanh_erf": "#c2571a",
    "tanh(3x)/3": "#2f8f7f",
}
_SIGMOIDAL = ("erf:2", "sigmoid", "sigmoid_erf", "tanh", "tanh_erf", "tanh(3x)/3")
_STAND_INS = ("sigmoid_erf", "tanh_erf")


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: f on the left (the thesis' Figure 4) and g on the right (Figure 5)."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11.5, 12), layout="constrained")
    grid = canvas.subplots(3, 2)
    for column, of in enumerate("fg"):
        for row, sigmoidal in enumerate((False, True)):
            _draw(grid[row][column], metrics, of, sigmoidal)
    _draw_gaps(grid[2][0], metrics)
    _draw_errors(grid[2][1], metrics)
    canvas.suptitle(
        f"f and g of activations ({metrics['preset']}); dots: means of drawn pairs", fontsize=12.5
    )
    canvas.savefig(path, dpi=110, format="png")


def _draw(axes: Any, metrics: dict[str, Any], of: str, sigmoidal: bool) -> None:
    for found in metrics["curves"]:
        name = found["name"]
        if (name in _SIGMOIDAL) != sigmoidal:
            continue
        stand_in = name in _STAND_INS
        style = {"ls": (0, (3, 2)), "lw": 2.6, "alpha": 0.6} if stand_in else {"lw": 1.6}
        axes.plot(metrics["cosines"], found[of], color=_COLOURS[name], label=name, **style)
        rows = [row for row in found["drawn"] if row["of"] == of and row["seed"] == metrics["seeds"][0]]
        if not stand_in:
            at, means = [row["cosine"] for row in rows], [row["mean"] for row in rows]
            axes.plot(at, means, "o", ms=3.6, color=_COLOURS[name])
    what = (
        "erf, sigmoid and tanh; dashed: erf in their place"
        if sigmoidal
        else "ReLU and its kin, identity, sin + cos"
    )
    axes.set_title(f"{of} (Figure {'4' if of == 'f' else '5'}): {what}", loc="left", fontsize=10.5)
    axes.set(xlim=(-1.03, 1.03), xlabel="cosine of two inputs of norm 1", ylabel=f"{of}(c)")
    if axes.get_lines():
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    _tidy(axes)


def _draw_gaps(axes: Any, metrics: dict[str, Any]) -> None:
    """How far f and g of the stand-ins are off, in percent of the largest value."""
    for one, other in near_pairs(metrics):
        for of, style in (("f", "-"), ("g", (0, (2, 1.5)))):
            gap = np.array(other[of]) - np.array(one[of])
            share = 100 * gap / np.abs(one[of]).max()
            axes.plot(
                metrics["cosines"],
                share,
                color=_COLOURS[one["name"]],
                ls=style,
                lw=1.8,
                label=f"{of} of {one['name']}",
            )
    axes.axhline(0, color="#8a8a8a", lw=0.8)
    axes.set_title("erf less sigmoid, less tanh (64, 65)", loc="left", fontsize=10.5)
    axes.set(xlim=(-1.03, 1.03), xlabel="cosine of two inputs of norm 1", ylabel="% of the largest value")
    if near_pairs(metrics):
        axes.legend(frameon=False, fontsize=9)
    _tidy(axes)


def _draw_errors(axes: Any, metrics: dict[str, Any]) -> None:
    """Each drawn mean's distance from ours, in its standard errors."""
    names = [found["name"] for found in metrics["curves"]]
    count = sum(len(found["drawn"]) for found in metrics["curves"])
    for place, found in enumerate(metrics["curves"]):
        for of, mark, shift in (("f", "o", -0.15), ("g", "x", 0.15)):
            gaps = [
                np.copysign(in_errors(row), row["mean"] - row["ours"])
                for row in found["drawn"]
                if row["of"] == of
            ]
            axes.plot(
                gaps, [place + shift] * len(gaps), mark, ms=4, mew=1, mfc="none", color=_COLOURS[names[place]]
            )
    for side in (-1, 1):
        axes.axvline(side * allowed(count), color="#8a8a8a", lw=1, ls=(0, (4, 3)))
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_title("Drawn means of f (o) and g (x) less ours", loc="left", fontsize=10.5)
    axes.set_xlabel("standard errors (dashed: where 99 of 100 runs stay)")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
