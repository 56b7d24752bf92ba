"""Which linear regions of a network of two inputs are bounded: all of them, exactly, whatever the window.

A region is where each unit's pre-activation, affine there, keeps its sign: an intersection of half-planes. It is
bounded where no direction stays inside all of them, and where that is so does not depend on the window it was cut in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbkernels.experiments.piecewise import Array, Bits, HiddenLayer, patterns_at
from zbkernels.experiments.plane_networks import whole_plane
from zbkernels.experiments.region_planes import Polygons, cut_plane

_NEAR = 1e-9  # relative: a corner this near to a line is on it
_LARGEST = 1e9  # half a side of a window, in that of the first


@dataclass(frozen=True)
class WholePlane:
    """Every region of the plane.

    Attributes:
        polygons: the regions, clipped to a window that holds every corner of every region.
        half_side: of that window.
        bounded: [P] which are bounded; the others reach infinity.
    """

    polygons: Polygons
    half_side: float
    bounded: Bits


def whole_regions(layers: list[HiddenLayer], half_side: float) -> WholePlane:
    """Cut a window of half a side ``half_side``, and larger ones until one holds all corners of the regions it meets,
    and a point of each edge that is a whole line.

    Then no region lies outside of it. For if one did, then also one that has an edge in common with a region A that
    the window meets. A's edge has a point in the window, so the region on its far side there is met by the window as
    well. Where that one ends and another begins along the edge it has a corner, which is inside; so the window meets
    all regions along the edge.

    Raises:
        ValueError: the corners are too far away (lines all but parallel).
    """
    side = half_side
    while side <= _LARGEST * half_side:
        polygons = cut_plane(layers, whole_plane(), side)
        bounds = [half_planes(layers, bits) for bits in polygons.bits]
        touches = [
            bool((np.abs(polygons.outline(index)) >= side * (1 - _NEAR)).any())
            for index in range(len(polygons))
        ]
        cut_off = [bounds[index] for index in np.flatnonzero(touches)]
        if all((np.abs(np.concatenate([corners(b), feet(b)])) < side).all() for b in cut_off):
            return WholePlane(polygons, side, np.array([not is_unbounded(bound) for bound in bounds]))
        side *= 4
    raise ValueError(
        f"whole_regions: expected the regions' corners within {_LARGEST * half_side:g} of the origin"
    )


def half_planes(layers: list[HiddenLayer], bits: Bits) -> Array:
    """The region of a pattern [units] as [units, 3]: the points with a·x + b·y + c ≥ 0 for every row (a, b, c)."""
    inputs = np.eye(2, 3)  # what the next layer is given, as an affine function
    rows = []
    first = 0
    for layer in layers:
        before = layer.weight @ inputs
        before[:, 2] += layer.bias
        on = bits[first : first + len(before), None]
        first += len(before)
        rows.append(np.where(on, before, -before))
        inputs = before * on
    return np.concatenate(rows)


def is_unbounded(bounds: Array) -> bool:
    """Whether a ray stays in the region of ``bounds`` [units, 3], which has inner points: whether a direction d has
    (a, b)·d ≥ 0 for every row. If any has, then one along an edge."""
    normals = _normals(bounds)[:, :2]
    if not len(normals):
        return True
    along = np.stack([-normals[:, 1], normals[:, 0]], axis=1)
    inside = np.concatenate([along, -along]) @ normals.T >= -_NEAR  # [directions, units]
    return bool(inside.all(1).any())


def corners(bounds: Array) -> Array:
    """The corners [C, 2] of the region of ``bounds`` [units, 3], each maybe several times. Lines that are parallel up
    to 1e-9 have none."""
    lines = _normals(bounds)
    one, other = (lines[index] for index in np.triu_indices(len(lines), 1))
    cross = one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]
    crossing = np.abs(cross) > _NEAR
    one, other, cross = one[crossing], other[crossing], cross[crossing]
    x = (one[:, 1] * other[:, 2] - one[:, 2] * other[:, 1]) / cross
    y = (one[:, 2] * other[:, 0] - one[:, 0] * other[:, 2]) / cross
    points = np.stack([x, y, np.ones_like(x)], axis=1)  # [C, 3]
    inside = points @ lines.T >= -_NEAR * (np.abs(points) @ np.abs(lines).T)
    return points[inside.all(1), :2]


def feet(bounds: Array) -> Array:
    """Of each edge's whole line the point nearest to the origin, where that is in the region: [F, 2]."""
    lines = _normals(bounds)
    points = np.append(-lines[:, 2:] * lines[:, :2], np.ones((len(lines), 1)), axis=1)
    inside = points @ lines.T >= -_NEAR * (np.abs(points) @ np.abs(lines).T)
    return points[inside.all(1), :2]


def _normals(bounds: Array) -> Array:
    """The rows that depend on x or y, scaled so that (a, b) has length 1."""
    length = np.linalg.norm(bounds[:, :2], axis=1)
    kept = length > 0
    return bounds[kept] / length[kept, None]


def grid_check(layers: list[HiddenLayer], polygons: Polygons, half_side: float, side: int) -> dict[str, int]:
    """Compare the polygons with the patterns at ``side``² grid points of the window.

    Returns:
        ``points`` of the grid; ``on_border``: within rounding of an edge, where either side would do; ``differ``: with
        another pattern than the polygon they are in, or in none; ``seen``: polygons that hold a grid point;
        ``centres_differ``: polygons whose middle has another pattern; ``patterns``: different ones, at grid points
        and middles together, which must be as many as the polygons.
    """
    steps = (np.arange(side) + 0.5) / side * 2 * half_side - half_side
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    at_grid, at_centres = patterns_at(layers, grid), patterns_at(layers, polygons.centres())
    numbers = np.arange(len(grid)).reshape(side, side)  # [row, column]
    owner = np.full(len(grid), -1)
    border = np.zeros(len(grid), dtype=bool)
    for index in range(len(polygons)):
        outline = polygons.outline(index)
        edge = np.roll(outline, -1, axis=0) - outline  # counterclockwise: the inside is on the left
        first, end = np.searchsorted(steps, outline.min(0)) - 1, np.searchsorted(steps, outline.max(0)) + 1
        (left, below), (right, above) = first.clip(0), end
        around = numbers[below:above, left:right].ravel()  # grid points in a box about the polygon
        towards = grid[around, None] - outline  # [N, V, 2]
        turn = edge[:, 0] * towards[..., 1] - edge[:, 1] * towards[..., 0]
        near = np.abs(turn) <= _NEAR * half_side * np.linalg.norm(edge, axis=1)
        border[around] |= ((turn >= 0) | near).all(1) & near.any(1)
        owner[around[(turn > 0).all(1)]] = index
    sure = ~border
    wrong = (owner[sure] < 0) | (at_grid[sure] != polygons.bits[owner[sure]]).any(1)
    together = np.concatenate([at_grid[sure], at_centres])
    return {
        "points": len(grid),
        "on_border": int(border.sum()),
        "differ": int(wrong.sum()),
        "seen": len(np.unique(owner[sure])),
        "centres_differ": int((at_centres != polygons.bits).any(1).sum()),
        "patterns": len(np.unique(together, axis=0)),
    }
