"""The time of a training epoch of a zero-bias network: on fused layers, on torch's own, and on these compiled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from zbkernels.data import Dataset
from zbkernels.experiments.base import ExperimentError
from zbkernels.models import layer_kernels
from zbkernels.report import markdown_table
from zbkernels.train import TrainConfig, evaluate, memory_format, new_optimizer, train_epoch

EPOCHS = 2
FORMS = {"fused": "fused layers", "plain": "plain torch layers", "compiled": "torch.compile of these"}
TURN = 20  # batches that one form trains before the next one's turn: short against a machine's slow minutes
_SAME_LOSS = 1e-4


@dataclass
class _Contestant:
    form: str
    label: str
    model: nn.Module
    run: Any  # the model itself, or its compiled form on the same weights
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    seconds: float = 0.0  # of the epoch that goes on
    cpu: float = 0.0  # processor time of the whole process: still means something on a busy machine
    epochs: list[dict[str, float]] = field(default_factory=list)

    def train(self, data: Dataset, order: torch.Tensor) -> float:
        return train_epoch(self.run, data.train, self.optimizer, self.config, order)


def time_forms(
    forms: Mapping[tuple[str, str], nn.Module],
    data: Dataset,
    config: TrainConfig,
    *,
    epochs: int = EPOCHS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train every form for some epochs on the same batches, in turns, and add up each one's time.

    Args:
        forms: (a key of :data:`FORMS`, memory format) -> a network, plain for ``compiled``; all hold the same
            weights. A form that torch cannot compile here is left out, with the reason in ``absent``.
        say: receives a line of text after each epoch of each form.

    Raises:
        ExperimentError: the forms do not agree on the loss of the first batch.
    """
    if any(form == "compiled" for form, _ in forms):
        torch.compiler.reset()  # what was compiled before must not count towards the limit of recompilations
    contestants = [_contestant(form, layout, model, config) for (form, layout), model in forms.items()]
    shuffle = torch.Generator().manual_seed(config.seed)  # the order of images is that of a whole training
    turns = _turns(data, config, shuffle)
    absent = _warm_up(contestants, data, turns)
    for epoch in range(1, epochs + 1):
        if epoch > 1:
            turns = _turns(data, config, shuffle)
        for number, turn in enumerate(turns):
            shift = number % len(contestants)
            for contestant in contestants[shift:] + contestants[:shift]:
                started, cpu = time.perf_counter(), time.process_time()
                contestant.train(data, turn)
                # training reads the losses at its end, so that a GPU is done, too
                contestant.seconds += time.perf_counter() - started
                contestant.cpu += time.process_time() - cpu
        for contestant in contestants:
            _end_epoch(contestant, data)
            last = contestant.epochs[-1]
            say(
                f"{contestant.label}: epoch {epoch}/{epochs} in {last['seconds']:.2f} s, "
                f"test accuracy {last['test_accuracy']:.2f} %"
            )
    return {
        "images": len(data.train),
        "batch_size": config.batch_size,
        "epochs": epochs,
        "turn": TURN,
        "threads": torch.get_num_threads(),
        "device": data.train.labels.device.type,
        "torch": torch.__version__,
        "absent": absent,
        "rows": [
            {
                "form": c.form,
                "label": c.label,
                "seconds": statistics.median(epoch["seconds"] for epoch in c.epochs),
                "cpu": statistics.median(epoch["cpu"] for epoch in c.epochs),
                "epochs": c.epochs,
                "kernel": _kernels(c, data),
            }
            for c in contestants
        ],
    }


def table(timing: dict[str, Any]) -> str:
    """What :func:`time_forms` returned, as Markdown."""
    best = min((row["seconds"] for row in timing["rows"] if row["form"] != "fused"), default=None)
    header = ["form", "seconds", "ratio", "CPU seconds", "kernel"]
    rows = [
        [
            row["label"],
            f"{row['seconds']:.2f}",
            "-" if best is None else f"{row['seconds'] / best:.3f}",
            f"{row['cpu']:.2f}",
            row["kernel"],
        ]
        for row in timing["rows"]
    ]
    epochs = timing.get("epochs", 1)  # results of a time when one epoch was measured name no epochs
    if epochs > 1:
        header[1:2] = ["seconds, median", "of each epoch", "test accuracy after each (%)"]
        for cells, row in zip(rows, timing["rows"], strict=True):
            cells[2:2] = [
                ", ".join(f"{epoch['seconds']:.2f}" for epoch in row["epochs"]),
                ", ".join(f"{epoch['test_accuracy']:.2f}" for epoch in row["epochs"]),
            ]
    count = "One epoch" if epochs == 1 else f"{epochs} epochs"
    text = (
        f"\n{count} ({timing['images']:,} images, batch {timing['batch_size']}, {timing['threads']} thread(s), "
        f"{timing['device']}, torch {timing['torch']}) of each form, in turns of {timing['turn']} batches, after a "
        "check that all give the same loss. The ratio is to the fastest form on torch's layers.\n"
    )
    left_out = "".join(f"\nLeft out: {label}: {why}\n" for label, why in timing.get("absent", {}).items())
    return markdown_table(header, rows) + text + left_out


def _contestant(form: str, layout: str, model: nn.Module, config: TrainConfig) -> _Contestant:
    own = replace(config, memory_format=layout)
    model.to(memory_format=memory_format(layout))  # type: ignore[call-overload]
    # Every shape is compiled for itself, as benchmarks do; an epoch has two, as its last batch is smaller.
    run = torch.compile(model, dynamic=False, fullgraph=True) if form == "compiled" else model
    return _Contestant(form, f"{FORMS[form]}, {layout}", model, run, new_optimizer(model, own), own)


def _turns(data: Dataset, config: TrainConfig, shuffle: torch.Generator) -> tuple[torch.Tensor, ...]:
    order = torch.randperm(len(data.train), generator=shuffle)
    return order.to(data.train.labels.device).split(TURN * config.batch_size)


def _warm_up(
    contestants: list[_Contestant], data: Dataset, turns: tuple[torch.Tensor, ...]
) -> dict[str, str]:
    """Train each form on the first turn and on the last (whose last batch has a shape of its own), and put its state
    back; forms that cannot be compiled are taken out of the list.

    Returns:
        label -> why it was left out.

    Raises:
        ExperimentError: the losses of the first batch differ.
    """
    losses: dict[str, float] = {}
    absent: dict[str, str] = {}
    for contestant in list(contestants):
        weights = {name: value.clone() for name, value in contestant.model.state_dict().items()}
        try:
            losses[contestant.label] = contestant.train(data, turns[0][: contestant.config.batch_size])
            contestant.train(data, turns[0])
            contestant.train(data, turns[-1])
        except Exception as failure:
            if contestant.form != "compiled":
                raise
            contestants.remove(contestant)
            absent[contestant.label] = (str(failure).strip() or type(failure).__name__).splitlines()[0]
            continue
        contestant.model.load_state_dict(weights)
        contestant.optimizer = new_optimizer(contestant.model, contestant.config)
    if max(losses.values()) - min(losses.values()) > _SAME_LOSS * max(losses.values()):
        said = ", ".join(f"{label}: {loss:.6f}" for label, loss in losses.items())
        raise ExperimentError(
            f"the forms disagree on the loss of the first batch, nothing was timed ({said})"
        )
    return absent


def _end_epoch(contestant: _Contestant, data: Dataset) -> None:
    """Note the epoch and what it led to; evaluation is not timed, nor compiled."""
    layout = memory_format(contestant.config.memory_format)
    _, accuracy = evaluate(contestant.model, data.test, memory_format=layout)
    contestant.epochs.append(
        {"seconds": contestant.seconds, "cpu": contestant.cpu, "test_accuracy": accuracy}
    )
    contestant.seconds = contestant.cpu = 0.0


@torch.inference_mode()
def _kernels(contestant: _Contestant, data: Dataset) -> str:
    """Which kernel each fused layer runs forward, by one more pass; "torch" for torch's layers."""
    if contestant.form != "fused":
        return "torch"
    images, _ = data.train.batch(torch.tensor([0]))
    ran = layer_kernels(contestant.model, lambda: contestant.model(images))
    return ", ".join(dict.fromkeys(forward for (forward,) in ran.values()))
