"""Images inside metrics.json, so that a figure can be drawn again from the metrics alone."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import torch
from torch import Tensor


def encode(image: Tensor) -> str:
    """``[C, H, W]`` in [0, 1] as text: 256 levels, packed."""
    pixels = image.detach().cpu().mul(255).round().to(torch.uint8).contiguous()
    return base64.b64encode(zlib.compress(pixels.numpy().tobytes(), 9)).decode("ascii")


def decode(text: str, shape: tuple[int, int, int]) -> Tensor:
    """The image of :func:`encode`, float32 [C, H, W] in [0, 1].

    Raises:
        ValueError: not an image of this shape.
    """
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    if pixels.size != np.prod(shape):
        raise ValueError(f"decode: expected an image of shape {list(shape)}, got {pixels.size} values")
    return torch.from_numpy(pixels.reshape(shape).astype(np.float32) / np.float32(255))
