"""Runs one experiment into one folder: config.json first, then the work, then metrics, table and figure."""

from __future__ import annotations

import difflib
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from zbkernels import distributed, locks
from zbkernels._version import __version__
from zbkernels.experiments import get
from zbkernels.experiments.base import Experiment, ExperimentError, RunContext, RunSettings
from zbkernels.experiments.engine import ENGINES, IN_PROCESS, Engine
from zbkernels.experiments.progress import Progress
from zbkernels.files import read_json, replacing, write_json, write_text
from zbkernels.train import PRECISIONS

FORMS = ("fused", "plain")
_TIMING = "timing.json"
SEEDS = 1 << 32  # so many a generator tells apart, biases having their own above them


def run(
    name: str,
    *,
    preset: str = "quick",
    device: str = "auto",
    data: str | Path | None = None,
    out: str | Path = "out",
    seeds: tuple[int, ...] | None = None,
    variants: tuple[str, ...] | None = None,
    form: str = "fused",
    checkpoints: tuple[str, ...] = (),
    precision: str = "float32",
    engine: str = IN_PROCESS,
    address: str | None = None,
    time_epochs: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Run the experiment ``name`` into ``<out>/<name>-<preset>`` and return that folder.

    A run that is finished there with the same settings is left alone; one that was cut off goes on. Processes that
    torchrun started train each network together, and rank 0 writes (:mod:`zbkernels.distributed`).

    Args:
        device: "auto" (CUDA where there is one), or a torch device.
        data: folder of the image sets; None: ``$ZBKERNELS_DATA``.
        seeds, variants: instead of the preset's seeds and of all kinds of network.
        form: of the zero-bias networks, "fused" (zbkernels.nn) or "plain" (torch layers).
        checkpoints: of networks that others trained, for an experiment that looks at such.
        precision: of training, "float32" or, for the experiments that have it, "bfloat16".
        engine, address: "in-process" or, for the experiments that have it, "ray", and the address of a Ray cluster.
        time_epochs: also measure training epochs in each form, as :func:`time_epochs_of` does alone.
        force: throw away what is there and start over.

    Raises:
        ExperimentError, DataError, CheckpointError, TrainingError, DistributedError: with one line for the user.
    """
    experiment = get(name)
    settings = settings_for(
        experiment, preset, device, seeds, variants, form, checkpoints=checkpoints, precision=precision
    )
    _check_engine(experiment, engine, address)
    folder = Path(out) / f"{name}-{preset}"
    progress = progress or Progress()
    if time_epochs and experiment.time_epochs is None:
        raise ExperimentError(
            f"{name}: its networks have one form only, --time-epochs has nothing to compare"
        )
    if time_epochs and distributed.launched():
        raise ExperimentError("--time-epochs times one process; run `zb time` without torchrun")
    with distributed.joined(settings.device) as own_device:
        finished = distributed.team().agree(lambda: is_finished(folder, settings))
        if finished and not force and not time_epochs:
            progress.say(f"{folder}: finished already; --force repeats it")
            return folder
        context = RunContext(
            settings,
            experiment.presets[preset],
            folder,
            data,
            own_device,
            progress,
            force,
            Engine(engine, address),
        )
        run_in(experiment, context, time_epochs)
    return folder


def run_in(experiment: Experiment, context: RunContext, time_epochs: bool = False) -> None:
    """Run an experiment into the context's folder, whatever is there; in a team, as one of its ranks.

    What an earlier run left there stays until this one has its metrics: a command that is refused half-way takes
    nothing away.

    Raises:
        ExperimentError: another process runs there.
    """
    with ExitStack() as held:
        distributed.team().agree(lambda: held.enter_context(_locked(context.folder)))
        _run_locked(experiment, context, time_epochs)


def _run_locked(experiment: Experiment, context: RunContext, time_epochs: bool) -> None:
    folder, settings, progress = context.folder, context.settings, context.progress
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"settings": _json(settings), "environment": environment(context.device)}
    started = time.perf_counter()
    with progress:
        metrics = experiment.run(context)
        timing_file = folder / _TIMING
        if time_epochs and experiment.time_epochs is not None:
            write_json(timing_file, experiment.time_epochs(context))
        metrics["timing"] = read_json(timing_file) if timing_file.exists() else None
    config["seconds"] = round(time.perf_counter() - started, 3)  # of this command: a run cut off took more
    progress.say(f"{folder}: done in {config['seconds']:.0f} s")
    if distributed.team().first:
        (folder / "metrics.json").unlink(missing_ok=True)
    write_json(folder / "config.json", config)
    write_report(experiment, folder, metrics)
    write_json(folder / "metrics.json", metrics)  # last: its presence says that the run is finished


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run in a folder at a time: two would mix the settings of one with the metrics of the other."""
    try:
        with locks.locked(folder / "lock"):
            yield
    except locks.Busy as busy:
        raise ExperimentError(
            f"{folder}: another run is going on there ({busy.holder}); wait for it to end, or use another --out"
        ) from None


def time_epochs_of(
    name: str,
    *,
    preset: str = "paper",
    device: str = "auto",
    data: str | Path | None = None,
    out: str | Path = "out",
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time training epochs of the experiment's zero-bias network in each form, and train nothing else.

    The result stays in ``<out>/<name>-<preset>/timing.json``, from where a run of the experiment takes it into its
    metrics and table.

    Args:
        device, data, out: as in :func:`run`.

    Raises:
        ExperimentError, DataError, TrainingError: with one line for the user.
    """
    experiment = get(name)
    if experiment.time_epochs is None:
        raise ExperimentError(f"{name}: its networks have one form only, there is nothing to compare")
    settings = settings_for(experiment, preset, device, (seed,), None, "fused")
    folder = Path(out) / f"{name}-{preset}"
    progress = progress or Progress()
    context = RunContext(
        settings, experiment.presets[preset], folder, data, torch.device(settings.device), progress
    )
    timing = experiment.time_epochs(context)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _TIMING, timing)
    return timing


def write_report(experiment: Experiment, folder: Path, metrics: dict[str, Any]) -> None:
    """``table.md`` and ``figure.png`` from the metrics."""
    if not distributed.team().first:
        return
    write_text(folder / "table.md", experiment.table(metrics))
    with replacing(folder / "figure.png") as temporary:
        experiment.figure(metrics, temporary)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and code state that a result depends on."""
    cuda = device.type == "cuda"
    return {
        "zbkernels": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "cuda": torch.version.cuda if cuda else None,
        "threads": torch.get_num_threads(),
        "ranks": distributed.team().size,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def settings_for(
    experiment: Experiment,
    preset: str,
    device: str,
    seeds: tuple[int, ...] | None,
    variants: tuple[str, ...] | None,
    form: str,
    checkpoints: tuple[str, ...] = (),
    precision: str = "float32",
) -> RunSettings:
    """What was asked for, checked; None stands for the preset's seeds and kinds.

    Raises:
        ExperimentError: something of it does not exist.
    """
    if preset not in experiment.presets:
        close = difflib.get_close_matches(preset, experiment.presets, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ExperimentError(
            f"{experiment.name} has no preset {preset!r}; {hint}it has {', '.join(experiment.presets)}"
        )
    unknown = [variant for variant in variants or () if variant not in experiment.variants]
    if unknown:
        raise ExperimentError(
            f"{experiment.name} has no variant {unknown[0]!r}; it has {', '.join(experiment.variants)}"
        )
    if form not in FORMS:
        raise ExperimentError(f"unknown form {form!r}; known: {', '.join(FORMS)}")
    if form != FORMS[0] and not experiment.any_form:
        raise ExperimentError(f"{experiment.name} has no networks in a {form} form, only in the one it needs")
    if precision not in PRECISIONS:
        raise ExperimentError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    if precision != PRECISIONS[0] and not experiment.any_precision:
        raise ExperimentError(f"{experiment.name} trains in {PRECISIONS[0]} only, got {precision}")
    chosen = experiment.presets[preset].seeds if seeds is None else seeds
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= SEEDS:
        got = ",".join(map(str, chosen)) or "none"
        raise ExperimentError(f"expected different seeds from 0 to {SEEDS - 1}, got {got}")
    if checkpoints and experiment.checkpoint_digest is None:
        raise ExperimentError(f"{experiment.name} takes no --checkpoint; zero-image does")
    digests = {
        text: experiment.checkpoint_digest(text) for text in checkpoints if experiment.checkpoint_digest
    }
    kinds = variants or experiment.presets[preset].variants or experiment.variants
    return RunSettings(experiment.name, preset, chosen, device_named(device), kinds, form, digests, precision)


def _check_engine(experiment: Experiment, engine: str, address: str | None) -> None:
    """Raises ExperimentError: no such engine, or one that the experiment or torchrun has no use for."""
    if engine not in ENGINES:
        raise ExperimentError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == IN_PROCESS and address is not None:
        raise ExperimentError(f"--address {address}: of a Ray cluster, expected with --engine ray")
    if engine != IN_PROCESS and not experiment.any_engine:
        raise ExperimentError(f"{experiment.name} runs {IN_PROCESS} only, got --engine {engine}")
    if engine != IN_PROCESS and distributed.launched():
        raise ExperimentError(f"--engine {engine}: expected one process, without torchrun")


def device_named(name: str) -> str:
    """The torch device that a user's ``auto``, ``cpu`` or ``cuda[:index]`` means.

    Raises:
        ExperimentError: it means none, or one that is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ExperimentError(f"unknown device {name!r}; expected auto, cpu or cuda[:index]") from error
    if device.type not in ("cpu", "cuda"):
        raise ExperimentError(f"expected device auto, cpu or cuda[:index], got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ExperimentError(
            f"device {name}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
        )
    return str(device)


def is_finished(folder: Path, settings: RunSettings) -> bool:
    """Whether ``folder`` holds a finished run with these settings."""
    if not (folder / "metrics.json").exists() or not (folder / "config.json").exists():
        return False
    found = settings_of(folder)
    # Runs from before these were settings had these.
    return {"checkpoints": {}, "precision": PRECISIONS[0], **found} == _json(settings)


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings in ``folder/config.json``; none where that, or metrics.json, is no whole file: what was measured is
    in the units, from which the run then goes on."""
    try:
        read_json(folder / "metrics.json")
        found = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    known = found.get("settings") if isinstance(found, dict) else None
    return known if isinstance(known, dict) else {}


def _json(settings: RunSettings) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()
    }


def _git_commit() -> str | None:
    """Commit of the checkout this package runs from, with "+changes" where files differ; None outside one."""
    package = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if not git("ls-files", "--", Path(__file__).name):
            return None  # the checkout around us belongs to something else
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
