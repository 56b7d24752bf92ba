"""Section 6.1 of the thesis: how near H is to H∞ at a finite width, measured, beside the matrix Chernoff bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.data import Dataset
from zbkernels.experiments import chernoff_figure, chernoff_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.chernoff_spectrum import (
    NORMAL,
    SIGNS,
    Inputs,
    Spectrum,
    first_images,
    zeros_and_ones,
)
from zbkernels.experiments.units import crc32, work_unit

ACTIVATIONS = ("relu", "erf:2")  # those of the thesis' experiments
PAIR, FIRST = "zeros and ones", "first images"


@dataclass(frozen=True)
class Measured:
    """A set of inputs, and how much is drawn for it.

    Attributes:
        kind: PAIR or FIRST, how the inputs are chosen.
        inputs: n.
        trials: first layers that each seed draws.
        widths: to which each of them grows.
        long_trials, long_widths: the first so many grow on to these.
        units: single units looked at.
        readouts: of the networks.
    """

    kind: str
    inputs: int
    trials: int
    widths: tuple[int, ...]
    long_trials: int
    long_widths: tuple[int, ...]
    units: int
    readouts: tuple[str, ...] = (SIGNS,)


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(2**k for k in range(low, high + 1))


_BOTH = (SIGNS, NORMAL)
PLANS: dict[str, tuple[Measured, ...]] = {
    "smoke": (
        Measured(PAIR, 20, 20, _powers(4, 10), 4, _powers(11, 13), 100, _BOTH),
        Measured(FIRST, 40, 10, _powers(4, 10), 0, (), 50),
    ),
    "quick": (
        Measured(PAIR, 100, 20, _powers(4, 13), 2, _powers(14, 16), 500, _BOTH),
        Measured(FIRST, 300, 10, _powers(4, 13), 0, (), 100),
    ),
    "paper": (
        Measured(PAIR, 100, 50, _powers(4, 13), 5, _powers(14, 17), 1000, _BOTH),
        Measured(FIRST, 100, 50, _powers(4, 13), 0, (), 1000),
        Measured(FIRST, 300, 10, _powers(4, 13), 0, (), 50),
        Measured(FIRST, 1000, 2, _powers(6, 13), 0, (), 5),
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Draw all first layers, and return the metrics."""
    plan, preset, settings = PLANS[context.settings.preset], context.preset, context.settings
    data = image_sets.load(preset.data, context.data_root).subset(preset.train_images, preset.test_images)
    checksum = crc32(data)
    cases = [(m, name, readout) for m in plan for name in settings.variants for readout in m.readouts]
    context.progress.expect(sum(m.trials for m, _, _ in cases) * len(settings.seeds))
    return {
        "experiment": "chernoff",
        "preset": settings.preset,
        "data": {"title": data.title, "note": data.note},
        "seeds": list(settings.seeds),
        "cases": [_case(context, data, checksum, *case) for case in cases],
    }


def _case(
    context: RunContext, data: Dataset, checksum: str, measured: Measured, activation: str, readout: str
) -> dict[str, Any]:
    known = {
        "data": {"title": data.title, "crc32": checksum},
        "inputs": [measured.kind, measured.inputs],
        "activation": activation,
        "readout": readout,
        "trials": [measured.trials, list(measured.widths)],
        "long trials": [measured.long_trials, list(measured.long_widths)],
        "units": measured.units,
    }
    name = f"{measured.kind.replace(' ', '-')}-{measured.inputs}-{activation.replace(':', '')}-{readout}"
    seeds = []
    for seed in context.settings.seeds:
        context.progress.describe(f"{name}, seed {seed}")
        work = partial(_seed, context, data, measured, activation, readout, seed)
        seeds.append(work_unit(context, f"{name}-seed{seed}", {**known, "seed": seed}, work))
        context.progress.epoch_done(f"{name}, seed {seed}: done")
    first = seeds[0]
    return {
        "kind": measured.kind,
        "activation": activation,
        "readout": readout,
        **first["facts"],
        "single": {
            "units": sum(found["single"]["units"] for found in seeds),
            **{key: max(found["single"][key] for found in seeds) for key in ("plain", "whitened")},
        },
        "widths": [
            {"width": first["widths"][i]["width"], **_joined([found["widths"][i] for found in seeds])}
            for i in range(len(first["widths"]))
        ],
    }


def _joined(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The trials of all seeds one after another."""
    return {key: [value for row in rows for value in row[key]] for key in rows[0] if key != "width"}


def _seed(
    context: RunContext, data: Dataset, measured: Measured, activation: str, readout: str, seed: int
) -> dict[str, Any]:
    spectrum = Spectrum(_inputs(data, measured), activation)
    generator = torch.Generator().manual_seed(seed)
    trials = []
    for trial in range(measured.trials):
        far = measured.long_widths if trial < measured.long_trials else ()
        trials.append(spectrum.trial((*measured.widths, *far), readout, generator))
        context.progress.batch_done()
    all_widths = (*measured.widths, *(measured.long_widths if measured.long_trials else ()))
    return {
        "facts": spectrum.facts(),
        "single": spectrum.single_units(measured.units, generator),
        "widths": [
            {
                "width": width,
                **{
                    key: [float(f"{trial[i][key]:.5g}") for trial in trials if i < len(trial)]
                    for key in trials[0][0]
                },
            }
            for i, width in enumerate(all_widths)
        ],
    }


def _inputs(data: Dataset, measured: Measured) -> Inputs:
    choose = zeros_and_ones if measured.kind == PAIR else first_images
    return choose(data.train, measured.inputs)


EXPERIMENT = Experiment(
    name="chernoff",
    title="Section 6.1: the finite-width kernel beside its limit, and how loose the matrix Chernoff bound is",
    source="Linearized Difference Networks as Approximate Kernel Methods, Section 6.1, equations 34 to 42",
    presets={
        "smoke": Preset("seconds: 20 and 40 of scikit-learn's digits", "digits", 0, 1, (0, 1)),
        "quick": Preset("a minute: 100 and 300 images of MNIST, two seeds", "mnist", 0, 1, (0, 1), 4_000, 1),
        "paper": Preset(
            "ten minutes: 100 zeros and ones as in Section 8, and 100, 300 and 1,000 images of all digits, four seeds",
            "mnist",
            0,
            1,
            (0, 1, 2, 3),
            4_000,
            1,
        ),
    },
    variants=ACTIVATIONS,
    run=run,
    table=chernoff_report.table,
    figure=chernoff_figure.figure,
)
