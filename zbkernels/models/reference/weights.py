"""Weights from files that others wrote: tensors are read, nothing in a file is ever run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from zbkernels.checkpoint import CheckpointError

_WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the weights
_NAMED = 4  # names of a message, at most


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file, or of one that ``torch.save`` wrote, by name, on the CPU.

    Weights that lie under "state_dict" or "model" are found, and the prefix "module." of ``DataParallel`` is taken
    off.

    Raises:
        CheckpointError: the file is missing or broken, holds Python objects other than tensors and plain values, or
            no tensors by name.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: expected a file of weights, there is no such file")
    content = _read(path)
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        got = "an empty one" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise CheckpointError(f"{path}: expected a state_dict (names and tensors), got {got}")
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(f"{path}: expected tensors only, got other values under {_list(others)}")
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path, title: str) -> None:
    """Put ``weights`` into ``model``, every one in its place. ``path`` and the model's ``title`` are for messages.

    Raises:
        CheckpointError: names are missing, unexpected or of another shape. Counters of batches
            (``num_batches_tracked``) may be missing: files from before torch 0.4.1 have none.
    """
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in weights if name not in wanted]
    shapes = [
        f"{name} {list(weights[name].shape)} instead of {list(value.shape)}"
        for name, value in wanted.items()
        if name in weights and weights[name].shape != value.shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    faults = [f"{kind}: {_list(names)}" for kind, names in kinds.items() if names]
    if faults:
        raise CheckpointError(f"{path}: does not fit {title}; {'; '.join(faults)}")
    model.load_state_dict({name: weights.get(name, value) for name, value in wanted.items()})


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is None:  # another pickle's protocol, or no pickle
            raise CheckpointError(
                f"{path}: cannot be read as a torch file of tensors and plain values alone"
            ) from error
        raise CheckpointError(  # torch's own message goes on to say how to switch the safeguard off
            f"{path}: refused, since it holds more than tensors and plain values ({named[1]}), and nothing in a file "
            "is run; save model.state_dict() instead"
        ) from error
    except Exception as error:  # of many kinds where the bytes are arbitrary
        raise CheckpointError(f"{path}: cannot be read as a torch file ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
