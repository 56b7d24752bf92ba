"""Trains one stack of autoencoders and looks at it on the way; a training that is cut off goes on from its last save.

A network whose loss is no longer finite has diverged. That is recorded with the iteration, its numbers from then on are
None, and the others of its stack go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbkernels.checkpoint import CheckpointError
from zbkernels.exchangeability.optimizers import Rule, State, optimizer
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.experiments.exchangeability.encoding import encoded_images
from zbkernels.experiments.exchangeability.measures import Inputs, measure
from zbkernels.experiments.exchangeability.sweeps import ASCENT, BATCH, BIASED, LAYERS, Unit
from zbkernels.tensor_file import load_tensors, save_tensors

SAVE_EVERY = 60.0  # seconds
CURVE = 60  # points of a learning curve
SHOWN = 2  # reconstructions that are kept


@dataclass(frozen=True)
class Task:
    """What a unit is trained on, and for how long.

    Attributes:
        train: [N, n] on the device.
        measured_after: iterations, from 0 to ``iterations``.
        precision: of the products, "float32" or "bfloat16"; weights and moments are float32.
    """

    train: Tensor
    shown: Inputs
    iterations: int
    measured_after: list[int]
    precision: str = "float32"


class Training:
    """A stack of networks with its rule, its data order and what was recorded so far."""

    def __init__(self, unit: Unit, task: Task) -> None:
        self.unit, self.task = unit, task
        sweep, device = unit.sweep, task.train.device
        width = task.train.shape[1]
        self.nets = StackedMLP.he_normal(
            [width] * (LAYERS + 1),
            [unit.seed] * len(unit.values),
            bias=sweep.variant == BIASED,
            device=device,
        )
        self.rule = rule(unit, device)
        self.state: State = self.rule.init(self.nets.parameters())
        runs = self.nets.runs
        self.done = 0
        self.diverged = torch.full((runs,), -1, dtype=torch.int64, device=device)
        self.window = torch.zeros(runs, dtype=torch.float64, device=device)  # sum of losses
        self.curve: list[list[float | None]] = []  # [runs] each
        self.looks: list[list[dict[str, Any]]] = []
        self.order = (-1, torch.empty(0, dtype=torch.int64))  # (epoch, of its images)

    @property
    def every(self) -> int:
        """Iterations that a point of the learning curve is the mean of."""
        return max(self.task.iterations // CURVE, 1)

    def batch(self, iteration: int) -> Tensor:
        """The images of an iteration, [B, n], whatever was trained before."""
        images = self.task.train
        size = min(BATCH, len(images))
        epoch, place = divmod(iteration, len(images) // size)
        if self.order[0] != epoch:
            generator = torch.Generator().manual_seed((self.unit.seed + 1) * 1_000_003 + epoch)
            self.order = (epoch, torch.randperm(len(images), generator=generator).to(images.device))
        return images[self.order[1][place * size : (place + 1) * size]]

    def step(self) -> None:
        """One iteration of all networks."""
        x = self.batch(self.done)
        if self.task.precision == "bfloat16":
            half = StackedMLP(
                [w.bfloat16() for w in self.nets.weights],
                None if self.nets.biases is None else [b.bfloat16() for b in self.nets.biases],
            )
            loss, gradients = half.gradients(x.bfloat16(), x.bfloat16())
            gradients = [g.float() for g in gradients]
        else:
            loss, gradients = self.nets.gradients(x, x)
        self.rule.step(self.nets.parameters(), gradients, self.state)
        self.done += 1
        bad = ~loss.isfinite() & (self.diverged < 0)
        self.diverged = torch.where(bad, self.done, self.diverged)
        self.window += loss
        if self.done % self.every == 0:
            means = (self.window / self.every).tolist()
            self.curve.append([float(f"{v:.6g}") if v < float("inf") else None for v in means])
            self.window.zero_()

    def look(self) -> None:
        self.looks.append(measure(self.nets, self.state, self.task.shown))

    def save(self, path: Path) -> None:
        """Everything that goes on, in one file."""
        record: dict[str, Any] = {"done": self.done, "curve": self.curve, "looks": self.looks}
        record |= {"step": self.state.step, "schedule": self.state.schedule}
        save_tensors(path, self._tensors(), {"record": json.dumps(record)})

    def load(self, path: Path) -> None:
        """What :meth:`save` wrote of this unit.

        Raises:
            CheckpointError: the file is damaged.
        """
        try:
            tensors, metadata = load_tensors(path)
            record = json.loads(metadata["record"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{path}: the checkpoint cannot be read ({error}); delete it to start this unit over"
            ) from error
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])
        self.state.step, self.state.schedule = record["step"], record["schedule"]
        self.done, self.curve, self.looks = record["done"], record["curve"], record["looks"]

    def _tensors(self) -> dict[str, Tensor]:
        named = {f"parameter.{i}": tensor for i, tensor in enumerate(self.nets.parameters())}
        return named | self.state.tensors() | {"diverged": self.diverged, "window": self.window}

    def result(self) -> dict[str, Any]:
        """Of each run: value, when it diverged (None: not), learning curve, looks, reconstructions."""
        pictures = self.nets(self.task.shown.test[:SHOWN]).clamp(0, 1).nan_to_num(0)  # [R, SHOWN, n]
        return {
            "every": self.every,
            "runs": [
                {
                    "value": value,
                    "diverged": None if self.diverged[r] < 0 else int(self.diverged[r]),
                    "curve": [point[r] for point in self.curve],
                    "looks": [
                        {"iteration": iteration, **look[r]}
                        for iteration, look in zip(self.task.measured_after, self.looks, strict=True)
                    ],
                    "reconstructions": encoded_images(pictures[r]),
                }
                for r, value in enumerate(self.unit.values)
            ],
        }


def train(
    unit: Unit,
    task: Task,
    checkpoint: Path,
    on_iteration: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train a unit and return its result (:meth:`Training.result`).

    Args:
        checkpoint: written at least every ``SAVE_EVERY`` seconds; where it is there, training goes on from it. Whoever
            keeps the result deletes it then.
        on_iteration: told of the iterations that were done.
        say: told where a cut training goes on.
    """
    training = Training(unit, task)
    if checkpoint.exists():
        training.load(checkpoint)
        on_iteration(training.done)
        say(f"{unit}: going on after iteration {training.done:,}")
    saved = time.monotonic()
    while True:
        due = (
            task.measured_after[len(training.looks)]
            if len(training.looks) < len(task.measured_after)
            else None
        )
        if training.done == due:
            training.look()
            continue
        if training.done == task.iterations:
            break
        if time.monotonic() - saved > SAVE_EVERY:
            training.save(checkpoint)
            saved = time.monotonic()
        training.step()
        on_iteration(1)
    return training.result()


def rule(unit: Unit, device: torch.device) -> Rule:
    """The update rule of a unit's sweep, with a hyper-parameter for each run."""
    sweep = unit.sweep
    values = torch.tensor(unit.values, device=device)
    sign = -1.0 if sweep.variant == ASCENT else 1.0
    if sweep.lr is None:
        return optimizer(sweep.rule, form=sweep.form, lr=sign * values)
    return optimizer(sweep.rule, form=sweep.form, lr=sign * sweep.lr, eps=values, rho=0.9)


def seconds_an_iteration(unit: Unit, task: Task, steps: int = 3) -> float:
    """Time of a step of the unit's stack, after one that warms up."""
    training = Training(unit, task)
    training.step()
    _wait(task.train.device)
    started = time.perf_counter()
    for _ in range(steps):
        training.step()
    _wait(task.train.device)
    return (time.perf_counter() - started) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
