"""Two classes of real images in a plane through the origin, for the figure: a projection in which rays stay rays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zbkernels.data import Split
from zbkernels.experiments.angles import class_means, quantiles, unit
from zbkernels.experiments.pictures import encode

POINTS = 150  # of each class
_SHOWN = 0.5  # quantile of the angles in the plane: the image whose ray is drawn


def project_two_classes(train: Split, test: Split, classes: tuple[str, ...]) -> dict[str, Any]:
    """Project test images of the two classes whose mean directions are farthest apart onto the plane of these means.

    Returns:
        ``classes``: the two names; ``apart``: the angle between the means (degrees); of each class, in ``sides``:
        ``points`` [[x, y]], the means' bisector pointing up; ``wedge``: the 10, 50 and 90 % quantiles of the points'
        angles to the right of it (degrees); ``shown``: one image (encoded) and ``at``, its point; ``in_plane``: the
        mean share of an image's length that the projection keeps.
    """
    means = class_means(train)
    cosines = means @ means.T
    first, second = divmod(int(cosines.argmin()), len(means))
    up = unit((means[first] + means[second])[None])[0]
    right = unit((means[second] - means[first])[None])[0]  # of two unit vectors: at right angles to the sum
    plane = torch.stack([right, up], dim=1)  # [pixels, 2]
    names = train.labels.unique()
    sides, kept = [], []
    for label in (first, second):
        images = test.images[test.labels == names[label]][:POINTS]
        points = images.flatten(1) @ plane
        kept.append(
            torch.linalg.vector_norm(points, dim=1) / torch.linalg.vector_norm(images.flatten(1), dim=1)
        )
        angles = torch.rad2deg(torch.atan2(points[:, 0], points[:, 1]))
        shown = int((angles - angles.quantile(_SHOWN)).abs().argmin())
        sides.append(
            {
                "points": _rounded(points),
                "wedge": quantiles(angles),
                "shown": encode(images[shown]),
                "at": _rounded(points[shown : shown + 1])[0],
            }
        )
    return {
        "classes": [classes[int(names[label])] for label in (first, second)],
        "apart": float(torch.rad2deg(cosines[first, second].clamp(-1, 1).acos())),
        "sides": sides,
        "in_plane": float(torch.cat(kept).mean()),
        "shape": list(test.images.shape[1:]),
    }


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in point] for point in points.tolist()]
