"""The time of one training epoch of a zero-bias network, on fused layers and on torch's own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.data import Dataset
from zbkernels.experiments.base import ExperimentError
from zbkernels.train import TrainConfig, memory_format, new_optimizer, train_epoch

TURN = 20  # batches that one form trains before the next one's turn: short against a machine's slow minutes
_SAME_LOSS = 1e-4


@dataclass
class _Contestant:
    form: str
    label: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    seconds: float = 0.0
    cpu: float = 0.0  # processor time of the whole process: still means something on a busy machine


def time_forms(
    forms: Mapping[tuple[str, str], nn.Module], data: Dataset, config: TrainConfig
) -> dict[str, Any]:
    """Train every form for one epoch on the same batches, in turns, and add up each one's time.

    Args:
        forms: (form, memory format) -> a network; all hold the same weights.

    Raises:
        ExperimentError: the forms do not agree on the loss of the first batch.
    """
    contestants = []
    for (form, layout), model in forms.items():
        own = replace(config, memory_format=layout)
        model.to(memory_format=memory_format(layout))  # type: ignore[call-overload]
        label = {"fused": "fused layers", "plain": "plain torch layers"}[form] + f", {layout}"
        contestants.append(_Contestant(form, label, model, new_optimizer(model, own), own))
    _check_equal(contestants, data)

    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(config.seed))
    turns = order.to(data.train.labels.device).split(TURN * config.batch_size)
    for contestant in contestants:  # warm up on the first turn, then put the state back
        weights = {name: value.clone() for name, value in contestant.model.state_dict().items()}
        train_epoch(contestant.model, data.train, contestant.optimizer, contestant.config, turns[0])
        contestant.model.load_state_dict(weights)
        contestant.optimizer = new_optimizer(contestant.model, contestant.config)
    for number, turn in enumerate(turns):
        shift = number % len(contestants)
        for contestant in contestants[shift:] + contestants[:shift]:
            started, cpu = time.perf_counter(), time.process_time()
            train_epoch(contestant.model, data.train, contestant.optimizer, contestant.config, turn)
            # train_epoch reads the losses at its end, so that a GPU is done, too
            contestant.seconds += time.perf_counter() - started
            contestant.cpu += time.process_time() - cpu
    return {
        "images": len(data.train),
        "batch_size": config.batch_size,
        "turn": TURN,
        "threads": torch.get_num_threads(),
        "device": data.train.images.device.type,
        "torch": torch.__version__,
        "rows": [
            {
                "form": c.form,
                "label": c.label,
                "seconds": c.seconds,
                "cpu": c.cpu,
                "kernel": _kernels(c, data),
            }
            for c in contestants
        ],
    }


def _check_equal(contestants: list[_Contestant], data: Dataset) -> None:
    count = contestants[0].config.batch_size
    images, labels = data.train.images[:count], data.train.labels[:count]
    with torch.inference_mode():
        losses = [
            F.cross_entropy(
                c.model(images.to(memory_format=memory_format(c.config.memory_format))), labels
            ).item()
            for c in contestants
        ]
    if max(losses) - min(losses) > _SAME_LOSS * max(losses):
        said = ", ".join(f"{c.label}: {loss:.6f}" for c, loss in zip(contestants, losses, strict=True))
        raise ExperimentError(
            f"the forms disagree on the loss of the first batch, nothing was timed ({said})"
        )


def _kernels(contestant: _Contestant, data: Dataset) -> str:
    """Which kernel each fused layer ran, by one more forward pass; "torch" for plain layers."""
    if contestant.form != "fused":
        return "torch"
    import zbkernels

    ran: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_: ran.append(str(zbkernels.last_kernel())))
        for module in contestant.model.modules()
        if type(module).__module__.startswith("zbkernels.")
    ]
    with torch.inference_mode():
        contestant.model(data.train.images[:1])
    for hook in hooks:
        hook.remove()
    return ", ".join(dict.fromkeys(ran))
