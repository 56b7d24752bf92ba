"""The shape class under which a case's result is kept, and its public call, without memory for its tensors."""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.benchmarking.cases import (
    Case,
    ConvCase,
    DualCase,
    LinearCase,
    ModelCase,
    NapCase,
    PatternCase,
)
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase
from zbkernels.ops import OPS


def class_of(case: Case) -> str:
    """The class of the case's public call; a convolution's of channels_last tensors, as its backends are timed.

    "" where the op has none: nothing is chosen by measurement there. Nor is a whole model.
    """
    if isinstance(case, ModelCase | IterationCase):
        return ""
    op = OPS[case.op]
    if op.shape_class is None:
        return ""
    args, kwargs = public_call(case)
    if op.normalise is not None:
        args, kwargs = op.normalise(*args, **kwargs)
    return op.shape_class(*args, **kwargs)


def public_call(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the public op, on tensors of the meta device."""

    def empty(*shape: int, grad: bool = False, dtype: str = case.dtype) -> torch.Tensor:
        return torch.empty(shape, device="meta", dtype=getattr(torch, dtype)).requires_grad_(grad)

    train = case.mode == "train"
    if isinstance(case, ConvCase):
        x = empty(case.n, case.c, case.h, case.w).to(memory_format=torch.channels_last)
        weight = empty(case.k, case.c // case.groups, case.kernel, case.kernel, grad=train)
        kwargs = {
            "pool": case.pool,
            "pool_kernel": case.pool_kernel,
            "pool_stride": case.pool_stride,
            "pool_padding": case.pool_padding,
        }
        return (x, weight, case.stride, case.padding, 1, case.groups), kwargs
    if isinstance(case, LinearCase):
        return (empty(case.n, case.fan_in), empty(case.fan_out, case.fan_in, grad=train)), {}
    if isinstance(case, DualCase):
        x1, x2 = empty(case.n, case.d), empty(case.m, case.d)
        return (x1, x2) if case.mode == "gram" else (x1, x2, empty(case.m, case.p)), dict(case.options)
    if isinstance(case, AngleCase):
        u, v = empty(case.pairs, case.n), empty(case.pairs, case.n)
        return (u, v, empty(case.angles, dtype="float32")), {}
    if isinstance(case, PatternCase):
        rows, database = (empty(n, (case.f + 63) // 64, dtype="int64") for n in (case.n, case.m))
        return {
            "hamming": ((rows, database), {}),
            "topk": ((rows, database, case.k), {}),
            "frequency": ((rows, case.f), {}),
            "hash": ((rows,), {}),
            "group": ((rows,), {}),
        }[case.mode]
    if not isinstance(case, NapCase):
        raise TypeError(f"{case.name}: no public call is known of a {type(case).__name__}")
    if case.mode == "pack":
        return (empty(case.n, case.f),), {}
    return (empty(case.n, (case.f + 63) // 64, dtype="int64"), case.f), {}
