"""Section 2.5, last paragraph: Table 1's networks trained on images multiplied by the scalars of the test.

Each time an image is trained on, it is multiplied by one of the eleven scalars, drawn for it anew: an epoch keeps its
length, so these networks see as many images, and make as many steps, as Table 1's. Networks trained on the images as
they are stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from zbkernels.data import Dataset
from zbkernels.experiments import augmentation_report, table1, table1_fashion, table1_mnist
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.parts import finished_part, run_part
from zbkernels.experiments.table1_row import Row
from zbkernels.experiments.units import VARIANTS
from zbkernels.train import TrainConfig


@dataclass(frozen=True)
class AugmentationPreset(Preset):
    """The fields of :class:`Preset` are of the fully connected network.

    Attributes:
        unaugmented: the presets of table1-mnist and table1-fashion whose networks stand beside the augmented ones. The
            first's run is made where it is missing; the second's, which takes long, is taken where it is finished.
        convolutional: of the CNN, which ``seeds`` of a user's do not change; None: there is none.
    """

    unaugmented: tuple[str, str] = ("paper", "paper")
    convolutional: Preset | None = field(default=None)


def run(context: RunContext) -> dict[str, Any]:
    preset = context.preset
    assert isinstance(preset, AugmentationPreset)
    first, second = preset.unaugmented
    plain = run_part(context, table1_mnist.ROW.experiment, first, context.settings.seeds)
    parts = [_part(table1_mnist.ROW, context, preset, context.settings.seeds, plain)]
    if preset.convolutional is not None:
        plain_cnn = finished_part(context, table1_fashion.ROW.experiment, second)
        part = preset.convolutional
        parts.append(_part(table1_fashion.ROW, context, part, part.seeds, plain_cnn))
    return {
        "experiment": context.settings.experiment,
        "preset": context.settings.preset,
        "scalars": list(SCALARS),
        "parts": parts,
    }


def _part(
    row: Row,
    context: RunContext,
    preset: Preset,
    seeds: tuple[int, ...],
    plain: dict[str, Any] | None,
) -> dict[str, Any]:
    """Train the augmented networks of a row of Table 1, each image set in a folder of its own."""

    def recipe(preset: Preset, data: Dataset, seed: int) -> TrainConfig:
        return replace(row.recipe(preset, data, seed), contrasts=SCALARS)

    inner = replace(
        context,
        settings=replace(context.settings, seeds=seeds),
        preset=preset,
        folder=context.folder / row.data,
    )
    return {
        "augmented": table1.run(replace(row, recipe=recipe), inner),
        "plain": plain and _accuracies(plain),
    }


def _accuracies(metrics: dict[str, Any]) -> dict[str, Any]:
    """Of Table 1's run what stands beside; the rest is in its own folder."""
    units = [{key: unit[key] for key in ("variant", "seed", "sweep")} for unit in metrics["units"]]
    return {key: metrics[key] for key in ("experiment", "preset", "scalars")} | {"units": units}


EXPERIMENT = Experiment(
    name="augmentation",
    title="Section 2.5: networks trained on images multiplied by the scalars of the test",
    source="Scalar Invariant Networks with Zero Bias, Section 2.5 (last paragraph), Table 1, Appendix C",
    presets={
        "smoke": AugmentationPreset(
            "seconds: 3 epochs on scikit-learn's digits",
            "digits",
            3,
            32,
            (0,),
            unaugmented=("smoke", "smoke"),
            convolutional=Preset("", "digits", 3, 32, (0,)),
        ),
        "quick": AugmentationPreset(
            "a minute: the fully connected network on MNIST, one seed",
            "mnist",
            20,
            512,
            (0,),
            unaugmented=("quick", "quick"),
        ),
        "paper": AugmentationPreset(
            "half an hour: MNIST with three seeds, Fashion-MNIST with one",
            "mnist",
            20,
            512,
            (0, 1, 2),
            convolutional=Preset("", "fashion-mnist", 20, 128, (0,)),
        ),
    },
    variants=VARIANTS,
    run=run,
    table=augmentation_report.table,
    figure=augmentation_report.figure,
    any_form=True,
)
