"""Table 1 of "Scalar Invariant Networks with Zero Bias": accuracy under multiplied test images.

One unit of work is one network, (with or without bias) × seed, in its own folder ``units/<variant>-seed<k>``.
Units are trained, cut off, resumed and kept independently of each other; several processes may work on
different units of one run.
"""

from __future__ import annotations

import fcntl
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from zbkernels import data as image_sets
from zbkernels.experiments.base import ExperimentError, Preset, RunContext
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.progress import duration
from zbkernels.files import read_json, replacing, write_json
from zbkernels.models import ARCHITECTURES, build, parameter_count
from zbkernels.train import Epoch, TrainConfig, memory_format, train

WITH_BIAS, WITHOUT_BIAS = "with-bias", "without-bias"
VARIANTS = (WITH_BIAS, WITHOUT_BIAS)
_BIASES = "uniform in ±1/√fan_in"
LEARNING_RATE = 0.01  # Appendix C; Adadelta otherwise as in PyTorch: rho 0.9, eps 1e-6


@dataclass(frozen=True)
class Row:
    """One pair of rows of the table: an architecture on an image set."""

    experiment: str
    architecture: str
    data: str  # the image set the paper used
    layout: str  # memory format of weights and images
    paper: dict[str, tuple[float, ...]]  # variant -> accuracy (%) at each of SCALARS


def run(row: Row, context: RunContext) -> dict[str, Any]:
    """Train (or find) every unit, and return the metrics."""
    preset = context.preset
    data = load_data(preset, context.data_root)
    batches = -(-len(data.train) // preset.batch_size)
    wanted = [(variant, seed) for variant in context.settings.variants for seed in context.settings.seeds]
    context.progress.expect(len(wanted) * batches * preset.epochs)
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
            "initialisation": f"He normal weights, biases {_BIASES}",
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
    return TrainConfig(preset.epochs, preset.batch_size, LEARNING_RATE, "adadelta", seed, row.layout)


def new_model(
    row: Row, data: image_sets.Dataset, *, bias: bool, fused: bool, seed: int
) -> torch.nn.Sequential:
    architecture = ARCHITECTURES[row.architecture]
    return build(architecture, data.image_shape, len(data.classes), bias=bias, fused=fused, seed=seed)


def _unit(row: Row, context: RunContext, data: image_sets.Dataset, variant: str, seed: int) -> dict[str, Any]:
    """Train one network and sweep it, or take what an earlier run left of it."""
    folder = context.folder / "units" / f"{variant}-seed{seed}"
    form = context.settings.form if variant == WITHOUT_BIAS else "plain"
    config = unit_config(row, context.preset, seed)
    progress = context.progress
    batches = -(-len(data.train) // config.batch_size)
    settings = {
        "variant": variant,
        "form": form,
        "architecture": str(ARCHITECTURES[row.architecture]),
        "device": context.device.type,
        "data": {"title": data.title, "crc32": _crc32(data)},
        **asdict(config),
    }
    if variant == WITH_BIAS:
        settings["biases"] = _BIASES
    with _locked(folder):
        if context.force:
            _empty(folder)
        _check_same(folder / "settings.json", settings)
        if (folder / "result.json").exists():
            progress.expect(-batches * config.epochs)
            return read_json(folder / "result.json")
        write_json(folder / "settings.json", settings)

        model = new_model(row, data, bias=variant == WITH_BIAS, fused=form == "fused", seed=seed)
        model.to(context.device)
        label = f"{variant.replace('-', ' ')}, seed {seed}"
        progress.describe(label)
        skipped = _epochs_done(folder)
        progress.expect(-batches * skipped)
        if skipped:
            progress.say(f"{label}: going on after epoch {skipped}")

        def epoch_done(epoch: Epoch) -> None:
            if epoch.epoch > skipped:
                progress.epoch_done(
                    f"{label}: epoch {epoch.epoch}/{config.epochs}, test loss {epoch.test_loss:.3f}, "
                    f"accuracy {epoch.test_accuracy:.2f} %, {duration(epoch.seconds)}"
                )

        history = train(
            model,
            data,
            config,
            folder=folder,
            on_batch=progress.batch_done,
            on_epoch=epoch_done,
            say=progress.say,
        )
        result = {
            "variant": variant,
            "seed": seed,
            "form": form,
            "parameters": parameter_count(model),
            "epochs": [asdict(epoch) for epoch in history],
            "train_seconds": sum(epoch.seconds for epoch in history),
            "sweep": sweep(model, data.test, memory_format=memory_format(row.layout)),
            "zero_image": zero_image_probabilities(model, data.image_shape),
        }
        _save_model(folder / "model.safetensors", model)
        write_json(folder / "result.json", result)
        for leftover in (*folder.glob("epoch-*.safetensors"), folder / "checkpoint.json"):
            leftover.unlink(missing_ok=True)  # the trained model is kept, the optimizer's state is not
        return result


def _epochs_done(folder: Path) -> int:
    path = folder / "checkpoint.json"
    return len(read_json(path)["meta"]["history"]) if path.exists() else 0


def _check_same(path: Path, settings: dict[str, Any]) -> None:
    """Refuse to mix the work of two configurations in one folder."""
    if not path.exists():
        return
    before = read_json(path)
    differing = [key for key in settings if before.get(key) != settings[key]]
    if differing:
        said = "; ".join(f"{key}: {before.get(key)} there, {settings[key]} asked for" for key in differing)
        raise ExperimentError(
            f"{path.parent} holds a run with other settings ({said}). Use another --out, or --force"
        )


def _crc32(data: image_sets.Dataset) -> str:
    value = 0
    for split in (data.train, data.test):
        for tensor in (split.images, split.labels):
            value = zlib.crc32(tensor.cpu().contiguous().numpy().data, value)
    return f"{value:08x}"


def _save_model(path: Path, model: torch.nn.Module) -> None:
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        save_file({name: value.cpu().contiguous() for name, value in model.state_dict().items()}, temporary)


def _empty(folder: Path) -> None:
    """Delete a unit's files but the lock that is held."""
    for entry in folder.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold ``folder/lock``; the lock goes with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ExperimentError(
                f"{folder}: another process is working on this unit; wait for it to end"
            ) from error
        yield
