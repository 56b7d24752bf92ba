"""What a row of Table 1 is: an architecture on an image set, the lines it has, and how its networks are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zbkernels.data import Dataset
from zbkernels.data.streamed import StreamedSplit
from zbkernels.experiments.base import Preset
from zbkernels.experiments.units import BIASES, WITH_BIAS, WITHOUT_BIAS
from zbkernels.models import ARCHITECTURES, Architecture, ResNet
from zbkernels.train import TrainConfig

LEARNING_RATE = 0.01  # Appendix C; Adadelta otherwise as in PyTorch: rho 0.9, eps 1e-6


@dataclass(frozen=True)
class RowPreset(Preset):
    """
    Attributes:
        architecture: a narrower network for small machines, instead of the row's.
    """

    architecture: str | None = None


@dataclass(frozen=True)
class Kind:
    """One line of a row: a kind of network.

    Attributes:
        name: as ``--variant`` takes it, and of the folders of its units.
        form: what the name of its architecture ends in, such as "-fixup".
        beside: name of the kind without bias that the claims set a kind with bias beside.
        may_diverge: a training whose loss is no number any more is part of the result, and the other kinds go on; else
            it ends the run.
    """

    name: str
    label: str
    bias: bool
    form: str = ""
    beside: str = WITHOUT_BIAS
    may_diverge: bool = False


KINDS = (Kind(WITH_BIAS, "with bias", True), Kind(WITHOUT_BIAS, "without bias", False))


def adadelta(preset: Preset, data: Dataset, seed: int) -> TrainConfig:
    """How the paper trains its two small networks (Appendix C)."""
    del data
    return TrainConfig(preset.epochs, preset.batch_size, LEARNING_RATE, "adadelta", seed)


@dataclass(frozen=True)
class Row:
    """The lines of the table for one architecture on one image set.

    Attributes:
        data: the image set the paper used.
        layout: memory format of weights and images.
        paper: variant -> accuracy (%) at each of SCALARS; {}: the paper gives none.
        epochs, batch_size: the paper's.
        recipe: (preset, images, seed) -> how to train; ``layout`` goes into it.
        kinds: the lines.
        mean_square_one: images are multiplied by what brings them to mean square 1 (see :mod:`input_gain`).
        remark: what the report says of the network, about what the paper leaves open.
    """

    experiment: str
    architecture: str
    data: str
    layout: str
    paper: Mapping[str, tuple[float, ...]]
    epochs: int
    batch_size: int
    recipe: Callable[[Preset, Dataset, int], TrainConfig] = adadelta
    kinds: tuple[Kind, ...] = KINDS
    mean_square_one: bool = False
    remark: str = "The paper gives no sizes"


def preset_architecture(row: Row, preset: Preset) -> str:
    """The row's architecture, or the preset's narrower one, without what kinds add to the name."""
    narrow = preset.architecture if isinstance(preset, RowPreset) else None
    return narrow or row.architecture


def architecture(row: Row, preset: Preset, kind: Kind) -> Architecture | ResNet:
    return ARCHITECTURES[preset_architecture(row, preset) + kind.form]


def reduced_in(row: Row, preset: Preset) -> list[str]:
    """In what a preset does less than the paper; [] where it does all."""
    less = []
    if preset.train_images is not None:
        less.append(f"{preset.train_images:,} training images")
    if preset.test_images is not None:
        less.append(f"{preset.test_images:,} test images")
    if preset_architecture(row, preset) != row.architecture:
        less.append(f"{preset_architecture(row, preset)} in place of {row.architecture}")
    if preset.epochs != row.epochs:
        less.append(f"{preset.epochs} of {row.epochs} epochs")
    if preset.batch_size != row.batch_size:
        less.append(f"batch {preset.batch_size} in place of {row.batch_size}")
    return less


def describe(config: TrainConfig, data: Dataset) -> dict[str, Any]:
    """How the networks were trained, as a report says it."""
    if config.optimizer == "adadelta":
        optimizer = "Adadelta (rho 0.9, eps 1e-6)"
    else:
        said = [f"momentum {config.momentum:g}", f"weight decay {config.weight_decay:g}"]
        if config.scalar_lr != 1:
            said.append(f"single parameters at {config.scalar_lr:g} of the learning rate")
        optimizer = f"{config.optimizer.upper()} ({', '.join(said)})"
    extras = [] if config.schedule == "constant" else [f"{config.schedule} schedule"]
    if config.mixup:
        extras.append(f"mixup {config.mixup:g}")
    if config.precision != "float32":
        extras.append(config.precision)
    if isinstance(data.train, StreamedSplit) and data.train.random:
        extras.append("random crops of random sizes and flips")
    if config.crop != "none":
        extras.append({"crop": "random crops", "crop-flip": "random crops and flips"}[config.crop])
    return {
        "optimizer": ", ".join([optimizer, *extras]),
        "lr": config.lr,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "loss": "cross-entropy",
        "initialisation": f"He normal weights, biases {BIASES}",
    }
