"""Whether any of many networks with random weights fits the points of a direction: a search for a counterexample."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from zbkernels.experiments.direction_points import DEGREES, count_fitted, marked, unit_vector
from zbkernels.experiments.piecewise import Array

_DEPTHS, _WIDTHS = (1, 3), (1, 64)


def try_at_random(count: int, seed: int, *, bias: bool) -> dict[str, Any]:
    """Draw ``count`` networks of 1 to 3 hidden layers of 1 to 64 units, normal weights (and biases), in float64.

    Returns:
        direction -> ``fit``: networks that fit all of its points; ``most``: points that the best of them fits.
    """
    random = np.random.default_rng(seed)
    fitted: dict[str, list[int]] = {direction: [] for direction in DEGREES}
    for _ in range(count):
        depth = random.integers(_DEPTHS[0], _DEPTHS[1] + 1)
        widths = [2, *random.integers(_WIDTHS[0], _WIDTHS[1] + 1, depth), 1]
        weights = [random.normal(size=(out, into)) * (2 / into) ** 0.5 for into, out in pairwise(widths)]
        biases = [random.normal(size=out) * bias for out in widths[1:]]
        for direction, found in fitted.items():
            points = marked(direction)[0].numpy()[:, None] * unit_vector(direction)
            found.append(count_fitted(direction, _outputs(weights, biases, points)))
    return {
        direction: {"fit": found.count(len(marked(direction)[0])), "most": max(found)}
        for direction, found in fitted.items()
    }


def _outputs(weights: list[Array], biases: list[Array], points: Array) -> Array:
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        points = (points @ weight.T + bias).clip(min=0)
    return (points @ weights[-1].T + biases[-1])[:, 0]
