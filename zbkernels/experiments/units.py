"""One unit of an experiment's work: a network, trained and measured in a folder of its own, ``units/<name>``.

Units are trained, cut off, resumed and kept independently of each other; several processes, such as Ray's workers, may
work on different units of one run. A finished unit's folder holds ``settings.json``, ``model.safetensors`` and
``result.json``.
Where torchrun started the run, its ranks train and measure each unit together; rank 0 alone holds the lock, looks at
the folder and writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zbkernels import checkpoint as checkpoints
from zbkernels import distributed, locks
from zbkernels.data import Dataset
from zbkernels.experiments.base import ExperimentError, RunContext
from zbkernels.experiments.progress import duration
from zbkernels.files import read_json, read_sealed_json, write_json, write_sealed_json
from zbkernels.tensor_file import load_tensors, save_tensors
from zbkernels.train import Epoch, TrainConfig, differing_settings, train

WITH_BIAS, WITHOUT_BIAS = "with-bias", "without-bias"
VARIANTS = (WITH_BIAS, WITHOUT_BIAS)
BIASES = "uniform in ±1/√fan_in"  # how zbkernels.models.initialise starts them


@dataclass(frozen=True)
class Unit:
    """One network of a run.

    Attributes:
        name: of its folder under ``units``; each unit of a run has another.
        label: what progress calls it.
        settings: what its result depends on besides the data, the device and ``config``. A folder whose unit
            has other settings is refused.
        new_model: makes the untrained network, on the CPU.
        measure: (trained network, history) -> the unit's result (JSON-able), which is kept.
        watch: (network, epochs it was trained for) -> what is to be kept of it on the way (JSON-able). The
            list of these is the result's ``watched``.
        watch_after: the epochs after which ``watch`` is called; 0: before the first.
    """

    name: str
    label: str
    settings: dict[str, Any]
    config: TrainConfig
    new_model: Callable[[], nn.Module]
    measure: Callable[[nn.Module, list[Epoch]], dict[str, Any]]
    watch: Callable[[nn.Module, int], dict[str, Any]] | None = None
    watch_after: tuple[int, ...] = ()


def expect(context: RunContext, data: Dataset, config: TrainConfig) -> None:
    """Tell the progress of a unit still to come; :func:`train_unit` takes off what an earlier run has done."""
    context.progress.expect(_batches(data, config) * config.epochs)


def train_unit(context: RunContext, data: Dataset, unit: Unit) -> dict[str, Any]:
    """Train a network and measure it, or take what an earlier run left of it; returns the unit's result.

    Args:
        data: on the run's device.

    Raises:
        ExperimentError: the folder holds a unit with other settings, or another process is working on it.
        CheckpointError, TrainingError, DistributedError: as :func:`zbkernels.train.train`.
    """
    folder = context.folder / "units" / unit.name
    config, progress = unit.config, context.progress
    settings = {
        **unit.settings,
        "device": context.device.type,
        "data": {"title": data.title, "crc32": crc32(data)},
        **config.settings(),
    }
    team = distributed.team()

    def prepare() -> tuple[dict[str, Any] | None, int]:
        """(the result of a finished unit, the epochs of a checkpoint)"""
        if context.force:
            _empty(folder)
        _check_same(folder / "settings.json", settings)
        if (folder / "result.json").exists():
            return _kept(folder / "result.json"), 0
        write_json(folder / "settings.json", settings)
        found = checkpoints.load(folder)
        history = None if found is None else found.meta["meta"].get("history")
        return None, len(history) if isinstance(history, list) else 0

    with ExitStack() as held:
        team.agree(lambda: held.enter_context(locked(folder)))
        finished, skipped = team.agree(prepare)
        if finished is not None:
            progress.expect(-_batches(data, config) * config.epochs)
            return finished

        model = unit.new_model()
        model.to(context.device)
        progress.describe(unit.label)
        progress.expect(-_batches(data, config) * skipped)
        if skipped:
            progress.say(f"{unit.label}: going on after epoch {skipped}")

        reported = skipped

        def epoch_done(epoch: Epoch) -> None:
            nonlocal reported
            if epoch.epoch > reported:
                reported = epoch.epoch
                progress.epoch_done(
                    f"{unit.label}: epoch {epoch.epoch}/{config.epochs}, test loss {epoch.test_loss:.3f}, "
                    f"accuracy {epoch.test_accuracy:.2f} %, {duration(epoch.seconds)}"
                )

        def train_up_to(epochs: int) -> list[Epoch]:
            return train(
                model,
                data,
                config,
                folder=folder,
                until=epochs,
                on_batch=progress.batch_done,
                on_epoch=epoch_done,
                say=progress.say,
            )

        watched = _watch(unit, folder, model, train_up_to)
        history = train_up_to(config.epochs)
        result = unit.measure(model, history)
        if unit.watch is not None:
            result["watched"] = watched
        save_tensors(folder / "model.safetensors", model.state_dict())
        write_sealed_json(folder / "result.json", result)
        if team.first:
            checkpoints.remove(folder)  # the trained model is kept, the optimizer's state is not
        return result


def _watch(
    unit: Unit, folder: Path, model: nn.Module, train_up_to: Callable[[int], list[Epoch]]
) -> list[dict[str, Any]]:
    """What ``unit.watch`` saw, in order. Each is kept before training goes on: a run cut off misses none."""
    if unit.watch is None:
        return []
    team = distributed.team()
    seen = []
    for epochs in sorted(unit.watch_after):
        kept = folder / f"watched-{epochs:04d}.json"
        if not team.agree(kept.exists):
            train_up_to(epochs)
            write_sealed_json(kept, {"epoch": epochs, **unit.watch(model, epochs)})
        seen.append(team.agree(partial(_kept, kept)))
    return seen


def work_unit(
    context: RunContext, name: str, settings: dict[str, Any], work: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Do ``work`` that trains nothing in ``units/<name>``, or take what an earlier run left of it.

    Args:
        settings: all that the result depends on.

    Raises:
        ExperimentError: as :func:`train_unit`.
    """
    folder = context.folder / "units" / name
    with locked(folder):
        if context.force:
            _empty(folder)
        _check_same(folder / "settings.json", settings)
        if not (folder / "result.json").exists():
            write_json(folder / "settings.json", settings)
            write_sealed_json(folder / "result.json", work())
        return _kept(folder / "result.json")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder/lock``; the lock goes with the process, however that ends.

    Raises:
        ExperimentError: another process holds it.
    """
    try:
        with locks.locked(folder / "lock", keep=True):
            yield
    except locks.Busy as busy:
        raise ExperimentError(
            f"{folder}: another process is working on this unit ({busy.holder}); wait for it to end"
        ) from None


def _kept(path: Path) -> dict[str, Any]:
    """What an earlier run wrote there.

    Raises:
        ExperimentError: it is damaged.
    """
    try:
        return read_sealed_json(path)
    except ValueError as error:
        raise ExperimentError(
            f"{path}: cannot be read ({error}); delete it, and the same command makes it again"
        ) from error


def kept_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that an earlier step wrote there by :func:`zbkernels.tensor_file.save_tensors`.

    Raises:
        ExperimentError: they are damaged.
    """
    try:
        return load_tensors(path)[0]
    except ValueError as error:
        raise ExperimentError(
            f"{path}: cannot be read ({error}); delete {path.parent}, and the same command makes it again"
        ) from error


def _batches(data: Dataset, config: TrainConfig) -> int:
    return -(-len(data.train) // config.batch_size)


def _check_same(path: Path, settings: dict[str, Any]) -> None:
    """Refuse to mix the work of two configurations in one folder."""
    if not path.exists():
        return
    try:
        differing = differing_settings(settings, read_json(path))
    except (ValueError, TypeError) as error:
        raise ExperimentError(
            f"{path}: cannot be read ({error}); delete {path.parent}, or run again with --force, to start over"
        ) from error
    if differing:
        said = "; ".join(
            f"{key}: {value} there, {settings[key]} asked for" for key, value in differing.items()
        )
        raise ExperimentError(
            f"{path.parent} holds a run with other settings ({said}). Use another --out, or --force"
        )


def crc32(data: Dataset) -> str:
    """Of all images and labels: eight hexadecimal digits."""
    return f"{data.test.checksum(data.train.checksum()):08x}"


def _empty(folder: Path) -> None:
    """Delete a unit's files but the lock that is held."""
    for entry in folder.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
