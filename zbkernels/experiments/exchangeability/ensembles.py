"""Ensembles of small autoencoders that train at once, on images shrunk to a few pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from zbkernels.data import Split
from zbkernels.exchangeability.optimizers import Rule
from zbkernels.exchangeability.stacked_mlp import StackedMLP


def shrunk(images: Split, side: int) -> Tensor:
    """Images of the split as vectors of ``side`` × ``side`` pixels in [0, 1], each the mean of a square: [N, side²].

    Raises:
        ValueError: the images are no squares of one channel whose side is a multiple of ``side``.
    """
    channels, height, width = images.image_shape
    if channels != 1 or height != width or height % side:
        raise ValueError(
            f"shrunk: expected square grey images, their side a multiple of {side}, got {images.image_shape}"
        )
    pixels, _ = images.batch(torch.arange(len(images)))
    return torch.nn.functional.avg_pool2d(pixels, height // side).flatten(1)


def trained(
    network: StackedMLP,
    rule: Rule,
    x: Tensor,
    steps: Sequence[int],
    *,
    batch: int,
    seed: int,
    factors: Sequence[Tensor | float] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Train the networks in place to put out their input; stop at each of ``steps``.

    All networks see the same batches in the same order, drawn with replacement from the seed alone: the inputs are the
    fixed a and b of the paper's Observation 4, and all chance is in the initial weights.

    Args:
        x: [N, inputs].
        steps: increasing numbers of steps; 0 is before the first.
        batch: images of a step; 0: all of them.
        factors: for each parameter, what its steps are multiplied by; broadcasts over it. None: 1.

    Yields:
        The number of steps, and the losses [R] of the batch before the last of them (of the first at 0).
    """
    x = x.to(network.weights[0])
    generator = torch.Generator().manual_seed(seed)
    state, parameters = rule.init(network.parameters()), network.parameters()
    losses, done = network.gradients(x[:batch] if batch else x, x[:batch] if batch else x)[0], 0
    for stop in steps:
        while done < stop:
            images = x[torch.randint(len(x), (batch,), generator=generator)] if batch else x
            losses, gradients = network.gradients(images, images)
            before = None if factors is None else [p.clone() for p in parameters]
            rule.step(parameters, gradients, state)
            if before is not None and factors is not None:
                for p, old, factor in zip(parameters, before, factors, strict=True):
                    p.copy_(old + (p - old) * factor)
            done += 1
        yield done, losses


# Step sizes of the paper's figures; SGD's is that of its Figure 3.
STEP_SIZES = {"sgd": 0.5, "adam": 1e-3, "rmsprop": 1e-3, "nadam": 2e-3}
