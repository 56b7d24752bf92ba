"""The activation patterns that a network has in a window of a plane, exactly: by cutting polygons, unit by unit.

Within a polygon on which all earlier layers have one pattern, a unit's pre-activation is an affine function
of the two coordinates, so the unit cuts the polygon along one straight line or not at all. All polygons are
cut at once. Hanin and Rolnick, "Complexity of Linear Regions in Deep Networks" (2019), count in planes in
this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbkernels.experiments.piecewise import ON_LINE, Array, Bits, HiddenLayer


@dataclass(frozen=True)
class Plane:
    """The points ``origin + a·across + b·up`` of input space (each [inputs]), by their coordinates (a, b)."""

    origin: Array
    across: Array
    up: Array

    @classmethod
    def through(cls, origin: Array, one: Array, other: Array) -> Plane:
        """The plane through three points; ``across`` and ``up`` are orthonormal.

        Raises:
            ValueError: the points lie on one line.
        """
        across, towards = one - origin, other - origin
        across = across / max(np.linalg.norm(across), np.finfo(float).tiny)
        up = towards - (towards @ across) * across
        if np.linalg.norm(up) <= 1e-9 * np.linalg.norm(towards) or not np.any(across):
            raise ValueError("Plane.through: expected three points that are not on one line")
        return cls(origin, across, up / np.linalg.norm(up))

    def points(self, coordinates: Array) -> Array:
        """[N, 2] -> [N, inputs]."""
        return self.origin + coordinates @ np.stack([self.across, self.up])


@dataclass(frozen=True)
class Polygons:
    """Convex polygons of constant pattern that fill the window.

    Attributes:
        corners: [P, V, 2], the first ``sizes[p]`` of each row, in order around the polygon.
        sizes: [P] int64.
        bits: [P, units], the units that are on inside, all layers side by side.
    """

    corners: Array
    sizes: np.ndarray
    bits: Bits

    def __len__(self) -> int:
        return len(self.sizes)

    def outline(self, index: int) -> Array:
        return self.corners[index, : self.sizes[index]]

    def centres(self) -> Array:
        """The mean corner of each, [P, 2]: a point inside."""
        used = np.arange(self.corners.shape[1]) < self.sizes[:, None]
        return (self.corners * used[:, :, None]).sum(1) / self.sizes[:, None]


def cut_plane(layers: list[HiddenLayer], plane: Plane, half_side: float) -> Polygons:
    """The regions of the square |a|, |b| < ``half_side`` of ``plane``.

    Raises:
        ValueError: ``half_side`` is not positive.
    """
    if not 0 < half_side < np.inf:
        raise ValueError(f"cut_plane: expected half_side to be positive and finite, got {half_side}")
    corners = half_side * np.array([[[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]])
    sizes = np.array([4])
    # What the next layer is given, as an affine function of (a, b) on each polygon: [P, inputs, (a, b, 1)].
    inputs = np.stack([plane.across, plane.up, plane.origin], axis=1)[None].astype(np.float64)
    seen: list[Bits] = []
    for layer in layers:
        before = layer.weight @ inputs  # [P, units, 3]
        before[:, :, 2] += layer.bias
        reach = half_side * np.abs(before[:, :, :2]).sum(2) + np.abs(
            before[:, :, 2]
        )  # largest |value| in the window
        parent = np.arange(len(sizes))  # the polygon at the start of this layer that each one is a part of
        on = np.zeros((len(sizes), 0), dtype=bool)
        for unit in range(before.shape[1]):
            values = _at_corners(before[parent, unit], corners)
            values[np.abs(values) <= ON_LINE * reach[parent, unit][:, None]] = 0
            corners, sizes, source, positive = _cut(corners, sizes, values)
            parent = parent[source]
            on = np.concatenate([on[source], positive[:, None]], axis=1)
        seen = [bits[parent] for bits in seen] + [on]
        inputs = before[parent] * on[:, :, None]
    return Polygons(corners, sizes, np.concatenate(seen, axis=1))


def _at_corners(affine: Array, corners: Array) -> Array:
    """[P, 3] at [P, V, 2] -> [P, V]."""
    return (corners @ affine[:, :2, None])[:, :, 0] + affine[:, 2:]


def _cut(corners: Array, sizes: np.ndarray, values: Array) -> tuple[Array, np.ndarray, np.ndarray, Bits]:
    """Cut the polygons that have corners on both sides of 0, by their corners' ``values`` [P, V].

    Returns:
        Corners and sizes of all polygons, the one that each comes from, and on which side it is (True: above 0).
    """
    used = np.arange(corners.shape[1]) < sizes[:, None]
    values = np.where(used, values, 0)
    above, below = values.max(1) > 0, values.min(1) < 0
    both, whole = np.flatnonzero(above & below), np.flatnonzero(~(above & below))
    parts = [_half(corners[both], sizes[both], side * values[both]) for side in (1, -1)]
    width = max(corners.shape[1], *(part.shape[1] for part, _ in parts))
    kept = [_widened(corners[whole], width), *(_widened(part, width) for part, _ in parts)]
    return (
        np.concatenate(kept),
        np.concatenate([sizes[whole], *(size for _, size in parts)]),
        np.concatenate([whole, both, both]),
        np.concatenate([above[whole], np.ones(len(both), bool), np.zeros(len(both), bool)]),
    )


def _half(corners: Array, sizes: np.ndarray, values: Array) -> tuple[Array, np.ndarray]:
    """The part of each polygon where the value is at least 0. Every edge gives its first corner if that is in
    the part, then the point where it crosses 0 if it does."""
    count, most, _ = corners.shape
    if count == 0:
        return corners, sizes
    position = np.arange(most)
    following = np.where(position + 1 < sizes[:, None], position + 1, 0)  # [P, V]
    next_values = np.take_along_axis(values, following, 1)
    next_corners = np.take_along_axis(corners, following[:, :, None], 1)
    used = position < sizes[:, None]
    crosses = used & (values * next_values < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(crosses, values / (values - next_values), 0.0)
    crossing = corners + share[:, :, None] * (next_corners - corners)
    points = np.stack([corners, crossing], axis=2).reshape(count, 2 * most, 2)
    wanted = np.stack([used & (values >= 0), crosses], axis=2).reshape(count, 2 * most)
    order = np.argsort(~wanted, axis=1, kind="stable")  # those wanted first, in their order
    size = wanted.sum(1)
    return np.take_along_axis(points, order[:, : size.max(), None], 1), size


def _widened(corners: Array, width: int) -> Array:
    return np.pad(corners, ((0, 0), (0, width - corners.shape[1]), (0, 0)))
