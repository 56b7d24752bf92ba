"""Deep bias-free ReLU networks beside deep linear ones: rank, alignment, balance and stages, and a broken symmetry.

The paper says that the two share properties; of its text only the abstract and the reviews were at hand. What the
properties are, and why ReLU's layers have rank two where linear ones have rank one, is derived in
docs/papers/bias-free-linear.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from zbkernels import data as image_sets
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.effectively_linear import deep_linear_figure, deep_linear_report, deep_studies
from zbkernels.experiments.effectively_linear.deep_flow import MOMENTS
from zbkernels.experiments.units import crc32, work_unit

DEPTHS = {"depth-2": 2, "depth-3": 3, "depth-4": 4}  # layers of weights
NORM = {2: 0.03, 3: 0.1, 4: 0.3}  # of each layer at the start; time to learn grows as norm^-(depth - 2)
MODES = (2.0, 1.0, 0.5)
KINDS = ("target", "inputs")


@dataclass(frozen=True)
class Plan:
    """What a preset measures; ``ends`` are in units of the solver's clock, by layers of weights.

    Attributes:
        width, widths: hidden units of each layer; ``width`` is that of all but the comparison of widths.
        shrink: factors on the norm at the start, at ``width``.
        ends, stage_ends, broken_ends, digit_ends: how long networks are followed, in each part.
        amounts: of broken symmetry, in made-up data.
        pairs: digits against each other.
        images: of each digit.
        digit_amounts: 0 with negatives, 1 without.
    """

    width: int
    widths: tuple[int, ...]
    shrink: tuple[float, ...]
    ends: dict[int, float]
    stage_ends: dict[int, float]
    broken_ends: dict[int, float]
    digit_ends: dict[int, float]
    amounts: tuple[float, ...]
    pairs: tuple[tuple[int, int], ...]
    images: int
    digit_width: int
    digit_amounts: tuple[float, ...]


_ENDS = {2: 40.0, 3: 120.0, 4: 400.0}
PLANS = {
    "smoke": Plan(
        16,
        (16,),
        (1.0,),
        {2: 25.0, 3: 60.0, 4: 60.0},
        {2: 100.0, 3: 60.0, 4: 30.0},
        {2: 20.0, 3: 40.0, 4: 40.0},
        {2: 15.0, 3: 20.0, 4: 20.0},
        (0.0, 1.0),
        ((0, 1),),
        40,
        10,
        (0.0, 1.0),
    ),
    "quick": Plan(
        30,
        (10, 30),
        (1.0, 0.5),
        _ENDS,
        {2: 400.0, 3: 400.0, 4: 400.0},
        {2: 100.0, 3: 200.0, 4: 200.0},
        {2: 60.0, 3: 60.0, 4: 60.0},
        (0.0, 0.1, 1.0),
        ((3, 8),),
        100,
        20,
        (0.0, 1.0),
    ),
    "paper": Plan(
        30,
        (10, 30, 100),
        (1.0, 0.5),
        _ENDS,
        {2: 800.0, 3: 3_000.0, 4: 1_500.0},
        {2: 300.0, 3: 400.0, 4: 300.0},
        {2: 80.0, 3: 300.0, 4: 300.0},
        (0.0, 0.03, 0.1, 0.3, 1.0),
        ((0, 1), (3, 8)),
        200,
        20,
        (0.0, 0.1, 0.3, 1.0),
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Do or take up each piece of work and return the metrics."""
    plan, settings, progress = PLANS[context.settings.preset], context.settings, context.progress
    data = image_sets.load(context.preset.data, context.data_root)
    seeds = settings.seeds
    nets = [(width, 1.0) for width in plan.widths] + [(plan.width, f) for f in plan.shrink if f != 1]
    progress.expect(len(settings.variants) * (2 + len(nets) + len(KINDS) + len(plan.pairs)))

    def work(name: str, known: dict[str, Any], job: partial[dict[str, Any]]) -> dict[str, Any]:
        progress.describe(name)
        result = work_unit(context, name, {**known, "seeds": list(seeds), "moments": MOMENTS}, job)
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
        return {**known, **result}

    found = []
    for variant in settings.variants:
        depth = DEPTHS[variant]
        norm, width = NORM[depth], plan.width
        twin: dict[str, Any] = {"width": 8, "end": 8.0 * depth + 4}
        stage: dict[str, Any] = {
            "width": width,
            "norm": norm / 2,
            "end": plan.stage_ends[depth],
            "modes": list(MODES),
        }
        broken: dict[str, Any] = {
            "width": width,
            "norm": norm,
            "end": plan.broken_ends[depth],
            "amounts": list(plan.amounts),
        }
        digit: dict[str, Any] = {
            "width": plan.digit_width,
            "norm": norm,
            "end": plan.digit_ends[depth],
            "amounts": list(plan.digit_amounts),
            "images": plan.images,
            "data": {"title": data.title, "crc32": crc32(data)},
        }
        found.append(
            {
                "depth": depth,
                "twins": work(
                    f"{variant}-twins", twin, partial(deep_studies.twins, depth, 8, twin["end"], seeds)
                ),
                "nets": [
                    work(
                        f"{variant}-width{net_width}-start{factor * norm:g}",
                        {
                            "width": net_width,
                            "norm": factor * norm,
                            "end": _longer(plan.ends[depth], factor, depth),
                        },
                        partial(
                            deep_studies.small_start,
                            depth,
                            net_width,
                            factor * norm,
                            _longer(plan.ends[depth], factor, depth),
                            seeds,
                            net_width == width and factor == 1,
                        ),
                    )
                    for net_width, factor in nets
                ],
                "stages": work(
                    f"{variant}-stages",
                    stage,
                    partial(deep_studies.stages, depth, width, norm / 2, stage["end"], seeds, MODES),
                ),
                "broken": [
                    work(
                        f"{variant}-{kind}",
                        {"kind": kind, **broken},
                        partial(
                            deep_studies.asymmetry,
                            depth,
                            width,
                            norm,
                            broken["end"],
                            seeds,
                            kind,
                            plan.amounts,
                        ),
                    )
                    for kind in KINDS
                ],
                "digits": [
                    work(
                        f"{variant}-digits{pair[0]}{pair[1]}",
                        {"pair": list(pair), **digit},
                        partial(
                            deep_studies.digits,
                            data,
                            pair,
                            plan.images,
                            depth,
                            plan.digit_width,
                            norm,
                            digit["end"],
                            seeds,
                            plan.digit_amounts,
                        ),
                    )
                    for pair in plan.pairs
                ],
            }
        )
    return {
        "experiment": "deep-linear",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "seeds": list(seeds),
        "width": plan.width,
        "depths": found,
    }


def _longer(end: float, factor: float, depth: int) -> float:
    """A smaller start waits longer for the second half-space, by the power of the norm that the whole waits."""
    return end * factor ** -(depth - 2)


EXPERIMENT = Experiment(
    name="deep-linear",
    title="Deep bias-free ReLU networks beside deep linear ones, with the symmetry of the data and as it is broken",
    source="When Are Bias-Free ReLU Networks Effectively Linear Networks?, abstract (deep networks) and reviews",
    presets={
        "smoke": Preset("seconds: narrow networks, scikit-learn's digits", "digits", 0, 1, (0, 1)),
        "quick": Preset(
            "a minute or two: widths 10 and 30, MNIST's 3 against 8, two seeds", "mnist", 0, 1, (0, 1)
        ),
        "paper": Preset(
            "minutes: widths 10 to 100, two sizes of the start, MNIST's 0 against 1 and 3 against 8, three seeds",
            "mnist",
            0,
            1,
            (0, 1, 2),
        ),
    },
    variants=tuple(DEPTHS),
    run=run,
    table=deep_linear_report.table,
    figure=deep_linear_figure.figure,
)
