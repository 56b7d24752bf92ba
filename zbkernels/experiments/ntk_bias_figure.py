"""The picture of the ``ntk-bias`` experiment: limits over beta, networks over width, training, and contrast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.ntk_bias_claims import betas_of, by_width, hidden

_WITHOUT, _WITH = "#1f6f8b", ("#e0a458", "#c2571a", "#8c3a3a")
_FAINT = "#8a8a8a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: a row for each depth."""
    from matplotlib.figure import Figure

    depths = metrics["depths"]
    canvas = Figure(figsize=(17, 4.3 * len(depths) + 0.6), layout="constrained")
    grid = canvas.subplots(len(depths), 4, squeeze=False)
    for row, found in zip(grid, depths, strict=True):
        _draw_limits(row[0], found)
        _draw_networks(row[1], found)
        _draw_dynamics(row[2], found)
        _draw_contrast(row[3], found)
    canvas.suptitle(
        f"Tangent kernels of networks with biases (factor β) and without (β = 0) ({metrics['preset']})",
        fontsize=12.5,
    )
    canvas.savefig(path, dpi=110, format="png")


def _colours(found: dict[str, Any]) -> dict[float, str]:
    """Without biases blue; with them the darker the larger beta is."""
    rest = sorted({*betas_of(found), *found["dynamics"]["betas"]} - {0.0})
    return {0.0: _WITHOUT} | {beta: _WITH[-len(rest) :][i] for i, beta in enumerate(rest)}


def _draw_limits(axes: Any, found: dict[str, Any]) -> None:
    betas = [row["beta"] for row in found["distances"]]
    for key, label, colour in (
        ("plain", "‖K_β - K_0‖ / ‖K_0‖", _WITH[1]),
        ("scaled", "from the best multiple of K_0", "#7a5aa6"),
        ("centred", "the same, without constants", "#2f8f7f"),
    ):
        axes.plot(
            betas, [row[key] for row in found["distances"]], "o-", ms=4, lw=1.6, color=colour, label=label
        )
    first = found["distances"][0]["plain"]
    axes.plot(
        betas,
        [first * (b / betas[0]) ** 2 for b in betas],
        color=_FAINT,
        lw=1,
        ls=(0, (1, 1.5)),
        label="∝ β²",
    )
    axes.set(xscale="log", yscale="log", xlabel="β", ylabel="relative distance")
    axes.set_title(f"{hidden(found)}: distance of the limits", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5)
    _tidy(axes)


def _draw_networks(axes: Any, found: dict[str, Any]) -> None:
    colours = _colours(found)
    for beta in betas_of(found):
        colour = colours[beta]
        for key, style in (("to_own", "-"), ("moved", (0, (1, 1.5))), ("to_zero", (0, (5, 2)))):
            if key == "to_zero" and beta == 0:
                continue
            points = by_width(found, beta, key)
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                ls=style,
                lw=1.7,
                label=f"β = {beta:g}" if style == "-" else None,
            )
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel="relative distance")
    axes.set_title(
        "Networks: to own limit (—), to K_0 (- -),\nmoved by training (···)", loc="left", fontsize=10.5
    )
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    widths = sorted({net["width"] for net in found["networks"]})
    axes.set_xticks(widths, [f"{width:,}" for width in widths], fontsize=8.5)
    axes.set_xticks([], minor=True)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 12)  # room for the legend
    _tidy(axes)


def _draw_dynamics(axes: Any, found: dict[str, Any]) -> None:
    colours = _colours(found)
    for beta in found["dynamics"]["betas"]:
        colour = colours[beta]
        for unit, style in (("same", "-"), ("own", (0, (4, 2)))):
            curves = found["dynamics"][unit]
            end = curves["times"][-1]
            times = [time / end for time in curves["times"]]
            label = f"β = {beta:g}" if unit == "same" else None
            axes.plot(times, curves["losses"][f"{beta:g}"], color=colour, ls=style, lw=1.7, label=label)
    axes.set(xscale="log", ylim=(0, 1.03), ylabel="training loss, of its start")
    axes.set_xlabel("time; 1: a tenth of the loss without biases")
    axes.set_title("Training in the limit: one rate (—),\neach at its own (- -)", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    _tidy(axes)


def _draw_contrast(axes: Any, found: dict[str, Any]) -> None:
    for row in found["regressions"]:
        colour = _colours(found)[row["beta"]]
        scalars = [at["scalar"] for at in row["contrast"]]
        axes.plot(
            scalars,
            [at["accuracy"] for at in row["contrast"]],
            "o-",
            ms=4,
            lw=1.7,
            color=colour,
            label=f"β = {row['beta']:g}",
        )
    axes.set(
        xscale="log",
        ylim=(0, 104),
        xlabel="scalar that multiplies the test images",
        ylabel="test accuracy (%)",
    )
    axes.invert_xaxis()
    axes.set_title("Kernel regression with the limits", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5, loc="center right")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
