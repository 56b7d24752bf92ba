"""The picture of the experiment ``ergodic``: spreads over the width, dependence of units, networks one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.exchangeability.ergodic_claims import (
    EQUAL,
    MIXED,
    NARROW,
    PLACE_NAMES,
    PLACES,
    cases_of,
    points,
)
from zbkernels.experiments.exchangeability.ergodic_measures import IMAGES

_COLOURS = {"sgd": "#1f6f8b", "adam": "#c2571a", "rmsprop": "#7a5aa6", "nadam": "#2f8f7f"}
_FAINT, _MIXED = "#8a8a8a", "#8c3a3a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(17, 9.2), layout="constrained")
    grid = canvas.subplots(2, 3)
    for axes, place in zip(grid[0], PLACES, strict=True):
        _draw_spread(axes, metrics, place)
    _draw_effect(grid[1][0], metrics)
    _draw_narrow(grid[1][1], metrics)
    _draw_networks(grid[1][2], metrics)
    canvas.suptitle(
        f"One network's average over units against the ensemble's, Hypothesis 7 ({metrics['preset']})",
        fontsize=12.5,
    )
    canvas.savefig(path, dpi=110, format="png")


def _draw_spread(axes: Any, metrics: dict[str, Any], place: str) -> None:
    stop = metrics["stops"][-1]
    cases = cases_of(metrics, EQUAL)
    start = _percent(points(cases[0], place, 0, "spread"))
    axes.plot(*zip(*start, strict=True), "s", ms=6, mfc="none", color=_FAINT, label="before training")
    for case in cases:
        after = _percent(points(case, place, stop, "spread"))
        axes.plot(
            *zip(*after, strict=True), "o-", ms=4, lw=1.6, color=_COLOURS[case["rule"]], label=case["rule"]
        )
    (mixed,) = cases_of(metrics, MIXED)
    axes.plot(
        *zip(*_percent(points(mixed, place, stop, "spread")), strict=True),
        "^-",
        ms=5,
        lw=1.6,
        color=_MIXED,
        label=f"weights of two scales, {mixed['rule']}",
    )
    axes.plot(
        [width for width, _ in start],
        [start[0][1] * (start[0][0] / width) ** 0.5 for width, _ in start],
        color=_FAINT,
        lw=1,
        ls=(0, (1, 1.5)),
        label="∝ n^(-1/2)",
    )
    axes.set(xscale="log", yscale="log", xlabel="width n", ylabel="spread / ensemble's average (%)")
    axes.set_title(f"{PLACE_NAMES[place]}, after {stop} steps", loc="left", fontsize=10.5)
    _width_ticks(axes, [width for width, _ in start])
    low, high = axes.get_ylim()
    axes.set_ylim(0.5 * low, high)  # room for the legend
    ticks = [tick for tick in (5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200) if 0.5 * low < tick < high]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    _tidy(axes)


def _percent(values: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(width, 100 * value) for width, value in values]


def _draw_effect(axes: Any, metrics: dict[str, Any]) -> None:
    stop, styles = metrics["stops"][-1], ("-", (0, (5, 2)), (0, (1, 1.5)))
    for case in cases_of(metrics, EQUAL):
        for place, style in zip(PLACES, styles, strict=True):
            values = points(case, place, stop, "effect")
            axes.plot(
                *zip(*values, strict=True),
                color=_COLOURS[case["rule"]],
                ls=style,
                lw=1.7,
                label=case["rule"] if place == IMAGES else None,
            )
    axes.axhline(1, color=_FAINT, lw=0.9)
    axes.set(xscale="log", ylim=(0, None), xlabel="width n", ylabel="n Var K / Var P")
    axes.set_title(
        "Dependence of units: first layer at images (—), second\nlayer: zero sum (- -), one sign (···); 1: none",
        loc="left",
        fontsize=10.5,
    )
    _width_ticks(axes, [width for width, _ in values])
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    _tidy(axes)


def _draw_narrow(axes: Any, metrics: dict[str, Any]) -> None:
    stop = metrics["stops"][-1]
    shown: list[int] = []
    for case in cases_of(metrics, NARROW):
        values = points(case, IMAGES, stop, "effect")
        shown = [width for width, _ in values]
        axes.plot(
            *zip(*values, strict=True),
            "o-",
            ms=4,
            lw=1.7,
            color=_COLOURS[case["rule"]],
            label=f"{case['rule']}, {metrics['narrow_width']} units next",
        )
    axes.axhline(1, color=_FAINT, lw=0.9)
    axes.set(xscale="log", ylim=(0, None), xlabel="width n of the first layer", ylabel="n Var K / Var P")
    axes.set_title(
        f"A narrow second layer, {metrics['narrow_pace']:g} times the step size:\nfirst layer at images, after {stop} "
        "steps",
        loc="left",
        fontsize=10.5,
    )
    _width_ticks(axes, shown)
    axes.legend(frameon=False, fontsize=8.5, loc="best")
    _tidy(axes)


def _draw_networks(axes: Any, metrics: dict[str, Any]) -> None:
    """Each network's K at one pair of images, at the smallest and the largest width."""
    stop = metrics["stops"][-1]
    groups = [(case["rule"], case, _COLOURS[case["rule"]]) for case in cases_of(metrics, EQUAL)]
    groups.append(("two\nscales", cases_of(metrics, MIXED)[0], _MIXED))
    for i, (_, case, colour) in enumerate(groups):
        for shift, found in ((-0.18, case["widths"][0]), (0.18, case["widths"][-1])):
            (row,) = (row for row in found["rows"] if row["step"] == stop)
            kernel = row[IMAGES]["kernel"]
            spots = [i + shift + 0.2 * (j / max(len(kernel) - 1, 1) - 0.5) for j in range(len(kernel))]
            axes.plot(spots, kernel, "o", ms=2.6, mew=0, alpha=0.65, color=colour)
    axes.axhline(1, color=_FAINT, lw=0.9)
    axes.set_xticks(range(len(groups)), [name for name, _, _ in groups], fontsize=9)
    axes.set(ylabel="K of one network / ensemble's average", ylim=(0, None))
    narrow, wide = (groups[0][1]["widths"][i]["width"] for i in (0, -1))
    axes.set_title(
        f"Each network at one pair of images, first layer:\nn = {narrow} (left) and n = {wide} (right)",
        loc="left",
        fontsize=10.5,
    )
    _tidy(axes)


def _width_ticks(axes: Any, widths: list[int]) -> None:
    axes.set_xticks(widths, [f"{width:,}" for width in widths], fontsize=8.5)
    axes.set_xticks([], minor=True)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
