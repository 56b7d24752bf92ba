"""What is measured of stacked networks during training: kernels over the angle, their drift, row means, bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels.exchangeability.bounds import kernel_gap
from zbkernels.exchangeability.layer_kernels import (
    arc_cosine,
    iterated_arc_cosine,
    over_angles,
    whole_network,
)
from zbkernels.exchangeability.optimizers import State
from zbkernels.exchangeability.pairs import Pairs, procedure1
from zbkernels.exchangeability.row_means import greatest_squared_row_mean
from zbkernels.exchangeability.stacked_mlp import StackedMLP

NON_ZERO, ZERO, CENTRED = "non-zero", "zero", "centred"
KINDS = (NON_ZERO, ZERO, CENTRED)
ANGLES = 19  # from 0 to pi, every 10 degrees
_DIGITS = 5  # kept of a kernel


@dataclass(frozen=True)
class Inputs:
    """What networks are shown: pairs of inputs by kind, and test images [T, n]."""

    pairs: dict[str, Pairs]
    angles: Tensor
    test: Tensor


def inputs(test: Tensor, pairs: int, device: torch.device) -> Inputs:
    """Pairs from the first test images that have what Procedure 1 needs: a coordinate other than the last two.

    Args:
        test: [T, n], float32.
    """
    enough = (test[:, :-2].abs().sum(1) > 0) & (test.std(1) > 0)
    rows = enough.nonzero()[:pairs, 0]
    made = {
        NON_ZERO: procedure1(test, rows, zero_sum=False, generator=torch.Generator().manual_seed(0)),
        ZERO: procedure1(test, rows, zero_sum=True, generator=torch.Generator().manual_seed(0)),
        CENTRED: procedure1(test, rows, form=CENTRED, generator=torch.Generator().manual_seed(0)),
    }
    on_device = {
        kind: Pairs(found.x.to(device), found.p.to(device), found.index, found.projected)
        for kind, found in made.items()
    }
    angles = torch.linspace(0, math.pi, ANGLES, device=device)
    return Inputs(on_device, angles, test[:1_000].to(device))


@torch.no_grad()
def measure(nets: StackedMLP, state: State, shown: Inputs) -> list[dict[str, Any]]:
    """Everything of each run at this moment, JSON-able; None where a number is not finite.

    Returns:
        For each run: ``test_loss``; ``dead``, the share of outputs that are 0 for all test images; ``row_means``,
        (E^n)² of each layer; ``underflow``, weights whose second moment is 0 while the first is not; and by kind of
        inputs, for layers 1 to L and the whole network: ``kernels``, the mean over pairs at each angle, ``spread``,
        its standard deviation, ``drift``, the mean squared distance to the arc-cosine kernel (of the whole network: to
        the L times iterated one), ``undefined``, the share of pairs and angles where an output is 0 so that there is
        no kernel; and ``bounds`` (:func:`_bounds`; without biases).
    """
    output = nets(shown.test)
    losses = (output - shown.test).square().mean((1, 2))
    dead = (output == 0).all(1).float().mean(1)
    means = torch.stack([greatest_squared_row_mean(w) for w in nets.weights], 1)  # [R, L]
    underflow = _underflow(nets, state)
    found: list[dict[str, Any]] = [
        {
            "test_loss": _number(losses[r]),
            "dead": _number(dead[r]),
            "row_means": [_number(value) for value in means[r]],
            "underflow": underflow[r],
        }
        for r in range(nets.runs)
    ]
    expected = [arc_cosine(shown.angles)] * len(nets.weights)
    expected.append(iterated_arc_cosine(shown.angles, len(nets.weights)))
    for kind, pairs in shown.pairs.items():
        kernels = _kernels(nets, pairs, shown.angles)  # [R, P, A] each
        for r, run in enumerate(found):
            for name in ("kernels", "spread", "drift", "undefined"):
                run.setdefault(name, {})[kind] = []
            for kernel, wanted in zip(kernels, expected, strict=True):
                run["kernels"][kind].append(_numbers(kernel[r].mean(0)))
                run["spread"][kind].append(_numbers(kernel[r].std(0)))
                run["drift"][kind].append(_number((kernel[r] - wanted).square().mean()))
                run["undefined"][kind].append(_number((~kernel[r].isfinite()).float().mean()))
            if nets.biases is None:
                run.setdefault("bounds", {})[kind] = [
                    _bounds(w[r], pairs, shown.angles) for w in nets.weights
                ]
    return found


def _kernels(nets: StackedMLP, pairs: Pairs, angles: Tensor) -> list[Tensor]:
    """Normalised kernels [R, P, A] of each layer, at x and p as they are, and of the whole network."""
    biases: Sequence[Tensor | None] = nets.biases or [None] * len(nets.weights)
    layers = [over_angles(w, pairs.x, pairs.p, angles, b) for w, b in zip(nets.weights, biases, strict=True)]
    return [*layers, whole_network(nets.weights, pairs.x, pairs.p, angles, nets.biases)]


def _bounds(weight: Tensor, pairs: Pairs, angles: Tensor) -> dict[str, Any] | None:
    """A layer's distance from equation 9 beside (10) and (11), as the means and greatest over pairs and angles.

    All in units of E[W²]/2, the kernel at angle 0. ``held``: the share of pairs and angles at which the bound is at
    least the gap, None where the estimate of E[W₁ W₂] is negative and there is no bound. ``row_mean_…``: the same for
    the bound that holds in every finite network.
    """
    if not weight.isfinite().all():
        return None
    gap = kernel_gap(weight, pairs.x, pairs.p, angles)
    unit = weight.double().square().mean() / 2
    slack = 1e-12 * unit  # of float64 sums
    exists = bool(gap.bound.isfinite().all())
    return {
        "gap": _number(gap.gap.mean() / unit),
        "bound": _number(gap.bound.mean() / unit),
        "held": _number((gap.gap <= gap.bound + slack).float().mean()) if exists else None,
        "row_mean_gap": _number(gap.row_mean_gap.mean() / unit),
        "row_mean_bound": _number(gap.row_mean_bound.mean() / unit),
        "row_mean_held": _number((gap.row_mean_gap <= gap.row_mean_bound + slack).float().mean()),
    }


def _underflow(nets: StackedMLP, state: State) -> list[int]:
    """Weights of each run that ε alone would move: v is 0, m is not. 0 for rules without both moments."""
    counts = torch.zeros(nets.runs, dtype=torch.int64, device=nets.weights[0].device)
    for m, v in zip(state.first, state.second, strict=bool(state.first)):
        counts += ((v == 0) & (m != 0)).flatten(1).sum(1)
    return counts.tolist()


def _number(value: Tensor) -> float | None:
    """With six significant digits, all that is meant by any of these."""
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def _numbers(values: Tensor) -> list[float | None]:
    return [round(v, _DIGITS) if math.isfinite(v) else None for v in values.tolist()]
