"""Which odd functions a bias-free (leaky) ReLU network of two layers can be: the linear ones alone.

The decomposition of such a network into a linear odd and an even part is checked on random and on trained ones. Then
networks are fitted to odd targets that are not linear, on inputs that hold -x for each x: of two layers without biases,
which cannot do better than the best linear map; of more layers, and with biases, which can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import zbkernels as zb
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.effectively_linear import odd_functions_figure, odd_functions_report
from zbkernels.experiments.effectively_linear.fitted_networks import Fitted, Kind, fit
from zbkernels.experiments.effectively_linear.odd_functions_claims import TWO_LAYER
from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS, best_linear, symmetric_inputs
from zbkernels.experiments.effectively_linear.two_layer import (
    even_part,
    linear_network,
    network,
    odd_map,
    rounding_unit,
)
from zbkernels.experiments.effectively_linear.two_layer_fit import RESTARTS, STEPS, fit_closely
from zbkernels.experiments.units import work_unit

KINDS = {
    "two-layer": Kind("two layers, ReLU", (32,)),
    "two-layer-leaky": Kind("two layers, leaky ReLU of slope 0.3", (32,), alpha=0.3),
    "three-layer": Kind("three layers, ReLU", (24, 24)),
    "four-layer": Kind("four layers, ReLU", (16, 16, 16)),
    "two-layer-biased": Kind("two layers with biases, ReLU", (32,), bias=True),
}
ALPHAS = (0.0, 0.1, 0.5, 0.9, 1.0)  # of the random networks
EXACT_SCALES = (0.25, 4.0)  # powers of 2, by which multiplying rounds nothing
ANGLES = 241  # of the profile that is drawn
_TEST_SEED = 1_000_000  # added to a data seed for fresh points


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        points: inputs, of which each is followed by its negative.
        random_networks: for each seed, slope and dtype of the decomposition.
        iterations: of L-BFGS, at most; two-layer networks without biases, which are to reach their best, then get
            Levenberg and Marquardt's method, too.
    """

    dimensions: tuple[int, ...]
    targets: tuple[str, ...]
    points: int
    random_networks: int
    iterations: int


PLANS = {
    "smoke": Plan((2, 5), ("dead-zone",), 60, 5, 400),
    "quick": Plan((2, 5), tuple(ODD_TARGETS), 150, 20, 600),
    "paper": Plan((2, 5, 20), tuple(ODD_TARGETS), 300, 100, 750),
}


def run(context: RunContext) -> dict[str, Any]:
    """Check the decomposition, fit the networks, and return the metrics."""
    plan, settings, progress = PLANS[context.settings.preset], context.settings, context.progress
    cases = [(d, t) for d in plan.dimensions for t in plan.targets if d >= ODD_TARGETS[t].least_dimension]
    progress.expect(1 + len(cases) * len(settings.seeds))

    def work(name: str, more: dict[str, Any], job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        progress.describe(name)
        result = work_unit(context, name, more, job)
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
        return result

    drawn = {"networks": plan.random_networks, "seeds": list(settings.seeds), "alphas": list(ALPHAS)}
    decomposition = work("decomposition", drawn, partial(_decomposition, plan, settings.seeds))
    fits = []
    for dimension, target in cases:
        for seed in settings.seeds:
            known = {
                "dimension": dimension,
                "target": target,
                "seed": seed,
                "points": plan.points,
                "iterations": plan.iterations,
                "polish": [RESTARTS, STEPS],
                "kinds": list(settings.variants),
            }
            name = f"{target}-{dimension}-seed{seed}"
            job = partial(_fit_all, plan, dimension, target, seed, settings.variants)
            fits.append({"dimension": dimension, "target": target, "seed": seed, **work(name, known, job)})
            if seed != settings.seeds[0]:
                fits[-1]["profile"] = None  # one is drawn
    return {
        "experiment": "odd-functions",
        "preset": settings.preset,
        "seeds": list(settings.seeds),
        "points": plan.points,
        "iterations": plan.iterations,
        "polish": [RESTARTS, STEPS],
        "kinds": list(settings.variants),
        **decomposition,
        "fits": fits,
    }


def _decomposition(plan: Plan, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Random networks, as :func:`zbkernels.linear_relu` computes them, against odd part + even part."""
    rows = []
    for dtype in (torch.float64, torch.float32):
        for alpha in ALPHAS:
            apart, odd = 0.0, 0.0
            for seed in seeds:
                generator = torch.Generator().manual_seed(seed)
                for _ in range(plan.random_networks):
                    inputs, width, outputs = (
                        int(torch.randint(1, most, (), generator=generator)) for most in (40, 200, 5)
                    )
                    w1 = torch.randn(width, inputs, dtype=torch.float64, generator=generator).to(dtype)
                    w2 = torch.randn(outputs, width, dtype=torch.float64, generator=generator).to(dtype)
                    x = torch.randn(50, inputs, dtype=torch.float64, generator=generator).to(dtype)
                    f, mirrored = (zb.linear_relu(zb.linear_relu(at, w1, alpha), w2, 1.0) for at in (x, -x))
                    one, two = decomposition_errors(w1, w2, alpha, x, f, mirrored)
                    apart, odd = max(apart, one), max(odd, two)
            rows.append(
                {"dtype": str(dtype).removeprefix("torch."), "alpha": alpha, "apart": apart, "odd": odd}
            )
    return {"random_networks": plan.random_networks * len(seeds), "decomposition": rows}


def decomposition_errors(
    w1: Tensor, w2: Tensor, alpha: float, x: Tensor, f: Tensor, mirrored: Tensor
) -> tuple[float, float]:
    """How far f(x) is from odd part + even part, and (f(x) - f(-x))/2 from the odd part, at most over inputs [N, D].

    Both in units of what rounding may do: (D + H + 4) eps Σ |w2| |w1| |x|, the bound on the error of two products of
    lengths D and H one after the other.
    """
    unit = (w1.shape[1] + w1.shape[0] + 4) * rounding_unit(w1, w2, x)
    odd = x @ odd_map(w1, w2, alpha).mT
    even = even_part(w1, w2, alpha, x)
    return (
        float(((f - odd - even).abs() / unit).max()),
        float((((f - mirrored) / 2 - odd).abs() / unit).max()),
    )


def _fit_all(plan: Plan, dimension: int, target: str, seed: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """All kinds of network on one target; errors are shares of the mean square of the target."""
    x = symmetric_inputs(plan.points, dimension, seed)
    fresh = symmetric_inputs(4 * plan.points, dimension, _TEST_SEED + seed)
    size = ODD_TARGETS[target].function(x).square().mean().sqrt()
    y, y_fresh = (ODD_TARGETS[target].function(at) / size for at in (x, fresh))
    linear, least = best_linear(x, y)
    half, y_half = x[: plan.points], y[: plan.points]
    pair = network(*linear_network(linear[None], 0.0), 0.0, x)[:, 0]
    found: dict[str, Any] = {
        "linear": least,
        "linear_fresh": _error(fresh @ linear, y_fresh),
        "pair": _error(pair, y),
        "linear_half": best_linear(half, y_half)[1],
        "networks": {},
        "profile": None,
    }
    fitted = {}
    for name in kinds:
        kind, two_layer = KINDS[name], name in TWO_LAYER
        fitted[name] = (fit_closely if two_layer else fit)(kind, x, y, seed, plan.iterations)
        found["networks"][name] = _measure(fitted[name], x, y, fresh, y_fresh, linear)
        if two_layer:
            on_half = fit(kind, half, y_half, seed, plan.iterations)
            found["networks"][name]["half"] = _error(on_half(half), y_half)
    if dimension == 2:
        found["profile"] = _profile(target, float(size), linear, fitted)
    return found


def _error(out: Tensor, y: Tensor) -> float:
    return float((out - y).square().mean())


def _measure(
    net: Fitted, x: Tensor, y: Tensor, fresh: Tensor, y_fresh: Tensor, linear: Tensor
) -> dict[str, Any]:
    f, mirrored = net(x), net(-x)
    odd = (f - mirrored) / 2
    scaled = [
        float((net(k * fresh) - k * net(fresh)).abs().max() / net(fresh).abs().max())
        for k in (*EXACT_SCALES, 0.1, 3)
    ]
    found = {
        "error": _error(f, y),
        "fresh": _error(net(fresh), y_fresh),
        "iterations": net.iterations,
        "even": float(((f + mirrored) / 2).square().mean()),
        "odd_from_linear": _error(odd, x @ linear),
        "odd_is_linear_to": best_linear(x, odd)[1] / max(float(odd.square().mean()), 1e-300),
        "inhomogeneous_exact": max(scaled[: len(EXACT_SCALES)]),
        "inhomogeneous": max(scaled),
    }
    if len(net.weights) == 2 and not net.kind.bias:
        w1, w2 = net.weights
        apart, odd_apart = decomposition_errors(w1, w2, net.kind.alpha, x, f[:, None], mirrored[:, None])
        found |= {"apart": apart, "odd_apart": odd_apart}
    return found


def _profile(target: str, size: float, linear: Tensor, fitted: dict[str, Fitted]) -> dict[str, Any]:
    """Values along the unit circle."""
    angle = torch.linspace(0, 2 * torch.pi, ANGLES, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    return {
        "target": (ODD_TARGETS[target].function(circle) / size).tolist(),
        "linear": (circle @ linear).tolist(),
        **{name: net(circle).tolist() for name, net in fitted.items()},
    }


EXPERIMENT = Experiment(
    name="odd-functions",
    title="Two-layer bias-free (leaky) ReLU networks express no odd function but linear ones; others do",
    source="When Are Bias-Free ReLU Networks Effectively Linear Networks?, abstract (first finding)",
    presets={
        "smoke": Preset("seconds: one target in 2 and 5 dimensions, 120 points", "none", 0, 1, (0,)),
        "quick": Preset("a minute: six targets in 2 and 5 dimensions, 300 points", "none", 0, 1, (0,)),
        "paper": Preset(
            "minutes: six targets in 2, 5 and 20 dimensions, 600 points, three seeds",
            "none",
            0,
            1,
            (0, 1, 2),
        ),
    },
    variants=tuple(KINDS),
    run=run,
    table=odd_functions_report.table,
    figure=odd_functions_figure.figure,
)
