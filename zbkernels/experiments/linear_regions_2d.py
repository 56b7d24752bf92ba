"""A 3-layer network on points of the plane and its zero-bias twin: their linear regions, and their logits along rays.

Figure 6 of "Scalar Invariant Networks with Zero Bias" (Figure 3 of its workshop version), Section 5.2. The paper gives
neither sizes nor points nor training. Both kinds are trained on three tasks: the points of Dir 1, whose class changes
on the way out, those of Dir 2, all of one class, and both together with points around them, which is what is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from zbkernels.data import Dataset
from zbkernels.experiments import linear_regions_2d_figure, linear_regions_2d_report, plane_networks
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.direction_points import (
    BOTH,
    REPEATS,
    TASKS,
    around,
    count_fitted,
    marked,
    task,
    unit_vector,
)
from zbkernels.experiments.piecewise import hidden_layers
from zbkernels.experiments.plane_networks import HALF_SIDE
from zbkernels.experiments.random_networks import try_at_random
from zbkernels.experiments.ray_logits import LINE, homogeneity, logit_layer, logit_pieces
from zbkernels.experiments.region_shapes import grid_check, whole_regions
from zbkernels.experiments.units import BIASES, VARIANTS, WITH_BIAS, Unit, expect, train_unit
from zbkernels.models import Architecture, Linear, build
from zbkernels.train import Epoch, TrainConfig

LEARNING_RATE = 0.01  # with Adam, along a cosine


@dataclass(frozen=True)
class Plan:
    """What a preset tries.

    Attributes:
        widths: units of each of the two hidden layers; the network of the first is drawn.
        grid: points each way of the grid that the polygons are compared with.
        random: networks of each kind with random weights.
    """

    widths: tuple[int, ...]
    grid: int
    random: int


PLANS = {
    "smoke": Plan((8,), grid=40, random=50),
    "quick": Plan((10,), grid=200, random=1_000),
    "paper": Plan((10, 32), grid=400, random=10_000),
}


def run(context: RunContext) -> dict[str, Any]:
    """Train every network on every task, take its regions and logits, and return the metrics."""
    preset, plan = context.preset, PLANS[context.settings.preset]
    variants, seeds = context.settings.variants, context.settings.seeds
    tasks = {name: task(name) for name in TASKS}
    units = [
        (data, _unit(context, data, name, plan, width, variant, seed))
        for width in plan.widths
        for name, data in tasks.items()
        for variant in variants
        for seed in seeds
    ]
    for data, unit in units:
        expect(context, data, unit.config)
    return {
        "experiment": "linear-regions-2d",
        "preset": context.settings.preset,
        "training": {
            "optimizer": "Adam",
            "lr": LEARNING_RATE,
            "epochs": preset.epochs,
            "batch_size": preset.batch_size,
            "initialisation": f"He normal weights, biases {BIASES}",
            "points": {name: len(data.train) // REPEATS for name, data in tasks.items()},
            "repeats": REPEATS,
        },
        "around": {"points": around()[0].tolist(), "labels": around()[1].tolist()},
        "half_side": HALF_SIDE,
        "grid": plan.grid,
        "networks": [train_unit(context, data.to(context.device), unit) for data, unit in units],
        "random": {
            "tried": plan.random,
            **{v: try_at_random(plan.random, seeds[0], bias=v == WITH_BIAS) for v in variants},
        },
    }


def _unit(
    context: RunContext, data: Dataset, name: str, plan: Plan, width: int, variant: str, seed: int
) -> Unit:
    architecture = Architecture(f"plane-{width}", (Linear(width), Linear(width)), image=(1, 1, 2))
    bias = variant == WITH_BIAS
    fused = not bias and context.settings.form == "fused"
    draw = name == BOTH and width == plan.widths[0] and seed == context.settings.seeds[0]

    def new_model() -> nn.Sequential:
        return build(architecture, data.image_shape, len(data.classes), bias=bias, fused=fused, seed=seed)

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        assert isinstance(model, nn.Sequential)
        network = plane_networks.describe(model, data.test.images, data.test.labels)
        result: dict[str, Any] = {
            **facts,
            "loss": history[-1].train_loss,
            "along": {direction: _along(model, network, direction) for direction in TASKS[name]},
        }
        if name == BOTH:
            result["regions"] = _regions(model, network, plan.grid)
        if draw:
            result["drawn"] = network
        return result

    facts = {"variant": variant, "task": name, "width": width, "seed": seed, "network": str(architecture)}
    return Unit(
        name=f"{variant}-{architecture.name}-{name.replace(' ', '-')}-seed{seed}",
        label=f"{architecture.name} {variant.replace('-', ' ')}, {name}, seed {seed}",
        settings={**facts, "fused": fused, "biases": BIASES if bias else None, "grid": plan.grid},
        config=TrainConfig(
            context.preset.epochs, context.preset.batch_size, LEARNING_RATE, "adam", seed, schedule="cosine"
        ),
        new_model=new_model,
        measure=measure,
    )


def _along(model: nn.Sequential, network: dict[str, Any], direction: str) -> dict[str, Any]:
    """Points fitted, and the pieces of the logit from the origin to infinity.

    ``differ``: the largest difference between the pieces and the network evaluated at points of the ray, in float64,
    relative to the largest logit there. ``constant``: the largest constant part of a piece on the whole line.
    """
    layers, last, ray = hidden_layers(model), logit_layer(model), unit_vector(direction)
    pieces, line = logit_pieces(layers, last, ray), logit_pieces(layers, last, ray, LINE)
    at = marked(direction)[0].numpy()
    t = np.linspace(0, HALF_SIDE, 1001)[1:]
    outputs = plane_networks.logits_at(network, t[:, None] * ray)
    logits = outputs[:, 1] - outputs[:, 0]
    return {
        "points": len(at),
        "fitted": count_fitted(direction, pieces.at(at)),
        "pieces": len(pieces),
        "bends": pieces.bends(),
        "breakpoints": pieces.start[1:].tolist(),
        "pieces_of_line": len(line),
        "constant": float(np.abs(line.intercept).max()),
        "differ": float(np.abs(pieces.at(t) - logits).max() / np.abs(logits).max()),
        "homogeneity": None if any(layer.bias.any() for layer in layers) else homogeneity(model, ray),
    }


def _regions(model: nn.Sequential, network: dict[str, Any], side: int) -> dict[str, Any]:
    """Counts of the whole plane, then of the window that is drawn."""
    layers = hidden_layers(model)
    whole, window = whole_regions(layers, HALF_SIDE), plane_networks.regions_of(network)
    shape = plane_networks.shape_of_regions(network)
    return {
        "all": len(whole.polygons),
        "bounded": int(whole.bounded.sum()),
        "corners_within": whole.half_side,
        "window": len(window),
        "reach_origin": shape["reach_origin"],
        "grid": grid_check(layers, window, HALF_SIDE, side),
    }


EXPERIMENT = Experiment(
    name="linear-regions-2d",
    title="Linear regions of a network of two inputs and its zero-bias twin; who fits Dir 1 and Dir 2",
    source="Scalar Invariant Networks with Zero Bias, Section 5.2, Figure 6 (workshop version: Section 4, Figure 3)",
    presets={
        "smoke": Preset("seconds: two hidden layers of 8, one seed, few epochs", "points", 3, 32, (0,)),
        "quick": Preset("half a minute: two hidden layers of 10, one seed", "points", 8, 32, (0,)),
        "paper": Preset(
            "minutes: two hidden layers of 10 and of 32, three seeds", "points", 8, 32, (0, 1, 2)
        ),
    },
    variants=VARIANTS,
    run=run,
    table=linear_regions_2d_report.table,
    figure=linear_regions_2d_figure.figure,
    any_form=True,
)
