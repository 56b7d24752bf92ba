"""What a network predicts when its images are multiplied by a scalar, and for the zero image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zbkernels import distributed
from zbkernels.data import Split
from zbkernels.train import evaluation_batches, predict_logits

# The eleven scalars of Table 1.
SCALARS = (1.0, 0.25, 0.15, 0.125, 0.1, 0.075, 0.05, 0.025, 0.01, 0.001, 0.0001)


@torch.inference_mode()
def sweep(
    model: nn.Module,
    split: Split,
    scalars: tuple[float, ...] = SCALARS,
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> list[dict[str, Any]]:
    """Accuracy under each scalar, and how many predictions differ from those at scalar 1.

    The images are read once for all scalars. The ranks of a team share them, and all return the same.

    Returns:
        One row per scalar: ``scalar``, ``accuracy`` (%), ``changed`` (images), ``largest_changed_margin``
        (over the changed images, the largest gap between the two best logits at scalar 1, relative to that image's
        largest |logit|; None where nothing changed: near 1e-6, a change is float32 rounding) and
        ``commonest_share`` (the share, in %, of the class that is predicted most often).
    """
    team, device = distributed.team(), split.labels.device
    counts = torch.zeros(len(scalars), 2, dtype=torch.int64)
    margins = torch.zeros(len(scalars))
    for images, labels in split.batches(evaluation_batches(split)):
        base, *scaled = (
            predict_logits(model, images, scale=scale, memory_format=memory_format)
            for scale in (1.0, *scalars)
        )
        more, larger = _compared(base, scaled, labels)
        counts = _wider(counts, more.shape[1]) + more
        margins = torch.maximum(margins, larger)
    # A rank without images has seen no class.
    columns = team.max(torch.tensor(counts.shape[1], device=device))
    counts = team.sum(_wider(counts, int(columns)).to(device)).cpu()
    margins = team.max(margins.to(device)).cpu()
    return [
        {
            "scalar": scalar,
            "accuracy": 100 * right / len(split),
            "changed": changed,
            "largest_changed_margin": margin if changed else None,
            "commonest_share": 100 * max(predicted) / len(split),
        }
        for scalar, (right, changed, *predicted), margin in zip(
            scalars, counts.tolist(), margins.tolist(), strict=True
        )
    ]


def _wider(counts: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(counts, (0, columns - counts.shape[1]))


def _compared(base: Tensor, scaled: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """A batch's part of the sweep, on the CPU: for each of the scaled logits the number of right and of changed
    predictions and how often each class is predicted (``[S, 2 + classes]``), and the largest margin at scalar 1 of a
    changed one (``[S]``)."""
    best, second = base.topk(2, dim=1).values.unbind(1)
    margin = (best - second) / base.abs().amax(1).clamp_min(torch.finfo(base.dtype).tiny)
    counts, margins = [], []
    for logits in scaled:
        predicted = logits.argmax(1)
        changed = predicted != base.argmax(1)
        each = predicted.bincount(minlength=logits.shape[1])
        counts.append(torch.cat([(predicted == labels).sum()[None], changed.sum()[None], each]))
        margins.append(margin.where(changed, 0).max())
    return torch.stack(counts).cpu(), torch.stack(margins).cpu()


@torch.inference_mode()
def zero_image_probabilities(model: nn.Module, image_shape: tuple[int, int, int]) -> list[float]:
    """Softmax output for the image that is 0 everywhere (Section 4 of the paper, Eq. 11)."""
    device = next(model.parameters()).device
    logits = predict_logits(model, torch.zeros(1, *image_shape, device=device))
    return logits[0].double().softmax(0).tolist()
