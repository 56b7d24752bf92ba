"""Points of the plane in two classes, • and +: along Dir 1, where the class changes, along Dir 2, where it does not.

"Scalar Invariant Networks with Zero Bias" draws such points in Figure 6 (Figure 3 of its workshop version) and gives
neither their places nor their number. These are ours.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from zbkernels.data import Dataset, Split
from zbkernels.experiments.piecewise import Array

NEGATIVE, POSITIVE = 0, 1  # • and +: a network fits a point whose logit is below, or above, 0
DEGREES = {"Dir 1": 40.0, "Dir 2": 160.0}
# Distances from the origin and their class. Dir 1 changes twice: an affine function cannot follow that, so what fits
# is bent.
STRETCHES = {
    "Dir 1": ((0.2, 0.6, NEGATIVE), (0.8, 1.2, POSITIVE), (1.4, 1.8, NEGATIVE)),
    "Dir 2": ((0.2, 0.6, NEGATIVE), (0.8, 1.2, NEGATIVE), (1.4, 1.8, NEGATIVE)),
}
# Directions (degrees) of the points around, and their class.
SECTORS = (
    (75.0, 125.0, POSITIVE),
    (140.0, 185.0, NEGATIVE),
    (200.0, 280.0, POSITIVE),
    (290.0, 365.0, NEGATIVE),
)
TASKS = {
    "Dir 1 alone": ("Dir 1",),
    "Dir 2 alone": ("Dir 2",),
    "both and points around": ("Dir 1", "Dir 2"),
}
BOTH = "both and points around"
_MARKED, _TRAINED = 4, 60  # points of a stretch: that are to be fitted, that are trained on besides
_AROUND = 240
REPEATS = 20  # of each point in an epoch: after each epoch a checkpoint is written, which takes longer than the points


def unit_vector(direction: str) -> Array:
    """[2], of a key of :data:`DEGREES`."""
    angle = math.radians(DEGREES[direction])
    return np.array([math.cos(angle), math.sin(angle)])


def marked(direction: str) -> tuple[Tensor, Tensor]:
    """The points that are to be fitted: distances from the origin [12] float64, and classes [12] int64."""
    parts = [
        (torch.linspace(low, high, _MARKED).double(), label) for low, high, label in STRETCHES[direction]
    ]
    return torch.cat([at for at, _ in parts]), torch.tensor([label for at, label in parts for _ in at])


def task(name: str) -> Dataset:
    """A task of :data:`TASKS`, with images [N, 1, 1, 2]. Its test split is the marked points, which are trained on too;
    the training split has each point :data:`REPEATS` times."""
    points, labels = [], []
    for direction in TASKS[name]:
        between = [
            (torch.linspace(low, high, _TRAINED).double(), torch.full((_TRAINED,), label))
            for low, high, label in STRETCHES[direction]
        ]
        for at, classes in (marked(direction), *between):
            points.append(_placed(direction, at))
            labels.append(classes)
    if name == BOTH:
        elsewhere, classes = around()
        points.append(elsewhere)
        labels.append(classes)
    test = [marked(direction) for direction in TASKS[name]]
    return Dataset(
        name="directions",
        title=f"points of the plane, {name}",
        train=_split(torch.cat(points).repeat(REPEATS, 1), torch.cat(labels).repeat(REPEATS)),
        test=_split(
            torch.cat([_placed(direction, at) for direction, (at, _) in zip(TASKS[name], test, strict=True)]),
            torch.cat([classes for _, classes in test]),
        ),
        classes=("•", "+"),
        official=True,
        note="",
    )


def _placed(direction: str, at: Tensor) -> Tensor:
    """[N] distances -> [N, 2]."""
    return at[:, None] * torch.from_numpy(unit_vector(direction))


def around() -> tuple[Tensor, Tensor]:
    """The points around, [240, 2] float64, at distances from 0.2 to 1.9 in the sectors of their classes [240] int64."""
    generator = torch.Generator().manual_seed(0)
    which = torch.arange(_AROUND) % len(SECTORS)
    low, high, label = torch.tensor(SECTORS).double()[which].unbind(1)
    angle = (low + (high - low) * torch.rand(_AROUND, generator=generator)) * (math.pi / 180)
    at = 0.2 + 1.7 * torch.rand(_AROUND, generator=generator).double()
    return at[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1), label.long()


def _split(points: Tensor, labels: Tensor) -> Split:
    return Split(points.float().view(-1, 1, 1, 2).contiguous(), labels.long())


def count_fitted(direction: str, logits: Array) -> int:
    """How many of the marked points ([12] logits, in their order) have a logit on the right side of 0."""
    _, labels = marked(direction)
    return int((np.sign(logits) == np.where(labels.numpy() == POSITIVE, 1, -1)).sum())
