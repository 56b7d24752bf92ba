"""Activation patterns along lines and in planes, with and without biases, by size, depth and training.

Two papers of Hanin and Rolnick (2019) say that a ReLU network has far fewer patterns than it could have: along
a line about as many as it has neurons, in dimension d about neurons^d / d!, whatever its depth, untrained and
trained. They count in networks with biases and note that regions collapse where all biases are 0: here the same
is counted for zero-bias networks.

Untrained networks of several sizes and depths are counted once, one of each depth while it is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zbkernels import data as image_sets
from zbkernels.data import Dataset
from zbkernels.experiments import regions_figure, regions_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.piecewise import HiddenLayer, hidden_layers
from zbkernels.experiments.region_counts import count_regions, half_side, laid, restricted
from zbkernels.experiments.units import BIASES, VARIANTS, WITH_BIAS, WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.models import Architecture, Linear, build
from zbkernels.train import Epoch, TrainConfig

LEARNING_RATE = 1e-3  # with Adam, as in "Complexity of Linear Regions in Deep Networks", Section 3
DRAWN_DEPTH = 2  # whose regions are drawn
DIGITS_KEPT = 6  # of the drawn networks' weights


@dataclass(frozen=True)
class Plan:
    """What a preset counts.

    Attributes:
        neurons: hidden units in all, of the untrained networks.
        depths: hidden layers; the units are divided evenly.
        trained: hidden units of the networks that are trained.
        counted: epochs after which they are counted.
        lines, planes: of each kind, per network.
    """

    neurons: tuple[int, ...]
    depths: tuple[int, ...]
    trained: int
    counted: tuple[int, ...]
    lines: int
    planes: int


PLANS = {
    "smoke": Plan((8, 16), (1, 2), 16, (0, 1, 2), lines=10, planes=1),
    "quick": Plan((16, 32, 64, 128), (1, 2, 4), 64, (0, 1, 2, 5), lines=30, planes=1),
    "paper": Plan((16, 32, 64, 128, 256), (1, 2, 4), 64, (0, 1, 2, 5, 10, 20), lines=100, planes=2),
}


def run(context: RunContext) -> dict[str, Any]:
    """Train and count every network, and return the metrics."""
    preset, plan = context.preset, PLANS[context.settings.preset]
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, preset.test_images)
    variants, seeds = context.settings.variants, context.settings.seeds
    untrained = [
        _unit(context, data, plan, variant, depth, neurons, seed, trained=False)
        for neurons in plan.neurons
        for depth in plan.depths
        for variant in variants
        for seed in seeds
    ]
    trained = [
        _unit(context, data, plan, variant, depth, plan.trained, seed, trained=True)
        for depth in plan.depths
        for variant in variants
        for seed in seeds
    ]
    for unit in untrained + trained:
        expect(context, data, unit.config)
    data = data.to(context.device)
    return {
        "experiment": "regions",
        "preset": context.settings.preset,
        "data": {
            "title": data.title,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "inputs": data.train.images[0].numel(),
            "note": data.note,
        },
        "training": {
            "optimizer": "Adam",
            "lr": LEARNING_RATE,
            "epochs": preset.epochs,
            "batch_size": preset.batch_size,
            "initialisation": f"He normal weights, biases {BIASES}",
        },
        "lines": plan.lines,
        "planes": plan.planes,
        "untrained": [train_unit(context, data, unit) for unit in untrained],
        "trained": [train_unit(context, data, unit) for unit in trained],
    }


def _unit(
    context: RunContext,
    data: Dataset,
    plan: Plan,
    variant: str,
    depth: int,
    neurons: int,
    seed: int,
    *,
    trained: bool,
) -> Unit:
    architecture = Architecture(f"fcn-{depth}x{neurons // depth}", (Linear(neurons // depth),) * depth)
    bias = variant == WITH_BIAS
    fused = variant == WITHOUT_BIAS and context.settings.form == "fused"
    epochs, batch_size = (context.preset.epochs, context.preset.batch_size) if trained else (0, 1)
    config = TrainConfig(epochs, batch_size, LEARNING_RATE, "adam", seed)
    facts = {"variant": variant, "depth": depth, "neurons": neurons // depth * depth, "seed": seed}
    label = f"{depth} × {neurons // depth} {variant.replace('-', ' ')}, seed {seed}"
    images = data.test.images

    def new_model() -> nn.Sequential:
        return build(architecture, data.image_shape, len(data.classes), bias=bias, fused=fused, seed=seed)

    def count(model: nn.Module) -> dict[str, Any]:
        assert isinstance(model, nn.Sequential)
        return count_regions(model, images, lines=plan.lines, planes=plan.planes, seed=seed)

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        if not trained:
            counts = count(model)
            context.progress.epoch_done(f"{label}: untrained, counted")
            return {**facts, "counts": counts}
        result: dict[str, Any] = {**facts, "accuracies": [epoch.test_accuracy for epoch in history]}
        if depth == DRAWN_DEPTH and seed == context.settings.seeds[0]:
            result["drawn"] = _slices(model, images)
        return result

    return Unit(
        name=f"{'trained' if trained else 'untrained'}-{variant}-{architecture.name}-seed{seed}",
        label=label,
        settings={
            **facts,
            "fused": fused,
            "biases": BIASES if bias else None,
            "lines": plan.lines,
            "planes": plan.planes,
            "counted": list(plan.counted) if trained else [],
        },
        config=config,
        new_model=new_model,
        measure=measure,
        watch=(lambda model, _: {"counts": count(model)}) if trained else None,
        watch_after=plan.counted if trained else (),
    )


def _slices(model: nn.Module, images: torch.Tensor) -> dict[str, Any]:
    """The trained network on one plane of each kind, as a network of two inputs, for the figure."""
    assert isinstance(model, nn.Sequential)
    layers = hidden_layers(model)
    x, y, z = images[:3].flatten(1).double().cpu().numpy()
    found: dict[str, Any] = {"half_side": half_side(x, y, z)}
    for kind in ("through the origin", "off the origin"):
        plane = laid(kind, x, y, z)
        found[kind] = {
            "layers": [_plain(layer) for layer in restricted(layers, plane)],
            "images": [
                [round(float((image - plane.origin) @ axis), 3) for axis in (plane.across, plane.up)]
                for image in ((x, y) if kind == "through the origin" else (x, y, z))
            ],
        }
    return found


def _plain(layer: HiddenLayer) -> dict[str, Any]:
    return {
        "weight": [[float(f"{value:.{DIGITS_KEPT}g}") for value in row] for row in layer.weight.tolist()],
        "bias": [float(f"{value:.{DIGITS_KEPT}g}") for value in layer.bias.tolist()],
    }


EXPERIMENT = Experiment(
    name="regions",
    title="Activation patterns along lines and in planes, with and without biases",
    source="Hanin & Rolnick, Complexity of Linear Regions in Deep Networks, and Deep ReLU Networks Have "
    "Surprisingly Few Activation Patterns (both 2019); Scalar Invariant Networks with Zero Bias, Section 5.2",
    presets={
        "smoke": Preset("seconds: small networks on scikit-learn's digits", "digits", 2, 32, (0,)),
        "quick": Preset(
            "a few minutes: up to 128 neurons, one seed, 5 epochs on the first 12,000 images",
            "mnist",
            5,
            256,
            (0,),
            12_000,
            2_000,
        ),
        "paper": Preset(
            "half an hour: up to 256 neurons, three seeds, 20 epochs", "mnist", 20, 512, (0, 1, 2)
        ),
    },
    variants=VARIANTS,
    run=run,
    table=regions_report.table,
    figure=regions_figure.figure,
    any_form=True,
)
