"""Small forward passes of ``conv_relu_pool2d`` on a CPU, run from the description that an earlier call left.

Checking the arguments and taking them through the dispatcher costs as much as one image of a first layer. A call that
differs from an earlier one in nothing but the tensors' values runs from here, where nothing wants to see the op: no
gradient, mode, transform, tracing, profiler, autocast or tensor subclass. It runs the same kernel on the same threads.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zbkernels import _loader
from zbkernels.ops._choice import table_of, unseen

_LARGEST = 1 << 20  # bytes of a result: beyond, the checks no longer show (and empty_on asks for huge pages)


class Kept(NamedTuple):
    run: Callable[..., int]  # of the CPU library, see _loader.kept_call_runner; with a residual the other one
    call: Any  # what it reads
    shape: torch.Size
    memory_format: torch.memory_format


_kept: dict[tuple[Any, ...], Kept] = {}


def key_of(x: Any, weight: Any, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a description holds for; None where the call must go through the op. ``values``: the other arguments."""
    if type(x) is not torch.Tensor or not isinstance(weight, torch.Tensor):
        return None
    if not (x.is_cpu and weight.is_cpu and x.layout is weight.layout is torch.strided):
        return None
    if table_of(x.device) is not None:  # another kernel may have been measured to be faster
        return None
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return None
    if not unseen(x, weight):
        return None
    if x.is_neg() or weight.is_neg() or torch.is_autocast_enabled("cpu"):
        return None
    try:  # bytes tell True from 1, which a tuple does not; from version 3 on they would tell objects apart
        arguments = marshal.dumps(values, 2)
    except ValueError:
        return None
    return x.shape, weight.shape, x.stride(), weight.stride(), x.dtype, weight.dtype, arguments


def with_residual(key: tuple[Any, ...] | None, residual: Any) -> tuple[Any, ...] | None:
    """The key of the same call with a residual."""
    if key is None or type(residual) is not torch.Tensor or not residual.is_cpu:
        return None
    if residual.layout is not torch.strided or residual.is_neg():
        return None
    if torch.is_grad_enabled() and residual.requires_grad:
        return None
    return (*key, residual.shape, residual.stride(), residual.dtype)


def run(
    key: tuple[Any, ...], x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None
) -> torch.Tensor | None:
    """The result, or None where no earlier call was like this one."""
    kept = _kept.get(key)
    if kept is None:
        return None
    from_x, from_weight = x.data_ptr(), weight.data_ptr()
    if not from_x or not from_weight:  # a freed storage: the op says so
        return None
    y = torch.empty(kept.shape, dtype=x.dtype, memory_format=kept.memory_format)
    if residual is None:
        return y if kept.run(kept.call, from_x, from_weight, y.data_ptr()) else None
    added = residual.data_ptr()
    return y if added and kept.run(kept.call, from_x, from_weight, added, y.data_ptr()) else None


def keep(key: tuple[Any, ...], call: Callable[[], torch.Tensor], with_residual: bool) -> torch.Tensor:
    """The result of ``call()``, the op itself, whose description is kept where the result is small."""
    with _loader.keep_next_call() as buffer:
        y = call()
    small = 0 < y.nbytes <= _LARGEST
    if buffer is not None and small:
        if len(_kept) >= 1024:
            _kept.clear()
        layout = torch.contiguous_format if y.is_contiguous() else torch.channels_last
        _kept[key] = Kept(_loader.kept_call_runner(with_residual), buffer, y.shape, layout)
    return y
