"""Two small networks of two inputs, with and without biases, whose regions can be drawn (Figure 2 of the paper)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zbkernels.data import Dataset, Split
from zbkernels.experiments.piecewise import Array, HiddenLayer, hidden_layers
from zbkernels.experiments.region_planes import Plane, Polygons, cut_plane
from zbkernels.models import Architecture, Linear

ARCHITECTURE = Architecture("plane", (Linear(7), Linear(7)), image=(1, 1, 2))
EPOCHS, BATCH_SIZE, LEARNING_RATE = 30, 60, 0.02
HALF_SIDE = 2.0  # of the window that is drawn
# Directions (in degrees) that belong to each class: what a class is does not hang on the distance from the
# origin.
_SECTORS = ((-15.0, 75.0), (85.0, 200.0), (215.0, 330.0))


def points_in_sectors(count: int = 600, seed: int = 0) -> Dataset:
    """Points of the plane in three classes by their direction, at distances from 0.3 to 1.8: images "
    "[N, 1, 1, 2]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(2 * count) % len(_SECTORS)
    low, high = (torch.tensor([sector[end] for sector in _SECTORS])[labels] for end in (0, 1))
    angles = (low + (high - low) * torch.rand(2 * count, generator=generator)) * (math.pi / 180)
    radius = 0.3 + 1.5 * torch.rand(2 * count, generator=generator)
    points = (radius * torch.stack([angles.cos(), angles.sin()])).T.reshape(-1, 1, 1, 2).contiguous()
    return Dataset(
        name="sectors",
        title="points of the plane in three sectors",
        train=Split(points[:count], labels[:count]),
        test=Split(points[count:], labels[count:]),
        classes=tuple("ABC"),
        official=True,
        note="",
    )


def describe(model: nn.Module, points: Tensor, labels: Tensor) -> dict[str, Any]:
    """The network as numbers, and the points and classes it was tested on, for :func:`regions_of` "
    "and the figure."""
    assert isinstance(model, nn.Sequential)
    classifier = model[-1]
    assert isinstance(classifier, nn.Linear)
    bias = torch.zeros(classifier.out_features) if classifier.bias is None else classifier.bias
    return {
        "hidden": [
            {"weight": layer.weight.tolist(), "bias": layer.bias.tolist()} for layer in hidden_layers(model)
        ],
        "classifier": {"weight": classifier.weight.tolist(), "bias": bias.tolist()},
        "points": [[round(value, 4) for value in point] for point in points.flatten(1).tolist()],
        "labels": labels.tolist(),
    }


def layers_of(network: dict[str, Any]) -> list[HiddenLayer]:
    return [HiddenLayer(np.array(part["weight"]), np.array(part["bias"])) for part in network["hidden"]]


def regions_of(network: dict[str, Any]) -> Polygons:
    """The regions of :func:`describe`'s network in the window."""
    return cut_plane(layers_of(network), whole_plane(), HALF_SIDE)


def whole_plane() -> Plane:
    return Plane(np.zeros(2), np.array([1.0, 0.0]), np.array([0.0, 1.0]))


def logits_at(network: dict[str, Any], points: Array) -> Array:
    """Logits at points [N, 2], [N, classes] float64."""
    for layer in layers_of(network):
        points = (points @ layer.weight.T + layer.bias).clip(min=0)
    last = network["classifier"]
    return points @ np.array(last["weight"]).T + np.array(last["bias"])


def classes_at(network: dict[str, Any], points: Array) -> np.ndarray:
    """Predictions at points [N, 2], [N] int64."""
    return logits_at(network, points).argmax(1)


def shape_of_regions(network: dict[str, Any]) -> dict[str, int]:
    """``regions`` in the window, and how many are ``bounded`` (inside it) or ``reach_origin`` (hold it, or
    have it as a corner). All regions of a zero-bias network reach the origin and none is bounded."""
    polygons = regions_of(network)
    bounded = reach = 0
    for index in range(len(polygons)):
        outline = polygons.outline(index)
        bounded += bool((np.abs(outline) < HALF_SIDE * (1 - 1e-9)).all())
        reach += _touches_origin(outline)
    return {"regions": len(polygons), "bounded": bounded, "reach_origin": reach}


def _touches_origin(outline: Array) -> bool:
    """Whether the convex polygon (corners in counterclockwise order) holds the origin, its border included."""
    following = np.roll(outline, -1, axis=0)
    turn = outline[:, 0] * following[:, 1] - outline[:, 1] * following[:, 0]
    return bool((turn >= -1e-9 * HALF_SIDE**2).all())
