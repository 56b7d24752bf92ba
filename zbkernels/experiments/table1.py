"""Table 1 of "Scalar Invariant Networks with Zero Bias": accuracy under multiplied test images.

One unit of work (see :mod:`units`) is one network, (with or without bias) × seed, in its own folder
``units/<variant>-seed<k>``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.experiments.base import Preset, RunContext
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.units import BIASES, WITH_BIAS, WITHOUT_BIAS, Unit, expect, train_unit
from zbkernels.models import ARCHITECTURES, build, parameter_count
from zbkernels.train import Epoch, TrainConfig, memory_format

LEARNING_RATE = 0.01  # Appendix C; Adadelta otherwise as in PyTorch: rho 0.9, eps 1e-6


def adadelta(preset: Preset, seed: int) -> TrainConfig:
    """How the paper trains its two small networks (Appendix C)."""
    return TrainConfig(preset.epochs, preset.batch_size, LEARNING_RATE, "adadelta", seed)


@dataclass(frozen=True)
class Row:
    """One pair of rows of the table: an architecture on an image set.

    Attributes:
        data: the image set the paper used.
        layout: memory format of weights and images.
        paper: variant -> accuracy (%) at each of SCALARS; {}: the paper gives none.
        recipe: (preset, seed) -> how to train; ``layout`` goes into it.
    """

    experiment: str
    architecture: str
    data: str
    layout: str
    paper: dict[str, tuple[float, ...]]
    recipe: Callable[[Preset, int], TrainConfig] = adadelta


def run(row: Row, context: RunContext) -> dict[str, Any]:
    """Train (or find) every unit, and return the metrics."""
    preset = context.preset
    data = load_data(preset, context.data_root)
    wanted = [(variant, seed) for variant in context.settings.variants for seed in context.settings.seeds]
    for _, seed in wanted:
        expect(context, data, unit_config(row, preset, seed))
    data = data.to(context.device)
    units = [_unit(row, context, data, variant, seed) for variant, seed in wanted]
    architecture = ARCHITECTURES[row.architecture]
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
            "as_in_paper": data.name == row.data
            and preset.train_images is None
            and preset.test_images is None,
        },
        "architecture": {"name": architecture.name, "layers": str(architecture)},
        "training": {
            "optimizer": "Adadelta (rho 0.9, eps 1e-6)",
            "lr": LEARNING_RATE,
            "epochs": preset.epochs,
            "batch_size": preset.batch_size,
            "loss": "cross-entropy",
            "initialisation": f"He normal weights, biases {BIASES}",
        },
        "paper": {variant: list(values) for variant, values in row.paper.items()},
        "units": units,
    }


def time_epochs(row: Row, context: RunContext) -> dict[str, Any]:
    """Some epochs of the zero-bias network in each form, interleaved (see :mod:`epoch_timing`)."""
    from zbkernels.experiments.epoch_timing import FORMS, time_forms

    data = load_data(context.preset, context.data_root).to(context.device)
    seed = context.settings.seeds[0]
    layouts = ("contiguous", "channels_last") if row.layout == "channels_last" else ("contiguous",)
    forms = {
        (form, layout): new_model(row, data, bias=False, fused=form == "fused", seed=seed).to(context.device)
        for form in FORMS
        for layout in layouts
    }
    config = unit_config(row, context.preset, seed)
    return time_forms(forms, data, config, say=context.progress.say)


def load_data(preset: Preset, root: str | Path | None) -> image_sets.Dataset:
    return image_sets.load(preset.data, root).subset(preset.train_images, preset.test_images)


def unit_config(row: Row, preset: Preset, seed: int) -> TrainConfig:
    return replace(row.recipe(preset, seed), memory_format=row.layout)


def new_model(
    row: Row, data: image_sets.Dataset, *, bias: bool, fused: bool, seed: int
) -> torch.nn.Sequential:
    architecture = ARCHITECTURES[row.architecture]
    return build(architecture, data.image_shape, len(data.classes), bias=bias, fused=fused, seed=seed)


def _unit(row: Row, context: RunContext, data: image_sets.Dataset, variant: str, seed: int) -> dict[str, Any]:
    """Train one network and sweep it, or take what an earlier run left of it."""
    form = context.settings.form if variant == WITHOUT_BIAS else "plain"
    config = unit_config(row, context.preset, seed)
    settings = {"variant": variant, "form": form, "architecture": str(ARCHITECTURES[row.architecture])}
    if variant == WITH_BIAS:
        settings["biases"] = BIASES

    def measure(model: torch.nn.Module, history: list[Epoch]) -> dict[str, Any]:
        return {
            "variant": variant,
            "seed": seed,
            "form": form,
            "parameters": parameter_count(model),
            "epochs": [asdict(epoch) for epoch in history],
            "train_seconds": sum(epoch.seconds for epoch in history),
            "sweep": sweep(model, data.test, memory_format=memory_format(row.layout)),
            "zero_image": zero_image_probabilities(model, data.image_shape),
        }

    unit = Unit(
        name=f"{variant}-seed{seed}",
        label=f"{variant.replace('-', ' ')}, seed {seed}",
        settings=settings,
        config=config,
        new_model=lambda: new_model(row, data, bias=variant == WITH_BIAS, fused=form == "fused", seed=seed),
        measure=measure,
    )
    return train_unit(context, data, unit)
