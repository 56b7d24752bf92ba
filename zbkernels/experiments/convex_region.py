"""Theorem 3 of "Scalar Invariant Networks with Zero Bias": what n inputs of one pattern and prediction say of
their hull.

Networks with and without biases, and one that pools, are trained on images; the images are grouped by pattern and
prediction, and combinations of sets out of the groups are tried. Two networks of two inputs show it in a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zbkernels import data as image_sets
from zbkernels.data import Dataset
from zbkernels.experiments import convex_region_figure, convex_region_report, plane_networks
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.combinations import (
    DTYPES,
    KINDS,
    Groups,
    draw_sets,
    draw_weights,
    group,
    read_patterns,
    try_sets,
)
from zbkernels.experiments.pictures import encode
from zbkernels.experiments.pooled_pairs import counterexample, find_broken_pair, pooled_pairs
from zbkernels.experiments.units import BIASES, VARIANTS, WITH_BIAS, WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.models import Architecture, Linear, build
from zbkernels.train import Epoch, TrainConfig

LEARNING_RATE = 1e-3  # with Adam
SIZES = (2, 3, 5, 10, 20)  # vertices of a set
SHOWN_VERTICES, SHOWN_COMBINATIONS = 5, 6


@dataclass(frozen=True)
class Plan:
    """What a preset tries.

    Attributes:
        hidden: sizes of the hidden layers of each fully connected network.
        pairs: hidden pairs of the network that keeps the larger of each two units.
        sets: of each number of vertices, per network.
        points: combinations of each kind, per set.
        searched: pairs of inputs with one pattern of ReLU bits that are tried on the pooling network.
    """

    hidden: tuple[tuple[int, ...], ...]
    pairs: int
    sets: int
    points: int
    searched: int


PLANS = {
    "smoke": Plan(((6,),), 4, sets=4, points=50, searched=60),
    "quick": Plan(((8,), (30,)), 8, sets=20, points=1000, searched=1000),
    "paper": Plan(((8,), (30,), (12, 12)), 8, sets=40, points=1000, searched=4000),
}


def run(context: RunContext) -> dict[str, Any]:
    """Train (or find) every network and try its sets, and return the metrics."""
    preset, plan = context.preset, PLANS[context.settings.preset]
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, preset.test_images)
    sectors = plane_networks.points_in_sectors()
    variants, seeds = context.settings.variants, context.settings.seeds
    units = [
        _fully_connected(context, data, plan, hidden, variant, seed)
        for hidden in plan.hidden
        for variant in variants
        for seed in seeds
    ]
    if WITHOUT_BIAS in variants:
        units += [_pooling(context, data, plan, seed) for seed in seeds]
    drawn = [_drawn(context, sectors, variant) for variant in variants]
    for unit in units:
        expect(context, data, unit.config)
    for unit in drawn:
        expect(context, sectors, unit.config)
    data, sectors = data.to(context.device), sectors.to(context.device)
    return {
        "experiment": "convex-region",
        "preset": context.settings.preset,
        "data": {
            "title": data.title,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "note": data.note,
        },
        "training": {
            "optimizer": "Adam",
            "lr": LEARNING_RATE,
            "epochs": preset.epochs,
            "batch_size": preset.batch_size,
            "initialisation": f"He normal weights, biases {BIASES}",
        },
        "kinds": {kind: list(powers) for kind, powers in KINDS.items()},
        "points": plan.points,
        "counterexample": counterexample(),
        "networks": [train_unit(context, data, unit) for unit in units],
        "drawn": [train_unit(context, sectors, unit) for unit in drawn],
    }


def _fully_connected(
    context: RunContext, data: Dataset, plan: Plan, hidden: tuple[int, ...], variant: str, seed: int
) -> Unit:
    architecture = Architecture("fcn-" + "-".join(map(str, hidden)), tuple(Linear(size) for size in hidden))
    bias = variant == WITH_BIAS
    fused = not bias and context.settings.form == "fused"
    show = not bias and seed == context.settings.seeds[0] and hidden == max(plan.hidden, key=sum)

    def new_model() -> nn.Sequential:
        return build(architecture, data.image_shape, len(data.classes), bias=bias, fused=fused, seed=seed)

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        images = data.train.images.to(context.device)
        tried, groups = _try(model, images, "relu", plan, seed)
        result = {**facts, "accuracy": history[-1].test_accuracy, "tried": [tried]}
        if show:
            result["shown"] = _shown(model, images, data.train.labels.to(context.device), groups, seed)
        return result

    facts = {"network": str(architecture), "pools": False, "variant": variant, "seed": seed}
    return Unit(
        name=f"{variant}-{architecture.name}-seed{seed}",
        label=f"{architecture.name} {variant.replace('-', ' ')}, seed {seed}",
        settings={**facts, **_settings(plan), "fused": fused, "biases": BIASES if bias else None},
        config=_config(context, seed),
        new_model=new_model,
        measure=measure,
    )


def _pooling(context: RunContext, data: Dataset, plan: Plan, seed: int) -> Unit:
    def new_model() -> nn.Sequential:
        return pooled_pairs(data.train.images[0].numel(), plan.pairs, len(data.classes), seed)

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        images = data.train.images.to(context.device)
        by_bits, groups = _try(model, images, "relu", plan, seed)
        by_winners, _ = _try(model, images, "winner", plan, seed)
        random = torch.Generator().manual_seed(seed)
        return {
            **facts,
            "accuracy": history[-1].test_accuracy,
            "tried": [by_bits, by_winners],
            "searched": find_broken_pair(model, images, groups, plan.searched, random),
        }

    name = f"fc({2 * plan.pairs})-pool of pairs-fc(classes)"
    facts = {"network": name, "pools": True, "variant": WITHOUT_BIAS, "seed": seed}
    return Unit(
        name=f"{WITHOUT_BIAS}-pooled-{plan.pairs}-seed{seed}",
        label=f"pool of {plan.pairs} pairs, seed {seed}",
        settings={**facts, **_settings(plan), "searched": plan.searched},
        config=_config(context, seed),
        new_model=new_model,
        measure=measure,
    )


def _drawn(context: RunContext, sectors: Dataset, variant: str) -> Unit:
    bias = variant == WITH_BIAS
    seed = context.settings.seeds[0]

    def new_model() -> nn.Sequential:
        return build(
            plane_networks.ARCHITECTURE, sectors.image_shape, len(sectors.classes), bias=bias, seed=seed
        )

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        network = plane_networks.describe(model, sectors.test.images, sectors.test.labels)
        return {
            "variant": variant,
            "network": str(plane_networks.ARCHITECTURE),
            "seed": seed,
            "accuracy": history[-1].test_accuracy,
            **plane_networks.shape_of_regions(network),
            **network,
        }

    config = TrainConfig(
        plane_networks.EPOCHS, plane_networks.BATCH_SIZE, plane_networks.LEARNING_RATE, "adam", seed
    )
    facts = {"variant": variant, "network": str(plane_networks.ARCHITECTURE), "seed": seed}
    return Unit(
        name=f"{variant}-plane-seed{seed}",
        label=f"plane {variant.replace('-', ' ')}",
        settings=facts,
        config=config,
        new_model=new_model,
        measure=measure,
    )


def _try(
    model: nn.Module, images: Tensor, units: str, plan: Plan, seed: int
) -> tuple[dict[str, Any], Groups]:
    """Group the images by a pattern and try sets of each size out of the groups."""
    groups = group(*read_patterns(model, images, units))
    random = torch.Generator().manual_seed(seed)
    tried = {
        "units": units,
        "groups": len(groups.size),
        "largest": int(groups.size.max()),
        "at_least": {str(size): groups.at_least(size) for size in SIZES},
        # The linear piece is left or kept by the winners, whichever pattern the inputs share.
        "sets": [
            try_sets(model, images, sets, "winner", plan.points, random)
            for size in SIZES
            if len(sets := draw_sets(groups, size, plan.sets, random))
        ],
    }
    return tried, groups


def _shown(
    model: nn.Module, images: Tensor, labels: Tensor, groups: Groups, seed: int
) -> dict[str, Any] | None:
    """A set and some points of its hull, for the figure: if it can be one of a single label; None where no group is
    large enough."""
    random = torch.Generator().manual_seed(seed)
    sets = draw_sets(groups, SHOWN_VERTICES, 50, random)
    if not len(sets):
        return None
    alike = (labels[sets] == labels[sets[:, :1]]).all(1)
    vertices = images[sets[int(alike.int().argmax())]]
    weights = draw_weights("convex", SHOWN_COMBINATIONS, SHOWN_VERTICES, random)
    with torch.inference_mode():
        mixed = (weights.to(vertices) @ vertices.flatten(1)).view(-1, *vertices.shape[1:])
        classes = [model(batch).argmax(1).tolist() for batch in (vertices, mixed)]
    return {
        "vertices": [encode(image) for image in vertices],
        "shape": list(vertices.shape[1:]),
        "weights": [[round(weight, 4) for weight in row] for row in weights.tolist()],
        "classes": classes,
    }


def _config(context: RunContext, seed: int) -> TrainConfig:
    return TrainConfig(context.preset.epochs, context.preset.batch_size, LEARNING_RATE, "adam", seed)


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "sizes": list(SIZES),
        "sets": plan.sets,
        "points": plan.points,
        "kinds": {kind: list(powers) for kind, powers in KINDS.items()},
        "dtypes": list(DTYPES),
    }


EXPERIMENT = Experiment(
    name="convex-region",
    title="Theorem 3: hulls and cones of inputs that share pattern and prediction; Figure 2",
    source="Scalar Invariant Networks with Zero Bias, Section 3, Theorems 2 and 3, Figure 2, Appendix A",
    presets={
        "smoke": Preset("seconds: tiny networks on scikit-learn's digits", "digits", 3, 32, (0,)),
        "quick": Preset("minutes: two widths, one seed, 20 sets of each size", "mnist", 4, 512, (0,)),
        "paper": Preset(
            "ten minutes: three sizes and a pool, three seeds, 40 sets of each size",
            "mnist",
            8,
            512,
            (0, 1, 2),
        ),
    },
    variants=VARIANTS,
    run=run,
    table=convex_region_report.table,
    figure=convex_region_figure.figure,
    any_form=True,
)
