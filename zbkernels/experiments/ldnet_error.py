"""How far networks of one hidden layer are from what infinitely many infinitely wide ones predict (IEIN limit).

Figures 1, 2 and 3 of "Linearized Difference Networks as Approximate Kernel Methods", Section 8: plain networks, their
linearised difference networks, and difference networks with targets scaled down 1000 times, all of the same initial
weights, on zeros and ones of MNIST, over the scale of the targets. The text gives no axes: widths, scales and seeds
are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
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
IN_PIXELS = "downscaled, in pixels"  # DOWNSCALED once more, without the change of basis: for its rounding
FIGURES = {  # the kinds that each figure shows
    "erf:2": (NORMAL, LINEARIZED),
    "relu": VARIANTS,
}
LEARNING_RATE = 0.01
EPSILON = 1e-3  # the targets of Figure 3 are scaled down by
_ROWS = (
    16_384  # hidden units of the networks that are trained at a time, as long as there are several of these
)


@dataclass(frozen=True)
class Plan:
    """What a preset trains.

    Attributes:
        per_class: images of each class, for training and for testing.
        widths: m. The linearised networks need no training, by equation 12.
        trained: widths of the networks that are trained.
        exponents: of 10, the scales of the targets.
        in_pixels: width and number of scales, from the smallest, of what is trained in pixels too.
        seeds_of: only so many seeds of networks that are trained, by width.
    """

    per_class: int
    widths: tuple[int, ...]
    trained: tuple[int, ...]
    exponents: tuple[int, ...]
    in_pixels: tuple[int, int]
    steps: int = 10_000
    seeds_of: tuple[tuple[int, int], ...] = ()

    def units(self, variants: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Unit]:
        """In the order in which they are worked on."""
        scales = [10.0**exponent for exponent in self.exponents]
        for width in self.widths:
            for activation, kinds in FIGURES.items():
                for kind in (kind for kind in kinds if kind in variants):
                    if kind == LINEARIZED:
                        yield from (Unit(activation, kind, width, seed, scales) for seed in seeds)
                    elif width in self.trained:
                        for seed in seeds[: dict(self.seeds_of).get(width)]:
                            for part in [scales] if width * len(scales) <= _ROWS else [[s] for s in scales]:
                                yield Unit(activation, kind, width, seed, part)
        if DOWNSCALED in variants:
            width, first = self.in_pixels
            yield from (Unit("relu", IN_PIXELS, width, seed, scales[:first]) for seed in seeds)


@dataclass(frozen=True)
class Unit:
    """Networks of the same initial weights that are trained as one, one for each scale."""

    activation: str
    kind: str
    width: int
    seed: int
    scales: list[float]

    def __str__(self) -> str:
        return f"{self.activation} {self.kind}, width {self.width}, seed {self.seed}"

    def folder(self, whole: bool) -> str:
        kind = "pixels" if self.kind == IN_PIXELS else self.kind
        name = f"{self.activation.replace(':', '')}-{kind}-{self.width}-seed{self.seed}"
        return name if whole else f"{name}-{self.scales[0]:.0e}"

    def batches(self, steps: int) -> int:
        """What progress counts."""
        return 1 if self.kind == LINEARIZED else -(-steps // REPORT_EVERY)


ALL_WIDTHS, ALL_EXPONENTS = (100, 300, 1_000, 3_000, 10_000, 30_000), tuple(range(-4, 5))
PLANS = {
    "smoke": Plan(10, (30, 100), (30, 100), (-3, 0, 3), (30, 1), steps=400),
    "quick": Plan(50, ALL_WIDTHS, (100, 300), ALL_EXPONENTS[::2], (100, 1)),
    "reduced": Plan(50, ALL_WIDTHS, ALL_WIDTHS[:4], ALL_EXPONENTS[::2], (300, 2), seeds_of=((3_000, 1),)),
    "paper": Plan(50, ALL_WIDTHS, ALL_WIDTHS, ALL_EXPONENTS, (300, 4)),
}


def zeros_and_ones(images: Tensor, labels: Tensor, per_class: int, *, pixels: bool = False) -> Task:
    """The first ``per_class`` zeros and ones train, the next ``per_class`` of each test; targets 0 and 1.

    Raises:
        DataError: there are fewer.
    """
    of = [(labels == digit).nonzero()[: 2 * per_class, 0] for digit in (0, 1)]
    if min(len(found) for found in of) < 2 * per_class:
        raise DataError(f"ldnet-error: expected {2 * per_class} images of a 0 and of a 1, got fewer")
    x = images.flatten(1)
    train = torch.cat([x[found[:per_class]] for found in of])
    test = torch.cat([x[found[per_class:]] for found in of])
    return make_task(train, test, torch.arange(2).repeat_interleave(per_class), pixels=pixels)


def run(context: RunContext) -> dict[str, Any]:
    """Train what the figures show, and return the metrics."""
    settings, plan = context.settings, PLANS[context.settings.preset]
    data = image_sets.load(context.preset.data, context.data_root)
    progress, checksum = context.progress, f"{data.train.checksum():08x}"
    task, in_pixels = (
        zeros_and_ones(data.train.images, data.train.labels, plan.per_class, pixels=pixels)
        for pixels in (False, True)
    )
    wanted = list(plan.units(settings.variants, settings.seeds))
    progress.expect(sum(unit.batches(plan.steps) for unit in wanted))
    units = []
    for unit in wanted:
        left = unit.batches(plan.steps)

        def done(batches: int = 1) -> None:
            nonlocal left
            for _ in range(min(batches, left)):
                left -= 1
                progress.batch_done()

        known = {**asdict(unit), "steps": plan.steps, "lr": LEARNING_RATE, "per_class": plan.per_class}
        known |= {"data": {"title": data.title, "crc32": checksum}, "device": context.device.type}
        progress.describe(str(unit))
        result = work_unit(
            context,
            unit.folder(whole=len(unit.scales) == len(plan.exponents) or unit.kind == IN_PIXELS),
            known,
            partial(
                _measure,
                unit,
                in_pixels if unit.kind == IN_PIXELS else task,
                plan.steps,
                context.device,
                done,
            ),
        )
        done(left)  # of a unit that an earlier run has finished
        progress.epoch_done(f"{unit}: done")
        units.append({**asdict(unit), **result})
    return {
        "experiment": "ldnet-error",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "per_class": plan.per_class,
        "pixels": data.train.images[0].numel(),
        "steps": plan.steps,
        "lr": LEARNING_RATE,
        "epsilon": EPSILON,
        "scales": [10.0**exponent for exponent in plan.exponents],
        "widths": list(plan.widths),
        "trained": list(plan.trained),
        "infinite": {activation: _limit(task, activation, plan.steps) for activation in FIGURES},
        "units": units,
    }


def _measure(
    unit: Unit, task: Task, steps: int, device: torch.device, done: Callable[[], None]
) -> dict[str, Any]:
    """A unit's numbers, one for each scale; None where a network has run away."""
    weights = draw(unit.width, task, unit.seed, device)
    limit = infinite(task, unit.activation)
    end = limit.predict(task.y, None, LEARNING_RATE)
    scale = torch.tensor(unit.scales, dtype=torch.float64)[:, None]
    size = scale[:, 0] * task.y.norm()

    def per_target(gap: Tensor) -> list[float | None]:
        return [value if value < float("inf") else None for value in (gap.norm(dim=1) / size).tolist()]

    own = linearized(weights, task, unit.activation)
    expansion = own.predict(task.y, steps, LEARNING_RATE)
    if unit.kind == LINEARIZED:
        stepped = own.descend(task.y[:, None] * scale.T, steps, LEARNING_RATE, torch.float32).T
        done()
        return {"error": per_target(scale * (expansion - end)), "stepped": per_target(stepped - scale * end)}
    down = 1.0 if unit.kind == NORMAL else EPSILON
    trained = train(
        weights,
        task,
        unit.activation,
        down * scale * task.y,
        steps,
        LEARNING_RATE,
        difference=unit.kind != NORMAL,
        on_steps=lambda _: done(),
    )
    result: dict[str, Any] = {
        "error": per_target(trained.test / down - scale * end),
        "exact": per_target(trained.exact / down - scale * end),
        "fit": per_target(trained.train / down - scale * task.y),
        "largest": float(trained.test.nan_to_num().abs().max()),
    }
    if unit.kind == NORMAL:
        # What equation 16 says the initial output leaves in the predictions, with the limit's kernel.
        left = trained.start[0] - limit.predict(trained.start[1], steps, LEARNING_RATE)
        result["initial"] = per_target(left.expand(len(scale), -1))
    else:
        result["apart"] = per_target(trained.test / down - scale * expansion)
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
        "quick": Preset(
            "a minute or two: MNIST, widths 100 and 300, five scales, one seed", "mnist", 0, 1, (0,)
        ),
        "reduced": Preset(
            "half an hour of a core: widths to 3,000, five scales, three seeds (one of 3,000)",
            "mnist",
            0,
            1,
            (0, 1, 2),
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
