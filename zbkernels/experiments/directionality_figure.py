"""The picture of the ``directionality`` experiment: of each image set two cones, accuracy by contrast, and angles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.angles import BIN
from zbkernels.experiments.directionality_report import LABELS
from zbkernels.experiments.neighbours import CENTRED, DIRECTION, DISTANCE
from zbkernels.experiments.pictures import decode

_COLOURS = {DIRECTION: "#1f6f8b", DISTANCE: "#c2571a", CENTRED: "#7a5aa6"}
_CLASS_COLOURS = ("#2f8f7f", "#c9892b")
_INK, _FAINT = "#2b2b2b", "#8a8a8a"
_CONTRASTS = (1.0, 0.65, 0.3)  # of the copies of an image along its ray


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sets = metrics["sets"]
    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        canvas = Figure(figsize=(max(4.9 * len(sets), 8), 12.6), layout="constrained")
        axes = canvas.subplots(3, len(sets), squeeze=False, height_ratios=(1.3, 1, 1))
        for column, found in enumerate(sets):
            _draw_cones(axes[0][column], found)
            _draw_accuracies(axes[1][column], metrics, found)
            _draw_angles(axes[2][column], found)
        canvas.suptitle(
            "How well the direction of an image alone tells its class\n(above: the plane through the origin and "
            "two class means, cones of the middle 80 % of a class, copies of an image along its ray)",
            fontsize=12.5,
        )
        canvas.savefig(path, dpi=110, format="png")


def _draw_cones(axes: Any, found: dict[str, Any]) -> None:
    """The plane through the origin and two class means: points, the cone of most of them, copies along a ray."""
    from matplotlib.patches import Wedge

    picture = found["picture"]
    reach = 1.12 * max(np.linalg.norm(side["at"]) for side in picture["sides"])
    for side, name, colour in zip(picture["sides"], picture["classes"], _CLASS_COLOURS, strict=True):
        low, middle, high = side["wedge"]  # degrees clockwise from straight up
        axes.add_patch(Wedge((0, 0), 1.12 * reach, 90 - high, 90 - low, color=colour, alpha=0.16, lw=0))
        axes.plot(*np.array(side["points"]).T, ".", ms=4, color=colour, alpha=0.7, mew=0)
        x, y = 1.17 * reach * np.sin(np.radians(middle)), 1.17 * reach * np.cos(np.radians(middle))
        axes.text(x, y, name, color=colour, fontsize=11, fontweight="bold", ha="center", va="bottom")
        _draw_copies(axes, side, picture["shape"], reach, colour)
    axes.plot(0, 0, "+", ms=10, color=_INK, mew=1.6)
    half = 1.02 * reach
    axes.set(xlim=(-half, half), ylim=(-0.06 * reach, 1.36 * reach), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = found["title"] if len(found["title"]) < 50 else found["title"].split(" of ")[0]
    axes.set_title(
        f"{title}\ntwo classes, {picture['apart']:.0f}° apart in the mean", fontsize=11, loc="left"
    )


def _draw_copies(axes: Any, side: dict[str, Any], shape: list[int], reach: float, colour: str) -> None:
    """One image at several contrasts, where it lies along its ray, beside it the pictures."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    pixels = decode(side["shown"], (shape[0], shape[1], shape[2])).numpy().transpose(1, 2, 0)
    pixels = pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels
    ray = np.array(side["at"])
    ray = ray / np.linalg.norm(ray)
    axes.plot(*np.outer([0, 1.12 * reach], ray).T, color=_INK, lw=1.3)
    outwards = np.sign(ray[0]) or 1.0
    for contrast, lift in zip(_CONTRASTS, (26, -2, -30), strict=True):
        point = contrast * np.array(side["at"])
        axes.plot(*point, "o", ms=6.5, mfc=colour, mec="white", mew=1, zorder=5)
        picture = AnnotationBbox(
            OffsetImage(contrast * pixels, zoom=34 / max(shape[1:]), interpolation="nearest"),
            (float(point[0]), float(point[1])),
            xybox=(54 * outwards, lift),
            boxcoords="offset points",
            pad=0.1,
            bboxprops={"edgecolor": colour, "linewidth": 1.2},
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 1},
        )
        axes.add_artist(picture)


def _draw_accuracies(axes: Any, metrics: dict[str, Any], found: dict[str, Any]) -> None:
    scalars = metrics["scalars"]
    at = np.arange(len(scalars))
    for rule, label in LABELS.items():
        if rule not in found["accuracies"]:
            continue
        values = [row["accuracy"] for row in found["accuracies"][rule]]
        values = values * len(scalars) if rule == DIRECTION else values
        style = "o--" if rule == CENTRED else "o-"
        axes.plot(
            at, values, style, color=_COLOURS[rule], ms=4.5, lw=1.8, label=f"{label}: {values[0]:.1f} %"
        )
    axes.set_xticks(at, [f"{scalar:g}" for scalar in scalars], rotation=45)
    axes.set(ylim=(0, 104), xlabel="contrast of the test images", ylabel="accuracy (%)")
    axes.set_title("Nearest neighbour; in the legend: at contrast 1", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.68))
    _tidy(axes)


def _draw_angles(axes: Any, found: dict[str, Any]) -> None:
    """Densities of the angles between test and training images."""
    middles = (np.arange(round(180 / BIN)) + 0.5) * BIN
    for kind, colour, label in (
        ("raw", _COLOURS[DIRECTION], ""),
        ("centred", _COLOURS[CENTRED], ", mean subtracted"),
    ):
        for part, filled in (("same", True), ("different", False)):
            counts = np.array(found["angles"][kind][part], dtype=float)
            density = counts / counts.sum() / BIN
            name = ("same class" if filled else "different") + label
            if filled:
                axes.fill_between(middles, density, color=colour, alpha=0.28, lw=0, label=name)
            else:
                axes.plot(middles, density, color=colour, lw=1.6, label=name)
    axes.axvline(90, color=_FAINT, lw=1, ls=(0, (4, 3)))
    axes.set(xlim=(0, 180), xlabel="angle between two images (degrees)", ylabel="density", yticks=[])
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.25)
    axes.set_xticks(range(0, 181, 30))
    axes.set_title("All pairs of a test and a training image", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
