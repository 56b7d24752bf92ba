"""Copies of a model to decide on: in another precision, and as it could be once it is trained."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import nn


def in_precision(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in evaluation mode, whose floating-point parameters, buffers and plain attributes are in ``dtype``."""
    inner: nn.Module = model.module if isinstance(model, nn.DataParallel) else model
    twin = deep_copy(inner)
    twin.to(dtype)
    for module, original in zip(twin.modules(), inner.modules(), strict=True):
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            module.eps = torch.finfo(_dtype_of(original)).eps  # torch's default is that of the dtype
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = value.to(dtype)
    with suppress(NotImplementedError):  # an exported program, whose mode is fixed
        twin.eval()
    return twin


def deep_copy(model: nn.Module) -> nn.Module:
    """``copy.deepcopy``, also of modules that hold a tensor computed from their parameters, which torch refuses to
    copy: ``torch.nn.utils.weight_norm`` keeps one as ``weight``, and computes it anew before each forward pass."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters(recurse=False)), torch.get_default_dtype())


def zero_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters that are 0 everywhere, and running means: what is neutral before training."""
    named = [
        *model.named_parameters(),
        *((n, b) for n, b in model.named_buffers() if n.endswith("running_mean")),
    ]
    return [(name, t) for name, t in named if t.is_floating_point() and t.numel() and not bool(t.any())]


@torch.no_grad()
def fill_zeros_(model: nn.Module, seed: int = 0) -> list[str]:
    """Put small random numbers, N(0, 0.1²), where :func:`zero_tensors` finds zeros, as training would; their names.

    A bias of 0, a batch norm before its first batch and the zero-initialised last layers of Fixup hide what a network
    is: its structure is judged with other numbers in them.
    """
    generator = torch.Generator().manual_seed(seed)
    found = zero_tensors(model)
    for _, t in found:
        t.copy_(0.1 * torch.randn(t.shape, generator=generator))
    return [name for name, _ in found]
