"""Procedure 1 measured on images: the angles, lengths and sums that it gives, and Hypothesis 3 of its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zbkernels.exchangeability.pairs import Pairs, procedure1, zero_coordinates

ANGLES = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5, 3.0)
# name -> (form, zero_sum)
PROCEDURES = {
    "printed, zero sums": ("printed", True),
    "mended, zero sums": ("mended", True),
    "centred": ("centred", True),
    "printed, non-zero sums": ("printed", False),
    "mended, non-zero sums": ("mended", False),
}
ZOOMS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the images' side


def measure_angles(images: Tensor, seed: int) -> list[dict[str, Any]]:
    """What each form of Procedure 1 gives for every image, at each of :data:`ANGLES`.

    Args:
        images: [P, C, H, W], each with a coordinate of 0 besides the last two.
    """
    found = []
    for name, (form, zero_sum) in PROCEDURES.items():
        generator = torch.Generator().manual_seed(seed)
        every = torch.arange(len(images))
        pairs = procedure1(images.double(), every, zero_sum=zero_sum, form=form, generator=generator)
        rows = [_at(pairs, angle) for angle in ANGLES]
        found.append({"procedure": name, "at": rows})
    return found


def _at(pairs: Pairs, angle: float) -> dict[str, float]:
    x, p = pairs
    y = pairs.at(torch.tensor([angle], dtype=torch.float64))[:, 0]  # [P, m]
    lengths = x.norm(dim=1), p.norm(dim=1), y.norm(dim=1)
    cosine = ((x * y).sum(1) / (lengths[0] * lengths[2])).clamp(-1, 1)
    got = cosine.acos()
    t = torch.tensor(angle, dtype=torch.float64)
    formula = torch.atan2(t.sin() * lengths[1], t.cos() * lengths[0])
    return {
        "angle": angle,
        "mean": float(got.mean()),
        "least": float(got.min()),
        "most": float(got.max()),
        "off": float((got - angle).abs().max()),
        "off_formula": float((got - formula).abs().max()),
        "length": float((lengths[2] / lengths[0]).mean()),
        "length_off": float((lengths[2] / lengths[0] - 1).abs().max()),
        "sum": float((y.sum(1) / lengths[2]).abs().max()),
    }


def count_zeros(images: Tensor) -> dict[str, Any]:
    """How many coordinates Procedure 1 finds to fill p with."""
    zeros = zero_coordinates(images)
    return {
        "images": len(images),
        "coordinates": images[0].numel(),
        "least": int(zeros.min()),
        "median": int(zeros.median()),
        "without": int((zeros == 0).sum()),
        "few": int((zeros < images[0].numel() ** 0.5).sum()),
    }


def domination(x: Tensor) -> Tensor:
    """m^(1/4) max_i |x_i| / |x| of each row, what has to go to 0 in Hypothesis 3; [P, m] -> [P], float64."""
    x = x.double()
    return x.shape[1] ** 0.25 * x.abs().amax(1) / x.norm(dim=1)


def hypothesis3(images: Tensor, seed: int) -> list[dict[str, Any]]:
    """:func:`domination` of images and of what Procedure 1 makes of them, the images zoomed bilinearly.

    A given data set has one m; a limit in m takes the same pictures at growing resolutions.
    """
    from torch.nn.functional import interpolate

    found = []
    for zoom in ZOOMS:
        zoomed = images.double()
        if zoom != 1:
            zoomed = interpolate(zoomed, scale_factor=zoom, mode="bilinear", antialias=zoom < 1)
        flat = zoomed.flatten(1)
        generator = torch.Generator().manual_seed(seed)
        every = torch.arange(len(flat))
        mended = procedure1(flat, every, generator=generator)
        plain = procedure1(flat, every, zero_sum=False, generator=generator)
        centred = procedure1(flat, every, form="centred", generator=generator)
        kinds = {
            "images": flat,
            "p, non-zero sums": plain.p,
            "x, zero sums": mended.x,
            "p, zero sums": mended.p,
            "x, centred": centred.x,
            "p, centred": centred.p,
        }
        found.append(
            {
                "coordinates": flat.shape[1],
                **{
                    name: {"median": float(domination(z).median()), "most": float(domination(z).max())}
                    for name, z in kinds.items()
                },
            }
        )
    return found
