"""Trains the units of a preset, for ``trained-kernels`` and ``kernel-drift`` alike.

Both look at the same trainings, which are kept once, in ``<out>/kernel-trainings-<preset>/units``: the second of the
two trains nothing that the first has finished.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbkernels.data import DataError
from zbkernels.experiments.base import Preset, RunContext
from zbkernels.experiments.engine import IN_PROCESS
from zbkernels.experiments.exchangeability.measures import inputs
from zbkernels.experiments.exchangeability.sweeps import BATCH, LAYERS, PLANS, Plan, Unit
from zbkernels.experiments.exchangeability.training import CURVE, Task, seconds_an_iteration, train
from zbkernels.experiments.progress import duration
from zbkernels.experiments.stand_ins import load_or_stand_in
from zbkernels.experiments.units import crc32, work_unit

PRESETS = {
    "smoke": Preset("seconds: scikit-learn's digits, 40 iterations", "digits", 0, BATCH, (0,)),
    "quick": Preset(
        "minutes: MNIST at 12×12, width 144, 1,500 iterations, Adam and SGD", "mnist", 0, BATCH, (0,)
    ),
    "reduced": Preset(
        "under an hour of two cores: widths 300 and 256, 4,000 iterations, four optimisers, three seeds",
        "cifar-10",
        0,
        BATCH,
        (0, 1, 2),
    ),
    "paper": Preset(
        "a GPU (an estimate of the hours is printed first): widths 3,072 and 784, 19,000 iterations, all lists",
        "cifar-10",
        0,
        BATCH,
        (0,),
    ),
}


@dataclass(frozen=True)
class Images:
    """An image set as the networks of a preset see it: [N, n], float32 in [0, 1]."""

    train: Tensor
    test: Tensor
    shape: tuple[int, int, int]
    title: str
    note: str | None
    crc32: str


def trained(context: RunContext) -> tuple[dict[str, Any], list[tuple[Unit, dict[str, Any]]]]:
    """Train what the preset asks for, or take what earlier runs left.

    Returns:
        What the metrics of both experiments begin with, and each unit with its result
        (:meth:`zbkernels.experiments.exchangeability.training.Training.result`), in the order of the plan.

    Raises:
        DataError: an image set is missing or broken.
        ExperimentError: as :func:`zbkernels.experiments.units.work_unit`; Ray as :class:`Engine`.
    """
    settings = context.settings
    plan = PLANS[settings.preset]
    sets = {name: images(plan, name, context.data_root) for name in plan.sides}
    width = {name: found.train.shape[1] for name, found in sets.items()}
    units = list(plan.units(settings.variants, settings.seeds, width))
    shared = replace(context, folder=context.folder.parent / f"kernel-trainings-{settings.preset}")
    left = units if context.force else [u for u in units if not _result(shared, u).exists()]
    context.progress.expect(CURVE * len(units))
    if left:
        context.progress.say(_estimate(context, plan, left, len(units)))
    results: dict[Unit, dict[str, Any]] = {}
    for unit, result in context.engine.map(shared, work, units):
        results[unit] = result
        if context.engine.name != IN_PROCESS:
            for _ in range(CURVE):
                context.progress.batch_done()
        gone = sum(run["diverged"] is not None for run in result["runs"])
        context.progress.epoch_done(f"{unit}: done" + (f", {gone} diverged" if gone else ""))
    base = {
        "preset": settings.preset,
        "iterations": plan.iterations,
        "batch": BATCH,
        "layers": LAYERS,
        "precision": settings.precision,
        "measured_after": plan.measured_after(),
        "pairs": plan.pairs,
        "seeds": list(settings.seeds),
        "data": {
            name: {
                "title": found.title,
                "note": found.note,
                "shape": list(found.shape),
                "width": width[name],
                "images": len(found.train),
            }
            for name, found in sets.items()
        },
        "sweeps": [
            {**asdict(sweep), "title": sweep.title, "symbol": sweep.symbol}
            for sweep in plan.sweeps
            if sweep.variant in settings.variants
        ],
    }
    return base, [(unit, results[unit]) for unit in units]


def work(context: RunContext, unit: Unit) -> dict[str, Any]:
    """One unit, wherever it runs; ``context.folder`` is the trainings'."""
    plan = PLANS[context.settings.preset]
    found = images(plan, unit.sweep.data, context.data_root)
    sweep = unit.sweep
    known = {
        "data": {"title": found.title, "crc32": found.crc32, "shape": list(found.shape)},
        "rule": sweep.rule,
        "form": sweep.form,
        "lr": sweep.lr,
        "variant": sweep.variant,
        "values": list(unit.values),
        "seed": unit.seed,
        "iterations": plan.iterations,
        "measured_after": plan.measured_after(),
        "pairs": plan.pairs,
        "batch": BATCH,
        "images": len(found.train),
        "precision": context.settings.precision,
        "device": context.device.type,
    }
    context.progress.describe(str(unit))
    points = 0
    iterations = 0

    def done(more: int) -> None:
        nonlocal points, iterations
        iterations += more
        while points < CURVE * iterations // plan.iterations:
            points += 1
            context.progress.batch_done()

    checkpoint = context.folder / "units" / unit.folder / "training.safetensors"

    def training() -> dict[str, Any]:
        return train(unit, _task(context, plan, found), checkpoint, done, context.progress.say)

    result = work_unit(context, unit.folder, known, training)
    checkpoint.unlink(missing_ok=True)  # not before the result is kept
    done(plan.iterations - iterations)  # of a unit that an earlier run has finished
    return result


def images(plan: Plan, name: str, root: str | Path | None) -> Images:
    """An image set at the size that a plan gives it; read once.

    Raises:
        DataError: as :func:`zbkernels.data.load`; no images left.
    """
    return _images(name, plan.sides[name], plan.train_images, root)


@cache
def _images(name: str, side: int | None, count: int | None, root: str | Path | None) -> Images:
    data = load_or_stand_in(name, root)
    splits = []
    for split in (data.train.first(len(data.train) if count is None else count), data.test):
        pixels = split.images
        if side is not None and side != pixels.shape[-1]:
            pixels = torch.nn.functional.adaptive_avg_pool2d(pixels, side)
        splits.append(pixels)
    train, test = splits
    if not len(train) or not len(test):
        raise DataError(f"{name}: expected images to train and to test, got {len(train)} and {len(test)}")
    _, channels, height, breadth = train.shape
    title = data.title + ("" if side is None else f", averaged to {side}×{side}")
    return Images(
        train.flatten(1), test.flatten(1), (channels, height, breadth), title, data.note, crc32(data)
    )


def _task(context: RunContext, plan: Plan, found: Images) -> Task:
    return Task(
        found.train.to(context.device),
        inputs(found.test, plan.pairs, context.device),
        plan.iterations,
        plan.measured_after(),
        context.settings.precision,
    )


def _result(context: RunContext, unit: Unit) -> Path:
    return context.folder / "units" / unit.folder / "result.json"


def _estimate(context: RunContext, plan: Plan, left: list[Unit], of: int) -> str:
    """The line that is printed before anything is trained: measured on a step or two of each kind of unit."""
    seconds: dict[tuple[Any, ...], float] = {}
    tasks = {}
    total = 0.0
    for unit in left:
        name = unit.sweep.data
        kind = (name, unit.sweep.rule, unit.sweep.variant, len(unit.values))
        if kind not in seconds:
            if name not in tasks:
                tasks[name] = _task(context, plan, images(plan, name, context.data_root))
            seconds[kind] = seconds_an_iteration(unit, tasks[name])
        total += seconds[kind] * plan.iterations
    runs = sum(len(unit.values) for unit in left)
    each = ", ".join(
        f"{name} {rule} {1e3 * value / count:.3g} ms" for (name, rule, _, count), value in seconds.items()
    )
    hours = f"{total / 3600:.1f} hours" if total >= 3600 else duration(total)
    where = "this process" if context.engine.name == IN_PROCESS else "work for Ray's workers together"
    return (
        f"estimate: {hours} of {where} on {context.device.type} for {runs} trainings of {plan.iterations:,} iterations "
        f"({len(left)} of {of} units are left; a training's iteration: {each})"
    )
