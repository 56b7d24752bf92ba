"""Max pooling: two inputs share all ReLU bits, and the pool takes other winners (against Appendix A of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.experiments.combinations import Groups, draw_sets
from zbkernels.experiments.pictures import encode
from zbkernels.models import initialise
from zbkernels.nap import patterns

POSITIONS = 65  # along a segment


def pooled_pairs(pixels: int, pairs: int, classes: int, seed: int) -> nn.Sequential:
    """A zero-bias network that keeps the larger of each two of its ``2 * pairs`` hidden units."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, 2 * pairs, bias=False),
        nn.Unflatten(1, (1, pairs, 2)),
        nn.ReLU(),
        nn.MaxPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(pairs, classes, bias=False),
    )
    initialise(model, seed)
    return model


def counterexample() -> dict[str, Any]:
    """Two inputs with one pattern of ReLU bits and one class under a 1×2 max pool, whose midpoint has another
    class.

    Returns:
        ``inputs``, ``same_bits``, ``same_winners``, and along the segment ``share`` and both ``logits`` at
        each share.
    """
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Flatten())  # the logits are the pooled maxima
    ends = torch.tensor([[1.0, 0.1, 0.8, 0.8], [0.1, 1.0, 0.8, 0.8]]).view(2, 1, 1, 4)
    bits, winners = (patterns(model, ends, units=units) for units in ("relu", "winner"))
    share = torch.linspace(0, 1, POSITIONS)
    logits = model(_segment(ends[0], ends[1]))
    return {
        "inputs": ends.flatten(1).tolist(),
        "same_bits": bool((bits[0] == bits[1]).all()),
        "same_winners": bool((winners[0] == winners[1]).all()),
        "share": share.tolist(),
        "logits": [[round(value, 6) for value in row] for row in logits.T.tolist()],
        "classes": logits.argmax(1).tolist(),
    }


@torch.inference_mode()
def find_broken_pair(
    model: nn.Module, images: Tensor, groups: Groups, tries: int, generator: torch.Generator
) -> dict[str, Any]:
    """Look for two inputs of one group between which the class changes, among ``tries`` pairs.

    Returns:
        ``tried``, ``broken``, and of the pair whose class differs over the longest part of the segment
        ``pair`` (two images, encoded), ``shape`` and ``classes`` at each of :data:`POSITIONS`;
        None where none breaks.
    """
    pairs = draw_sets(groups, 2, tries, generator)
    broken, longest, worst = 0, 0, None
    for one, other in pairs.tolist():
        classes = model(_segment(images[one], images[other])).argmax(1)
        differing = int((classes != classes[0]).sum())
        broken += differing > 0
        if differing > longest:
            longest = differing
            worst = {
                "pair": [encode(images[one]), encode(images[other])],
                "shape": list(images.shape[1:]),
                "classes": classes.tolist(),
            }
    return {"tried": len(pairs), "broken": broken, "worst": worst}


def _segment(one: Tensor, other: Tensor) -> Tensor:
    share = torch.linspace(0, 1, POSITIONS).view(-1, *[1] * one.dim()).to(one.device)
    return (1 - share) * one + share * other
