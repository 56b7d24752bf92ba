"""Table 1, ImageNet rows: ResNet50, 100 epochs, batch 256 (Section 2.5, Appendix C).

The paper does not say what its network with bias is; both readings are lines of the table: with batch normalisation,
and by Fixup with its scalar biases. Of the two data sets that its text and its reference name, ImageNet is the one of
the numbers (0.10 % by chance is a thousand classes); Imagenette, the other, is a preset of its own.
"""

from zbkernels.experiments import table1, table1_report, units
from zbkernels.experiments.base import Experiment
from zbkernels.experiments.table1_cifar100 import sgd
from zbkernels.experiments.table1_row import Kind, Row, RowPreset

_WITH = (75.37, 66.72, 57.84, 53.62, 47.27, 37.61, 21.81, 3.39, 0.21, 0.10, 0.10)
_BATCH_NORM = "with-bias-bn"
_MAIN = (_BATCH_NORM, *units.VARIANTS)

ROW = Row(
    experiment="table1-imagenet",
    architecture="resnet50",
    data="imagenet",
    layout="channels_last",
    paper={_BATCH_NORM: _WITH, units.WITH_BIAS: _WITH, units.WITHOUT_BIAS: (73.82,) * 11},
    epochs=100,
    batch_size=256,
    recipe=sgd,
    kinds=(
        Kind(_BATCH_NORM, "with bias, batch norm", True, "-bn"),
        Kind(units.WITH_BIAS, "with bias, Fixup", True, "-fixup"),
        Kind(units.WITHOUT_BIAS, "without bias, Fixup", False, "-fixup"),
        Kind("with-bias-nf", "with bias, NF", True, "-nf", beside="without-bias-nf"),
        Kind("without-bias-nf", "without bias, NF", False, "-nf"),
    ),
    mean_square_one=True,
    remark="Fixup's branches and classifier start as Appendix B has it; the paper does not say which of the two its "
    "network with bias is",
)

EXPERIMENT = Experiment(
    name=ROW.experiment,
    title="Table 1, ImageNet rows: accuracy of ResNet50 under eleven contrasts",
    source="Scalar Invariant Networks with Zero Bias, Table 1, Section 2.5, Appendices B and C",
    presets={
        "smoke": RowPreset(
            "seconds: 1 epoch of a narrow ResNet50 on scikit-learn's digits",
            "digits",
            1,
            64,
            (0,),
            128,
            64,
            variants=_MAIN,
            architecture="resnet50-w8",
        ),
        "quick": RowPreset(
            "minutes: 1 epoch on 256 images of Imagenette, one seed",
            "imagenette",
            1,
            32,
            (0,),
            256,
            100,
            variants=_MAIN,
        ),
        "imagenette": RowPreset(
            "hours on a GPU: the paper's settings on Imagenette, one seed",
            "imagenette",
            100,
            256,
            (0,),
            variants=_MAIN,
        ),
        "paper": RowPreset(
            "weeks on a GPU, fewer under torchrun: the paper's settings, three seeds",
            "imagenet",
            100,
            256,
            (0, 1, 2),
            variants=_MAIN,
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
