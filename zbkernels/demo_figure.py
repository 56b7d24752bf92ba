"""The demo's picture: accuracy against contrast, and what each network answers to a black image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"with bias": "#c2571a", "without bias": "#1f6f8b"}
_INK = "#2b2b2b"


def draw(
    sweeps: dict[str, list[dict[str, Any]]], zero: dict[str, list[float]], title: str, path: Path
) -> None:
    """Write the PNG.

    Args:
        sweeps: network -> rows of :func:`zbkernels.experiments.contrast.sweep`.
        zero: network -> probability of each class for the zero image.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        canvas = Figure(figsize=(11, 4.4), layout="constrained")
        contrast, black = canvas.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_contrast(contrast, sweeps)
        _draw_zero_image(black, zero)
        for axes in (contrast, black):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=3)
        canvas.suptitle(f"One network with bias, one without: {title}", fontsize=13)
        canvas.savefig(path, dpi=160)


def _draw_contrast(axes: Any, sweeps: dict[str, list[dict[str, Any]]]) -> None:
    for label, rows in sweeps.items():
        scalars = [row["scalar"] for row in rows]
        accuracies = [row["accuracy"] for row in rows]
        axes.plot(scalars, accuracies, "o-", color=COLOURS[label], lw=2.4, ms=5.5, clip_on=False, zorder=3)
    last_scalar = min(row["scalar"] for row in sweeps["without bias"])
    for label, rows in sweeps.items():
        end = rows[-1]["accuracy"]
        above = label == "without bias"
        axes.annotate(
            f"{label}: {end:.1f} %",
            (last_scalar, end),
            xytext=(0, -14 if above else 12),
            textcoords="offset points",
            ha="right",
            va="top" if above else "bottom",
            color=COLOURS[label],
            fontweight="bold",
        )
    chance = 100 / 10
    axes.axhline(chance, color="#9a9a9a", lw=1, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        "chance", (1, chance), xytext=(0, 3), textcoords="offset points", color="#7a7a7a", fontsize=9
    )
    axes.set(xscale="log", ylim=(0, 100), xlabel="contrast: the scalar that multiplies the test images")
    axes.set_ylabel("test accuracy (%)")
    axes.invert_xaxis()
    axes.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["1", "0.1", "0.01", "0.001", "0.0001"])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25, lw=0.6)
    axes.set_title("Darker images, same prediction", loc="left", fontsize=11.5)


def _draw_zero_image(axes: Any, zero: dict[str, list[float]]) -> None:
    width = 0.4
    for position, (label, probabilities) in enumerate(zero.items()):
        at = [index + (position - 0.5) * width for index in range(len(probabilities))]
        axes.bar(at, probabilities, width * 0.92, color=COLOURS[label], label=label, zorder=3)
    classes = len(next(iter(zero.values())))
    axes.set_xticks(range(classes))
    axes.set(xlabel="class", ylabel="probability")
    axes.set_ylim(0, max(max(values) for values in zero.values()) * 1.18)
    axes.grid(axis="y", alpha=0.25, lw=0.6)
    axes.set_title("What each sees in a black image", loc="left", fontsize=11.5)
    axes.legend(frameon=False, loc="upper left", ncols=2)
