"""What an experiment is: presets, a function that measures, one that writes the table, one that draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zbkernels.experiments.engine import Engine
from zbkernels.experiments.progress import Progress


class ExperimentError(Exception):
    """An experiment cannot run as asked. The message is one line for the user."""


@dataclass(frozen=True)
class Preset:
    """How much of the paper's work is done.

    Attributes:
        summary: one line for ``zb list``.
        data: name of the image set (see :mod:`zbkernels.data`).
        train_images, test_images: take only the first so many; None takes all.
        variants: the kinds of network that are trained unless the user names some; None: all of the experiment's.
    """

    summary: str
    data: str
    epochs: int
    batch_size: int
    seeds: tuple[int, ...]
    train_images: int | None = None
    test_images: int | None = None
    variants: tuple[str, ...] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class RunSettings:
    """What the user asked for. Two runs with equal settings give equal results."""

    experiment: str
    preset: str
    seeds: tuple[int, ...]
    device: str
    variants: tuple[str, ...]
    form: str  # of the zero-bias networks: "fused" or "plain"
    # of networks that others trained: as the user wrote each -> SHA-256 of the file
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    precision: str = "float32"  # of training: as TrainConfig's


@dataclass
class RunContext:
    """Everything an experiment's ``run`` is given."""

    settings: RunSettings
    preset: Preset
    folder: Path
    data_root: str | Path | None
    device: torch.device
    progress: Progress
    force: bool = False
    engine: Engine = field(default_factory=Engine)  # where units run: results don't depend on it


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
        source: where in the paper the numbers stand.
        variants: the kinds of network that are compared, in the order of the table.
        run: does the work and returns the metrics (JSON-able).
        table: metrics -> Markdown.
        figure: metrics and a path -> a PNG file there.
        any_form: its zero-bias networks can be built of plain torch layers, too.
        any_precision: it trains in bfloat16, too, where that is asked for.
        any_engine: its units run on Ray's workers, too.
        time_epochs: measures training epochs in each form, for the metrics' "timing" (see :mod:`epoch_timing`); None:
            nothing to compare.
        about_figure: metrics -> what their figure shows, for the page of ``zb report``; None: the first paragraph of
            ``figure``'s docstring, whatever the metrics.
        checkpoint_digest: what the user wrote after ``--checkpoint`` -> SHA-256 of the file; None: the experiment
            takes no checkpoints.
    """

    name: str
    title: str
    source: str
    presets: Mapping[str, Preset]
    variants: tuple[str, ...]
    run: Callable[[RunContext], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]
    figure: Callable[[dict[str, Any], Path], None]
    time_epochs: Callable[[RunContext], dict[str, Any]] | None = field(default=None)
    checkpoint_digest: Callable[[str], str] | None = field(default=None)
    about_figure: Callable[[dict[str, Any]], str] | None = field(default=None)
    any_precision: bool = False
    any_form: bool = False
    any_engine: bool = False
