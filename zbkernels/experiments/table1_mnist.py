"""Table 1, MNIST rows: a fully connected network, 20 epochs, batch 512 (Section 2.5, Appendix C)."""

from zbkernels.experiments import table1, table1_report, units
from zbkernels.experiments.base import Experiment, Preset
from zbkernels.experiments.table1_row import Row

ROW = Row(
    experiment="table1-mnist",
    architecture="fcn-mnist",
    data="mnist",
    layout="contiguous",
    paper={
        units.WITH_BIAS: (88.12, 87.07, 84.46, 82.57, 79.52, 74.76, 65.82, 42.84, 16.34, 10.28, 10.28),
        units.WITHOUT_BIAS: (88.27,) * 11,
    },
    epochs=20,
    batch_size=512,
)

EXPERIMENT = Experiment(
    name=ROW.experiment,
    title="Table 1, MNIST rows: accuracy of a fully connected network under eleven contrasts",
    source="Scalar Invariant Networks with Zero Bias, Table 1, Section 2.5, Appendix C, Figure 5a",
    presets={
        "smoke": Preset("seconds: 3 epochs on scikit-learn's digits", "digits", 3, 32, (0,)),
        "quick": Preset("under a minute: the paper's settings, one seed", "mnist", 20, 512, (0,)),
        "paper": Preset("minutes: the paper's settings, three seeds", "mnist", 20, 512, (0, 1, 2)),
    },
    variants=units.VARIANTS,
    run=lambda context: table1.run(ROW, context),
    table=table1_report.table,
    figure=table1_report.figure,
    time_epochs=lambda context: table1.time_epochs(ROW, context),
    any_precision=True,
    any_form=True,
)
