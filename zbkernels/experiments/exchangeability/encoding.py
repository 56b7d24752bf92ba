"""Pictures and curves as text, for metrics from which a figure can be drawn again without tens of megabytes of JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def encoded_images(images: Tensor) -> str:
    """Images in [0, 1], of any shape, as base64 of a byte a pixel."""
    return _text((images * 255).round().byte())


def decoded_images(text: str, shape: Sequence[int]) -> Tensor:
    """What :func:`encoded_images` wrote, for plotting: float32 [N, H, W, C] of images ``shape`` = [C, H, W]."""
    values = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
    return values.reshape(-1, *shape).permute(0, 2, 3, 1).float() / 255


def encoded_kernels(table: Sequence[Sequence[Sequence[float | None]]]) -> str:
    """[looks, layers, angles] as base64 of float16, where None is NaN: kernels to half a thousandth."""
    plain = [[[math.nan if v is None else v for v in row] for row in look] for look in table]
    return _text(torch.tensor(plain, dtype=torch.float16))


def decoded_kernels(text: str, layers: int, angles: int) -> Tensor:
    """What :func:`encoded_kernels` wrote: float32 [looks, layers, angles]."""
    values = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float16)
    return values.float().reshape(-1, layers, angles)


def _text(values: Tensor) -> str:
    return base64.b64encode(values.cpu().contiguous().numpy().tobytes()).decode("ascii")
