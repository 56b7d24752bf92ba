"""Weights from files that others wrote: tensors are read, nothing in a file is ever run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.tensor_file import load_tensors

_WRAPPERS = ("state_dict", "model", "model_state_dict")  # where training scripts keep the weights
_OPTIONAL = ".num_batches_tracked"  # checkpoints of old versions of torch lack it
_NAMED = 4  # names in a message, of each kind


def read_weights(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by name of a ``.safetensors`` file, of a file of ``torch.save``, on the CPU, or of a state dict.

    They may lie under ``"state_dict"``, ``"model"`` or ``"model_state_dict"``, and all of their names may begin with
    ``module.``, which is taken off.

    Raises:
        CheckpointError: the file is missing or broken, or holds more than tensors and plain values; or there are no
            tensors by name, or other values among them.
    """
    title = title_of(source)
    content = source if isinstance(source, Mapping) else _read(Path(source))
    if isinstance(content, Mapping):
        content = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        got = "none" if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(f"{title}: expected tensors by name, got {got}")
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(f"{title}: expected tensors only, got others under {_some(others)}")
    names = [str(name) for name in content]
    if all(name.startswith("module.") for name in names):  # DataParallel's and DistributedDataParallel's
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, content.values(), strict=True))


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], title: str, *, into: str = "the model"
) -> None:
    """Put ``weights`` into ``model``, in place. ``title`` (of their source) and ``into`` are for messages.

    Values are converted to the dtypes of ``model``. They need not be finite.

    Raises:
        CheckpointError: see :func:`check_weights`. ``model`` is as it was then.
    """
    check_weights(model, weights, title, into=into)
    model.load_state_dict(weights, strict=False)  # without the optional ones


def check_weights(
    model: nn.Module, weights: Mapping[str, Tensor], title: str, *, into: str = "the model"
) -> None:
    """Whether :func:`load_weights` can put ``weights`` into ``model``.

    Raises:
        CheckpointError: a tensor is missing, unexpected or of another shape; or it is not dense (sparse, quantised, or
            without values), or not of real floating numbers. Counters of batches may be missing, and of any real dtype.
    """
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in weights and not name.endswith(_OPTIONAL)]
    unexpected = [name for name in weights if name not in wanted]
    shapes = [
        f"{name} {list(value.shape)} instead of {list(wanted[name].shape)}"
        for name, value in weights.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    forms = [
        f"{name} ({why})"
        for name, value in weights.items()
        if name in wanted and (why := _unusable(value, wanted[name]))
    ]
    kinds = (
        ("missing", missing),
        ("unexpected", unexpected),
        ("of the wrong shape", shapes),
        ("of the wrong form", forms),
    )
    faults = [f"{what}: {_some(names)}" for what, names in kinds if names]
    if faults:
        raise CheckpointError(f"{title}: its tensors don't fit {into}; {'; '.join(faults)}")


def _unusable(value: Tensor, wanted: Tensor) -> str:
    """Why ``value`` can't be copied into ``wanted`` as it is meant; "" where it can, but for its shape."""
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        form = "quantised" if value.is_quantized else "nested" if value.is_nested else str(value.layout)
        return f"{form.removeprefix('torch.')} instead of dense"
    if value.is_meta:
        return "no values"
    whole = not wanted.is_floating_point()
    if value.is_complex() or not (whole or value.is_floating_point()):
        expected = "real" if whole else "floating"
        return f"{str(value.dtype).removeprefix('torch.')} instead of {expected} numbers"
    return ""


def title_of(source: str | Path | Mapping[str, Any]) -> str:
    """How messages speak of a source of weights."""
    return "the state dict" if isinstance(source, Mapping) else str(source)


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_tensors(path)[0]
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch's own message goes on to say how to switch the safeguard off.
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        got = named[1] if named else "something else"
        raise CheckpointError(
            f"{path}: expected a file of torch.save that holds tensors alone, got {got}; nothing in it was run. "
            "model.state_dict() is what to save"
        ) from error
    except Exception as error:  # of many kinds where the bytes are arbitrary
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({_first_line(error)})") from error


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(map(_shown, names[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _shown(name: str) -> str:
    """A name that someone else gave, for a message of one line on a terminal."""
    text = name if name.isprintable() else repr(name)
    return text if len(text) <= 160 else f"{text[:160]}…"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
