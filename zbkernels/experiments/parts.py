"""Experiments that are put together from runs of others: each part keeps its own folder beside theirs."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.base import RunContext
from zbkernels.files import read_json


def run_part(
    context: RunContext, name: str, preset: str, seeds: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """The metrics of experiment ``name`` in ``<out>/<name>-<preset>``: found there finished, gone on with, or run.

    Device, form and data are those of the run that asks. A finished run of more seeds is taken as it is. ``--force`` is
    not passed on: what a part has trained belongs to it, and its own command repeats it.

    Args:
        seeds: None: the preset's.

    Raises:
        ExperimentError, DataError, CheckpointError, TrainingError: as :func:`zbkernels.experiments.runner.run`.
    """
    from zbkernels.experiments import get, runner

    settings = context.settings
    found = finished_part(context, name, preset)
    if found is not None:
        before = read_json(context.folder.parent / f"{name}-{preset}" / "config.json")["settings"]
        wanted = set(get(name).presets[preset].seeds if seeds is None else seeds)
        same = before["device"] == settings.device and before["form"] == settings.form
        if same and wanted <= set(before["seeds"]):
            return found
    folder = runner.run(
        name,
        preset=preset,
        device=settings.device,
        data=context.data_root,
        out=context.folder.parent,
        seeds=seeds,
        form=settings.form,
        progress=context.progress,
    )
    return read_json(folder / "metrics.json")


def finished_part(context: RunContext, name: str, preset: str) -> dict[str, Any] | None:
    """The metrics in ``<out>/<name>-<preset>``, whatever seeds they are of; None where no finished run is there."""
    path = context.folder.parent / f"{name}-{preset}" / "metrics.json"
    return read_json(path) if path.exists() else None
