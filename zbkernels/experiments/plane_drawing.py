"""Draws Figure 2: the regions of a network of two inputs, a set of points, its hull, and the hull scaled."""

from __future__ import annotations

from typing import Any

import numpy as np

from zbkernels.experiments.piecewise import Array, patterns_at
from zbkernels.experiments.plane_networks import HALF_SIDE, classes_at, layers_of, regions_of

CLASS_COLOURS = ("#5aa9b8", "#f0b860", "#d98ba6")
INK = "#2b2b2b"
SCALES = (0.4, 1.6)  # of the copies of the hull
_PIXELS = 480
_FEWEST = 3  # points of a set


def draw_plane(axes: Any, network: dict[str, Any], title: str) -> None:
    """Regions tinted by class, the test points, and points of one pattern and class with their hull, "
    "also scaled."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Polygon

    points, labels = np.array(network["points"]), np.array(network["labels"])
    edge = (-HALF_SIDE, HALF_SIDE)
    axes.imshow(_tints(network), extent=(*edge, *edge), origin="lower", interpolation="nearest", zorder=0)
    polygons = regions_of(network)
    outlines = [np.vstack([o, o[:1]]) for o in map(polygons.outline, range(len(polygons)))]
    axes.add_collection(LineCollection(outlines, colors="white", linewidths=0.9, zorder=1))
    for label, colour in enumerate(CLASS_COLOURS):
        mine = points[labels == label][:45]
        axes.plot(*mine.T, ".", ms=4, color=_darker(colour), alpha=0.75, zorder=2)
    chosen = _most_telling_set(network, points)
    if chosen is not None:
        cone = _cone(chosen)
        axes.add_patch(Polygon(cone, closed=True, facecolor=INK, alpha=0.10, lw=0, zorder=2.5))
        axes.plot(*cone[[1, 0, 2]].T, color=INK, lw=0.9, ls=(0, (4, 3)), zorder=3)
        hull = convex_hull(chosen)
        expected = classes_at(network, hull[:1])[0]
        for scale in SCALES:
            kept = _same(network, hull, scale * hull, expected)
            axes.add_patch(
                Polygon(
                    scale * hull, closed=True, fill=False, ec=INK if kept else "#b3261e", lw=1.6, zorder=4
                )
            )
            if not kept:
                axes.plot(*(scale * hull).T, "x", ms=5, color="#b3261e", mew=1.4, zorder=5)
        axes.add_patch(Polygon(hull, closed=True, facecolor="white", alpha=0.75, ec=INK, lw=1.8, zorder=4))
        axes.plot(*chosen.T, "o", ms=4.5, mfc=INK, mec="white", mew=0.6, zorder=5)
    axes.plot(0, 0, "+", ms=10, color=INK, mew=1.6, zorder=6)
    axes.set(xlim=edge, ylim=edge, aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=11.5, loc="left")
    for spine in axes.spines.values():
        spine.set_visible(False)


def convex_hull(points: Array) -> Array:
    """The corners of the hull of points [N, 2] in counterclockwise order (Andrew's monotone chain)."""
    ordered = sorted(map(tuple, points))
    halves = []
    for way in (ordered, ordered[::-1]):
        chain: list[tuple[float, ...]] = []
        for point in way:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        halves.append(chain[:-1])
    return np.array(halves[0] + halves[1])


def _turn(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _most_telling_set(network: dict[str, Any], points: Array) -> Array | None:
    """Points of one pattern and one class, as many as there are in the window's middle; of two sets the one
    that scaling takes further."""
    inside = points[(np.abs(points) < HALF_SIDE / max(SCALES)).all(1)]
    keys = np.concatenate(
        [patterns_at(layers_of(network), inside), classes_at(network, inside)[:, None]], axis=1
    )
    best: tuple[tuple[int, int], Array] | None = None
    for key in np.unique(keys, axis=0):
        mine = inside[(keys == key).all(1)][:8]
        if len(mine) < _FEWEST:
            continue
        changed = sum(int((classes_at(network, scale * mine) != key[-1]).sum()) for scale in SCALES)
        if best is None or (changed, len(mine)) > best[0]:
            best = ((changed, len(mine)), mine)
    return None if best is None else best[1]


def _same(network: dict[str, Any], before: Array, after: Array, expected: int) -> bool:
    """Whether all points ``after`` have the class, and the pattern of the first point ``before``."""
    layers = layers_of(network)
    kept = (patterns_at(layers, after) == patterns_at(layers, before[:1])).all()
    return bool(kept and (classes_at(network, after) == expected).all())


def _cone(points: Array) -> Array:
    """The origin and, far out, the outermost of the points' directions: [3, 2]."""
    middle = np.arctan2(*points.mean(0)[::-1])
    angles = np.arctan2(points[:, 1], points[:, 0])
    apart = (angles - middle + np.pi) % (2 * np.pi) - np.pi
    ends = middle + np.array([apart.min(), apart.max()])
    far = 4 * HALF_SIDE * np.stack([np.cos(ends), np.sin(ends)], axis=1)
    return np.vstack([np.zeros(2), far])


def _tints(network: dict[str, Any]) -> Array:
    """An image of the window: the class's colour, lighter or darker by pattern."""
    from matplotlib.colors import to_rgb

    steps = (np.arange(_PIXELS) + 0.5) / _PIXELS * 2 * HALF_SIDE - HALF_SIDE
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    bits = patterns_at(layers_of(network), grid)
    _, which = np.unique(np.packbits(bits, axis=1), axis=0, return_inverse=True)
    lighter = np.random.default_rng(7).uniform(0.25, 0.62, which.max() + 1)[which.ravel()][:, None]
    colours = np.array([to_rgb(colour) for colour in CLASS_COLOURS])[classes_at(network, grid)]
    return (colours * (1 - lighter) + lighter).reshape(_PIXELS, _PIXELS, 3)


def _darker(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(0.6 * part for part in to_rgb(colour))
