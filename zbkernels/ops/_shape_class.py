"""Names of shape classes: shapes so near to one another that the same kernel, and the same configuration of it, is
the fastest for all of them. Measured results are kept by these names.

Channels and features count by the next power of two, since tiles are filled up to one (K64: 33 to 64), rows and
positions by the nearest.
"""

from __future__ import annotations

import math

import torch

from zbkernels.ops._geometry import Geometry, Pair, is_channels_last


def next_power(n: int) -> int:
    """The least power of two that is n or more; 0 of 0."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


def near_power(n: int) -> str:
    """``2^10`` of anything nearer to 1024 than to its neighbours on a logarithmic scale; ``0`` of 0."""
    return f"2^{round(math.log2(n))}" if n > 0 else "0"


def conv_class(x: torch.Tensor, weight: torch.Tensor, g: Geometry, *, batch: bool = True) -> str:
    """A convolution with its pool, e.g. ``K128 C64 3x3 M2^17 max2``; M counts the un-pooled positions.

    batch: whether M holds those of the whole batch; else of one image. Ops that return signatures leave the batch
    (and the memory format) out: another kernel sums in another order, and a pattern must not change with either.
    """
    height, width = g.map_size(x, weight)
    images = x.shape[0] if batch and x.dim() == 4 else 1
    channels = weight.shape[1] * g.groups
    parts = [f"K{next_power(weight.shape[0])}", f"C{next_power(channels)}"]
    parts.append(_by(weight.shape[2:], "x") + ("" if g.stride == (1, 1) else f"/{_short(g.stride)}"))
    if g.dilation != (1, 1):
        parts.append(f"dilation{_short(g.dilation)}")
    if g.groups > 1:
        parts.append("depthwise" if weight.shape[1] == 1 else f"groups{next_power(g.groups)}")
    parts.append(f"M{near_power(images * height * width)}")
    if g.pool == "none":
        return " ".join([*parts, "nopool"])
    step = "" if g.pool_stride == g.pool_kernel else f"/{_short(g.pool_stride)}"
    return " ".join([*parts, f"{g.pool}{_short(g.pool_kernel)}{step}"])


def linear_class(x: torch.Tensor, weight: torch.Tensor, *, batch: bool = True) -> str:
    """A matrix product, e.g. ``O256 I1024 M2^9``, with M rows; without them where batch is False."""
    name = f"O{next_power(weight.shape[0])} I{next_power(weight.shape[1])}"
    return f"{name} M{near_power(math.prod(x.shape[:-1]))}" if batch else name


def rows_class(rows: int, units: int) -> str:
    """Rows of so many units, e.g. ``N2^12 F2^14``."""
    return f"N{near_power(rows)} F{near_power(units)}"


def layout_class(x: torch.Tensor) -> str:
    """The end of a name where the memory format matters: `` cl`` for channels_last, else nothing."""
    return " cl" if is_channels_last(x) else ""


def _short(two: Pair) -> str:
    """``2`` of (2, 2), ``2x3`` of (2, 3)."""
    return str(two[0]) if two[0] == two[1] else _by(two, "x")


def _by(two: Pair | torch.Size, sign: str) -> str:
    return sign.join(map(str, two))
