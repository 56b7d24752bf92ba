"""The picture of the ``kernel-drift`` experiment: Figures 4, 8, 10, 13 and 15, a row for each sweep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from zbkernels.experiments.exchangeability.kernel_drift_claims import (
    by_value,
    drift,
    named,
    normalised,
    row_mean,
    runs_of,
)
from zbkernels.experiments.exchangeability.sweeps import PLAIN
from zbkernels.report import mean

INK = "#2b2b2b"
_LAYERS = ("#9cc5d3", "#5b9fb5", "#1f6f8b", "#123f50")  # layers 1 to 4, deeper is darker
_DRIFT, _MEANS = "#c2571a", "#1f6f8b"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: Δk and (E^n)² of each layer, then their means over the layers from 0 to 1, as in Figure 4.

    A cross below a value: networks that diverged, which are left out.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [sweep for sweep in metrics["sweeps"] if sweep["variant"] == PLAIN] or metrics["sweeps"]
    with rc_context({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}):
        canvas = Figure(figsize=(14.4, 1.0 + 2.9 * len(shown)), layout="constrained")
        rows = canvas.subplots(len(shown), 3, squeeze=False)
        for row, sweep in zip(rows, shown, strict=True):
            _draw(metrics, sweep, row)
        canvas.legend(handles=_legend(), loc="outside lower center", ncols=7, frameon=False, fontsize=10.5)
        canvas.suptitle(
            f"How far kernels drift from the arc-cosine kernel in {metrics['iterations']:,} iterations (×: diverged)",
            fontsize=13.5,
        )
        canvas.savefig(path, dpi=100)


def _draw(metrics: dict[str, Any], sweep: dict[str, Any], row: Any) -> None:
    runs = runs_of(metrics, sweep["key"])
    values = sorted(sweep["values"])
    quantities: tuple[Callable[..., float | None], ...] = (drift, row_mean)
    for axes, quantity in zip(row, quantities, strict=False):
        for layer, colour in enumerate(_LAYERS):
            found = by_value(runs, partial(quantity, layer=layer))
            _line(axes, values, found, colour)
            start = [n for n in (quantity(run, layer, look=0) for run in runs) if n is not None]
            if start:
                axes.axhline(mean(start), color=colour, lw=0.9, ls=":")
        axes.set_yscale("log")
    row[0].set_title(f"{named(metrics, sweep)}\nΔk", fontsize=10.5, loc="left")
    row[1].set_title("(E$^n$)²", fontsize=10.5, loc="left")
    for quantity, colour in zip(quantities, (_DRIFT, _MEANS), strict=True):
        found = by_value(runs, quantity)
        if found:
            scaled = normalised([mean(numbers) for numbers in found.values()])
            at = [values.index(value) for value in found]
            style = "-" if quantity is drift else "--"  # both show where they coincide
            row[2].plot(at, scaled, color=colour, marker="o", ms=4.5, lw=1.6, ls=style)
    row[2].set_title("both, mean over the layers, from 0 to 1", fontsize=10.5, loc="left")
    gone = {run["value"] for run in runs if run["diverged"] is not None}
    names = [power(value) + ("\n×" if value in gone else "") for value in values]
    for axes in row:
        axes.set_xticks(range(len(values)), names, fontsize=8.5)
        axes.set_xlabel(sweep["symbol"])
        axes.set_xlim(-0.3, len(values) - 0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)


def _line(axes: Any, values: list[float], found: dict[float, list[float]], colour: str) -> None:
    at = [values.index(value) for value in found]
    axes.plot(at, [mean(numbers) for numbers in found.values()], color=colour, marker="o", ms=4, lw=1.5)
    low, high = ([bound(numbers) for numbers in found.values()] for bound in (min, max))
    axes.fill_between(at, low, high, color=colour, alpha=0.18, lw=0)


def power(value: float) -> str:
    """1e-08 -> 1e-8; 14 -> 14."""
    text = f"{value:.0e}" if value < 0.01 else f"{value:g}"
    return text.replace("e-0", "e-")


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    layers = [
        Line2D([], [], color=colour, marker="o", ms=4, lw=1.5, label=f"layer {i + 1}")
        for i, colour in enumerate(_LAYERS)
    ]
    return [
        *layers,
        Line2D([], [], color=INK, lw=0.9, ls=":", label="at the start"),
        Line2D([], [], color=_DRIFT, marker="o", ms=4.5, lw=1.6, label="Δk"),
        Line2D([], [], color=_MEANS, marker="o", ms=4.5, lw=1.6, ls="--", label="(E$^n$)²"),
    ]
