"""Table 1 of "Scalar Invariant Networks with Zero Bias": accuracy under multiplied test images.

One unit of work (see :mod:`units`) is one network, (with or without bias) × seed, in its own folder
``units/<variant>-seed<k>``.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.experiments.base import Preset, RunContext
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.input_gain import behind_gain, input_gain
from zbkernels.experiments.stand_ins import load_or_stand_in, stand_in
from zbkernels.experiments.table1_row import (
    Kind,
    Row,
    RowPreset,
    architecture,
    describe,
    preset_architecture,
    reduced_in,
)
from zbkernels.experiments.units import BIASES, Unit, expect, train_unit
from zbkernels.models import ResNet, build, parameter_count
from zbkernels.train import DivergedError, Epoch, TrainConfig, memory_format


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
    reduced = reduced_in(row, preset)
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
            "input_gain": input_gain(data) if row.mean_square_one else None,
        },
        "training": describe(unit_config(row, context, data, 0), data),
        "paper": {variant: list(values) for variant, values in row.paper.items()},
        "units": units,
        "diverged": diverged,
    }


def time_epochs(row: Row, context: RunContext) -> dict[str, Any]:
    """Some epochs of the zero-bias network in each form, interleaved (see :mod:`epoch_timing`)."""
    from zbkernels.experiments.epoch_timing import FORMS, time_forms

    preset = context.preset
    data = load_data(preset, context.data_root).to(context.device)
    seed = context.settings.seeds[0]
    layouts = ("contiguous", "channels_last") if row.layout == "channels_last" else ("contiguous",)
    kind = next(kind for kind in row.kinds if not kind.bias)
    absent: dict[str, str] = {}
    if context.settings.preset == "smoke" and isinstance(architecture(row, preset, kind), ResNet):
        absent[FORMS["compiled"]] = (
            "compiling a ResNet takes minutes, and the preset smoke is meant to take seconds"
        )
    forms = {
        (form, layout): new_model(row, preset, data, kind, fused=form == "fused", seed=seed).to(
            context.device
        )
        for form in FORMS
        if FORMS[form] not in absent
        for layout in layouts
    }
    say = context.progress.say
    name = architecture(row, preset, kind).name
    say(f"{len(data.train):,} training images of {data.title}, {name}, in {len(forms)} forms")
    return time_forms(forms, data, unit_config(row, context, data, seed), say=say, absent=absent)


def load_data(preset: Preset, root: str | Path | None) -> image_sets.Dataset:
    """The preset's images, or their stand-in where the data folder lacks them (see :mod:`stand_ins`)."""
    return load_or_stand_in(preset.data, root).subset(preset.train_images, preset.test_images)


def unit_config(row: Row, context: RunContext, data: image_sets.Dataset, seed: int) -> TrainConfig:
    config = row.recipe(context.preset, data, seed)
    return replace(config, memory_format=row.layout, precision=context.settings.precision)


def new_model(
    row: Row, preset: Preset, data: image_sets.Dataset, kind: Kind, *, fused: bool, seed: int
) -> torch.nn.Module:
    chosen = architecture(row, preset, kind)
    model = build(chosen, data.image_shape, len(data.classes), bias=kind.bias, fused=fused, seed=seed)
    return behind_gain(model, input_gain(data)) if row.mean_square_one else model


def _unit(row: Row, context: RunContext, data: image_sets.Dataset, kind: Kind, seed: int) -> dict[str, Any]:
    """Train one network and sweep it, or take what an earlier run left of it."""
    preset = context.preset
    form = "plain" if kind.bias else context.settings.form
    settings: dict[str, Any] = {
        "variant": kind.name,
        "form": form,
        "architecture": str(architecture(row, preset, kind)),
    }
    if kind.bias:
        settings["biases"] = BIASES
    if row.mean_square_one:
        settings["input_gain"] = input_gain(data)

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
