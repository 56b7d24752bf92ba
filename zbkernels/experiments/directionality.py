"""How well the direction of an image alone tells its class: nearest neighbours by angle and by distance, and angles.

Figure 1 of "Scalar Invariant Networks with Zero Bias" says that an image is a direction, that its copies of other
contrast lie along it, and that a class can be thought of as a cone. It shows no numbers: these are ours, from images
alone, without a network. Nothing is random but the subsets of training images that give a spread over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.data import DataError, Dataset, Split
from zbkernels.experiments import directionality_figure, directionality_report
from zbkernels.experiments.angles import BIN, Angles
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.direction_pictures import project_two_classes
from zbkernels.experiments.neighbours import BLOCK, RULES, Accuracies, Products, products, recheck
from zbkernels.experiments.units import crc32, work_unit


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        sets: names of image sets, and how many test images of each (None: all, or as many as the preset says). Of
            several sets, those that the data folder lacks are left out.
        subset: training images that each seed draws.
        rechecked: test images whose nearest directions are looked for again at every contrast.
    """

    sets: tuple[tuple[str, int | None], ...]
    subset: int
    rechecked: int


PLANS = {
    "smoke": Plan((("digits", None),), 400, 100),
    "quick": Plan((("mnist", None),), 2_000, 100),
    "paper": Plan((("mnist", None), ("fashion-mnist", None), ("composite-10", 2_500)), 10_000, 200),
}


def run(context: RunContext) -> dict[str, Any]:
    """Measure every image set, and return the metrics."""
    plan = PLANS[context.settings.preset]
    found: list[dict[str, Any]] = []
    absent: list[str] = []
    for name, test_images in plan.sets:
        try:
            data = image_sets.load(name, context.data_root)
        except DataError as error:
            if len(plan.sets) == 1 or (name == plan.sets[-1][0] and not found):
                raise
            context.progress.say(f"{name} is left out: {error}")
            absent.append(name)
            continue
        data = data.subset(context.preset.train_images, context.preset.test_images or test_images)
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
    progress, test = context.progress, data.test.images.flatten(1)

    def work(part: str, settings: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        progress.describe(f"{data.name}, {part}")
        known = {
            "data": {"title": data.title, "crc32": checksum},
            "device": context.device.type,
            "scalars": list(SCALARS),
            **settings,
        }
        result = work_unit(context, f"{data.name}-{part.replace(' ', '-')}", known, measure)
        progress.epoch_done(f"{data.name}, {part}: done")
        return result

    def blocks_of(train: Split) -> Iterator[Products]:
        progress.expect(-(-len(test) // BLOCK))
        for found in products(train.images.flatten(1), test):
            yield found
            progress.batch_done()

    def whole() -> dict[str, Any]:
        right, angles = Accuracies(data.train, data.test, rules, SCALARS), Angles(data.train, data.test)
        for found in blocks_of(data.train):
            right.add(found)
            angles.add(found)
        return {"accuracies": right.result(), "angles": angles.result()}

    def rest() -> dict[str, Any]:
        few = data.test.first(plan.rechecked)
        return {
            "recheck": recheck(data.train, few, SCALARS[1:]),
            "picture": project_two_classes(data.train, data.test, data.classes),
        }

    def subset(seed: int) -> dict[str, Any]:
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
        chosen = order[: plan.subset].to(data.train.labels.device)
        train = Split(data.train.images[chosen], data.train.labels[chosen])
        right = Accuracies(train, data.test, rules, (1.0,))
        for found in blocks_of(train):
            right.add(found)
        return {"seed": seed, "accuracies": right.result()}

    return {
        "name": data.name,
        "title": data.title,
        "note": data.note,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "pixels": data.train.images[0].numel(),
        **work("whole", {"rules": list(rules), "bin": BIN}, whole),
        **work("rest", {"rechecked": plan.rechecked}, rest),
        "subsets": [
            work(
                f"subset seed{seed}",
                {"rules": list(rules), "subset": plan.subset, "seed": seed},
                partial(subset, seed),
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
            "minutes: MNIST, Fashion-MNIST and 2,500 test images of the colour composite, those that are there",
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
