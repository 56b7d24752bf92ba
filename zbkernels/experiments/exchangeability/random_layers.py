"""Normalised kernels of layers with independent random weights, by their density and by how the inputs are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.exchangeability.layer_kernels import arc_cosine, over_angles
from zbkernels.exchangeability.pairs import procedure1, qr_pairs
from zbkernels.exchangeability.weight_distributions import generalised_normal, student_t

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class Density:
    """Of the weights.

    Attributes:
        title: for tables and figures.
        draw: (shape, generator) -> float64 weights.
        named: the paper names it for Figure 2.
        third_moment, variance: whether E|W|^3 and E[W^2] are finite.
    """

    title: str
    draw: Draw
    named: bool = False
    third_moment: bool = True
    variance: bool = True


def _normal(beta: float) -> Draw:
    return lambda shape, generator: generalised_normal(shape, beta, generator=generator)


def _t(degrees: float) -> Draw:
    return lambda shape, generator: student_t(shape, degrees, generator=generator)


NORMAL, UNIFORM = "beta-2", "beta-inf"
DENSITIES = {
    "beta-0.5": Density("β = 0.5", _normal(0.5)),
    "beta-1": Density("β = 1 (Laplace)", _normal(1)),
    NORMAL: Density("β = 2 (normal)", _normal(2), named=True),
    "beta-4": Density("β = 4", _normal(4)),
    "beta-8": Density("β = 8", _normal(8)),
    UNIFORM: Density("β → ∞ (uniform)", _normal(math.inf), named=True),
    "t-2.5": Density("Student's t, 2.5", _t(2.5), third_moment=False),
    "t-1.5": Density("Student's t, 1.5", _t(1.5), third_moment=False, variance=False),
    "t-1": Density("Cauchy", _t(1), third_moment=False, variance=False),
}


def angles(count: int) -> Tensor:
    """From 0 to pi, both included, float64."""
    return torch.linspace(0, math.pi, count, dtype=torch.float64)


def kernels_by_size(
    density: str, sizes: tuple[int, ...], at: Tensor, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Figure 2 at several sizes: n inputs and n units, x and y by the QR construction, one layer for each seed.

    Returns:
        For each size the root mean square over seeds and angles of the deviation from the arc-cosine kernel, each
        seed's own, and the largest deviation of the mean over seeds; at the largest size that is at most 1,000 the
        curves of the seeds, too.
    """
    want = arc_cosine(at)
    rows, curves = [], torch.empty(0)
    shown = max((size for size in sizes if size <= 1000), default=min(sizes))
    for size in sizes:
        drawn = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(1_000_003 * size + seed)
            pair = qr_pairs(size, generator=generator)
            weight = DENSITIES[density].draw((size, size), generator)
            drawn.append(over_angles(weight, pair.x, pair.p, at)[0])
        found = torch.stack(drawn)  # [S, A]
        if size == shown:
            curves = found
        off = found - want
        rows.append(
            {
                "size": size,
                "rms": float(off.square().mean().sqrt()),
                "rms_by_seed": off.square().mean(1).sqrt().tolist(),
                "mean_off": float(off.mean(0).abs().max()),
            }
        )
    return {"sizes": rows, "shown": shown, "curves": curves.tolist()}


LAYERS = 4  # for each seed, at inputs from images
INPUTS: dict[str, dict[str, Any]] = {  # arguments of procedure1
    "non-zero sums": {"zero_sum": False, "form": "mended"},
    "zero sums, mended": {"zero_sum": True, "form": "mended"},
    "zero sums, centred": {"zero_sum": True, "form": "centred"},
}


def kernels_of_data(
    density: str, images: Tensor, units: int, at: Tensor, seeds: tuple[int, ...]
) -> list[dict[str, Any]]:
    """The kernel of layers of ``units`` at inputs that Procedure 1 makes of ``images``, :data:`LAYERS` for each seed.

    Returns:
        For each of :data:`INPUTS` the mean over layers and images at each angle, the standard error of that over the
        seeds, and its largest deviation from the arc-cosine kernel.
    """
    found = []
    for name, how in INPUTS.items():
        drawn = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            x, p = procedure1(images.double(), torch.arange(len(images)), generator=generator, **how)
            layers = [DENSITIES[density].draw((units, x.shape[1]), generator) for _ in range(LAYERS)]
            drawn.append(torch.stack([over_angles(weight, x, p, at).mean(0) for weight in layers]).mean(0))
        curves = torch.stack(drawn)  # [S, A]
        mean = curves.mean(0)
        error = curves.std(0) / len(seeds) ** 0.5 if len(seeds) > 1 else torch.full_like(mean, math.nan)
        worst = int((mean - arc_cosine(at)).abs().argmax())
        found.append(
            {
                "inputs": name,
                "mean": mean.tolist(),
                "largest_off": float((mean - arc_cosine(at))[worst].abs()),
                "at": float(at[worst]),
                "error_there": None if len(seeds) < 2 else float(error[worst]),
            }
        )
    return found
