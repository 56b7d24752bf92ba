"""Table 1, Fashion-MNIST rows: a small CNN, 20 epochs of Adadelta, batch 128 (Section 2.5, Appendix C)."""

from zbkernels.experiments import table1, table1_report, units
from zbkernels.experiments.base import Experiment, Preset
from zbkernels.experiments.table1_row import Row

ROW = Row(
    experiment="table1-fashion",
    architecture="cnn-fashion",
    data="fashion-mnist",
    layout="channels_last",
    paper={
        units.WITH_BIAS: (89.10, 67.10, 40.12, 32.52, 24.16, 17.91, 12.46, 10.12, 10.00, 10.00, 10.00),
        units.WITHOUT_BIAS: (89.02,) * 11,
    },
    epochs=20,
    batch_size=128,
)

EXPERIMENT = Experiment(
    name=ROW.experiment,
    title="Table 1, Fashion-MNIST rows: accuracy of a CNN under eleven contrasts",
    source="Scalar Invariant Networks with Zero Bias, Table 1, Section 2.5, Appendix C, Figure 5b",
    presets={
        "smoke": Preset("seconds: 3 epochs on scikit-learn's digits", "digits", 3, 32, (0,)),
        "quick": Preset(
            "minutes: 5 epochs on the first 12,000 images, one seed",
            "fashion-mnist",
            5,
            128,
            (0,),
            12_000,
            2_000,
        ),
        "paper": Preset(
            "an hour or two: the paper's settings, three seeds", "fashion-mnist", 20, 128, (0, 1, 2)
        ),
    },
    variants=units.VARIANTS,
    run=lambda context: table1.run(ROW, context),
    table=table1_report.table,
    figure=table1_report.figure,
    time_epochs=lambda context: table1.time_epochs(ROW, context),
    any_precision=True,
    any_form=True,
)
