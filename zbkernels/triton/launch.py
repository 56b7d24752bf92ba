"""What every Triton op needs on the host: may it run here, and how a kernel is started."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """One kernel start: the jitted function, its run-time arguments in order, and its compile-time ones by name."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


# Set by `recording`: launches then go to this function and nothing runs.
_sink: Callable[[Launch], None] | None = None


@functools.cache
def _import_error() -> str | None:
    """The reason why `import triton` fails, or None."""
    try:
        importlib.import_module("triton")
    except Exception as error:  # a broken install may raise anything, and the reason must reach the user
        return f"triton can't be imported ({type(error).__name__}: {error}); pip install triton"
    return None


def interpreted() -> bool:
    """Whether Triton's kernels run in its Python interpreter, on CPU tensors.

    Triton decides this when a kernel is decorated, by the environment variable TRITON_INTERPRET, so it must be set
    before the first kernel is imported.
    """
    return os.environ.get("TRITON_INTERPRET", "0").strip().lower() in ("1", "true", "on", "yes", "y")


@functools.cache
def _device_reason(index: int) -> str | None:
    """The reason why this GPU can't run Triton's code, or None."""
    if torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8:
        return f"GPU {index} has compute capability {major}.{minor}, Triton's kernels need 8.0 or newer"
    return None


def cannot_run(op: str, *tensors: torch.Tensor) -> str | None:
    """None if Triton can run on these tensors, else the reason: no Triton, no GPU, another device."""
    reason = _import_error()
    if reason is not None:
        return reason
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            return f"{op}: the tensors are on {tensors[0].device} and {tensor.device}, one device is needed"
    device = tensors[0].device
    if device.type == "cpu":
        if interpreted():
            return None
        return (
            f"{op}: the tensors are on the CPU and Triton runs on a GPU "
            "(or on CPU tensors with TRITON_INTERPRET=1 set before triton is imported, for tests)"
        )
    if device.type != "cuda":
        return f"{op}: the tensors are on {device}, Triton's kernels run on CUDA or ROCm devices"
    if interpreted():
        return None
    return _device_reason(device.index or 0)


def wrong_dtype(op: str, tensor: torch.Tensor, allowed: tuple[torch.dtype, ...] = FLOATS) -> str | None:
    """None if the tensor's dtype is one of `allowed`, else the reason."""
    if tensor.dtype in allowed:
        return None
    return f"{op}: {tensor.dtype} is none of {', '.join(str(dtype) for dtype in allowed)}"


def start(
    kernel: Any,
    programs: int,
    *args: Any,
    num_warps: int = 4,
    num_stages: int = 2,
    **constants: Any,
) -> None:
    """Starts `programs` programs of `kernel` on the current stream of the first argument's device.

    The grid has one dimension (y and z end at 65535). Multiply-adds are not fused by the compiler, so that a product
    that the contract rounds (leaky ReLU before a sum) stays rounded; kernels that want a fused one say tl.fma.
    """
    if programs == 0:
        return
    if programs > INT32_MAX:
        raise RuntimeError(f"{kernel.__name__}: {programs} programs, a launch can start at most {INT32_MAX}")
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": False}
    if _sink is not None:
        _sink(Launch(kernel, programs, args, constants, options))
        return
    device = args[0].device
    # Triton launches on the current device and stream, which need not be the tensors'.
    guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with guard:
        kernel[(programs,)](*args, **constants, **options)


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within this block launches are noted in the list it yields, and nothing runs (results are uninitialised).

    It lets an op be called with tensors of any device, `meta` included, to see and compile what it would start. For
    the process as a whole: not to be used while another thread computes.
    """
    global _sink
    launches: list[Launch] = []
    previous, _sink = _sink, launches.append
    try:
        yield launches
    finally:
        _sink = previous


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int, low: int, high: int) -> int:
    """The smallest power of two that is >= n, kept between `low` and `high` (powers of two)."""
    return min(max(1 << max(n - 1, 0).bit_length(), low), high)
