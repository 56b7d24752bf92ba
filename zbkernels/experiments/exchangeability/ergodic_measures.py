"""What the experiment ``ergodic`` measures: averages over the units of one network beside averages over an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zbkernels.exchangeability.optimizers import optimizer
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.experiments.exchangeability.ensembles import trained

# Inputs that are fixed for a layer, at one angle or as the data have them.
IMAGES, ZERO_SUM, POSITIVE = "images", "zero sum", "positive"
ANGLE = 1.0  # radians between the two vectors of a pair, where they are drawn

Found = dict[str, Any]


def fixed_pairs(size: int, count: int, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Unit vectors x and y at ANGLE, float64 [count, size]: coordinates that sum to 0, or x of positive ones alone."""
    draw = torch.randn if kind == ZERO_SUM else torch.rand
    x, p = (draw(count, size, generator=generator, dtype=torch.float64) for _ in range(2))
    if kind == ZERO_SUM:
        x, p = x - x.mean(1, keepdim=True), p - p.mean(1, keepdim=True)
    x = x / x.norm(dim=1, keepdim=True)
    p = p - (p * x).sum(1, keepdim=True) * x
    p = p / p.norm(dim=1, keepdim=True)
    angle = torch.tensor(ANGLE, dtype=torch.float64)
    return x, angle.cos() * x + angle.sin() * p


def image_pairs(images: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` images beside the next ``count``, as unit vectors in float64."""
    chosen = images[: 2 * count].double()
    chosen = chosen / chosen.norm(dim=1, keepdim=True)
    return chosen[:count], chosen[count:]


def averages(weight: Tensor, x: Tensor, y: Tensor) -> Found:
    """Products of activations of an ensemble's layer: what one network's average over units is worth.

    With P_j = relu(W_j·x) relu(W_j·y), equal in law for all j by exchangeability, the network's K = mean_j P_j has the
    ensemble's expectation E P_1, and Var K = Var P_1 / n + (1 - 1/n) Cov(P_1, P_2). So with Var P_1 bounded, K tends to
    E P_1 in mean square, and Hypothesis 7 holds, if and only if Cov(P_1, P_2) tends to 0 over the widths n.

    Args:
        weight: [R, n, m].
        x, y: [pairs, m].

    Returns:
        Averages over the pairs, relative to (E P_1)² or its root: ``spread`` of K over the networks, ``unit`` the
        variance of P_1, ``covariance`` of two units (unbiased, so it may be negative), ``effect`` = n Var K / Var P_1
        (1 where units are uncorrelated), ``cosine`` the spread of the normalised kernel itself (networks that are
        silent at an input left out), ``single`` the mean square of the gap between the ensemble's average of the first
        unit and that of all others, in its standard errors, and ``spread_of_spread``, the standard error of ``spread``.
        ``kernel``: K of each network at the first pair.

    Raises:
        ValueError: fewer than two networks or two units, or a pair at which every network is silent.
    """
    count, n, _ = weight.shape
    if count < 2 or n < 2:
        raise ValueError(f"averages: expected at least two networks of two units, got {list(weight.shape)}")
    w = weight.double()
    fx, fy = ((w @ v.mT).clamp_min(0) for v in (x.to(w), y.to(w)))  # [R, n, pairs]
    products = fx * fy
    k = products.mean(1)
    mean = k.mean(0)
    if not bool((mean > 0).all()):
        raise ValueError(
            "averages: expected finite weights and pairs at which some unit is on for both inputs"
        )
    variance = k.var(0)
    two = (products.sum(1).square() - products.square().sum(1)) / (n * (n - 1))
    squared_mean = mean.square() - variance / count  # unbiased
    covariance = two.mean(0) - squared_mean
    unit = products.square().mean((0, 1)) - squared_mean
    cosine = k / (fx.square().mean(1) * fy.square().mean(1)).sqrt()
    first = products[:, 0]
    gap = first.mean(0) - products[:, 1:].mean((0, 1))
    error = (first.var(0) / count * (1 + 1 / (n - 1))).sqrt()
    relative = (k - mean) / mean
    by_network = relative.square().mean(1)  # pairs of one network depend on each other, networks do not
    spread = float((by_network.sum() / (count - 1)).sqrt())
    return {
        "spread": spread,
        "spread_of_spread": float(by_network.std() / count**0.5 / (2 * spread)),
        "unit": float((unit / mean.square()).mean()),
        "covariance": float((covariance / mean.square()).mean()),
        "effect": float((n * variance / unit).mean()),
        "cosine": float(_variance_of_numbers(cosine).mean().sqrt()),
        "single": float((gap / error).square().mean()),
        "kernel": [float(f"{value:.6g}") for value in (k[:, 0] / mean[0]).tolist()],
    }


def _variance_of_numbers(values: Tensor) -> Tensor:
    """Over the first dimension, NaN left out."""
    there = ~values.isnan()
    numbers = there.sum(0)
    gaps = (values - values.nanmean(0)).nan_to_num(0.0)
    return gaps.square().sum(0) / (numbers - 1).clamp_min(1)


def measure(
    name: str,
    rate: float,
    sizes: Sequence[int],
    x: Tensor,
    *,
    seeds: Sequence[int],
    stops: Sequence[int],
    batch: int,
    pairs: int,
    scales: Tensor | None = None,
) -> list[Found]:
    """Averages in the first layer at images, and in the second, if it is as wide, at fixed vectors; at each stop.

    Args:
        sizes: of the input and of each layer.
        scales: [R], what the initial weights of each network are multiplied by; None: 1.
    """
    network = StackedMLP.he_normal(sizes, seeds)
    if scales is not None:
        for w in network.weights:
            w.mul_(scales[:, None, None])
    generator = torch.Generator().manual_seed(0)
    kinds = (ZERO_SUM, POSITIVE) if sizes[2] == sizes[1] else ()
    inner = {kind: fixed_pairs(sizes[1], pairs, kind, generator) for kind in kinds}
    first = image_pairs(x, pairs)
    rows = []
    for stop, losses in trained(network, optimizer(name, lr=rate), x, stops, batch=batch, seed=0):
        rows.append(
            {
                "step": stop,
                "loss": float(losses.mean()),
                IMAGES: averages(network.weights[0], *first),
                **{kind: averages(network.weights[1], *both) for kind, both in inner.items()},
            }
        )
    return rows
