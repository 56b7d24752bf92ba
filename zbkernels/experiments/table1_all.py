"""Table 1 whole: every row that the data at hand allows, in the paper's layout.

Each row is a run of its own experiment, in its own folder beside; what is finished there is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zbkernels.data import DataError
from zbkernels.experiments import table1_all_report
from zbkernels.experiments.base import Experiment, ExperimentError, Preset, RunContext
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.parts import PAPER, finished_part, run_best_part, run_part
from zbkernels.experiments.units import VARIANTS

_ROWS = ("table1-mnist", "table1-fashion", "table1-cifar100", "table1-imagenet")


@dataclass(frozen=True)
class WholePreset(Preset):
    """The fields of :class:`Preset` but ``seeds`` are the first row's and not used.

    Attributes:
        rows: experiment -> the preset of it that is run where none is finished; "": it is not run, only taken where
            the preset "paper" of it is finished.
    """

    rows: tuple[tuple[str, str], ...] = ()


def run(context: RunContext) -> dict[str, Any]:
    """
    Raises:
        ExperimentError: only one kind of network was asked for.
    """
    preset, settings = context.preset, context.settings
    assert isinstance(preset, WholePreset)
    if settings.variants != VARIANTS:
        raise ExperimentError(
            f"{settings.experiment}: rows come whole; --variant goes with a row's own experiment"
        )
    seeds = (
        None if settings.seeds == preset.seeds else settings.seeds
    )  # a row's own, unless the user names some
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "scalars": list(SCALARS),
        "rows": [_row(context, name, of, seeds) for name, of in preset.rows],
    }


def _row(context: RunContext, name: str, preset: str, seeds: tuple[int, ...] | None) -> dict[str, Any]:
    """A row's metrics, or why there are none: its data are not at hand, or no run of this preset does it."""
    if not preset:
        found = finished_part(context, name, PAPER)
        reason = f"preset {context.settings.preset} does not train it, and no finished run of preset {PAPER} is beside"
        return found if found is not None else {"experiment": name, "left_out": reason}
    find = run_part if preset == "smoke" else run_best_part
    try:
        return find(context, name, preset, seeds)
    except DataError as error:
        context.progress.say(f"{name}: left out: {error}")
        return {"experiment": name, "left_out": str(error)}


def _preset(summary: str, seeds: tuple[int, ...], *rows: str) -> WholePreset:
    return WholePreset(summary, "mnist", 20, 512, seeds, rows=tuple(zip(_ROWS, rows, strict=True)))


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: every row that the data at hand allows",
    source="Scalar Invariant Networks with Zero Bias, Table 1, Section 2.5, Appendix C",
    presets={
        "smoke": _preset("seconds: every row on scikit-learn's digits", (0,), *["smoke"] * 4),
        "quick": _preset("minutes: the quick runs of all rows", (0,), *["quick"] * 4),
        "reduced": _preset(
            "an hour of two cores: MNIST as in the paper, Fashion-MNIST quick, the ResNet18 rows reduced",
            (0, 1, 2),
            PAPER,
            "quick",
            "reduced",
            "",
        ),
        "paper": _preset("weeks on a GPU: the paper's settings, three seeds", (0, 1, 2), *[PAPER] * 4),
    },
    variants=VARIANTS,
    run=run,
    table=table1_all_report.table,
    figure=table1_all_report.figure,
    any_form=True,
)
