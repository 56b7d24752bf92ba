"""Figures 4 and 5 of the thesis: f and g of common activations, by ours, by quadrature and by drawing pairs.

f and g (equations 50, 51) are computed by :mod:`zbkernels.infinite.dual` over the cosines from -1 to 1, and held to
two computations that share nothing with it (:mod:`gaussian_integrals`). The figures give no numbers and the text names
one of their curves, "Tanh (3x) / 3"; the choice of the others is ours: every activation of section 9.2, ReLU's kin, and
sigmoid and tanh beside their stand-ins of equations 64 and 65.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zbkernels.experiments import dual_activations_figure, dual_activations_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.dual_activations_claims import NEAR
from zbkernels.experiments.gaussian_integrals import double_integral, mean, monte_carlo
from zbkernels.experiments.units import work_unit
from zbkernels.infinite import Activation, dual
from zbkernels.infinite.activations import named
from zbkernels.infinite.dual_expectation import slope_of
from zbkernels.infinite.dual_series import Scalar


@dataclass(frozen=True)
class Curve:
    """An activation as ours computes it, and the plain function that the other computations are given."""

    activation: Activation
    function: Scalar


def _curves() -> dict[str, Curve]:
    tanh3 = named("tanh").with_(gain=3.0, scale=1 / 3)
    plain: dict[str, Scalar] = {
        "relu": torch.relu,
        "leaky_relu:0.1": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
        "abs": torch.abs,
        "gelu": torch.nn.functional.gelu,
        "identity": lambda x: 1.0 * x,
        "sin+cos": lambda x: torch.sin(x) + torch.cos(x),
        "erf:2": lambda x: torch.erf(2 * x),
        "sigmoid": torch.sigmoid,
        "sigmoid_erf": lambda x: (torch.erf(x / 2.4) + 1) / 2,
        "tanh": torch.tanh,
        "tanh_erf": lambda x: torch.erf(x / 1.2),
        "tanh(3x)/3": lambda x: torch.tanh(3 * x) / 3,
    }
    return {
        name: Curve(tanh3 if name == "tanh(3x)/3" else named(name), function)
        for name, function in plain.items()
    }


CURVES: Mapping[str, Curve] = _curves()
DRAWN_AT = (-1.0, -0.9, -0.5, -0.1, 0.0, 0.3, 0.6, 0.95, 1.0)  # cosines of the Monte Carlo estimates
# Witnesses of what does not hold as printed: (scale a, gain, offset b) of a·s(gain·x) + b, and the cosine.
OFFSETS_57 = (("relu", -1.0, 1.0, 1.0, 0.0), ("relu", -1.0, 1.0, 0.5, 0.5), ("relu", 1.0, 1.0, 1.0, 0.5))
OFFSETS_62 = (("erf", 1.0, 1.0, 1.0, 0.0), ("erf", 1.5, 2.0, 0.4, 0.5), ("erf", 1.0, 2.0, 0.0, 0.5))
_STEP = 1e-3  # of the difference quotients


@dataclass(frozen=True)
class Plan:
    """``cosines`` of the grid on [-1, 1] (odd), and ``draws`` of pairs that each seed makes."""

    cosines: int
    draws: int


PLANS = {"smoke": Plan(9, 20_000), "quick": Plan(41, 200_000), "paper": Plan(101, 2_000_000)}


def run(context: RunContext) -> dict[str, Any]:
    """Compute every curve and every witness, and return the metrics."""
    plan, seeds, progress = PLANS[context.settings.preset], context.settings.seeds, context.progress
    known = {"cosines": plan.cosines, "drawn_at": list(DRAWN_AT), "draws": plan.draws, "seeds": list(seeds)}
    progress.expect(len(context.settings.variants) + 1)
    curves = []
    for name in context.settings.variants:
        progress.describe(name)
        folder = name.replace("/", " over ").replace(" ", "-")
        settings = {"activation": name, **known}
        curves.append(work_unit(context, folder, settings, partial(_curve, name, plan, seeds)))
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
    settings = {"57": [list(w) for w in OFFSETS_57], "62": [list(w) for w in OFFSETS_62], **known}
    witnesses = work_unit(context, "witnesses", settings, partial(_witnesses, plan, seeds))
    progress.batch_done()
    return {
        "experiment": "dual-activations",
        "preset": context.settings.preset,
        "draws": plan.draws,
        "seeds": list(seeds),
        "cosines": _grid(plan).tolist(),
        "drawn_at": list(DRAWN_AT),
        "curves": curves,
        **witnesses,
    }


def _grid(plan: Plan) -> Tensor:
    """The cosines, ±1 and 0 among them."""
    half = plan.cosines // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) / half


def _curve(name: str, plan: Plan, seeds: tuple[int, ...]) -> dict[str, Any]:
    curve, c = CURVES[name], _grid(plan)
    s, slope = curve.function, slope_of(curve.function)
    at = torch.tensor(DRAWN_AT, dtype=torch.float64)
    ours = {"g": dual.g(curve.activation, at).tolist(), "f": dual.f(curve.activation, at).tolist()}
    drawn = []
    for seed in seeds:
        for_g, for_slope = monte_carlo((s, slope), DRAWN_AT, plan.draws, seed)
        for_f = [(k * mean, abs(k) * error) for k, (mean, error) in zip(DRAWN_AT, for_slope, strict=True)]
        drawn += [
            {"seed": seed, "of": of, "cosine": k, "ours": mine, "mean": mean, "error": error}
            for of, pairs in (("g", for_g), ("f", for_f))
            for k, mine, (mean, error) in zip(DRAWN_AT, ours[of], pairs, strict=True)
        ]
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    near = CURVES[NEAR[name]].function if name in NEAR else None
    return {
        "name": name,
        "f": dual.f(curve.activation, c).tolist(),
        "g": dual.g(curve.activation, c).tolist(),
        "by_integral": {
            "f": [k * double_integral(slope, slope, k) for k in c.tolist()],
            "g": [double_integral(s, s, k) for k in c.tolist()],
        },
        "drawn": drawn,
        "slope_apart": max(
            abs(k * _quotient(s, k) - k * double_integral(slope, slope, k)) for k in DRAWN_AT if abs(k) < 1
        ),
        "function_apart": None if near is None else float((s(x) - near(x)).abs().max()),
    }


def _quotient(s: Scalar, c: float) -> float:
    """g'(c), |c| <= 0.95, by a difference quotient of fourth order."""
    far, near = (double_integral(s, s, c + k * _STEP) - double_integral(s, s, c - k * _STEP) for k in (2, 1))
    return (8 * near - far) / (12 * _STEP)


def _witnesses(plan: Plan, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Equations 57 and 62 as printed, beside ours, the integral and drawn pairs."""
    found: dict[str, list[dict[str, Any]]] = {"equation_57": [], "equation_62": []}
    for name, scale, gain, offset, c in OFFSETS_57:
        before = named(name).with_(scale=scale, gain=gain)
        moved = before.with_(offset=offset)
        g_0 = double_integral(before, before, 0.0)
        printed = double_integral(before, before, c) + offset**2 + 2 * offset * math.sqrt(g_0)
        (pairs,) = monte_carlo((moved,), (c,), plan.draws, seeds[0])
        found["equation_57"].append(
            {
                "name": name,
                "scale": scale,
                "gain": gain,
                "offset": offset,
                "cosine": c,
                "mean": mean(before),
                "printed": printed,
                "ours": dual.g(moved, torch.tensor([c], dtype=torch.float64)).item(),
                "by_integral": double_integral(moved, moved, c),
                "drawn": list(pairs[0]),
            }
        )
    for name, scale, gain, offset, c in OFFSETS_62:
        s = named(name).with_(scale=scale, gain=gain, offset=offset)
        slope = slope_of(s)
        (pairs,) = monte_carlo((slope,), (c,), plan.draws, seeds[0])
        found["equation_62"].append(
            {
                "name": name,
                "scale": scale,
                "gain": gain,
                "offset": offset,
                "cosine": c,
                "printed": 2 * scale**2 * c / math.pi * ((1 + 1 / (2 * gain**2)) ** 2 - c * c) ** -0.5
                + offset**2,
                "ours": dual.f(s, torch.tensor([c], dtype=torch.float64)).item(),
                "by_integral": c * double_integral(slope, slope, c),
                "drawn": [c * pairs[0][0], abs(c) * pairs[0][1]],
            }
        )
    return found


EXPERIMENT = Experiment(
    name="dual-activations",
    title="Figures 4 and 5: f and g of common activations, by three computations",
    source="Linearized Difference Networks as Approximate Kernel Methods, Sections 9.1 and 9.2, Figures 4 and 5",
    presets={
        "smoke": Preset("seconds: 9 cosines, 20,000 pairs", "none", 0, 1, (0,)),
        "quick": Preset("half a minute: 41 cosines, 200,000 pairs", "none", 0, 1, (0,)),
        "paper": Preset(
            "minutes: 101 cosines, 2,000,000 pairs for each of three seeds", "none", 0, 1, (0, 1, 2)
        ),
    },
    variants=tuple(CURVES),
    run=run,
    table=dual_activations_report.table,
    figure=dual_activations_figure.figure,
)
