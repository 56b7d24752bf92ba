"""Figure 2, Procedure 1 and Hypothesis 3: kernels of layers with random weights, and inputs to look at them with.

Which densities of the weights give the arc-cosine kernel, how soon, and which do not; whether Procedure 1 gives the
angles, lengths and sums it is meant to; whether inputs meet Hypothesis 3, and what becomes of the kernel where not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from zbkernels import data as image_sets
from zbkernels.data import DataError, Dataset
from zbkernels.exchangeability.pairs import zero_coordinates
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.exchangeability import errata, random_kernels_figure, random_kernels_report
from zbkernels.experiments.exchangeability.procedure_angles import count_zeros, hypothesis3, measure_angles
from zbkernels.experiments.exchangeability.random_layers import (
    DENSITIES,
    LAYERS,
    angles,
    kernels_by_size,
    kernels_of_data,
)
from zbkernels.experiments.units import crc32, work_unit

SEED = 0  # of what Procedure 1 draws; the experiment's seeds are those of the layers


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        sizes: inputs and units of the layers of Figure 2.
        angles: from 0 to pi.
        sets: data sets, besides the preset's, on which Procedure 1 and Hypothesis 3 are looked at, if they are there.
        turned: images whose angles are measured.
        zoomed: images of each set for Hypothesis 3.
        looked_at: images at which the kernels of random layers are looked at.
        units: of these layers.
    """

    sizes: tuple[int, ...]
    angles: int
    sets: tuple[str, ...]
    turned: int
    zoomed: int
    looked_at: int
    units: int


PLANS = {
    "smoke": Plan((50, 100, 200, 400), 13, (), 40, 10, 5, 200),
    "quick": Plan((100, 300, 1000), 61, ("fashion-mnist",), 300, 30, 10, 1000),
    "paper": Plan(
        (100, 300, 1000, 3000), 61, ("fashion-mnist", "composite", "cifar-10", "digits"), 1000, 60, 20, 1000
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Draw the layers, turn the images, and return the metrics."""
    plan, preset, settings = PLANS[context.settings.preset], context.preset, context.settings
    data = image_sets.load(preset.data, context.data_root)
    others, absent = _others(plan, context)
    progress = context.progress
    progress.expect(2 * len(settings.variants) + 2 + len(others) + 1)

    def work(name: str, known: dict[str, Any], job: partial[Any]) -> Any:
        progress.describe(name)
        result = work_unit(context, name, known, lambda: {"found": job()})["found"]
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
        return result

    at = angles(plan.angles)
    drawn = {"angles": plan.angles, "seeds": list(settings.seeds)}
    turnable = _turnable(data)
    layers = []
    for name in settings.variants:
        by_size = partial(kernels_by_size, name, plan.sizes, at, settings.seeds)
        of_data = partial(kernels_of_data, name, turnable[: plan.looked_at], plan.units, at, settings.seeds)
        known = {
            **drawn,
            "crc32": crc32(data),
            "images": plan.looked_at,
            "units": plan.units,
            "layers": LAYERS,
        }
        layers.append(
            {
                "density": name,
                **work(f"{name}-sizes", {**drawn, "sizes": list(plan.sizes)}, by_size),
                "inputs": work(f"{name}-inputs", known, of_data),
            }
        )
    turned = turnable[: plan.turned]
    known = {"crc32": crc32(data), "images": plan.turned}
    return {
        "experiment": "random-kernels",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note, "images": len(data.train)},
        "seeds": list(settings.seeds),
        "angles": at.tolist(),
        "sizes": list(plan.sizes),
        "units": plan.units,
        "looked_at": plan.looked_at,
        "layers": layers,
        "turned": len(turned),
        "procedures": work("procedure1", known, partial(measure_angles, turned, SEED)),
        "sets": [
            {
                "title": each.title,
                **work(
                    f"{each.name}-inputs",
                    {"crc32": crc32(each), "images": plan.zoomed},
                    partial(_of_set, each, plan.zoomed),
                ),
            }
            for each in (data, *others)
        ],
        "absent": absent,
        "errata": work("errata", {}, partial(errata.measure)),
    }


def _others(plan: Plan, context: RunContext) -> tuple[list[Dataset], list[str]]:
    """The plan's further data sets, and the names of those that are not there."""
    found, absent = [], []
    for name in plan.sets:
        try:
            found.append(image_sets.load(name, context.data_root))
        except DataError:
            absent.append(name)
    return found, absent


def _turnable(data: Dataset) -> Tensor:
    """The images for which Procedure 1 as printed has a p, and that are not black but for their last two pixels."""
    images = data.train.images
    return images[(zero_coordinates(images) > 0) & (images.flatten(1)[:, :-2].amax(1) > 0)]


def _of_set(data: Dataset, count: int) -> dict[str, Any]:
    return {
        "zeros": count_zeros(data.train.images),
        "hypothesis3": hypothesis3(_turnable(data)[:count], SEED),
    }


EXPERIMENT = Experiment(
    name="random-kernels",
    title="Figure 2, Procedure 1 and Hypothesis 3: kernels of random layers, and the inputs they are measured with",
    source="Exchangeability and Kernel Invariance in Trained MLPs, Sections 2.4 and 5.1, Figure 2, Procedure 1",
    presets={
        "smoke": Preset(
            "seconds: layers of up to 400 units, scikit-learn's digits", "digits", 0, 1, (0, 1, 2)
        ),
        "quick": Preset(
            "a minute: Figure 2's 1,000 units, MNIST, five seeds", "mnist", 0, 1, tuple(range(5))
        ),
        "paper": Preset(
            "minutes: up to 3,000 units, MNIST, Fashion-MNIST and the composite, ten seeds",
            "mnist",
            0,
            1,
            tuple(range(10)),
        ),
    },
    variants=tuple(DENSITIES),
    run=run,
    table=random_kernels_report.table,
    figure=random_kernels_figure.figure,
)
