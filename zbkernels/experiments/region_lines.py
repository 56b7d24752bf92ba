"""The activation patterns that a network has along straight lines, exactly: by its breakpoints, not by samples.

Along x(t) = start + t·direction a pre-activation of the first layer is linear in t and changes its sign once
at most. Between two such breakpoints the layer's output is linear in t as well, so the second layer has at
most one breakpoint a unit in each of these intervals, and so on. A pattern holds on a convex set, which a
line meets in one interval: so the intervals that come out are as many as the patterns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbkernels.experiments.piecewise import ON_LINE, Array, Bits, HiddenLayer


@dataclass(frozen=True)
class Intervals:
    """Open intervals of constant pattern, sorted by line and then by t.

    Attributes:
        line: [P] int64, which of the lines.
        start, end: [P] values of t.
        bits: [P, units], the units that are on inside, all layers side by side.
    """

    line: np.ndarray
    start: Array
    end: Array
    bits: Bits

    def counts(self, lines: int) -> np.ndarray:
        """Patterns along each of ``lines`` lines, [lines] int64."""
        return np.bincount(self.line, minlength=lines)


def sweep_lines(
    layers: list[HiddenLayer],
    starts: Array,
    directions: Array,
    interval: tuple[float, float] = (-np.inf, np.inf),
) -> Intervals:
    """The patterns along ``starts[i] + t * directions[i]`` (both [L, inputs]) for t inside ``interval``.

    Only patterns that hold on an interval of t count: at a breakpoint itself the unit is off, and along a
    line through the origin a zero-bias network has every unit off at the origin, which is a pattern of that
    one point.

    Raises:
        ValueError: the shapes do not fit, or the interval is empty.
    """
    if starts.shape != directions.shape or starts.ndim != 2 or starts.shape[1] != layers[0].weight.shape[1]:
        raise ValueError(
            f"sweep_lines: expected starts and directions of shape [L, {layers[0].weight.shape[1]}], "
            f"got {list(starts.shape)} and {list(directions.shape)}"
        )
    low, high = interval
    if not low < high:
        raise ValueError(f"sweep_lines: expected an interval of t that is not empty, got {interval}")
    line = np.arange(len(starts))
    start, end = np.full(len(line), float(low)), np.full(len(line), float(high))
    at_zero, slope = (
        starts.astype(np.float64),
        directions.astype(np.float64),
    )  # the layer's input: at_zero + t·slope
    seen: list[Bits] = []
    for layer in layers:
        sizes = (
            np.abs(at_zero) @ np.abs(layer.weight.T) + np.abs(layer.bias),
            np.abs(slope) @ np.abs(layer.weight.T),
        )
        at_zero, slope = at_zero @ layer.weight.T + layer.bias, slope @ layer.weight.T  # [P, units]
        at_start, at_end = (_sign(at_zero, slope, t, *sizes) for t in (start, end))
        crosses = at_start * at_end < 0
        with np.errstate(divide="ignore", invalid="ignore"):
            zeros = np.where(crosses, np.clip(-at_zero / slope, start[:, None], end[:, None]), np.inf)
        piece, start, end = _split(crosses, zeros, start, end)
        line, at_zero, slope = line[piece], at_zero[piece], slope[piece]
        before, after, zeros = at_start[piece] > 0, at_end[piece] > 0, zeros[piece]
        on = np.where(
            crosses[piece], np.where(_inside(start, end)[:, None] < zeros, before, after), before | after
        )
        seen = [bits[piece] for bits in seen] + [on]
        at_zero, slope = at_zero * on, slope * on
    return Intervals(line, start, end, np.concatenate(seen, axis=1))


def sweep_circle(layers: list[HiddenLayer], across: Array, up: Array) -> int:
    """How many patterns a zero-bias network has in the plane through the origin that ``across`` and ``up`` span.

    Each region is a cone, so it is enough to go around the origin once: along the four sides of a square.

    Args:
        across, up: [inputs] each, linearly independent.

    Raises:
        ValueError: a layer has a bias.
    """
    if any(layer.bias.any() for layer in layers):
        raise ValueError(
            "sweep_circle: expected a network without biases; the regions of others are no cones"
        )
    sides = np.stack([across, up, -across, -up])  # each side's middle; it runs towards the next one's
    found = sweep_lines(layers, sides, np.roll(sides, -1, axis=0), (-1.0, 1.0))
    first = np.searchsorted(found.line, np.arange(4))
    last = np.roll(first, -1) - 1  # of each side; -1, the last of all, for the fourth
    joined = [(found.bits[last[side]] == found.bits[first[(side + 1) % 4]]).all() for side in range(4)]
    return max(len(found.line) - sum(map(int, joined)), 1)


def _sign(at_zero: Array, slope: Array, t: Array, size_at_zero: Array, size_of_slope: Array) -> Array:
    """-1, 0 or 1 for at_zero + t·slope ([P, units]) at each interval's t ([P], may be infinite).

    The sizes are those of the terms that at_zero and slope are sums of: what is small beside them counts as
    0. A unit that only one unit of the layer before feeds is 0 exactly where that one is, at an end of the
    interval, and rounding must not put its breakpoint inside.
    """
    slope = np.where(np.abs(slope) <= ON_LINE * size_of_slope, 0, slope)
    finite = np.where(np.isinf(t), 0, t)[:, None]
    value = at_zero + finite * slope
    value = np.where(np.abs(value) <= ON_LINE * (size_at_zero + np.abs(finite) * size_of_slope), 0, value)
    far = np.isinf(t)[:, None] & (slope != 0)
    return np.sign(np.where(far, slope * np.sign(t)[:, None], value))


def _split(crosses: Bits, zeros: Array, start: Array, end: Array) -> tuple[np.ndarray, Array, Array]:
    """Cut intervals at ``zeros`` where ``crosses`` ([P, units]): each new one's old interval, and "
    "its two ends."""
    owner, _ = np.nonzero(crosses)
    piece = np.concatenate([np.arange(len(start)), owner])
    begins = np.concatenate([start, zeros[crosses]])
    order = np.lexsort((begins, piece))
    piece, begins = piece[order], begins[order]
    ends = _ends(piece, begins, end)
    size = np.where(np.isinf(begins) | np.isinf(ends), 0, np.maximum(np.abs(begins), np.abs(ends)))
    kept = ends - begins > ON_LINE * size  # two units with one breakpoint leave nothing between
    piece, begins = piece[kept], begins[kept]
    is_first = np.insert(piece[1:] != piece[:-1], 0, True)
    begins = np.where(is_first, start[piece], begins)
    return piece, begins, _ends(piece, begins, end)


def _ends(piece: np.ndarray, begins: Array, end: Array) -> Array:
    """Where each interval ends: where the next one of its piece begins, the last one with the piece."""
    is_last = np.append(piece[1:] != piece[:-1], True)
    return np.where(is_last, end[piece], np.append(begins[1:], np.inf))


def _inside(start: Array, end: Array) -> Array:
    """A value of t inside each interval."""
    with np.errstate(invalid="ignore"):  # of infinite ends, not taken
        beyond_start, before_end, middle = start + 1 + np.abs(start), end - 1 - np.abs(end), (start + end) / 2
    open_start, open_end = np.isinf(start), np.isinf(end)
    return np.select([open_start & open_end, open_end, open_start], [0.0, beyond_start, before_end], middle)
