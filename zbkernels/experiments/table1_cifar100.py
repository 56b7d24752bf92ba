"""Table 1, CIFAR-100 rows: ResNet18 without batch normalisation, 40 epochs, batch 128 (Section 2.5, Appendix C).

Where CIFAR-100 is absent the colour composite stands in, under its own name.
"""

from __future__ import annotations

from zbkernels.data import Dataset
from zbkernels.experiments import table1, table1_report, units
from zbkernels.experiments.base import Experiment, Preset
from zbkernels.experiments.table1_row import Kind, Row, RowPreset
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
_FORMS = ("", "-nf", "-plain")  # the paper has one of these, and does not say which

ROW = Row(
    experiment="table1-cifar100",
    architecture="resnet18",
    data="cifar-100",
    layout="channels_last",
    paper={f"with-bias{form}": _WITH for form in _FORMS}
    | {f"without-bias{form}": _WITHOUT for form in _FORMS},
    epochs=40,
    batch_size=128,
    recipe=sgd,
    mean_square_one=True,
    remark="Fixup's branches and classifier start as Appendix B has it; the paper does not say what, if anything, its "
    "ResNet18 has in the place of batch normalisation",
    kinds=(
        Kind(units.WITH_BIAS, "with bias, Fixup", True, "-fixup"),
        Kind(units.WITHOUT_BIAS, "without bias, Fixup", False, "-fixup"),
        Kind("with-bias-nf", "with bias, NF", True, "-nf", beside="without-bias-nf"),
        Kind("without-bias-nf", "without bias, NF", False, "-nf"),
        Kind("with-bias-plain", "with bias, plain", True, beside="without-bias-plain", may_diverge=True),
        Kind("without-bias-plain", "without bias, plain", False, may_diverge=True),
    ),
)

_MAIN = (units.WITH_BIAS, units.WITHOUT_BIAS)

EXPERIMENT = Experiment(
    name=ROW.experiment,
    title="Table 1, CIFAR-100 rows: accuracy of ResNet18 without batch normalisation under eleven contrasts",
    source="Scalar Invariant Networks with Zero Bias, Table 1, Section 2.5, Appendices B and C, Figure 5d",
    presets={
        "smoke": RowPreset(
            "seconds: 2 epochs of a narrow ResNet18 on scikit-learn's digits",
            "digits",
            2,
            64,
            (0,),
            320,
            100,
            architecture="resnet18-w16",
        ),
        "quick": RowPreset(
            "minutes: 5 epochs of a narrow ResNet18 on 5,000 images, batch 32, one seed",
            "cifar-100",
            5,
            32,
            (0,),
            5_000,
            1_000,
            variants=_MAIN,
            architecture="resnet18-w16",
        ),
        "reduced": RowPreset(
            "40 minutes of two cores: 14 epochs of a narrow ResNet18 on 15,000 images, two seeds",
            "cifar-100",
            14,
            128,
            (0, 1),
            15_000,
            2_000,
            variants=_MAIN,
            architecture="resnet18-w16",
        ),
        "paper": RowPreset(
            "hours on a GPU: the paper's settings, three seeds",
            "cifar-100",
            40,
            128,
            (0, 1, 2),
        ),
    },
    variants=tuple(kind.name for kind in ROW.kinds),
    run=lambda context: table1.run(ROW, context),
    table=table1_report.table,
    figure=table1_report.figure,
    time_epochs=lambda context: table1.time_epochs(ROW, context),
    any_precision=True,
    any_form=True,
)
