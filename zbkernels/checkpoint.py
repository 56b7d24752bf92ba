"""Training checkpoints: tensors in safetensors, everything else in ``checkpoint.json`` beside them.

The JSON file names the tensor file that belongs to it and is renamed into place last, so whenever a run is
cut off, the folder holds one whole checkpoint: the new one or the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zbkernels.files import read_json, replacing, write_json

_INDEX = "checkpoint.json"


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file, the reason and the mend."""


@dataclass
class Checkpoint:
    """What :func:`load` found: the tensors by name and the JSON part."""

    folder: Path
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save(
    folder: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rng: dict[str, Tensor],
    meta: dict[str, Any],
) -> None:
    """Write a checkpoint into ``folder`` and delete the one before.

    Args:
        step: number of finished epochs; part of the tensor file's name.
        rng: generator states (uint8 tensors) by name.
        meta: JSON-able values, returned by :func:`load` as they were.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    state = optimizer.state_dict()
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    tensors |= {f"rng.{name}": value for name, value in rng.items()}

    name = f"epoch-{step:04d}.safetensors"
    with replacing(folder / name) as temporary:
        # safetensors stores dense row-major data only; load() restores the memory format from the parameter.
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, temporary)
    index = {
        "tensors": name,
        "optimizer_numbers": numbers,
        "param_groups": state["param_groups"],
        "meta": meta,
    }
    write_json(folder / _INDEX, index)
    for old in folder.glob("epoch-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint in ``folder``, or None where there is none.

    Raises:
        CheckpointError: there is one, but a file of it is broken or gone.
    """
    path = folder / _INDEX
    if not path.exists():
        return None
    mend = "delete the folder, or run again with --force, to start over"
    try:
        meta = read_json(path)
        tensors = load_file(folder / meta["tensors"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({error}); {mend}") from error
    return Checkpoint(folder, tensors, meta)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and optimizer state back, in place, bit for bit and in the parameters' memory format."""
    weights = {k.removeprefix("model."): v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    model.load_state_dict(weights)

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in checkpoint.tensors.items():
        if key.startswith("optimizer."):
            index, name = key.removeprefix("optimizer.").split(".", 1)
            state.setdefault(int(index), {})[name] = _like(value, parameters[int(index)])
    for key, value in checkpoint.meta["optimizer_numbers"].items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": checkpoint.meta["param_groups"]})


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """``value`` with the strides of ``parameter``: other strides take other code paths, which may round."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
