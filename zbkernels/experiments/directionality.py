"""How well the direction of an image alone tells its class: nearest neighbours by angle and by distance, and angles.

Figure 1 of "Scalar Invariant Networks with Zero Bias" says that an image is a direction, that its copies of other
contrast lie along it, and that a class can be thought of as a cone. It shows no numbers: these are ours, from images
alone, without a network. Nothing is random but the subsets of training images that give a spread over the seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.data import DataError, Dataset, Split
from zbkernels.experiments import directionality_figure, directionality_report
from zbkernels.experiments.angles import BIN, measure_angles
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.direction_pictures import project_two_classes
from zbkernels.experiments.neighbours import RULES, accuracies, recheck
from zbkernels.experiments.units import crc32, work_unit


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        sets: names of image sets. Of several, those that the data folder lacks are left out.
        subset: training images that each seed draws.
        rechecked: test images whose nearest directions are looked for again at every contrast.
    """

    sets: tuple[str, ...]
    subset: int
    rechecked: int


PLANS = {
    "smoke": Plan(("digits",), 400, 100),
    "quick": Plan(("mnist",), 2_000, 100),
    "paper": Plan(("mnist", "fashion-mnist", "composite-10"), 10_000, 200),
}


def run(context: RunContext) -> dict[str, Any]:
    """Measure every image set, and return the metrics."""
    plan = PLANS[context.settings.preset]
    found: list[dict[str, Any]] = []
    absent: list[str] = []
    for name in plan.sets:
        try:
            data = image_sets.load(name, context.data_root)
        except DataError as error:
            if len(plan.sets) == 1 or (name == plan.sets[-1] and not found):
                raise
            context.progress.say(f"{name} is left out: {error}")
            absent.append(name)
            continue
        data = data.subset(context.preset.train_images, context.preset.test_images)
        found.append(_measure(context, data.to(context.device), plan))
    return {
        "experiment": "directionality",
        "preset": context.settings.preset,
        "scalars": list(SCALARS),
        "bin": BIN,
        "subset": plan.subset,
        "sets": found,
        "absent": absent,
    }


def _measure(context: RunContext, data: Dataset, plan: Plan) -> dict[str, Any]:
    rules, checksum = context.settings.variants, crc32(data)

    def work(part: str, settings: dict[str, Any], measure: Any) -> dict[str, Any]:
        context.progress.describe(f"{data.name}, {part}")
        known = {
            "data": {"title": data.title, "crc32": checksum},
            "device": context.device.type,
            "scalars": list(SCALARS),
            **settings,
        }
        return work_unit(context, f"{data.name}-{part.replace(' ', '-')}", known, measure)

    def neighbours() -> dict[str, Any]:
        return {"accuracies": accuracies(data.train, data.test, rules, SCALARS)}

    def angles() -> dict[str, Any]:
        few = data.test.first(plan.rechecked)
        return {
            **measure_angles(data.train, data.test),
            "recheck": recheck(data.train, few, SCALARS[1:]),
            "picture": project_two_classes(data.train, data.test, data.classes),
        }

    def subset(seed: int) -> dict[str, Any]:
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
        chosen = order[: plan.subset].to(data.train.labels.device)
        train = Split(data.train.images[chosen], data.train.labels[chosen])
        return {"seed": seed, "accuracies": accuracies(train, data.test, rules, (1.0,))}

    return {
        "name": data.name,
        "title": data.title,
        "note": data.note,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "pixels": data.train.images[0].numel(),
        **work("neighbours", {"rules": list(rules)}, neighbours),
        "angles": work("angles", {"rechecked": plan.rechecked, "bin": BIN}, angles),
        "subsets": [
            work(
                f"subset seed{seed}",
                {"rules": list(rules), "subset": plan.subset, "seed": seed},
                lambda seed=seed: subset(seed),
            )
            for seed in context.settings.seeds
        ],
    }


EXPERIMENT = Experiment(
    name="directionality",
    title="Figure 1: how well the direction of an image alone tells its class, under any contrast",
    source="Scalar Invariant Networks with Zero Bias, Section 1 and Figure 1 (both versions)",
    presets={
        "smoke": Preset("seconds: scikit-learn's digits", "digits", 0, 1, (0,)),
        "quick": Preset(
            "half a minute: the first 12,000 and 2,000 images of MNIST", "mnist", 0, 1, (0,), 12_000, 2_000
        ),
        "paper": Preset(
            "minutes: MNIST, Fashion-MNIST and the colour composite, those that are there",
            "mnist",
            0,
            1,
            (0, 1, 2),
        ),
    },
    variants=RULES,
    run=run,
    table=directionality_report.table,
    figure=directionality_figure.figure,
)
