"""How many activation patterns a network has along lines and in planes laid through images (Hanin & Rolnick, 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from zbkernels.experiments.piecewise import Array, HiddenLayer, hidden_layers
from zbkernels.experiments.region_lines import sweep_circle, sweep_lines
from zbkernels.experiments.region_planes import Plane, cut_plane

# Where lines and planes are laid.
LINES = {
    "through the origin": "the whole line through the origin and an image",
    "between images": "the segment from one image to another",
    "through images": "the whole line through the same two images",
    "random": "the whole line through an image in a random direction",
}
PLANES = {
    "through the origin": "the plane through the origin and two images",
    "off the origin": "the plane through three images",
}
WINDOW = 2.0  # half a side of the planes' window, in norms of the largest image that the plane goes through
SHRUNK = 1e-3  # a second window of zero-bias networks: cones are the same in any


def count_regions(
    model: nn.Sequential, images: Tensor, *, lines: int, planes: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Count along ``lines`` lines and in ``planes`` planes of each kind, through images drawn with ``seed``.

    Args:
        images: [N, C, H, W] or [N, inputs].

    Returns:
        ``lines``: kind -> ``mean``, ``least``, ``most`` and number of lines (``counted``). ``planes``: kind -> the list
        of counts, and for zero-bias networks also ``swept`` and ``shrunk``: counts of the same planes through the
        origin by a sweep around it, and in a window :data:`SHRUNK` times as large.
    """
    layers = hidden_layers(model)
    pixels = images.flatten(1).double().cpu().numpy()
    random = np.random.default_rng(seed)
    one, other, third = (pixels[random.permutation(len(pixels))] for _ in range(3))
    usable = np.flatnonzero((one != other).any(1) & (one != third).any(1) & (other != third).any(1))
    one, other, third = one[usable], other[usable], third[usable]

    a, b = one[:lines], other[:lines]
    aimless = random.normal(size=a.shape)
    along = {
        "through the origin": sweep_lines(layers, np.zeros_like(a), a),
        "between images": sweep_lines(layers, a, b - a, (0.0, 1.0)),
        "through images": sweep_lines(layers, a, b - a),
        "random": sweep_lines(layers, a, aimless),
    }
    found: dict[str, dict[str, Any]] = {
        "lines": {kind: _summary(intervals.counts(len(a))) for kind, intervals in along.items()},
        "planes": {kind: [] for kind in PLANES},
    }
    zero_bias = not any(layer.bias.any() for layer in layers)
    if zero_bias:
        found["planes"] |= {"swept": [], "shrunk": []}
    for x, y, z in zip(one[:planes], other[:planes], third[:planes], strict=True):
        through, off = laid("through the origin", x, y, z), laid("off the origin", x, y, z)
        side = half_side(x, y, z)
        found["planes"]["through the origin"].append(len(cut_plane(layers, through, side)))
        found["planes"]["off the origin"].append(len(cut_plane(layers, off, side)))
        if zero_bias:
            found["planes"]["swept"].append(sweep_circle(layers, through.across, through.up))
            found["planes"]["shrunk"].append(len(cut_plane(layers, through, SHRUNK * side)))
    return found


def _summary(counts: np.ndarray) -> dict[str, Any]:
    return {
        "mean": float(counts.mean()),
        "least": int(counts.min()),
        "most": int(counts.max()),
        "counted": len(counts),
    }


def laid(kind: str, x: Array, y: Array, z: Array) -> Plane:
    """The plane of a kind of :data:`PLANES` for three images [inputs]."""
    return Plane.through(np.zeros_like(x), x, y) if kind == "through the origin" else Plane.through(x, y, z)


def half_side(*images: Array) -> float:
    return WINDOW * max(float(np.linalg.norm(image)) for image in images)


def restricted(layers: list[HiddenLayer], plane: Plane) -> list[HiddenLayer]:
    """The network on a plane alone: of two inputs, the plane's coordinates."""
    first = layers[0]
    on_plane = HiddenLayer(
        first.weight @ np.stack([plane.across, plane.up], axis=1), first.weight @ plane.origin + first.bias
    )
    return [on_plane, *layers[1:]]
