"""Section 4 and Figure 4 of "Scalar Invariant Networks with Zero Bias": what networks make of the zero image.

Table 1's FCN and CNN, with and without biases, untrained and trained in the ways of
:mod:`zero_image_trainings`: their distribution over the classes for the image that is 0 everywhere, and for images
multiplied by ever smaller scalars. Checkpoints of known networks that the user names are looked at too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from zbkernels import data as image_sets
from zbkernels.data import Dataset
from zbkernels.experiments import zero_image_figure, zero_image_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.units import BIASES, VARIANTS, WITH_BIAS, WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.experiments.zero_image_checkpoints import digest, look_at, untrained
from zbkernels.experiments.zero_image_measures import class_shares, near_zero, on_zero_image
from zbkernels.experiments.zero_image_trainings import TRAININGS, Training
from zbkernels.models import ARCHITECTURES, build
from zbkernels.train import Epoch, TrainConfig, memory_format


@dataclass(frozen=True)
class Network:
    """One of Table 1's networks, and how it is trained.

    Attributes:
        name: of the pair, in reports and folders.
        data: the image set.
        architecture: a name of :data:`zbkernels.models.ARCHITECTURES`.
        layout: memory format of weights and images.
        seeds: so many of the run's seeds; None: all of them.
        altered_seeds: so many of the run's seeds are trained in other ways than "balanced" too; None: all of them.
    """

    name: str
    data: str
    architecture: str
    layout: str
    optimizer: str
    lr: float
    epochs: int
    batch_size: int
    seeds: int | None = None
    altered_seeds: int | None = None


# Table 1's training, under which biases hardly leave their initial values; and Adam's, which reaches lower losses.
# On Fashion-MNIST an epoch is long: one seed is trained in all ways, and one as in Table 1, whose own experiment has
# three seeds of that network on the zero image.
MNIST = Network("MNIST, Table 1's training", "mnist", "fcn-mnist", "contiguous", "adadelta", 0.01, 20, 512)
MNIST_ADAM = replace(MNIST, name="MNIST, Adam", optimizer="adam", lr=0.001)
FASHION = Network(
    "Fashion-MNIST, Table 1's training",
    "fashion-mnist",
    "cnn-fashion",
    "channels_last",
    "adadelta",
    0.01,
    epochs=20,
    batch_size=128,
    seeds=1,
    altered_seeds=0,
)
FASHION_ADAM = replace(
    FASHION,
    name="Fashion-MNIST, Adam",
    optimizer="adam",
    lr=0.001,
    epochs=5,
    seeds=None,
    altered_seeds=1,
)
DIGITS_ADAM = Network("digits, Adam", "digits", "fcn-mnist", "contiguous", "adam", 0.01, 5, 32)


@dataclass(frozen=True)
class ZeroImagePreset(Preset):
    """
    Attributes:
        networks: instead of the preset's own image set, epochs and batch size.
        references: untrained networks of the families of Figure 4 are shown too.
    """

    networks: tuple[Network, ...] = ()
    references: bool = True


def _preset(
    summary: str, seeds: tuple[int, ...], *networks: Network, references: bool = True
) -> ZeroImagePreset:
    first = networks[0]
    return ZeroImagePreset(
        summary, first.data, first.epochs, first.batch_size, seeds, networks=networks, references=references
    )


def run(context: RunContext) -> dict[str, Any]:
    """Train and measure every network, and return the metrics."""
    preset, settings = context.preset, context.settings
    assert isinstance(preset, ZeroImagePreset)
    # first: a file that can't be used must not be found out after an hour of training
    looked_at = [look_at(text, context.device) for text in settings.checkpoints]
    sets = {network.data: _load(network.data, preset, context) for network in preset.networks}
    for network in preset.networks:
        altered = {training.name: training.alter(sets[network.data]) for training in TRAININGS.values()}
        for training, seed, _ in _wanted(network, context):
            expect(context, altered[training.name], _config(network, training, seed))
    return {
        "experiment": "zero-image",
        "preset": settings.preset,
        "loss": "cross-entropy",
        "initialisation": f"He normal weights, biases {BIASES}",
        "ways": {training.name: training.what for training in TRAININGS.values()},
        "networks": [_run_on(network, sets[network.data], context) for network in preset.networks],
        "references": looked_at + (untrained(context.device) if preset.references else []),
    }


def _load(name: str, preset: Preset, context: RunContext) -> Dataset:
    return image_sets.load(name, context.data_root).subset(preset.train_images, preset.test_images)


def _wanted(network: Network, context: RunContext) -> list[tuple[Training, int, str]]:
    """The units, seed after seed: a run that is cut off has whole seeds."""
    seeds = context.settings.seeds[: network.seeds]
    altered = seeds[: network.altered_seeds]
    return [
        (training, seed, variant)
        for seed in seeds
        for training in TRAININGS.values()
        for variant in context.settings.variants
        if training.name == "balanced" or seed in altered
    ]


def _run_on(network: Network, data: Dataset, context: RunContext) -> dict[str, Any]:
    return {
        "name": network.name,
        "data": {
            "name": data.name,
            "title": data.title,
            "note": data.note,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "classes": list(data.classes),
        },
        "architecture": {
            "name": network.architecture,
            "layers": str(ARCHITECTURES[network.architecture]),
        },
        "training": {
            "optimizer": network.optimizer,
            "lr": network.lr,
            "epochs": network.epochs,
            "batch_size": network.batch_size,
        },
        "units": [
            _train(network, training, context, data, variant, seed)
            for training, seed, variant in _wanted(network, context)
        ],
    }


def _config(network: Network, training: Training, seed: int) -> TrainConfig:
    return TrainConfig(
        network.epochs,
        network.batch_size,
        network.lr,
        network.optimizer,
        seed,
        network.layout,
        contrasts=training.contrasts,
    )


def _train(
    network: Network, training: Training, context: RunContext, original: Dataset, variant: str, seed: int
) -> dict[str, Any]:
    """Train one network and measure it, or take what an earlier run left of it."""
    data = training.alter(original).to(context.device)
    form = context.settings.form if variant == WITHOUT_BIAS else "plain"
    architecture = ARCHITECTURES[network.architecture]
    facts = {"training": training.name, "variant": variant, "seed": seed, "form": form}

    def new_model() -> nn.Sequential:
        return build(
            architecture,
            data.image_shape,
            len(data.classes),
            bias=variant == WITH_BIAS,
            fused=form == "fused",
            seed=seed,
        )

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        return {
            **facts,
            "train_images": len(data.train),
            "prior": class_shares(data.train.labels, len(data.classes)),
            "train_loss": history[-1].train_loss,
            "test_loss": history[-1].test_loss,
            "accuracy": history[-1].test_accuracy,
            "train_seconds": sum(epoch.seconds for epoch in history),
            "zero": on_zero_image(model, data.image_shape),
            "near": near_zero(model, data.test, memory_format=memory_format(network.layout)),
        }

    parts = [data.name, network.optimizer, *training.name.replace(",", "").split(), variant, f"seed{seed}"]
    unit = Unit(
        name="-".join(parts),
        label=f"{network.name}, {training.name}, {variant.replace('-', ' ')}, seed {seed}",
        settings={
            **facts,
            "architecture": str(architecture),
            "biases": BIASES if variant == WITH_BIAS else None,
        },
        config=_config(network, training, seed),
        new_model=new_model,
        measure=measure,
        watch=lambda model, _: {"zero": on_zero_image(model, data.image_shape)},
        watch_after=(0,),
    )
    return train_unit(context, data, unit)


EXPERIMENT = Experiment(
    name="zero-image",
    title="Figure 4: what networks make of the zero image, with and without biases",
    source="Scalar Invariant Networks with Zero Bias (preprint), Section 4, Figure 4, equation 11",
    presets={
        "smoke": _preset("seconds: 5 epochs on scikit-learn's digits", (0,), DIGITS_ADAM, references=False),
        "quick": _preset(
            "a few minutes: an FCN on MNIST under two optimizers, trained in six ways, one seed",
            (0,),
            MNIST,
            MNIST_ADAM,
        ),
        "paper": _preset(
            "half an hour: the same with three seeds, and a CNN on Fashion-MNIST, one seed of it trained in six ways",
            (0, 1, 2),
            MNIST,
            MNIST_ADAM,
            FASHION_ADAM,
            FASHION,
        ),
    },
    variants=VARIANTS,
    run=run,
    table=zero_image_report.table,
    figure=zero_image_figure.figure,
    about_figure=zero_image_figure.about_figure,
    checkpoint_digest=digest,
    any_form=True,
)
