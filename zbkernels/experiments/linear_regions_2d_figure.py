"""The picture of the ``linear-regions-2d`` experiment, after Figure 6: regions with two rays, and logits along them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.direction_points import DEGREES, POSITIVE, marked, unit_vector
from zbkernels.experiments.piecewise import Array, HiddenLayer
from zbkernels.experiments.plane_networks import layers_of, whole_plane
from zbkernels.experiments.ray_logits import Pieces, logit_pieces
from zbkernels.experiments.region_planes import Polygons, cut_plane

COLOURS = {"with-bias": "#c2571a", "without-bias": "#1f6f8b"}
_TITLES = {"without-bias": "Without bias", "with-bias": "With bias"}
_SIZE = (12.3, 11.0)  # inches
_INK, _FAINT = "#2b2b2b", "#8a8a8a"
_TINTS = {False: (0.56, 0.10, 0.30), True: (0.085, 0.12, 0.42)}  # by class: hue, least and most saturation
_MARKS = {False: "o", True: "P"}


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = {unit["variant"]: unit for unit in metrics["networks"] if "drawn" in unit}
    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        canvas = Figure(figsize=_SIZE)
        axes = [
            [
                canvas.add_axes((x / _SIZE[0], y / _SIZE[1], 5.3 / _SIZE[0], height / _SIZE[1]))
                for x in (0.65, 6.8)
            ]
            for y, height in ((4.75, 5.3), (0.55, 3.35))
        ]
        for place, letter, variant in zip(axes[0], "ab", _TITLES, strict=True):
            if variant in drawn:
                _draw_regions(place, metrics, drawn[variant], f"({letter}) {_TITLES[variant]}")
            else:
                place.set_axis_off()
        for place, letter, direction in zip(axes[1], "cd", DEGREES, strict=True):
            _draw_logits(place, drawn, direction, f"({letter}) Logit along {direction}")
        canvas.suptitle(
            "Linear regions of a 3-layer network of two inputs and of its zero-bias twin, and their logits along rays",
            fontsize=12.5,
            y=0.987,
        )
        canvas.savefig(path, dpi=110, format="png")


def _draw_regions(axes: Any, metrics: dict[str, Any], unit: dict[str, Any], title: str) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    side, network = metrics["half_side"], unit["drawn"]
    layers = layers_of(network)
    # With the logit as one more unit, its zero line cuts the regions too: then each piece has one class.
    tinted = cut_plane([*layers, _logit(network)], whole_plane(), side)
    axes.add_collection(
        PolyCollection(_outlines(tinted), facecolors=_tints(tinted), edgecolors="face", lw=0.4)
    )
    regions = cut_plane(layers, whole_plane(), side)
    closed = [np.vstack([outline, outline[:1]]) for outline in _outlines(regions)]
    axes.add_collection(LineCollection(closed, colors="white", linewidths=1.0))
    points, labels = np.array(metrics["around"]["points"]), np.array(metrics["around"]["labels"])
    for positive, mark in _MARKS.items():
        mine = points[(labels == POSITIVE) == positive]
        axes.plot(*mine.T, mark, ms=3.6 if positive else 2.8, color=_INK, mew=0, alpha=0.38)
    for direction in DEGREES:
        ray = unit_vector(direction)
        axes.annotate(
            "",
            1.9 * ray,
            (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": _INK, "lw": 1.8, "shrinkA": 0, "shrinkB": 0},
        )
        at, classes = (part.numpy() for part in marked(direction))
        for positive, mark in _MARKS.items():
            _mark(axes, at[(classes == POSITIVE) == positive, None] * ray, mark)
        axes.annotate(
            direction,
            1.9 * ray,
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=11,
            fontweight="bold",
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8},
        )
    axes.plot(0, 0, "+", ms=11, color=_INK, mew=1.8)
    found = unit["regions"]
    bounded = "none" if not found["bounded"] else f"{found['bounded']:,}"
    met = ", ".join(f"{direction}: {entry['pieces']}" for direction, entry in unit["along"].items())
    axes.set_title(
        f"{title}: {found['all']:,} regions, {bounded} of them bounded\nregions on the way out along {met}",
        fontsize=11.5,
        loc="left",
    )
    axes.set(xlim=(-side, side), ylim=(-side, side), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_logits(axes: Any, drawn: dict[str, Any], direction: str, title: str) -> None:
    end = 2.0
    axes.axhspan(0, 1e6, color="#c9a86a", alpha=0.10, lw=0)
    axes.axhspan(-1e6, 0, color="#5a8fa8", alpha=0.10, lw=0)
    axes.axhline(0, color=_FAINT, lw=1)
    highest = lowest = 0.0
    at, classes = (part.numpy() for part in marked(direction))
    for variant, unit in drawn.items():
        pieces = _pieces(unit["drawn"], direction)
        breaks = pieces.start[1:]
        breaks = breaks[breaks < end]
        t = np.concatenate([[0.0], breaks, [end]])
        logits = pieces.at(t)
        highest, lowest = max(highest, logits.max()), min(lowest, logits.min())
        entry = unit["along"][direction]
        fitted = "fits all" if entry["fitted"] == entry["points"] else f"fits {entry['fitted']} of"
        label = f"{variant.replace('-', ' ')}: {fitted} {entry['points']} points"
        axes.plot(t, logits, color=COLOURS[variant], lw=2, label=label, zorder=3)
        axes.plot(breaks, pieces.at(breaks), "|", color=COLOURS[variant], ms=9, mew=1.3, zorder=3)
        for positive, mark in _MARKS.items():
            mine = at[(classes == POSITIVE) == positive]
            _mark(axes, np.stack([mine, pieces.at(mine)], axis=1), mark, COLOURS[variant])
    room = 0.08 * (highest - lowest)
    axes.set(xlim=(0, end), ylim=(lowest - room, highest + 3.2 * room))
    axes.set(xlabel="distance from the origin", ylabel="logit: below 0 for •, above for +")
    axes.set_title(f"{title} (ticks: breakpoints)", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9.5, loc="upper left", ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


def _logit(network: dict[str, Any]) -> HiddenLayer:
    weight, bias = (np.array(network["classifier"][key]) for key in ("weight", "bias"))
    return HiddenLayer(weight[1:] - weight[:1], bias[1:] - bias[:1])


def _pieces(network: dict[str, Any], direction: str) -> Pieces:
    return logit_pieces(layers_of(network), _logit(network), unit_vector(direction))


def _outlines(polygons: Polygons) -> list[Array]:
    return [polygons.outline(index) for index in range(len(polygons))]


def _tints(polygons: Polygons) -> Array:
    """A colour for each polygon: the hue of its class (its last bit), lighter or darker by its pattern."""
    from matplotlib.colors import hsv_to_rgb

    random = np.random.default_rng(5)
    patterns, which = np.unique(polygons.bits[:, :-1], axis=0, return_inverse=True)
    strength = random.random(len(patterns))[which.ravel()]
    hue, least, most = np.array([_TINTS[bool(positive)] for positive in polygons.bits[:, -1]]).T
    return hsv_to_rgb(np.stack([hue, least + (most - least) * strength, np.full(len(hue), 0.95)], axis=1))


def _mark(axes: Any, points: Array, mark: str, colour: str = _INK) -> None:
    axes.plot(*points.T, mark, ms=8 if mark == "P" else 6.5, mfc=colour, mec="white", mew=0.9, zorder=4)
