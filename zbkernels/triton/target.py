"""The GPU that kernels are tuned and compiled for: the tensors' own, or one assumed where there is none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Target:
    """What the choice of tiles depends on.

    arch: compute capability (80, 90, ...) as text, or an AMD name ("gfx942"). processors: SMs or compute
    units.
    shared_limit: bytes of shared memory that one block may take.
    """

    arch: str
    processors: int
    shared_limit: int

    @property
    def amd(self) -> bool:
        return not self.arch.isdecimal()

    @property
    def product(self) -> str:
        """Which instructions Triton's tl.dot of half precision becomes: "mma", "wgmma", "tcgen05" or
        "mfma"."""
        if self.amd:
            return "mfma"
        return {9: "wgmma", 10: "tcgen05", 11: "tcgen05"}.get(int(self.arch) // 10, "mma")


# By the vendors' programming guides; processors of the A100, H100 SXM, B200 and MI300X.
SM_80 = Target("80", 108, 163 * 1024)
SM_90 = Target("90", 132, 227 * 1024)
SM_100 = Target("100", 148, 227 * 1024)
GFX_942 = Target("gfx942", 304, 64 * 1024)
_SMALL_SHARED = 99 * 1024  # compute capabilities 8.6, 8.9 and 12.x

_assumed = SM_90


@contextlib.contextmanager
def assuming(target: Target) -> Iterator[None]:
    """Within this block tensors that are on no GPU (`meta`, or the CPU with the interpreter) count as on
    `target`."""
    global _assumed
    previous, _assumed = _assumed, target
    try:
        yield
    finally:
        _assumed = previous


def target_of(device: torch.device) -> Target:
    """The GPU of a tensor's device."""
    return _of_gpu(device.index or 0) if device.type == "cuda" else _assumed


@functools.cache
def _of_gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.partition(":")[0]
        return Target(arch, properties.multi_processor_count, GFX_942.shared_limit)
    major, minor = torch.cuda.get_device_capability(index)
    limits = {80: SM_80.shared_limit, 87: SM_80.shared_limit}
    large = SM_90.shared_limit if major in (9, 10, 11) else _SMALL_SHARED
    limit = limits.get(10 * major + minor, large)
    return Target(str(10 * major + minor), properties.multi_processor_count, limit)
