"""The picture of the ``chernoff`` experiment: spectra over widths, what the bound allows, widths asked and needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.chernoff_bound import width_needed
from zbkernels.experiments.chernoff_claims import CHANCE, DELTA, deviations, quantile, short, width_measured
from zbkernels.experiments.chernoff_spectrum import SIGNS
from zbkernels.report import mean

_COLOURS = {"relu": "#1f6f8b", "erf:2": "#c2571a"}
_FAINT = "#8a8a8a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure

    cases = [case for case in metrics["cases"] if case["readout"] == SIGNS]
    shown = [
        case for case in cases if case["kind"] == cases[0]["kind"] and case["inputs"] == cases[0]["inputs"]
    ]
    canvas = Figure(figsize=(11.5, 8.6), layout="constrained")
    grid = canvas.subplots(2, 2)
    _draw_spectra(grid[0][0], shown)
    _draw_deltas(grid[0][1], shown)
    _draw_widths(grid[1][0], cases)
    _draw_errors(grid[1][1], cases)
    canvas.suptitle(
        f"H beside H∞ at finite widths, and the matrix Chernoff bound ({metrics['preset']})", fontsize=12.5
    )
    canvas.savefig(path, dpi=110, format="png")


def _draw_spectra(axes: Any, shown: list[dict[str, Any]]) -> None:
    for case in shown:
        colour, widths = _COLOURS[case["activation"]], [row["width"] for row in case["widths"]]
        for key, side, sign in (("high", "upper", 1), ("low", "lower", -1)):
            middle = [mean(row[key]) for row in case["widths"]]
            edge = [1 + sign * quantile(deviations(row, side), 1 - CHANCE) for row in case["widths"]]
            label = short(case) if key == "high" else None
            axes.plot(widths, middle, "o-", ms=3.5, lw=1.6, color=colour, label=label)
            axes.fill_between(widths, middle, edge, color=colour, alpha=0.2, lw=0)
    axes.axhline(1, color=_FAINT, lw=0.8)
    axes.set(xscale="log", xlabel="width m", ylabel="smallest and largest eigenvalue")
    axes.set_title("Whitened H: means, shaded to the worst 5 % of trials", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9)
    _tidy(axes)


def _draw_deltas(axes: Any, shown: list[dict[str, Any]]) -> None:
    """For the smallest eigenvalue: the delta that holds in 95 % of the trials, and the one that the bound gives."""
    for case in shown:
        colour = _COLOURS[case["activation"]]
        rows = [(row["width"], quantile(deviations(row, "lower"), 1 - CHANCE)) for row in case["widths"]]
        axes.plot(
            *zip(*rows, strict=True), "o-", ms=3.5, lw=1.6, color=colour, label=f"{short(case)}, measured"
        )
        deltas = [0.02 * 1.08**k for k in range(51)]
        bound = [
            (width_needed(case["inputs"], case["kappa"], d, CHANCE, "lower"), d) for d in deltas if d < 1
        ]
        axes.plot(
            *zip(*bound, strict=True), color=colour, lw=1.6, ls=(0, (4, 2)), label=f"{short(case)}, (38)"
        )
    axes.set(xscale="log", yscale="log", xlabel="width m", ylabel="δ")
    axes.set_title("λ_min ≥ 1 - δ in 95 % of trials", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    _tidy(axes)


def _draw_widths(axes: Any, cases: list[dict[str, Any]]) -> None:
    places, labels = [], []
    for place, case in enumerate(cases):
        found = width_measured(case, DELTA, "lower")
        asked = width_needed(case["inputs"], case["kappa"], DELTA, CHANCE, "lower")
        seen = width_needed(case["inputs"], case["single"]["whitened"], DELTA, CHANCE, "lower")
        colour = _COLOURS[case["activation"]]
        ends = [end for end in (found, seen, asked) if end is not None]
        axes.plot([min(ends), max(ends)], [place, place], color=colour, lw=1, alpha=0.5)
        for at, mark in ((found, "o"), (seen, "d"), (asked, "s")):
            if at is not None:
                axes.plot(
                    at, place, mark, ms=6.5, mfc=colour if mark == "o" else "white", mec=colour, mew=1.5
                )
        if found is not None:
            axes.text(asked * 1.25, place, f"{asked / found:,.0f}×", va="center", fontsize=9, color=colour)
        places.append(place)
        labels.append(short(case))
    axes.set_yticks(places, labels, fontsize=9)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="width m")
    axes.set_xlim(right=axes.get_xlim()[1] * 4)
    axes.set_title(
        f"Width for δ = {DELTA:g}: ● measured, ◇ bound with the largest\nunit seen, □ bound (38) as printed",
        loc="left",
        fontsize=10.5,
    )
    _tidy(axes)


def _draw_errors(axes: Any, cases: list[dict[str, Any]]) -> None:
    styles = ("-", (0, (4, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
    sets = list(dict.fromkeys((case["kind"], case["inputs"]) for case in cases))
    for case in cases:
        rows = [(row["width"], mean(row["error"])) for row in case["widths"]]
        style = styles[sets.index((case["kind"], case["inputs"])) % len(styles)]
        axes.plot(
            *zip(*rows, strict=True), color=_COLOURS[case["activation"]], ls=style, lw=1.6, label=short(case)
        )
    axes.set(xscale="log", yscale="log", xlabel="width m", ylabel="‖u - u_IEIN‖ / ‖y‖, mean of trials")
    axes.set_title("Predictions of H beside those of H∞", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
