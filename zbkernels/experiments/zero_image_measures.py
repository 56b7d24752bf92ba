"""What a network makes of the zero image, and of images on the way to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.data import Split
from zbkernels.train import predict_logits

# Powers of two: multiplying by them rounds nothing, so that what changes is the network's doing. The last is 8e-31.
NEAR = tuple(2.0**-power for power in (0, 3, 7, 13, 27, 53, 100))


def entropy_ratio(probabilities: Sequence[float]) -> float:
    """Entropy over log C of a distribution over C classes: 1 where it is uniform, 0 where it is certain."""
    if len(probabilities) < 2:
        raise ValueError(f"entropy_ratio: expected at least two classes, got {len(probabilities)}")
    return -sum(p * math.log(p) for p in probabilities if p > 0) / math.log(len(probabilities))


def distribution(logits: Tensor) -> dict[str, Any]:
    """What one image's logits ``[C]`` say: ``probabilities`` (softmax in float64), ``entropy`` (over log C),
    ``largest_logit`` (in magnitude: 0.0 says that every logit is exactly 0), ``predicted`` (argmax; of equal logits
    torch's is the first).

    Raises:
        ValueError: a logit is not finite.
    """
    if not bool(logits.isfinite().all()):
        raise ValueError(
            f"distribution: expected finite logits, got {int((~logits.isfinite()).sum())} others"
        )
    probabilities = logits.double().softmax(0).tolist()
    return {
        "probabilities": probabilities,
        "entropy": entropy_ratio(probabilities),
        "largest_logit": float(logits.abs().max()),
        "predicted": int(logits.argmax()),
    }


@torch.inference_mode()
def on_zero_image(model: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, Any]:
    """:func:`distribution` of the image that is 0 everywhere (Section 4 of the paper, equation 11)."""
    device = next(model.parameters()).device
    return distribution(predict_logits(model, torch.zeros(1, *image_shape, device=device))[0])


@torch.inference_mode()
def near_zero(
    model: nn.Module,
    split: Split,
    *,
    scalars: Sequence[float] = NEAR,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> list[dict[str, Any]]:
    """Predictions for s·x as s goes to 0, over the images of ``split``.

    Returns:
        One row per scalar: ``scalar``, ``accuracy`` (%), ``changed`` (predictions unlike those at the first scalar),
        ``shares`` (of the images, by predicted class), ``entropy`` (of each image's softmax output over log C, mean).
    """
    rows: list[dict[str, Any]] = []
    first: Tensor | None = None
    for scalar in scalars:
        logits = predict_logits(model, split.images, scale=scalar, memory_format=memory_format).double()
        predicted = logits.argmax(1)
        first = predicted if first is None else first
        entropies = torch.special.entr(logits.softmax(1)).sum(1) / math.log(logits.shape[1])
        rows.append(
            {
                "scalar": scalar,
                "accuracy": 100 * (predicted == split.labels).sum().item() / len(split),
                "changed": int((predicted != first).sum()),
                "shares": (predicted.bincount(minlength=logits.shape[1]).double() / len(split)).tolist(),
                "entropy": float(entropies.mean()),
            }
        )
    return rows


def class_shares(labels: Tensor, classes: int) -> list[float]:
    """How often each class occurs."""
    return (labels.bincount(minlength=classes).double() / len(labels)).tolist()
