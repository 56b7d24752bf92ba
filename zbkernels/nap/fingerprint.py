"""What a model is, in a few bytes: so that a recording can tell whether it is still the same one."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import nn


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """``structure``: a digest of the model as it prints itself; ``tensors``: of each parameter and buffer by name.

    Plain attributes of its modules count: numbers, words and tuples of them to the structure, tensors to the tensors.
    What else ``forward`` does beyond its modules shows in the layers that a recording keeps, not here.
    """
    printed = re.sub(r"0x[0-9a-f]+", "0x", repr(model))  # addresses of functions change with the process
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    for path, module in model.named_modules():
        plain = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}
        kept = {name: value for name, value in sorted(plain.items()) if _is_plain(value)}
        printed += f"\n{path}: {kept}"
        for name, value in plain.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{path}.{name}".lstrip(".")] = value
    return {
        "structure": hashlib.sha256(printed.encode()).hexdigest()[:32],
        "tensors": {name: digest(tensor) for name, tensor in tensors.items()},
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def digest(tensor: torch.Tensor) -> str:
    """dtype, shape and a SHA-256 of the values in row-major order, cut to 128 bits."""
    values = (
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0)
    )
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return f"{kind} {hashlib.sha256(values.numpy().data).hexdigest()[:32]}"


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which two fingerprints differ, in words; None where they are one model's."""
    old, new = before["tensors"], now["tensors"]
    for name in [*old, *new]:
        if old.get(name) != new.get(name):
            kinds = [
                " ".join(t.split(" ")[:-1]) if t else "not there" for t in (old.get(name), new.get(name))
            ]
            return (
                f"{name} was {kinds[0]} and is {kinds[1]}"
                if kinds[0] != kinds[1]
                else f"{name} has other values"
            )
    if before["structure"] != now["structure"]:
        return "its modules are others, or have other arguments"
    return None
