"""What a network predicts when its images are multiplied by a scalar, and for the zero image."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zbkernels.data import Split
from zbkernels.train import predict_logits

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

    Returns:
        One row per scalar: ``scalar``, ``accuracy`` (%), ``changed`` (images), ``largest_changed_margin``
        (over the changed images, the largest gap between the two best logits at scalar 1, relative to that image's
        largest |logit|; None where nothing changed: near 1e-6, a change is float32 rounding) and
        ``commonest_share`` (the share, in %, of the class that is predicted most often).
    """
    logits = predict_logits(model, split.images, memory_format=memory_format)
    base = logits.argmax(1)
    best, second = logits.topk(2, dim=1).values.unbind(1)
    margin = (best - second) / logits.abs().amax(1).clamp_min(torch.finfo(logits.dtype).tiny)
    rows = []
    for scalar in scalars:
        predicted = predict_logits(model, split.images, scale=scalar, memory_format=memory_format).argmax(1)
        changed = predicted != base
        count = int(changed.sum())
        rows.append(
            {
                "scalar": scalar,
                "accuracy": 100 * (predicted == split.labels).sum().item() / len(split),
                "changed": count,
                "largest_changed_margin": float(margin[changed].max()) if count else None,
                "commonest_share": 100 * predicted.bincount().max().item() / len(split),
            }
        )
    return rows


@torch.inference_mode()
def zero_image_probabilities(model: nn.Module, image_shape: tuple[int, int, int]) -> list[float]:
    """Softmax output for the image that is 0 everywhere (Section 4 of the paper, Eq. 11)."""
    device = next(model.parameters()).device
    logits = predict_logits(model, torch.zeros(1, *image_shape, device=device))
    return logits[0].double().softmax(0).tolist()
