"""Figure 5: training and test losses with and without bias, epoch by epoch, and how far apart they are.

The curves of the fully connected network, the CNN and ResNet18 are those of Table 1's runs, which are made where they
are missing; ResNet9, which Table 1 does not have, is trained here. The results that come with the source serve too, as
finished runs: ``docs/results/table1-mnist``, copied to ``<out>/table1-mnist-paper``, and Fashion's likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zbkernels.experiments import loss_curves_report, table1
from zbkernels.experiments.base import Experiment, RunContext
from zbkernels.experiments.parts import run_best_part, run_part
from zbkernels.experiments.table1_row import Row, RowPreset
from zbkernels.experiments.units import VARIANTS

EPOCHS = 40  # of ResNet9; the paper gives none, and this is what it trains its ResNet18 for

RESNET9 = Row(
    experiment="loss-curves",
    architecture="resnet9",
    data="cifar-10",
    layout="channels_last",
    paper={},
    epochs=EPOCHS,
    batch_size=128,
    remark="The paper says nothing of it or of its training, which is the CNN's here",
)


@dataclass(frozen=True)
class LossCurvesPreset(RowPreset):
    """The fields of :class:`RowPreset` are of ResNet9.

    Attributes:
        parts: panel -> the experiment its curves come from, and the preset of it that is run where it is missing.
        take_paper: a finished run of the preset ``paper`` is taken before that.
    """

    parts: tuple[tuple[str, str, str], ...] = ()
    take_paper: bool = True


def run(context: RunContext) -> dict[str, Any]:
    preset, settings = context.preset, context.settings
    assert isinstance(preset, LossCurvesPreset)
    seeds = (
        None if settings.seeds == preset.seeds else settings.seeds
    )  # a part's own, unless the user names some
    find = run_best_part if preset.take_paper else run_part
    panels = {panel: find(context, name, of, seeds) for panel, name, of in preset.parts}
    panels["5c"] = table1.run(RESNET9, context)
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "panels": [_panel(name, metrics) for name, metrics in sorted(panels.items())],
    }


def _panel(name: str, metrics: dict[str, Any]) -> dict[str, Any]:
    """What a panel shows, and no more of the run it comes from."""
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for variant in VARIANTS:
        units = [unit for unit in metrics["units"] if unit["variant"] == variant]
        curves[variant] = {
            key: [[epoch[key] for epoch in unit["epochs"]] for unit in units]
            for key in ("train_loss", "test_loss")
        }
    return {
        "panel": name,
        "from": {"experiment": metrics["experiment"], "preset": metrics["preset"]},
        "data": metrics["data"],
        "architecture": metrics["architecture"],
        "training": metrics["training"],
        "reduced": metrics.get("reduced", []),
        "seeds": {
            variant: [u["seed"] for u in metrics["units"] if u["variant"] == variant] for variant in VARIANTS
        },
        "curves": curves,
    }


_TABLE1 = (("5a", "table1-mnist"), ("5b", "table1-fashion"), ("5d", "table1-cifar100"))


def _parts(small: str, resnet: str) -> tuple[tuple[str, str, str], ...]:
    presets = {"5d": resnet}
    return tuple((panel, name, presets.get(panel, small)) for panel, name in _TABLE1)


EXPERIMENT = Experiment(
    name="loss-curves",
    title="Figure 5: loss curves with and without bias, and how far apart they are",
    source="Scalar Invariant Networks with Zero Bias, Figure 5, Section 5.1, Appendix C",
    presets={
        "smoke": LossCurvesPreset(
            "seconds: scikit-learn's digits, and Table 1's smoke runs",
            "digits",
            2,
            32,
            (0,),
            320,
            100,
            architecture="resnet9-small",
            parts=_parts("smoke", "smoke"),
            take_paper=False,
        ),
        "quick": LossCurvesPreset(
            "minutes: ResNet9 on 2,000 images, and Table 1's quick runs",
            "cifar-10",
            3,
            128,
            (0,),
            2_000,
            1_000,
            parts=_parts("quick", "quick"),
        ),
        "reduced": LossCurvesPreset(
            "half an hour of two cores, beside finished runs of Table 1: ResNet9 on 5,000 images, two seeds",
            "cifar-10",
            6,
            128,
            (0, 1),
            5_000,
            2_000,
            parts=_parts("paper", "reduced"),
        ),
        "paper": LossCurvesPreset(
            "hours on a GPU: Table 1's runs, and ResNet9 for 40 epochs, three seeds",
            "cifar-10",
            EPOCHS,
            128,
            (0, 1, 2),
            parts=_parts("paper", "paper"),
        ),
    },
    variants=VARIANTS,
    run=run,
    table=loss_curves_report.table,
    figure=loss_curves_report.figure,
    any_form=True,
)
