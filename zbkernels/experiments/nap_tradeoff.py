"""Pairs that qualify for Theorem 2 against accuracy (Section 3 of "Scalar Invariant Networks with Zero Bias").

The paper found many pairs of equal prediction and pattern in small networks at about 30 %, a few at about 80 % and none
above 90 %. Here zero-bias networks of several widths are trained in two ways, and after some of the epochs *all* pairs
among the training and among the test images are counted, by grouping: 60,000 images have 1.8 billion pairs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zbkernels import data as image_sets
from zbkernels.experiments import nap_tradeoff_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.pairs import Groups, count_pairs
from zbkernels.experiments.units import WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.models import Architecture, build, parameter_count
from zbkernels.models.rows import Linear
from zbkernels.train import Epoch, TrainConfig


@dataclass(frozen=True)
class Training:
    """One way of training, as long as its last count."""

    name: str
    optimizer: str
    lr: float
    batch_size: int
    count_after: tuple[int, ...]

    @property
    def epochs(self) -> int:
        return self.count_after[-1]

    def config(self, seed: int) -> TrainConfig:
        return TrainConfig(self.epochs, self.batch_size, self.lr, self.optimizer, seed)

    def __str__(self) -> str:
        return f"{self.name}: learning rate {self.lr:g}, batch {self.batch_size}, {self.epochs} epochs"


@dataclass(frozen=True)
class TradeoffPreset(Preset):
    """
    Attributes:
        hidden: sizes of the hidden layers, network by network.
        trainings: each network is trained in each of these ways.
    """

    hidden: tuple[tuple[int, ...], ...] = ()
    trainings: tuple[Training, ...] = ()


def run(context: RunContext) -> dict[str, Any]:
    preset, settings = context.preset, context.settings
    assert isinstance(preset, TradeoffPreset)
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, preset.test_images)
    data = data.to(context.device)
    wanted = [
        (hidden, training, seed)
        for seed in settings.seeds
        for training in preset.trainings
        for hidden in preset.hidden
    ]
    for _, training, seed in wanted:
        expect(context, data, training.config(seed))
    units = [_unit(context, data, hidden, training, seed) for hidden, training, seed in wanted]
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "data": {
            "title": data.title,
            "note": data.note,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "identical_pairs": {
                "train": _identical_pairs(data.train.images),
                "test": _identical_pairs(data.test.images),
            },
            "as_in_paper": data.name == "mnist"
            and preset.train_images is None
            and preset.test_images is None,
        },
        "trainings": [{**asdict(training), "text": str(training)} for training in preset.trainings],
        "units": units,
    }


def _unit(
    context: RunContext,
    data: image_sets.Dataset,
    hidden: tuple[int, ...],
    training: Training,
    seed: int,
) -> dict[str, Any]:
    """Train one network and count its pairs on the way, or take what an earlier run left of it."""
    widths = "-".join(map(str, hidden))
    architecture = Architecture(f"fcn-{widths}", tuple(Linear(width) for width in hidden))
    form = context.settings.form

    def count(model: nn.Module, _epochs: int) -> dict[str, Any]:
        splits = {"train": data.train, "test": data.test}
        return {name: count_pairs(model, split.images, split.labels) for name, split in splits.items()}

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        return {
            "variant": WITHOUT_BIAS,
            "hidden": list(hidden),
            "training": training.name,
            "seed": seed,
            "form": form,
            "parameters": parameter_count(model),
            "epochs": [asdict(epoch) for epoch in history],
            "train_seconds": sum(epoch.seconds for epoch in history),
        }

    unit = Unit(
        name=f"{widths}-{training.name}-seed{seed}",
        label=f"{widths} units, {training.name}, seed {seed}",
        settings={
            "variant": WITHOUT_BIAS,
            "form": form,
            "architecture": str(architecture),
            "count_after": list(training.count_after),
        },
        config=training.config(seed),
        new_model=lambda: build(
            architecture, data.image_shape, len(data.classes), fused=form == "fused", seed=seed
        ),
        measure=measure,
        watch=count,
        watch_after=training.count_after,
    )
    return train_unit(context, data, unit)


def _identical_pairs(images: Tensor) -> int:
    """Pairs of equal images, which qualify whatever the network."""
    pixels = images.flatten(1).mul(255).round().to(torch.uint8)
    words = F.pad(pixels, (0, -pixels.shape[1] % 8)).view(torch.int64)  # 8 pixels each
    return Groups.of(words).pairs()


_PAPERS = Training("Adadelta", "adadelta", 0.01, 512, (1, 2, 3, 4, 5, 7, 10, 14, 20))
_FASTER = Training("Adam", "adam", 0.001, 512, (1, 2, 3, 5, 8, 12))

EXPERIMENT = Experiment(
    name="nap-tradeoff",
    title="Section 3: how many pairs of images share prediction and pattern, against accuracy",
    source="Scalar Invariant Networks with Zero Bias, Section 3 (after Theorem 3) and Appendix D",
    presets={
        "smoke": TradeoffPreset(
            "seconds: scikit-learn's digits, two widths",
            "digits",
            4,
            32,
            (0,),
            hidden=((12,), (64,)),
            trainings=(Training("Adam", "adam", 0.003, 32, (1, 4)),),
        ),
        "quick": TradeoffPreset(
            "minutes: MNIST, three widths, one seed",
            "mnist",
            20,
            512,
            (0,),
            hidden=((30,), (64,), (128,)),
            trainings=(
                Training("Adadelta", "adadelta", 0.01, 512, (1, 2, 3, 5, 10)),
                Training("Adam", "adam", 0.001, 512, (1, 2, 5, 10)),
            ),
        ),
        "paper": TradeoffPreset(
            "an hour: MNIST, five networks, two ways of training, three seeds",
            "mnist",
            20,
            512,
            (0, 1, 2),
            hidden=((30,), (64,), (128,), (256,), (30, 30)),
            trainings=(_PAPERS, _FASTER),
        ),
    },
    variants=(WITHOUT_BIAS,),
    run=run,
    table=nap_tradeoff_report.table,
    figure=nap_tradeoff_report.figure,
    any_form=True,
)
