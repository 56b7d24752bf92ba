"""What a model is given and what it returns: tensors, alone or in tuples, lists, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

FORMS = "a tensor, a tuple or list of the model's arguments, or a dict of its keyword arguments"


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(path such as ``logits`` or ``0.1``, tensor) for each tensor in ``value``; other things in it are left out."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if isinstance(value, dict):
        parts: Any = value.items()
    elif isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None)  # of a named tuple
        parts = zip(fields, value, strict=True) if fields else enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    else:
        return
    for key, part in parts:
        yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with each tensor changed, its containers made anew."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(part, change) for part in value)
    return value


def check_input(x: Any) -> None:
    """Refuse an input that cannot be scaled.

    Raises:
        TypeError: there is no floating-point tensor in it.
        ValueError: its floating-point tensors hold NaN or infinities, nothing but zeros, or nothing at all.
    """
    name = "check_scalar_invariance"
    tensors = [t for _, t in named_tensors(x)]
    if not tensors:
        raise TypeError(f"{name}: expected x to be {FORMS}, got {type(x).__name__} without a tensor")
    floating = [t for t in tensors if t.is_floating_point()]
    if not floating:
        kinds = ", ".join(sorted({str(t.dtype) for t in tensors}))
        raise TypeError(
            f"{name}: expected a floating-point x, got {kinds}: only such values can be multiplied by a scalar (images "
            "of bytes: x / 255)"
        )
    if not any(t.numel() for t in floating):
        shapes = " and ".join(str(list(t.shape)) for t in floating)
        raise ValueError(f"{name}: expected x that holds values, got an empty one of shape {shapes}")
    if not all(bool(t.isfinite().all()) for t in floating):
        raise ValueError(f"{name}: expected finite x, got NaN or infinities")
    if not any(bool(t.any()) for t in floating):
        raise ValueError(f"{name}: expected x that is not 0 everywhere, of which every multiple is itself")


def scaled(x: Any, s: float, dtype: torch.dtype | None) -> Any:
    """s·x, as new tensors; floating-point ones in ``dtype`` (None: their own), others as they are."""

    def change(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t.clone()
        return t.detach().to(dtype or t.dtype) * s

    return mapped(x, change)


def call(model: Callable[..., Any], x: Any) -> Any:
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def outputs_of(result: Any) -> dict[str, torch.Tensor]:
    """The output tensors by path (``output`` where there is one alone).

    Raises:
        TypeError: there are none.
    """
    found = {name or "output": t for name, t in named_tensors(result)}
    if not found:
        raise TypeError(
            "check_scalar_invariance: expected the model to return tensors, alone or in tuples, lists, dicts or "
            f"dataclasses, got {type(result).__name__}"
        )
    return found
