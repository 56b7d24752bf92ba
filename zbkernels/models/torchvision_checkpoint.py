"""Checkpoints in the format of torchvision's ResNets, loaded into the rows with batch normalisation."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from zbkernels.checkpoint import CheckpointError

_WRAPPERS = ("state_dict", "model", "model_state_dict")  # where training scripts keep the weights
_OPTIONAL = ".num_batches_tracked"  # checkpoints of old versions of torch lack it
_NAMED = 4  # names in a message, of each kind


def load_torchvision_resnet(model: nn.Module, source: str | Path | Mapping[str, Any]) -> None:
    """Load a ResNet's checkpoint (``conv1.weight``, ``bn1.running_mean``, ``layer1.0.downsample.0.weight``, …,
    ``fc.bias``) into ``model``, in place.

    Args:
        model: built from a row such as ``resnet50-bn`` or ``resnet18-imagenet-bn``, with bias.
        source: a ``.safetensors`` file, a file of ``torch.save`` (read with ``weights_only=True``), or a state dict.
            The weights may lie under ``"state_dict"``, ``"model"`` or ``"model_state_dict"``, and all of their names
            may begin with ``module.``.

    Raises:
        CheckpointError: the file cannot be read, or holds more than tensors; or a tensor is missing, unexpected or of
            another shape. ``model`` is as it was then.
    """
    title = "the state dict" if isinstance(source, Mapping) else str(source)
    state = _unwrapped(source if isinstance(source, Mapping) else _read(Path(source)), title)
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in state and not name.endswith(_OPTIONAL)]
    unexpected = [name for name in state if name not in wanted]
    shapes = [
        f"{name} {list(value.shape)} instead of {list(wanted[name].shape)}"
        for name, value in state.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", shapes))
    faults = [f"{what}: {_some(names)}" for what, names in kinds if names]
    if faults:
        raise CheckpointError(f"{title}: its tensors don't fit the model; {'; '.join(faults)}")
    model.load_state_dict(state, strict=False)  # without the optional ones


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: expected a file of torch.save that holds tensors alone, which weights_only=True reads; "
            "anything else in it could run code"
        ) from error
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({_first_line(error)})") from error


def _unwrapped(content: Any, title: str) -> dict[str, torch.Tensor]:
    if isinstance(content, Mapping):
        content = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        kind = type(content).__name__ if content or not isinstance(content, Mapping) else "none"
        raise CheckpointError(f"{title}: expected tensors by name, got {kind}")
    others = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise CheckpointError(f"{title}: expected tensors only, got others under {_some(others)}")
    names = [str(name) for name in content]
    if all(name.startswith("module.") for name in names):  # DataParallel's and DistributedDataParallel's
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, content.values(), strict=True))


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
