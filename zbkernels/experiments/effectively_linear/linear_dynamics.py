"""Training of two-layer bias-free leaky ReLU networks on symmetric data, beside that of linear networks.

With c = (1 + slope)/2 the weights W are those of a linear network, V = √c W, whose time runs c times as fast: exactly
from a balanced start of rank one, nearly from a small random one. Measured on points x with their -x and in expectation
over normal inputs, for slopes from 0 to 1, by a solver for the flow, by gradient descent and in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.effectively_linear import linear_dynamics_figure, linear_dynamics_report
from zbkernels.experiments.effectively_linear.rank_one_runs import balanced, one_sided
from zbkernels.experiments.effectively_linear.small_random_runs import (
    AS_DRAWN,
    BALANCED,
    in_expectation,
    on_points,
)
from zbkernels.experiments.effectively_linear.step_size_runs import converge
from zbkernels.experiments.effectively_linear.symmetric_starts import SETTINGS, START
from zbkernels.experiments.effectively_linear.unbalanced_runs import unbalanced
from zbkernels.experiments.units import work_unit

_DRAW_SEEDS = 1000  # apart: generators of the draws of two seeds
PARTS = ("rank-one", "unbalanced", "small-random", "step-size")


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        count: points, of which each is followed by its negative.
        width: hidden units, but where ``widths`` are compared (at the smallest of the ``scales``).
        moments: at which the flow is looked at.
        draws: of weights for each seed, where widths are compared.
        scales: of random starts: root of ‖V2‖², on average.
        steps: of gradient descent, in units of 1/‖E[y x]‖.
    """

    dimension: int
    count: int
    width: int
    moments: int
    scales: tuple[float, ...]
    widths: tuple[int, ...]
    draws: int
    steps: tuple[float, ...]


PLANS = {
    "smoke": Plan(4, 25, 8, 60, (0.1, 1e-2, 1e-3), (8, 32, 128), 4, (0.2, 0.1, 0.05, 0.025)),
    "quick": Plan(5, 60, 20, 100, (1.0, 0.1, 1e-2, 1e-3), (10, 40, 160), 5, (0.2, 0.1, 0.05, 0.025, 0.0125)),
    "paper": Plan(
        8,
        100,
        30,
        200,
        (1.0, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4),
        (10, 30, 100, 300),
        5,
        (0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125),
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Run the parts that are asked for, and return the metrics."""
    plan, settings, progress = PLANS[context.settings.preset], context.settings, context.progress
    jobs = _jobs(plan, settings.variants, settings.seeds)
    progress.expect(len(jobs))
    known = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(plan).items()}
    found: dict[str, list[Any]] = {}
    for part, name, job in jobs:
        progress.describe(name)
        result = work_unit(context, name, {**known, "seeds": list(settings.seeds)}, job)
        found.setdefault(part, []).append(result["found"])
        progress.batch_done()
        progress.epoch_done(f"{name}: done")
    return {
        "experiment": "linear-dynamics",
        "preset": settings.preset,
        "seeds": list(settings.seeds),
        "plan": known,
        "start": START,
        "rank_one": found.get("rank-one"),
        "one_sided": _joined(found.get("one-sided")),
        "unbalanced": found["unbalanced"][0] if "unbalanced" in found else None,
        "scales": _joined(found.get("scales")),
        "widths": _joined(found.get("widths")),
        "on_points": _joined(found.get("on-points")),
        "step_size": _joined(found.get("step-size")),
    }


def _jobs(
    plan: Plan, parts: tuple[str, ...], seeds: tuple[int, ...]
) -> list[tuple[str, str, Callable[[], Any]]]:
    """(key of the metrics, name of the unit, work)."""
    jobs: list[tuple[str, str, Callable[[], Any]]] = []
    size = (plan.dimension, plan.count, plan.width)
    if "rank-one" in parts:
        jobs += [
            ("rank-one", f"rank-one-{name}", partial(balanced, name, *size, plan.moments, seeds))
            for name in SETTINGS
        ]
        jobs.append(("one-sided", "rank-one-one-sided", partial(one_sided, *size, seeds)))
    if "unbalanced" in parts:
        jobs.append(("unbalanced", "unbalanced", partial(unbalanced, *size, plan.moments, seeds)))
    if "small-random" in parts:
        for start in (AS_DRAWN, BALANCED):
            name = f"small-random-{start.replace(' ', '-')}"
            work = partial(
                in_expectation, start, plan.width, plan.dimension, plan.scales, seeds, plan.moments
            )
            jobs.append(("scales", name, work))
        many = tuple(_DRAW_SEEDS * seed + k for seed in seeds for k in range(plan.draws))
        for width in plan.widths:
            work = partial(
                in_expectation, AS_DRAWN, width, plan.dimension, plan.scales[-1:], many, plan.moments
            )
            jobs.append(("widths", f"small-random-width{width}", work))
        few = tuple(scale for scale in plan.scales if scale <= 0.1)
        work = partial(on_points, plan.width, plan.dimension, plan.count, few, seeds)
        jobs.append(("on-points", "small-random-on-points", work))
    if "step-size" in parts:
        for name in ("whitened", "general"):
            jobs.append(("step-size", f"step-size-{name}", partial(converge, name, *size, plan.steps, seeds)))
    return [(part, name, partial(_kept, job)) for part, name, job in jobs]


def _kept(job: Callable[[], Any]) -> dict[str, Any]:
    return {"found": job()}


def _joined(lists: list[list[Any]] | None) -> list[Any] | None:
    return None if lists is None else [row for rows in lists for row in rows]


EXPERIMENT = Experiment(
    name="linear-dynamics",
    title="Two-layer bias-free leaky ReLU networks on symmetric data learn as linear networks do",
    source="When Are Bias-Free ReLU Networks Effectively Linear Networks?, abstract (second finding), and Theorem 7 as "
    "the reviews tell it",
    presets={
        "smoke": Preset("seconds: 4 inputs, 8 units, 50 points", "none", 0, 1, (0,)),
        "quick": Preset("a minute: 5 inputs, 20 units, 120 points", "none", 0, 1, (0, 1)),
        "paper": Preset(
            "minutes: 8 inputs, 30 units, 200 points, six seeds", "none", 0, 1, (0, 1, 2, 3, 4, 5)
        ),
    },
    variants=PARTS,
    run=run,
    table=linear_dynamics_report.table,
    figure=linear_dynamics_figure.figure,
)
