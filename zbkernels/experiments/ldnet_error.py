"""How far networks of one hidden layer are from what infinitely many infinitely wide ones predict (IEIN limit).

Figures 1, 2 and 3 of "Linearized Difference Networks as Approximate Kernel Methods", Section 8: plain networks, their
linearised difference networks, and difference networks with targets scaled down 1000 times, all of the same initial
weights, on zeros and ones of MNIST, over the scale of the targets. The text gives no axes: widths, scales and seeds
are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbkernels import data as image_sets
from zbkernels.data import DataError
from zbkernels.experiments import ldnet_error_figure, ldnet_error_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.shallow_networks import (
    REPORT_EVERY,
    Task,
    draw,
    infinite,
    linearized,
    make_task,
    train,
)
from zbkernels.experiments.units import work_unit

NORMAL, LINEARIZED, DOWNSCALED = "normal", "linearized", "downscaled"
VARIANTS = (NORMAL, LINEARIZED, DOWNSCALED)
FIGURES = {  # the kinds that each figure shows
    "erf:2": (NORMAL, LINEARIZED),
    "relu": VARIANTS,
}
LEARNING_RATE = 0.01
EPSILON = 1e-3  # the targets of Figure 3 are scaled down by
_ROWS = 16_384  # hidden units of the networks that are trained at a time, as long as there are several of these


@dataclass(frozen=True)
class Plan:
    """What a preset trains.

    Attributes:
        per_class: images of each class, for training and for testing.
        widths: m.
        exponents: of 10, the scales of the targets.
        seeds_of: only so many seeds of the widths named.
    """

    per_class: int
    widths: tuple[int, ...]
    exponents: tuple[int, ...]
    steps: int = 10_000
    seeds_of: tuple[tuple[int, int], ...] = ()

    def seeds(self, width: int, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return seeds[: dict(self.seeds_of).get(width)]


ALL_WIDTHS, ALL_EXPONENTS = (100, 300, 1_000, 3_000, 10_000, 30_000), tuple(range(-4, 5))
PLANS = {
    "smoke": Plan(10, (30, 100), (-3, 0, 3), steps=400),
    "quick": Plan(50, (100, 300), (-4, -2, 0, 2, 4)),
    "reduced": Plan(50, ALL_WIDTHS[:4], ALL_EXPONENTS[::2], seeds_of=((3_000, 1),)),
    "paper": Plan(50, ALL_WIDTHS, ALL_EXPONENTS),
}


def zeros_and_ones(images: Tensor, labels: Tensor, per_class: int) -> Task:
    """The first ``per_class`` zeros and ones train, the next ``per_class`` of each test; targets 0 and 1.

    Raises:
        DataError: there are fewer.
    """
    of = [(labels == digit).nonzero()[: 2 * per_class, 0] for digit in (0, 1)]
    if min(len(found) for found in of) < 2 * per_class:
        raise DataError(f"ldnet-error: expected {2 * per_class} images of a 0 and of a 1, got fewer")
    pixels = images.flatten(1)
    train = torch.cat([pixels[found[:per_class]] for found in of])
    test = torch.cat([pixels[found[per_class:]] for found in of])
    return make_task(train, test, torch.arange(2).repeat_interleave(per_class))


def run(context: RunContext) -> dict[str, Any]:
    """Train what the figures show, and return the metrics."""
    settings, plan = context.settings, PLANS[context.settings.preset]
    data = image_sets.load(context.preset.data, context.data_root)
    task = zeros_and_ones(data.train.images, data.train.labels, plan.per_class)
    checksum = f"{data.train.checksum():08x}"
    scales = [10.0**exponent for exponent in plan.exponents]
    wanted = [
        (activation, kind, width, seed, part)
        for width in plan.widths
        for activation, kinds in FIGURES.items()
        for kind in kinds
        if kind in settings.variants
        for seed in plan.seeds(width, settings.seeds)
        for part in (_parts(scales, width) if kind != LINEARIZED else [scales])
    ]
    for _, kind, *_ in wanted:
        context.progress.expect(-(-plan.steps // REPORT_EVERY) if kind != LINEARIZED else 1)
    units = []
    for activation, kind, width, seed, part in wanted:
        about = {"activation": activation, "kind": kind, "width": width, "seed": seed, "scales": part}
        known = {**about, "steps": plan.steps, "lr": LEARNING_RATE, "per_class": plan.per_class}
        known |= {"data": {"title": data.title, "crc32": checksum}, "device": context.device.type}
        named = f"{activation.replace(':', '')} {kind}, width {width}, seed {seed}"
        scale_names = f"-1e{plan.exponents[scales.index(part[0])]}" if len(part) < len(scales) else ""
        context.progress.describe(named)
        done = _Done(context, -(-plan.steps // REPORT_EVERY) if kind != LINEARIZED else 1)
        result = work_unit(
            context,
            f"{activation.replace(':', '')}-{kind}-{width}-seed{seed}{scale_names}",
            known,
            lambda about=about, done=done: _measure(context, task, plan.steps, done, **about),  # type: ignore[misc]
        )
        done.all()
        context.progress.epoch_done(f"{named}{scale_names}: done")
        units.append({**about, **result})
    return {
        "experiment": "ldnet-error",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "per_class": plan.per_class,
        "pixels": data.train.images[0].numel(),
        "steps": plan.steps,
        "lr": LEARNING_RATE,
        "epsilon": EPSILON,
        "scales": scales,
        "widths": list(plan.widths),
        "infinite": {activation: _limit(task, activation, plan.steps) for activation in FIGURES},
        "units": units,
    }


class _Done:
    """Counts a unit's progress, whether it is worked on or found finished."""

    def __init__(self, context: RunContext, batches: int) -> None:
        self._progress, self._left = context.progress, batches

    def step(self) -> None:
        if self._left:
            self._left -= 1
            self._progress.batch_done()

    def all(self) -> None:
        while self._left:
            self.step()


def _parts(scales: list[float], width: int) -> list[list[float]]:
    """The scales whose networks are trained as one: as many as there is room for, or each alone."""
    return [scales] if width * len(scales) <= _ROWS else [[scale] for scale in scales]


def _measure(
    context: RunContext,
    task: Task,
    steps: int,
    done: _Done,
    *,
    activation: str,
    kind: str,
    width: int,
    seed: int,
    scales: list[float],
) -> dict[str, Any]:
    """The errors of one unit, a number for each scale."""
    weights = draw(width, task, seed, context.device)
    limit = infinite(task, activation).predict(task.y, None, LEARNING_RATE)
    scale = torch.tensor(scales, dtype=torch.float64)
    y = scale[:, None] * task.y
    size = y.norm(dim=1)

    def error(predictions: Tensor) -> list[float | None]:
        found = (predictions - scale[:, None] * limit).norm(dim=1) / size
        return [value if value < float("inf") else None for value in found.tolist()]

    if kind == LINEARIZED:
        learner = linearized(weights, task, activation)
        closed = learner.predict(task.y, steps, LEARNING_RATE)
        stepped = learner.descend(y.mT, steps, LEARNING_RATE, torch.float32).mT
        done.step()
        return {"error": error(scale[:, None] * closed), "stepped": error(stepped)}
    down = EPSILON if kind == DOWNSCALED else 1.0
    trained = train(
        weights,
        task,
        activation,
        down * y,
        steps,
        LEARNING_RATE,
        difference=kind == DOWNSCALED,
        on_steps=lambda _: done.step(),
    )
    result: dict[str, Any] = {
        "error": error(trained.test / down),
        "exact": error(trained.exact / down),
        "fit": [
            value if value < float("inf") else None
            for value in ((trained.train / down - y).norm(dim=1) / size).tolist()
        ],
        "largest": float(trained.test.nan_to_num().abs().max()),
    }
    if kind == NORMAL:
        # What equation 16 says the initial output leaves in the predictions, with the limit's kernel.
        left = trained.start[0] - infinite(task, activation).predict(trained.start[1], steps, LEARNING_RATE)
        result["initial"] = (left.norm() / size).tolist()
    return result


def _limit(task: Task, activation: str, steps: int) -> dict[str, float]:
    """Of the infinite network: the size of its predictions, how far training has come, and its spectrum."""
    learner = infinite(task, activation)
    end = learner.predict(task.y, None, LEARNING_RATE)
    values = torch.linalg.eigvalsh(learner.on_train)
    return {
        "size": float(end.norm() / task.y.norm()),
        "unfinished": float((learner.predict(task.y, steps, LEARNING_RATE) - end).norm() / task.y.norm()),
        "least_eigenvalue": float(values[0]),
        "largest_eigenvalue": float(values[-1]),
    }


EXPERIMENT = Experiment(
    name="ldnet-error",
    title="Figures 1, 2, 3: how far plain, linearised and downscaled networks are from the infinite ensemble",
    source="Linearized Difference Networks as Approximate Kernel Methods, Section 8, Figures 1, 2 and 3",
    presets={
        "smoke": Preset("seconds: scikit-learn's digits, widths to 100, 400 steps", "digits", 0, 1, (0,)),
        "quick": Preset("a minute or two: MNIST, widths 100 and 300, five scales, one seed", "mnist", 0, 1, (0,)),
        "reduced": Preset(
            "half an hour of a core: widths to 3,000, five scales, three seeds (one of 3,000)", "mnist", 0, 1, (0, 1, 2)
        ),
        "paper": Preset(
            "hours of a core: widths to 30,000, nine scales, three seeds", "mnist", 0, 1, (0, 1, 2)
        ),
    },
    variants=VARIANTS,
    run=run,
    table=ldnet_error_report.table,
    figure=ldnet_error_figure.figure,
)
