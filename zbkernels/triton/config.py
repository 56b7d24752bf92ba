"""Tile sizes and pipeline depths of a Triton kernel, and who chooses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Config:
    """How one kernel is started: its compile-time block sizes by name, warps of a program, stages of its pipeline."""

    constants: dict[str, int] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 2


def choose(
    op: str,
    device: torch.device,
    dtype: torch.dtype,
    shape_class: str,
    candidates: Callable[[], Sequence[Config]],
) -> Config:
    """The configuration to start a kernel of `op` with: the first candidate, the default for the shape.

    shape_class: names what speed depends on, so coarsely that near shapes share it ("K128 C64 3x3 M2^17 max2").
    candidates: few, pruned by shared memory, registers and roofline; the first is right for most shapes.
    """
    return candidates()[0]
