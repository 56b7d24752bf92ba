"""Hypothesis 7: averages over the units of one network beside averages over an ensemble, over widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.exchangeability.optimizers import RULES
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.exchangeability import ergodic_figure, ergodic_report
from zbkernels.experiments.exchangeability.ensembles import STEP_SIZES, shrunk
from zbkernels.experiments.exchangeability.ergodic_claims import EQUAL, MIXED, NARROW, PLACES
from zbkernels.experiments.exchangeability.ergodic_measures import ANGLE, IMAGES, measure
from zbkernels.experiments.units import crc32, work_unit

NARROW_WIDTH = 2
NARROW_PACE = 10.0  # times the step size, so that the first layer moves far for whatever few units follow
MIXED_SCALES = (0.5, 1.5)


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        side: of the images, in pixels.
        widths: of the hidden layers.
        networks: of an ensemble, for each seed.
        stops: numbers of steps after which is measured; 0 first.
        pairs: of inputs.
        narrow: optimisers that also train networks with a narrow second layer.
    """

    side: int
    widths: tuple[int, ...]
    networks: int
    stops: tuple[int, ...]
    pairs: int
    narrow: tuple[str, ...] = ("sgd", "adam")


PLANS = {
    "smoke": Plan(4, (8, 16, 32, 64), 48, (0, 40), 4, ("adam",)),
    "quick": Plan(7, (16, 32, 64, 128), 64, (0, 200), 8),
    "paper": Plan(7, (16, 32, 64, 128, 256), 128, (0, 50, 200), 16),
}


def run(context: RunContext) -> dict[str, Any]:
    """Train and measure everything, and return the metrics."""
    plan, preset, settings = PLANS[context.settings.preset], context.preset, context.settings
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, 1)
    x = shrunk(data.train, plan.side)
    seeds = [seed * plan.networks + i for seed in settings.seeds for i in range(plan.networks)]
    known = {
        "data": {"title": data.title, "crc32": crc32(data), "side": plan.side},
        "seeds": list(settings.seeds),
        "networks": plan.networks,
        "stops": list(plan.stops),
        "pairs": plan.pairs,
        "batch": preset.batch_size,
    }
    narrow = [name for name in plan.narrow if name in settings.variants]
    cases = [(EQUAL, name) for name in settings.variants] + [(NARROW, name) for name in narrow]
    cases.append((MIXED, settings.variants[0]))
    context.progress.expect(sum(len(_widths(plan, kind)) for kind, _ in cases))

    def one(kind: str, name: str, width: int) -> dict[str, Any]:
        label, outputs = f"{kind}-{name}-{width}", plan.side**2
        sizes = (outputs, width, NARROW_WIDTH if kind == NARROW else width, outputs)
        rate = STEP_SIZES[name] * (NARROW_PACE if kind == NARROW else 1)
        scales = None
        if kind == MIXED:
            scales = torch.tensor([MIXED_SCALES[i % 2] for i in range(len(seeds))])

        def work() -> dict[str, Any]:
            rows = measure(
                name,
                rate,
                sizes,
                x,
                seeds=seeds,
                stops=plan.stops,
                batch=preset.batch_size,
                pairs=plan.pairs,
                scales=scales,
            )
            return {"rows": rows}

        context.progress.describe(label)
        unit = {**known, "sizes": list(sizes), "rate": rate, "mixed": kind == MIXED}
        found = work_unit(context, label, unit, work)
        context.progress.batch_done()
        context.progress.epoch_done(f"{label}: done")
        return {"width": width, **found}

    return {
        "experiment": "ergodic",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "seeds": list(settings.seeds),
        "networks": len(seeds),
        "pixels": plan.side**2,
        "pairs": plan.pairs,
        "angle": ANGLE,
        "batch": preset.batch_size,
        "stops": list(plan.stops),
        "rates": {name: STEP_SIZES[name] for name in settings.variants},
        "narrow_width": NARROW_WIDTH,
        "narrow_pace": NARROW_PACE,
        "mixed_scales": list(MIXED_SCALES),
        "cases": [
            {
                "kind": kind,
                "rule": name,
                "widths": _drawn([one(kind, name, width) for width in _widths(plan, kind)], plan.stops[-1]),
            }
            for kind, name in cases
        ],
    }


def _drawn(widths: list[dict[str, Any]], stop: int) -> list[dict[str, Any]]:
    """Keep each network's number where the figure shows them: images, at the end, smallest and largest width."""
    for found in widths:
        for row in found["rows"]:
            for place in set(PLACES) & set(row):
                shown = place == IMAGES and row["step"] == stop and found in (widths[0], widths[-1])
                if not shown:
                    del row[place]["kernel"]
    return widths


def _widths(plan: Plan, kind: str) -> tuple[int, ...]:
    """A narrow second layer costs little: the first may be twice as wide. A mixture shows itself at smaller widths."""
    if kind == NARROW:
        return (*plan.widths, 2 * plan.widths[-1])
    return plan.widths[:-1] if kind == MIXED else plan.widths


EXPERIMENT = Experiment(
    name="ergodic",
    title="Hypothesis 7: the average over one network's units against the average over an ensemble",
    source="Exchangeability and Kernel Invariance in Trained MLPs, Section 4.2",
    presets={
        "smoke": Preset(
            "seconds: widths to 64, 4×4 pixels of scikit-learn's digits", "digits", 0, 32, (0,), 500
        ),
        "quick": Preset("two minutes: widths 16 to 128, 7×7 pixels of MNIST", "mnist", 0, 64, (0,), 2_000),
        "paper": Preset(
            "ten minutes: widths 16 to 256, 128 networks, 7×7 pixels of MNIST", "mnist", 0, 64, (0,), 10_000
        ),
    },
    variants=RULES,
    run=run,
    table=ergodic_report.table,
    figure=ergodic_figure.figure,
)
