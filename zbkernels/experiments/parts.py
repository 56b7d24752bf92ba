"""Experiments that are put together from runs of others: each part keeps its own folder beside theirs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zbkernels import distributed
from zbkernels.experiments import get
from zbkernels.experiments.base import ExperimentError, RunContext, RunSettings
from zbkernels.files import read_json
from zbkernels.train import PRECISIONS

PAPER = "paper"


def run_part(
    context: RunContext, name: str, preset: str, seeds: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """The metrics of experiment ``name`` in ``<out>/<name>-<preset>``: found there finished, gone on with, or run.

    Device, form and data are those of the run that asks. A finished run of more seeds is taken as it is. ``--force`` is
    not passed on: what a part has trained belongs to it, and its own command repeats it.

    Args:
        seeds: None: the preset's.

    Raises:
        ExperimentError, DataError, CheckpointError, TrainingError, DistributedError: as
            :func:`zbkernels.experiments.runner.run`.
    """
    from zbkernels.experiments import runner

    experiment, team = get(name), distributed.team()
    settings = runner.settings_for(
        experiment, preset, context.settings.device, seeds, None, context.settings.form
    )
    folder = context.folder.parent / f"{name}-{preset}"
    if not team.agree(partial(_holds, folder, settings)):
        inner = replace(
            context, settings=settings, preset=experiment.presets[preset], folder=folder, force=False
        )
        runner.run_in(experiment, inner)
    return team.agree(lambda: read_json(folder / "metrics.json"))


def run_best_part(
    context: RunContext, name: str, preset: str, seeds: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """A finished run of the preset "paper" in ``<out>/<name>-paper``, of whatever seeds; without one, as
    :func:`run_part`."""
    found = finished_part(context, name, PAPER)
    return found if found is not None else run_part(context, name, preset, seeds)


def finished_part(context: RunContext, name: str, preset: str) -> dict[str, Any] | None:
    """The metrics in ``<out>/<name>-<preset>``, whatever seeds they are of; None where no finished run is there."""
    path = context.folder.parent / f"{name}-{preset}" / "metrics.json"

    def read() -> dict[str, Any] | None:
        try:
            return read_json(path) if path.exists() else None
        except ValueError as error:
            raise ExperimentError(
                f"{path}: cannot be read ({error}); delete it, and its own command makes it again"
            ) from error

    return distributed.team().agree(read)


def _holds(folder: Path, settings: RunSettings) -> bool:
    """Whether a run is finished there that differs from ``settings`` by further seeds at most."""
    from zbkernels.experiments.runner import settings_of

    found = {"precision": PRECISIONS[0], **settings_of(folder)}
    same = all(found.get(key) == getattr(settings, key) for key in ("device", "form", "precision"))
    return same and all(_covers(found.get(key), getattr(settings, key)) for key in ("seeds", "variants"))


def _covers(found: Any, wanted: tuple[Any, ...]) -> bool:
    return isinstance(found, list) and all(each in found for each in wanted)
