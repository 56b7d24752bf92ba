"""Figures 3, 7 and 8 of "Scalar Invariant Networks with Zero Bias": what lies between two images of one pattern.

Small networks are trained on each image set, with and without bias. Of all pairs of images with equal prediction and
equal activation pattern some are drawn, and 1000 interpolations of each are given to the network (Theorem 2 says that
prediction and pattern stay). Controls: pairs that share the prediction only, and conic combinations, which are
interpolations made darker.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from zbkernels import data as image_sets
from zbkernels.experiments import interpolation_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.interpolation_strips import strips
from zbkernels.experiments.pairs import Groups, Reader, count_pairs, look_again_exactly, look_between
from zbkernels.experiments.stand_ins import load_or_stand_in
from zbkernels.experiments.units import BIASES, VARIANTS, WITH_BIAS, Unit, expect, train_unit
from zbkernels.models import Architecture, build, parameter_count
from zbkernels.models.rows import Linear
from zbkernels.train import Epoch, TrainConfig

LEARNING_RATE = 0.01  # of Table 1's networks (Appendix C); for these the paper gives nothing but 30 neurons
ARCHITECTURE = Architecture("30-units", (Linear(30),))
PAPER = {"mnist": 32.27, "cifar-10": 29.6}  # image set -> test accuracy (%)
AGAIN = 50  # broken pairs of a kind that are looked at again in float64, at most


@dataclass(frozen=True)
class Network:
    """One image set, and the training that comes near the paper's accuracy on it (of CIFAR-10's, on the composite)."""

    data: str
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class InterpolationPreset(Preset):
    """
    Attributes:
        second: the second image set, CIFAR-10 or (see :mod:`stand_ins`) what stands in for it; None: the first only.
        pairs: how many pairs of each kind are looked at, of the training images and of the test images.
        points: interpolations of a pair.
    """

    second: Network | None = field(default=None)
    pairs: int = 100
    points: int = 1000

    @property
    def networks(self) -> tuple[Network, ...]:
        first = Network(self.data, self.epochs, self.batch_size)
        return (first,) if self.second is None else (first, self.second)


def run(context: RunContext) -> dict[str, Any]:
    preset = context.preset
    assert isinstance(preset, InterpolationPreset)
    settings = context.settings
    sets = [_run_on(network, preset, context) for network in preset.networks]
    return {
        "experiment": settings.experiment,
        "preset": settings.preset,
        "architecture": {"name": ARCHITECTURE.name, "layers": str(ARCHITECTURE)},
        "training": {
            "optimizer": "Adadelta (rho 0.9, eps 1e-6)",
            "lr": LEARNING_RATE,
            "loss": "cross-entropy",
            "initialisation": f"He normal weights, biases {BIASES}",
        },
        "points": preset.points,
        "paper": PAPER,
        "sets": sets,
    }


def _run_on(network: Network, preset: InterpolationPreset, context: RunContext) -> dict[str, Any]:
    data = load_or_stand_in(network.data, context.data_root)
    whole = preset.train_images is None and preset.test_images is None
    data = data.subset(preset.train_images, preset.test_images).to(context.device)
    wanted = [(variant, seed) for variant in context.settings.variants for seed in context.settings.seeds]
    for _, seed in wanted:
        expect(context, data, _config(network, seed))
    units = [_unit(network, preset, context, data, variant, seed) for variant, seed in wanted]
    shown = [unit.pop("strips") for unit in units if "strips" in unit]
    return {
        "data": {
            "name": data.name,
            "title": data.title,
            "note": data.note,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "image_shape": list(data.image_shape),
            "classes": list(data.classes),
            "as_in_paper": data.name in PAPER and whole,
        },
        "epochs": network.epochs,
        "batch_size": network.batch_size,
        "units": units,
        "strips": shown[0] if shown else None,  # of the first seed
    }


def _config(network: Network, seed: int) -> TrainConfig:
    return TrainConfig(network.epochs, network.batch_size, LEARNING_RATE, "adadelta", seed)


def _unit(
    network: Network,
    preset: InterpolationPreset,
    context: RunContext,
    data: image_sets.Dataset,
    variant: str,
    seed: int,
) -> dict[str, Any]:
    """Train one network and look at its pairs, or take what an earlier run left of it."""
    biased = variant == WITH_BIAS
    form = "plain" if biased else context.settings.form
    say = context.progress.say
    label = f"{data.name}, {variant.replace('-', ' ')}, seed {seed}"

    def measure(model: nn.Module, history: list[Epoch]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        splits = {"train": data.train, "test": data.test}
        counts = {name: count_pairs(model, split.images, split.labels) for name, split in splits.items()}
        found = " and ".join(f"{counts[name]['pairs']:,} among the {name} images" for name in splits)
        say(f"{label}: {found} are pairs of one pattern and prediction")
        checks = [
            look for name, split in splits.items() for look in _checks(model, split, preset, generator, name)
        ]
        result = {
            "variant": variant,
            "seed": seed,
            "form": form,
            "parameters": parameter_count(model),
            "epochs": [asdict(epoch) for epoch in history],
            "train_seconds": sum(epoch.seconds for epoch in history),
            "splits": counts,
            "checks": checks,
        }
        if not biased:
            result["strips"] = strips(model, data.test, preset.pairs, preset.points, generator)
        return result

    unit = Unit(
        name=f"{data.name}-{variant}-seed{seed}",
        label=label,
        settings={
            "variant": variant,
            "form": form,
            "architecture": str(ARCHITECTURE),
            "pairs": preset.pairs,
            "points": preset.points,
        },
        config=_config(network, seed),
        new_model=lambda: build(
            ARCHITECTURE,
            data.image_shape,
            len(data.classes),
            bias=biased,
            fused=form == "fused",
            seed=seed,
        ),
        measure=measure,
    )
    return train_unit(context, data, unit)


def _checks(
    model: nn.Module,
    split: image_sets.Split,
    preset: InterpolationPreset,
    generator: torch.Generator,
    name: str,
) -> list[dict[str, Any]]:
    """Pairs of one split: those that qualify, interpolated and darkened, and those that don't, interpolated."""
    sig, predicted = Reader(model, split.images[:1])(split.images)
    same = Groups.of(sig, predicted).sample(preset.pairs, generator)
    other = Groups.of(predicted).sample(2 * preset.pairs, generator)  # hardly any of them share the pattern
    other = other[(sig[other[:, 0]] != sig[other[:, 1]]).any(1)][: preset.pairs]
    looks = []
    for kind, pairs, conic in (
        ("same pattern", same, False),
        ("same pattern", same, True),
        ("other pattern", other, False),
    ):
        look = look_between(model, split.images, pairs, preset.points, conic=conic)
        broken = pairs[look.pop("broken")][:AGAIN]
        look |= {"split": name, "kind": kind, "combination": "conic" if conic else "convex"}
        if kind == "same pattern":
            look["in_float64"] = look_again_exactly(model, split.images, broken, preset.points, conic=conic)
        looks.append(look)
    return looks


EXPERIMENT = Experiment(
    name="interpolation",
    title="Figures 3, 7 and 8: images between two of equal prediction and activation pattern",
    source="Scalar Invariant Networks with Zero Bias, Section 3, Theorem 2, Figure 3, Appendix D, Figures 7 and 8",
    presets={
        "smoke": InterpolationPreset(
            "seconds: scikit-learn's digits, 20 pairs of a kind", "digits", 3, 64, (0,), pairs=20, points=100
        ),
        "quick": InterpolationPreset(
            "minutes: MNIST and CIFAR-10 or the composite, one seed, 100 pairs of a kind",
            "mnist",
            2,
            640,
            (0,),
            second=Network("cifar-10", 1, 576),
        ),
        "paper": InterpolationPreset(
            "half an hour: MNIST and CIFAR-10 or the composite, three seeds, 300 pairs of a kind",
            "mnist",
            2,
            640,
            (0, 1, 2),
            second=Network("cifar-10", 1, 576),
            pairs=300,
        ),
    },
    variants=VARIANTS,
    run=run,
    table=interpolation_report.table,
    figure=interpolation_report.figure,
    any_form=True,
)
