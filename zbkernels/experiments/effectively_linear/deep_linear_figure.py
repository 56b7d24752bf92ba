"""The picture of the ``deep-linear`` experiment: a row for each depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.effectively_linear.deep_linear_claims import (
    base,
    broken_rows,
    digit_rows,
    layer_word,
)
from zbkernels.report import mean

_LINEAR, _RELU, _FAINT = "#8a8a8a", "#1f6f8b", "#d0d0d0"
_MODES = ("#0f3f52", "#1f6f8b", "#7fb3c4")
_LAYERS = ("#1f6f8b", "#7a5aa6", "#2f8f7f", "#c2571a")
_TARGET, _INPUTS = "#c2571a", "#7a5aa6"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure

    depths = metrics["depths"]
    canvas = Figure(figsize=(20, 4.1 * len(depths) + 0.6), layout="constrained")
    grid = canvas.subplots(len(depths), 5, squeeze=False)
    for row, found in zip(grid, depths, strict=True):
        net = base(metrics, found)
        _draw_losses(row[0], found, net)
        _draw_values(row[1], found, net)
        _draw_stages(row[2], found)
        _draw_broken(row[3], found)
        _draw_digits(row[4], found)
    canvas.suptitle(
        f"Deep bias-free ReLU networks (blue) beside deep linear ones (grey) ({metrics['preset']})",
        fontsize=12.5,
    )
    canvas.savefig(path, dpi=100, format="png")


def _draw_losses(axes: Any, found: dict[str, Any], net: dict[str, Any]) -> None:
    for kind, colour in (("linear", _LINEAR), ("relu", _RELU)):
        curves = net[kind]["curves"]
        for i, (times, loss) in enumerate(zip(curves["times"], curves["loss"], strict=True)):
            label = {"linear": "linear", "relu": "ReLU"}[kind] if i == 0 else None
            axes.plot(times, loss, color=colour, lw=1.6, label=label)
    axes.axhline(0.5, color=_FAINT, lw=1, ls=(0, (1, 1.5)))
    ends = [t for kind in ("linear", "relu") for t in net[kind]["nine_tenths"] if t is not None]
    axes.set(
        xlabel="time t",
        ylabel="loss, of its start",
        ylim=(-0.03, 1.06),
        xlim=(0, 1.25 * max(ends, default=1.0)),
    )
    _titled(axes, f"{layer_word(found['depth'])}: loss, by seed")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _draw_values(axes: Any, found: dict[str, Any], net: dict[str, Any]) -> None:
    watched = net["relu"]["watched"]
    end = net["relu"]["nine_tenths"][0] or watched["times"][-1]
    for layer, values in enumerate(watched["values"]):
        for place, style in enumerate(("-", (0, (5, 2)), (0, (1, 1.5)))):
            column = [v[place] for v in values]
            label = f"W_{layer + 1}" if place == 0 else None
            axes.plot(watched["times"], column, color=_LAYERS[layer], ls=style, lw=1.5, label=label)
    axes.set(
        xlabel="time t", ylabel="singular values", xlim=(0.8 * (net["relu"]["first_half"][0] or 0), 1.1 * end)
    )
    _titled(axes, "ReLU: singular values, first (—), second (- -), third (···)")
    _legend_above(axes, ncols=len(watched["values"]))


def _draw_stages(axes: Any, found: dict[str, Any]) -> None:
    part = found["stages"]
    for kind, style in (("linear", (0, (4, 2))), ("relu", "-")):
        curves = part[kind]["curves"]
        for mode, learned in enumerate(curves["learned"]):
            label = f"s = {part['modes'][mode]:g}" if kind == "relu" else None
            axes.plot(curves["times"], learned, color=_MODES[mode], ls=style, lw=1.6, label=label)
    known = [
        t for kind in ("linear", "relu") for times in part[kind]["times"] for t in times if t is not None
    ]
    axes.set(
        xlabel="time t", ylabel="part learned", ylim=(-0.05, 1.35), xlim=(0, 1.25 * max(known, default=1.0))
    )
    _titled(axes, "Three outputs: ReLU (—), linear (- -)")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right", ncols=3)


def _draw_broken(axes: Any, found: dict[str, Any]) -> None:
    for kind, colour, said in (
        ("target", _TARGET, "even part in the target"),
        ("inputs", _INPUTS, "inputs lopsided"),
    ):
        rows = broken_rows(found, kind)
        amounts = [amount for amount, _ in rows]
        axes.plot(
            amounts,
            [mean([n["bent"] for n in nets]) for _, nets in rows],
            "o-",
            ms=4,
            lw=1.6,
            color=colour,
            label=said,
        )
        rank = [1 - mean([n["rank1"][0] for n in nets]) for _, nets in rows]
        axes.plot(amounts, rank, "o", ms=4, lw=1.2, ls=(0, (1, 1.5)), color=colour, mfc="white")
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set(yscale="log", xlabel="amount of asymmetry", ylabel="part")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 12)  # room for the legend
    _titled(axes, "ReLU: not linear (—), W_1 not of rank one (···)")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def _draw_digits(axes: Any, found: dict[str, Any]) -> None:
    part = found["digits"][-1]
    curve = part["linear"][0]["curve"]  # the same with negatives and without
    axes.plot(curve["times"], curve["loss"], color=_LINEAR, lw=1.6, label="linear")
    for amount, style in ((0.0, "-"), (1.0, (0, (4, 2)))):
        row = digit_rows(part, "relu", amount)[0]
        said = ("ReLU", "part of it not linear") if amount == 0 else (None, None)
        axes.plot(row["curve"]["times"], row["curve"]["loss"], color=_RELU, ls=style, lw=1.6, label=said[0])
        axes.plot(
            row["curve"]["bent_times"], row["curve"]["bent"], color=_TARGET, ls=style, lw=1.2, label=said[1]
        )
    axes.set(xlabel="time t", ylabel="loss, of that of 0", ylim=(-0.03, 1.06))
    _titled(axes, f"{part['pair'][0]} against {part['pair'][1]}: with negatives (—), without (- -)")
    _legend_above(axes, ncols=3)


def _legend_above(axes: Any, ncols: int) -> None:
    """A legend in one row at the top, and room for it above all curves."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.14 * (high - low))
    axes.legend(frameon=False, fontsize=8.5, loc="upper right", ncols=ncols, columnspacing=1.4)


def _titled(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
