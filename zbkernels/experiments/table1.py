"""Table 1 of "Scalar Invariant Networks with Zero Bias": accuracy under multiplied test images.

One unit of work (see :mod:`units`) is one network, (with or without bias) × seed, in its own folder
``units/<variant>-seed<k>``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.data.streamed import StreamedSplit
from zbkernels.experiments.base import Preset, RunContext
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.stand_ins import load_or_stand_in, stand_in
from zbkernels.experiments.units import BIASES, WITH_BIAS, WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.models import ARCHITECTURES, Architecture, ResNet, build, parameter_count
from zbkernels.train import DivergedError, Epoch, TrainConfig, memory_format

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


def adadelta(preset: Preset, data: image_sets.Dataset, seed: int) -> TrainConfig:
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
        epochs: as many as the paper trained for.
        recipe: (preset, images, seed) -> how to train; ``layout`` goes into it.
        kinds: the lines.
        remark: what the report says of the network, about what the paper leaves open.
    """

    experiment: str
    architecture: str
    data: str
    layout: str
    paper: Mapping[str, tuple[float, ...]]
    epochs: int = 20
    recipe: Callable[[Preset, image_sets.Dataset, int], TrainConfig] = adadelta
    kinds: tuple[Kind, ...] = KINDS
    remark: str = "The paper gives no sizes"


def run(row: Row, context: RunContext) -> dict[str, Any]:
    """Train (or find) every unit, and return the metrics."""
    preset = context.preset
    data = load_data(preset, context.data_root)
    kinds = [kind for kind in row.kinds if kind.name in context.settings.variants]
    wanted = [(kind, seed) for kind in kinds for seed in context.settings.seeds]
    for _, seed in wanted:
        expect(context, data, unit_config(row, context, data, seed))
    data = data.to(context.device)
    units, diverged = [], []
    for kind, seed in wanted:
        try:
            units.append(_unit(row, context, data, kind, seed))
        except DivergedError as error:
            if not kind.may_diverge:
                raise
            diverged.append({"variant": kind.name, "label": kind.label, "seed": seed, "message": str(error)})
            context.progress.say(f"{kind.label}, seed {seed}: {error}")
    reduced = _reduced(row, preset)
    replaced = stand_in(data.name, row.data)
    return {
        "experiment": row.experiment,
        "preset": context.settings.preset,
        "scalars": list(SCALARS),
        "data": {
            "title": data.title,
            "train_images": len(data.train),
            "test_images": len(data.test),
            "official": data.official,
            "note": data.note,
            "as_in_paper": data.name == row.data and not reduced,
            "stand_in_for": replaced.for_title if replaced else None,
            "stand_in": replaced.title if replaced else None,
            # Whether a preset that does less is judged by the claims that name no number.
            "judged_reduced": data.name == row.data and isinstance(preset, RowPreset) and bool(reduced),
        },
        "reduced": reduced,
        "kinds": [
            {
                "name": kind.name,
                "label": kind.label,
                "bias": kind.bias,
                "beside": kind.beside,
                "architecture": architecture(row, preset, kind).name,
            }
            for kind in kinds
        ],
        "architecture": {
            "name": preset_architecture(row, preset),
            "layers": "; ".join(dict.fromkeys(str(architecture(row, preset, kind)) for kind in kinds)),
            "remark": row.remark,
        },
        "training": describe(unit_config(row, context, data, 0), data),
        "paper": {variant: list(values) for variant, values in row.paper.items()},
        "units": units,
        "diverged": diverged,
    }


def describe(config: TrainConfig, data: image_sets.Dataset) -> dict[str, Any]:
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


def time_epochs(row: Row, context: RunContext) -> dict[str, Any]:
    """Some epochs of the zero-bias network in each form, interleaved (see :mod:`epoch_timing`)."""
    from zbkernels.experiments.epoch_timing import FORMS, time_forms

    preset = context.preset
    data = load_data(preset, context.data_root).to(context.device)
    seed = context.settings.seeds[0]
    layouts = ("contiguous", "channels_last") if row.layout == "channels_last" else ("contiguous",)
    kind = next(kind for kind in row.kinds if not kind.bias)
    forms = {
        (form, layout): new_model(row, preset, data, kind, fused=form == "fused", seed=seed).to(
            context.device
        )
        for form in FORMS
        for layout in layouts
    }
    return time_forms(forms, data, unit_config(row, context, data, seed), say=context.progress.say)


def load_data(preset: Preset, root: str | Path | None) -> image_sets.Dataset:
    """The preset's images, or their stand-in where the data folder lacks them (see :mod:`stand_ins`)."""
    return load_or_stand_in(preset.data, root).subset(preset.train_images, preset.test_images)


def unit_config(row: Row, context: RunContext, data: image_sets.Dataset, seed: int) -> TrainConfig:
    config = row.recipe(context.preset, data, seed)
    return replace(config, memory_format=row.layout, precision=context.settings.precision)


def preset_architecture(row: Row, preset: Preset) -> str:
    """The row's architecture, or the preset's narrower one, without what kinds add to the name."""
    narrow = preset.architecture if isinstance(preset, RowPreset) else None
    return narrow or row.architecture


def architecture(row: Row, preset: Preset, kind: Kind) -> Architecture | ResNet:
    return ARCHITECTURES[preset_architecture(row, preset) + kind.form]


def new_model(
    row: Row, preset: Preset, data: image_sets.Dataset, kind: Kind, *, fused: bool, seed: int
) -> torch.nn.Module:
    chosen = architecture(row, preset, kind)
    return build(chosen, data.image_shape, len(data.classes), bias=kind.bias, fused=fused, seed=seed)


def _reduced(row: Row, preset: Preset) -> list[str]:
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
    return less


def _unit(row: Row, context: RunContext, data: image_sets.Dataset, kind: Kind, seed: int) -> dict[str, Any]:
    """Train one network and sweep it, or take what an earlier run left of it."""
    preset = context.preset
    form = "plain" if kind.bias else context.settings.form
    settings = {
        "variant": kind.name,
        "form": form,
        "architecture": str(architecture(row, preset, kind)),
    }
    if kind.bias:
        settings["biases"] = BIASES

    def measure(model: torch.nn.Module, history: list[Epoch]) -> dict[str, Any]:
        return {
            "variant": kind.name,
            "seed": seed,
            "form": form,
            "parameters": parameter_count(model),
            "epochs": [asdict(epoch) for epoch in history],
            "train_seconds": sum(epoch.seconds for epoch in history),
            "sweep": sweep(model, data.test, memory_format=memory_format(row.layout)),
            "zero_image": zero_image_probabilities(model, data.image_shape),
        }

    unit = Unit(
        name=f"{kind.name}-seed{seed}",
        label=f"{kind.label}, seed {seed}",
        settings=settings,
        config=unit_config(row, context, data, seed),
        new_model=lambda: new_model(row, preset, data, kind, fused=form == "fused", seed=seed),
        measure=measure,
    )
    return train_unit(context, data, unit)
