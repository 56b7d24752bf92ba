"""Section 9.3 of the thesis: ‖X‖² and λ_min(H∞) of real data sets under three ways to preprocess them.

Both say how many hidden units suffice, in Section 6.1 and in others' bounds, where λ_min(H∞) is taken to be about
constant and ‖X‖² to grow as n/d. So besides the whole data sets there are their first n images, for growing n.
H∞ is that of a ReLU network whose first layer trains, the least eigenvalue is certified in float64
(:mod:`least_eigenvalue`), ‖X‖² is the largest eigenvalue of XᵀX in float64.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zbkernels.data import DataError, Dataset
from zbkernels.experiments import least_eigenvalue, spectra_figure, spectra_report
from zbkernels.experiments.base import Experiment, Preset, RunContext
from zbkernels.experiments.preprocessing import (
    PREPROCESSINGS,
    WHITENING,
    preprocess,
    squared_norm,
    whitened_in_float32,
)
from zbkernels.experiments.progress import duration
from zbkernels.experiments.spectra_claims import PAPER, WITNESSES
from zbkernels.experiments.stand_ins import load_or_stand_in
from zbkernels.experiments.tangent_kernel import DIAGONAL, largest_eigenvalue, nearest_pair, tangent_of
from zbkernels.experiments.units import kept_tensors, work_unit
from zbkernels.infinite import ntk
from zbkernels.tensor_file import save_tensors

_QUIET = 20_000  # rows up to which the steps of the work are not told one by one


@dataclass(frozen=True)
class Plan:
    """What a preset measures.

    Attributes:
        sets: name of an image set and numbers of first training images, in the order of the work: what is quick comes
            first, then the whole set. More than there are means all.
        stand_in: numbers of images where another set stands in.
    """

    sets: tuple[tuple[str, tuple[int, ...]], ...]
    stand_in: tuple[int, ...] = ()


PLANS = {
    "smoke": Plan((("digits", (100, 300)),)),
    "quick": Plan((("mnist", (500, 1_000, 2_000, 5_000)),)),
    "paper": Plan(
        (
            ("mnist", (1_000, 2_000, 5_000, 10_000, 60_000)),
            ("cifar-10", (1_000, 2_000, 5_000, 10_000, 50_000)),
        ),
        stand_in=(1_000, 2_000, 5_000),
    ),
}


def run(context: RunContext) -> dict[str, Any]:
    """Measure every row, and return the metrics."""
    plan = PLANS[context.settings.preset]
    loaded: list[tuple[str, Dataset, list[int]]] = []
    absent: list[str] = []
    for name, sizes in plan.sets:
        try:
            data = load_or_stand_in(name, context.data_root)
        except DataError as error:
            if not loaded:
                raise
            context.progress.say(f"{name} is left out: {error}")
            absent.append(name)
            continue
        wanted = sizes if data.name == name else plan.stand_in
        there = [min(size, len(data.train)) for size in wanted]
        loaded.append((name, data, list(dict.fromkeys(there))))
    hows = context.settings.variants
    context.progress.expect(len(hows) * sum(len(chosen) for *_, chosen in loaded))
    sets = []
    for name, data, chosen in loaded:
        rows = [_row(context, data, how, size) for size in chosen for how in hows]
        printed = data.name in PAPER
        sets.append(
            {
                "name": data.name,
                "in_place_of": name,
                "title": data.title,
                "note": data.note,
                "images": len(data.train),
                "features": data.train.images[0].numel(),
                "rows": sorted(rows, key=lambda row: (PREPROCESSINGS.index(row["how"]), row["n"])),
                "checks": _checks(context, data, max(chosen)) if printed else None,
            }
        )
    return {"experiment": "spectra", "preset": context.settings.preset, "sets": sets, "absent": absent}


def _row(context: RunContext, data: Dataset, how: str, size: int) -> dict[str, Any]:
    progress, part = context.progress, data.train.first(size)
    name, label = f"{data.name}-{how}-{size}", f"{data.name}, {how}, {size:,} images"
    folder = context.folder / "units" / name
    say = progress.say if size > _QUIET else progress.describe

    def measure() -> dict[str, Any]:
        started = time.perf_counter()
        x, directions = preprocess(part.images.cpu(), how)
        cosine, *pair = nearest_pair(x.float())
        kept = folder if size > _QUIET else None
        least, vector = least_eigenvalue.least_eigenvalue(x, kept, lambda text: say(f"{label}: {text}"))
        save_tensors(folder / "eigenvector.safetensors", {"vector": vector})
        return {
            "squared_norm": squared_norm(x),
            "directions": directions,
            "least": least,
            "nearest": {
                "cosine": cosine,
                "pair": pair,
                # λ_min of the two rows alone: [[1/2, h], [h, 1/2]]
                "bound": DIAGONAL - abs(float(tangent_of(x[pair[0]].dot(x[pair[1]]).view(1)))),
            },
            "seconds": time.perf_counter() - started,
        }

    settings = {
        "data": {"title": data.title, "crc32": f"{part.checksum():08x}"},
        "how": how,
        "n": size,
        "tolerance": least_eigenvalue.TOLERANCE,
    }
    found = work_unit(context, name, settings, measure)
    progress.batch_done()
    progress.epoch_done(f"{label}: λ_min {found['least']['value']:.5f}, {duration(found['seconds'])}")
    return {"how": how, "n": size, **found}


def _checks(context: RunContext, data: Dataset, size: int) -> dict[str, Any]:
    """What the rows of a printed set can be checked by; by preprocessing but for the last.

    "largest": λ_max(H∞), 2⁻²⁴ of which is what rounding may do to any eigenvalue in float32. "few": λ_min of the
    WITNESSES images that have most of the eigenvector, densely in float64 by the package's own kernel; no larger set's
    is above it. "squared_norms": ‖X‖² of the images whitened in float32 alone, in their order and in the reverse:
    exactly, these two are equal.
    """
    part = data.train.first(size)
    images, hows = part.images.cpu(), context.settings.variants
    known = {"data": {"title": data.title, "crc32": f"{part.checksum():08x}"}, "n": size}

    def of_row(how: str) -> dict[str, Any]:
        x, _ = preprocess(images, how)
        row = context.folder / "units" / f"{data.name}-{how}-{size}"
        weights = kept_tensors(row / "eigenvector.safetensors")["vector"].abs()
        few = x[weights.topk(min(WITNESSES, size)).indices]
        own = ntk(few * few.shape[1] ** 0.5, w_std=1.0, train="first")
        return {"largest": largest_eigenvalue(x.float()), "few": float(torch.linalg.eigvalsh(own)[0])}

    def whitened() -> dict[str, Any]:
        both = (images, images.flip(0))
        return {"squared_norms": [squared_norm(whitened_in_float32(each)) for each in both]}

    found: dict[str, Any] = {"largest": {}, "few": {}}
    for how in hows:
        settings = {**known, "how": how, "witnesses": WITNESSES}
        checks = work_unit(context, f"{data.name}-{how}-{size}-checks", settings, partial(of_row, how))
        for key, value in checks.items():
            found[key][how] = value
    if WHITENING in hows:
        found |= work_unit(context, f"{data.name}-whitening-{size}-float32", known, whitened)
    return found


EXPERIMENT = Experiment(
    name="spectra",
    title="Section 9.3 of the thesis: the least eigenvalue of H∞ and the norm of X, for real data",
    source="Linearized Difference Networks as Approximate Kernel Methods, Section 9.3",
    presets={
        "smoke": Preset("seconds: up to 300 of scikit-learn's digits", "digits", 0, 1, (0,)),
        "quick": Preset("minutes: up to 5,000 images of MNIST", "mnist", 0, 1, (0,)),
        "paper": Preset(
            "an hour or two, 9 GB of memory, 8 GB of disk: all of MNIST; CIFAR-10, or 5,000 images of its stand-in",
            "mnist",
            0,
            1,
            (0,),
        ),
    },
    variants=PREPROCESSINGS,
    run=run,
    table=spectra_report.table,
    figure=spectra_figure.figure,
)
