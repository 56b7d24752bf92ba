"""Figure 5: training and test losses with and without bias, epoch by epoch, and how far apart they are.

The curves of the fully connected network, the CNN and ResNet18 are those of Table 1's runs, which are made where they
are missing; ResNet9, which Table 1 does not have, is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zbkernels.experiments import loss_curves_report, table1
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.parts import run_best_part, run_part
from zbkernels.experiments.table1_cifar100 import sgd
from zbkernels.experiments.units import VARIANTS

RESNET9 = table1.Row(
    experiment="loss-curves", architecture="resnet9", data="cifar-10", layout="channels_last", paper={}, recipe=sgd
)


@dataclass(frozen=True)
class LossCurvesPreset(table1.RowPreset):
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
    seeds = None if settings.seeds == preset.seeds else settings.seeds  # a part's own, unless the user names some
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
            key: [[epoch[key] for epoch in unit["epochs"]] for unit in units] for key in ("train_loss", "test_loss")
        }
    return {
        "panel": name,
        "from": {"experiment": metrics["experiment"], "preset": metrics["preset"]},
        "data": metrics["data"],
        "architecture": metrics["architecture"],
        "training": metrics["training"],
        "reduced": metrics.get("reduced", []),
        "seeds": {variant: [u["seed"] for u in metrics["units"] if u["variant"] == variant] for variant in VARIANTS},
        "curves": curves,
    }
