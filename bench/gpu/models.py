"""A training step of each model: the fused layers against torch's in channels_last, eager and compiled.

The same weights and batches go through all forms. First some steps together: the losses must fall and run
together (they part slowly, by rounding that grows). Then the steps are timed in turn.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gpu.rows import Task, options, run_tasks
from zbkernels.benchmarking import contestants
from zbkernels.benchmarking.cases import CLASSES
from zbkernels.benchmarking.models import batches, training_step, with_loss
from zbkernels.benchmarking.runner import Settings, environment
from zbkernels.benchmarking.timing import CudaClock, interleave
from zbkernels.models import ARCHITECTURES, build, layer_kernels

# Those of the experiments; `zb bench --suite models --device cuda` has the larger ones.
MODELS = ("fcn-mnist", "cnn-fashion")
IMAGE = (1, 28, 28)
BATCH = 512  # the paper's on MNIST
LEARNING_RATE = 0.003
APART = {None: 0.02, torch.bfloat16: 0.1}  # of the loss, at any step; bfloat16 rounds to 8 bits


@dataclasses.dataclass
class Form:
    """One way to run a model: its step returns the loss and the logits before the update."""

    name: str
    model: nn.Module
    step: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def forms(name: str, device: str, autocast: torch.dtype | None, *, compiled: bool) -> list[Form]:
    """The fused layers and torch's, in channels_last, with the weights of one seed; torch's also compiled."""
    architecture = ARCHITECTURES[name]
    models = {
        "fused": build(architecture, IMAGE, CLASSES, fused=True),
        "eager CL": build(architecture, IMAGE, CLASSES, fused=False),
    }
    if compiled:
        models["compile CL"] = copy.deepcopy(models["eager CL"])
    found = []
    for form, model in models.items():
        model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        function = with_loss(model)
        if form == "compile CL":
            function = contestants.compiled(function, device)
        function = contestants.per_call(function, device)
        step = training_step(function, model, learning_rate=LEARNING_RATE, autocast=autocast)
        found.append(Form(form, model, step))
    return found


def together(
    found: Sequence[Form], data: Sequence[tuple[torch.Tensor, torch.Tensor]], allowed: float
) -> dict[str, list[float]]:
    """Train all forms on the same batches; returns their losses.

    Raises:
        AssertionError: the losses of a form part from those of eager torch, or do not fall.
    """
    losses: dict[str, list[float]] = {form.name: [] for form in found}
    for images, labels in data:
        for form in found:
            losses[form.name].append(float(form.step(images, labels)[0]))
    right = losses["eager CL"]
    for name, values in losses.items():
        apart = max(abs(a - b) / max(abs(b), 1e-2) for a, b in zip(values, right, strict=True))
        assert apart <= allowed, f"{name}: losses apart by {apart:.2g} of eager's, allowed {allowed}"
        assert values[-1] < values[0], f"{name}: the loss went from {values[0]:.3g} to {values[-1]:.3g}"
    return losses


def measure(
    name: str,
    settings: Settings,
    autocast: torch.dtype | None,
    *,
    compiled: bool,
    batch: int = BATCH,
    steps: int = 12,
) -> tuple[str, dict[str, Any]]:
    """One row: the check, then the times of a step, in turn."""
    device = settings.device
    found = forms(name, device, autocast, compiled=compiled)
    data = [
        (images.contiguous(memory_format=torch.channels_last), labels)
        for images, labels in batches(steps, batch, IMAGE, device)
    ]
    losses = together(found, data, APART[autocast])
    images, labels = data[0]
    times = interleave(
        {form.name: functools.partial(form.step, images, labels) for form in found},
        rounds=settings.rounds,
        pause=settings.pause,
        min_sample=settings.min_sample,
        clock=CudaClock() if device.startswith("cuda") else None,
    )
    ours = times["fused"].median
    ratios = {form: value.median / ours for form, value in times.items() if form != "fused"}
    ran = layer_kernels(found[0].model, lambda: found[0].model(images))
    row = {
        "model": name,
        "batch": batch,
        "dtype": "float32" if autocast is None else f"autocast {str(autocast).removeprefix('torch.')}",
        "times": {form: value.as_dict() for form, value in times.items()},
        "ratios": ratios,
        "kernels": {layer: forward for layer, (forward,) in ran.items()},
        "losses": losses,
    }
    words = ", ".join(f"{ratio:.2f}x {form}" for form, ratio in ratios.items())
    return f"{ours * 1e3:.3g} ms, {words}", {"model": row}


def tasks(settings: Settings) -> list[Task]:
    """Each model in float32 and in bfloat16's autocast; then both again with torch.compile beside them."""
    return [
        Task(
            f"{name} {'float32' if autocast is None else 'bfloat16'}{', compiled' if compiled else ''}",
            functools.partial(measure, name, settings, autocast, compiled=compiled),
            60.0 if compiled else 25.0,
            optional=compiled,
        )
        for compiled in (False, True)
        for autocast in APART
        for name in MODELS
    ]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return options(__doc__.splitlines()[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    settings = Settings.of(device=chosen.device, rounds=11)
    with environment(settings):
        return run_tasks(tasks(settings), chosen)


def rehearse() -> str:
    """Every model on a CPU in a small batch; torch.compile traces only, and in float32 only."""
    settings = Settings(rounds=1, pause=0.0, min_sample=0.0)
    contestants.COMPILER, before = "eager", contestants.COMPILER
    try:
        with environment(settings):
            for name in MODELS:
                for autocast in APART:
                    _, data = measure(name, settings, autocast, compiled=autocast is None, batch=8, steps=4)
                    assert all(data["model"]["kernels"].values()), f"{name}: a layer named no kernel"
    finally:
        contestants.COMPILER = before
    return f"{len(MODELS)} models, {len(tasks(settings))} rows"


if __name__ == "__main__":
    sys.exit(main())
