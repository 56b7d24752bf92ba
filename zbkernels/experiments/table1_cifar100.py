"""Table 1, CIFAR-100 rows: ResNet18 without batch normalisation, 40 epochs, batch 128 (Section 2.5, Appendix C).

Where CIFAR-100 is absent the colour composite stands in, under its own name.
"""

from __future__ import annotations

from zbkernels.data import Dataset
from zbkernels.experiments import table1, table1_report, units
from zbkernels.experiments.base import Experiment, Preset
from zbkernels.experiments.table1 import Kind, RowPreset
from zbkernels.train import TrainConfig


def sgd(preset: Preset, data: Dataset, seed: int) -> TrainConfig:
    """How the paper trains its ResNets (Appendix C); the learning rate of single parameters is Fixup's.

    The paper says nothing of crops and mirror images. CIFAR's are cropped and mirrored, as is usual there; the
    composite's are not: its digits lie anywhere already, and mirrored they would be others.
    """
    return TrainConfig(
        preset.epochs,
        preset.batch_size,
        lr=0.1,
        optimizer="sgd",
        seed=seed,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="cosine",
        scalar_lr=0.1,
        mixup=0.7,
        crop="crop-flip" if data.name.startswith("cifar") else "none",
    )


_WITH = (67.62, 19.86, 8.20, 6.11, 4.16, 2.58, 1.69, 1.06, 1.01, 1.01, 1.01)
_WITHOUT = (67.33,) * 11

ROW = table1.Row(
    experiment="table1-cifar100",
    architecture="resnet18",
    data="cifar-100",
    layout="channels_last",
    paper={
        units.WITH_BIAS: _WITH,
        units.WITHOUT_BIAS: _WITHOUT,
        "with-bias-plain": _WITH,
        "without-bias-plain": _WITHOUT,
    },
    epochs=40,
    recipe=sgd,
    kinds=(
        Kind(units.WITH_BIAS, "with bias, Fixup", True, "-fixup"),
        Kind(units.WITHOUT_BIAS, "without bias, Fixup", False, "-fixup"),
        Kind("with-bias-plain", "with bias, plain", True, beside="without-bias-plain"),
        Kind("without-bias-plain", "without bias, plain", False),
    ),
)
