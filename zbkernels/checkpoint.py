"""Training checkpoints: tensors in safetensors, everything else in ``checkpoint.json`` beside them.

The JSON file names the tensor file that belongs to it and is renamed into place last, so whenever a run is
cut off, the folder holds one whole checkpoint: the new one or the one before. Both files carry checksums. The
checkpoint before the last is kept too (``checkpoint-before.json``), and taken where the last is found damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.files import read_sealed_json, replacing, write_sealed_json
from zbkernels.tensor_file import load_tensors, save_tensors

_INDEX, _BEFORE = "checkpoint.json", "checkpoint-before.json"


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file, the reason and the mend."""


@dataclass
class Checkpoint:
    """What :func:`load` found: the tensors by name and the JSON part.

    ``damage``: why the last checkpoint could not be read, where this is the one before it; else None.
    """

    folder: Path
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    damage: str | None = None


def save(
    folder: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rng: dict[str, Tensor],
    meta: dict[str, Any],
) -> None:
    """Write a checkpoint into ``folder`` and keep, of those before, the last.

    Args:
        step: number of finished epochs; part of the tensor file's name.
        rng: generator states (uint8 tensors) by name.
        meta: JSON-able values, returned by :func:`load` as they were.

    Raises:
        OSError: it cannot be written; the one before is as it was.
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
    save_tensors(folder / name, tensors)  # load() restores the memory format from the parameter
    index = {
        "tensors": name,
        "optimizer_numbers": numbers,
        "meta": meta,
    }
    last = _named_by(folder / _INDEX)
    if last is None or last == name:  # no help later: the checkpoint before it is kept on
        last = _named_by(folder / _BEFORE)
    else:
        with replacing(folder / _BEFORE) as temporary:
            temporary.write_bytes((folder / _INDEX).read_bytes())
    write_sealed_json(folder / _INDEX, index)
    for old in folder.glob("epoch-*.safetensors"):
        if old.name not in (name, last):
            old.unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """The last checkpoint in ``folder`` that is whole, or None where there is none at all.

    Raises:
        CheckpointError: what is there is broken, or files of it are gone.
    """
    path = folder / _INDEX
    if not path.exists() and not (folder / _BEFORE).exists():
        return None
    try:
        return _read(folder, path)
    except (OSError, ValueError, KeyError) as error:
        damage = f"{path}: the checkpoint cannot be read ({error})"
        try:
            found = _read(folder, folder / _BEFORE)
        except (OSError, ValueError, KeyError):
            mend = "delete the folder, or run again with --force, to start over"
            raise CheckpointError(f"{damage}; {mend}") from error
        found.damage = damage
        return found


def _read(folder: Path, path: Path) -> Checkpoint:
    meta = read_sealed_json(path)
    for key, kind in (("optimizer_numbers", dict), ("meta", dict)):
        if not isinstance(meta[key], kind):
            raise ValueError("no index of a checkpoint")
    name = _tensor_file(meta)
    try:
        return Checkpoint(folder, load_tensors(folder / name)[0], meta)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _tensor_file(index: dict[str, Any]) -> str:
    """The name of the tensor file, which lies in the same folder."""
    name = index["tensors"]
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"expected the name of a tensor file, got {str(name)[:40]!r}")
    return name


def _named_by(path: Path) -> str | None:
    """The tensor file of an index; None where there is none, or a damaged one."""
    try:
        return _tensor_file(read_sealed_json(path))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def remove(folder: Path) -> None:
    """Delete what :func:`save` wrote. Cut off, it leaves a checkpoint that is whole, or none."""
    for path in (folder / _BEFORE, folder / _INDEX, *folder.glob("epoch-*.safetensors")):
        path.unlink(missing_ok=True)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and optimizer state back, in place, bit for bit and in the parameters' memory format."""
    weights = {k.removeprefix("model."): v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    model.load_state_dict(weights)

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in checkpoint.tensors.items():
        if key.startswith("optimizer."):
            index, name = key.removeprefix("optimizer.").split(".", 1)
            state.setdefault(int(index), {})[name] = _like(key, value, parameters[int(index)])
    for key, value in checkpoint.meta["optimizer_numbers"].items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    # The groups' settings follow from the configuration, which is the same: none is taken from a file.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _like(key: str, value: Tensor, parameter: Tensor) -> Tensor:
    """``value`` with the strides of ``parameter``: other strides take other code paths, which may round.

    Raises:
        ValueError: it is neither of the parameter's shape nor a single number.
    """
    if value.shape != parameter.shape:
        if value.numel() != 1:
            raise ValueError(f"{key}: expected the shape {list(parameter.shape)}, got {list(value.shape)}")
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
