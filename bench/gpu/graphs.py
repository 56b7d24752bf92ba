"""Whole networks in CUDA graphs: inference and training steps that are replayed, against the same without a graph.

``robust.py`` captures each op by itself.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import zbkernels as zb
from gpu.card import Card, Rehearsal, Tensors
from gpu.rows import Task, options, run_tasks
from zbkernels.models import ARCHITECTURES, ResNet, build

IMAGE, CLASSES, BATCH, STEPS = (1, 28, 28), 10, 64, 5
TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}  # sums of gradients in another order, over some steps
COMPILER: dict[str, Any] = {"mode": "reduce-overhead"}


def fused() -> nn.Module:
    """Plain layers, fused."""
    model = build(ARCHITECTURES["cnn-fashion"], IMAGE, CLASSES, fused=False)
    assert zb.fuse(model, when="always")
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: build(ARCHITECTURES["cnn-fashion"], IMAGE, CLASSES),
    "fused": fused,
    "residual": lambda: build(ResNet("basic", "basic", (1, 1), width=64), IMAGE, CLASSES),
    "fixup": lambda: build(ResNet("fixup", "basic", (1, 1), style="fixup", width=64), IMAGE, CLASSES),
}


def batches(card: Card, count: int) -> list[Tensors]:
    """Images and labels on the card."""
    draw = torch.Generator().manual_seed(0)
    size = card.sized(BATCH, 4)
    return [
        (
            torch.randn(size, *IMAGE, generator=draw).to(card.device),
            torch.randint(CLASSES, (size,), generator=draw).to(card.device),
        )
        for _ in range(count)
    ]


def inference(card: Card, make: Callable[[], nn.Module]) -> str:
    """A captured forward gives what the images that its input holds when it is replayed give."""
    model = make().to(card.device).eval()
    data = batches(card, 3)
    static = data[0][0].clone()
    with torch.no_grad():
        want = [model(images) for images, _ in data]
        replay, (logits,) = card.capture(lambda: (model(static),))
        for (images, _), expected in zip(data, want, strict=True):
            static.copy_(images)
            replay()
            card.wait()
            torch.testing.assert_close(logits, expected, **TOLERANCE)
    return f"{len(data)} replays"


def training(card: Card, make: Callable[[], nn.Module]) -> str:
    """Forward, backward and the optimizer's step in one graph: the losses and weights of plain steps."""
    plain = make().to(card.device)
    with torch.no_grad():
        for each in plain.parameters():  # a layer that starts at 0 would leave most gradients 0
            if not each.any():
                each.fill_(0.01)
    graphed = copy.deepcopy(plain)
    start = [each.detach().clone() for each in graphed.parameters()]
    data = batches(card, STEPS)
    step, _ = stepping(plain)
    want = [step(*each)[0].clone() for each in data]
    captured, momenta = stepping(graphed)
    images, labels = (each.clone() for each in data[0])
    replay, (loss,) = card.capture(lambda: captured(images, labels))
    with torch.no_grad():  # as before the steps that warmed up
        for each, value in zip(graphed.parameters(), start, strict=True):
            each.copy_(value)
        for each in momenta():
            each.zero_()
    for (new_images, new_labels), expected in zip(data, want, strict=True):
        images.copy_(new_images)
        labels.copy_(new_labels)
        replay()
        card.wait()
        torch.testing.assert_close(loss, expected, **TOLERANCE)
    torch.testing.assert_close(list(graphed.parameters()), list(plain.parameters()), **TOLERANCE)
    assert float(want[-1]) > 0
    return f"{STEPS} steps, loss {float(want[0]):.3g} to {float(want[-1]):.3g}"


def stepping(model: nn.Module) -> tuple[Callable[..., Tensors], Callable[[], list[torch.Tensor]]]:
    """(a training step, which returns its loss; the optimizer's momenta)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> Tensors:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    return step, lambda: [state["momentum_buffer"] for state in optimizer.state.values()]


def compiled(card: Card, make: Callable[[], nn.Module]) -> str:
    """``torch.compile(mode="reduce-overhead")``, which makes CUDA graphs itself."""
    model = make().to(card.device).eval()
    function = torch.compile(model, fullgraph=True, **COMPILER)
    data = batches(card, 3)
    with torch.no_grad():
        for images, _ in [*data, *data]:
            torch.testing.assert_close(function(images).clone(), model(images), **TOLERANCE)
    card.wait()
    return f"{2 * len(data)} calls"


def tasks(card: Card) -> list[Task]:
    """All rows; what needs a compiler last."""
    rows = [
        Task(f"{title}: {name}", functools.partial(check, card, make))
        for title, check in (("inference", inference), ("training", training))
        for name, make in NETWORKS.items()
    ]
    last = functools.partial(compiled, card, NETWORKS["layers"])
    return [*rows, Task("reduce-overhead: layers", last, 60.0, optional=True)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return options(__doc__.splitlines()[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    return run_tasks(tasks(Card()), parser().parse_args(arguments))


def rehearse() -> str:
    """Every row on the CPU, small, with calls for replays; torch.compile traces only."""
    before = dict(COMPILER)
    COMPILER.clear()
    COMPILER.update(backend="eager")
    try:
        rows = tasks(Rehearsal())
        for task in rows:
            task.do()
    finally:
        COMPILER.clear()
        COMPILER.update(before)
    return f"{len(rows)} rows, small"


if __name__ == "__main__":
    sys.exit(main())
