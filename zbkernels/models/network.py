"""``Network``: what :func:`zbkernels.models.build` makes, which saves itself to a folder and comes back from it.

The folder is laid out as Hugging Face's are: ``config.json`` says what the network is, ``model.safetensors`` holds its
weights. Nothing in it is run and nothing is downloaded. The weights' file repeats the configuration, and is written
first: two files of different saves, as a save that was cut off may leave them, don't fit each other and are refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.files import write_json
from zbkernels.models.configuration import Configuration
from zbkernels.ops._op import FLOATING
from zbkernels.tensor_file import load_tensors, save_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LARGEST_CONFIG = 1 << 20  # bytes
_MODEL = "zbkernels"  # the configuration's name among the metadata of the weights' file
_NO_MATTER = re.compile(
    r"(, )?\b(inplace|momentum)=[^,]+"
)  # of a layer's settings: predictions do not depend on it


class Network(nn.Sequential):
    """An ``nn.Sequential`` that knows what it was built from.

    Attributes:
        configuration: None for a part of a network, such as a slice.
    """

    def __init__(self, *layers: Any) -> None:
        super().__init__(*layers)
        self.configuration: Configuration | None = (
            None  # not of the class, where TorchScript would read its type
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, each whole or not at all.

        Raises:
            CheckpointError: the network has no configuration, or its tensors or layers are no longer those of it
                (layers were added, replaced, set otherwise, pruned or parametrized), or they hold no values of their
                own (meta, sharded).
            OSError: the folder cannot be written.
        """
        folder = Path(folder)
        if self.configuration is None:
            raise CheckpointError(
                f"{folder}: expected a network of zbkernels.models.build, got a part of one; save its state_dict"
            )
        tensors = self.state_dict()
        for name, value in tensors.items():
            if type(value) is not torch.Tensor:
                raise CheckpointError(
                    f"{folder}: expected {name} to be a tensor, got {type(value).__name__}; gather it first "
                    "(torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True)"
                )
        outline = _outline(self.configuration)
        _check(outline, tensors, str(folder), "the network's configuration")
        _check_layers(self, outline, folder)
        configuration = self.configuration.as_dict()
        save_tensors(folder / WEIGHTS, tensors, {"format": "pt", _MODEL: json.dumps(configuration)})
        write_json(folder / CONFIG, configuration)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        fused: bool | None = None,
    ) -> Network:
        """The network that :meth:`save_pretrained` left in ``folder``, in evaluation mode.

        Nothing in the folder is run, and nothing is downloaded. Names and shapes are compared before any memory is
        taken for the network.

        Args:
            device, dtype: where the weights go, and what they become; None keeps the dtypes that were saved.
            fused: with ``zbkernels.nn``'s layers or with plain ones; None: as it was saved.

        Raises:
            CheckpointError: there is no such folder, a file is missing or broken, the configuration has other names
                or values than it should, or a tensor is missing, unexpected, or of another shape.
        """
        folder = Path(folder)
        _look_at(folder)
        config = _read_config(folder / CONFIG)
        try:
            configuration = Configuration.from_dict(config)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{folder / CONFIG}: {error}") from error
        if fused is not None:
            configuration = replace(configuration, fused=fused)
        path = folder / WEIGHTS
        saved_with, there = _read_header(path)
        if saved_with is not None and saved_with != config:
            raise CheckpointError(
                f"{folder}: {CONFIG} is not what {WEIGHTS} was saved with; a save may have been cut off: save again, "
                f"or write the configuration that the weights' file repeats (metadata {_MODEL!r}) to {CONFIG}"
            )
        _check_count(configuration, there, folder)
        try:
            model = _outline(configuration)
        except Exception as error:  # sizes that no network has can fail in any way
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CheckpointError(f"{folder / CONFIG}: no network has this configuration ({said})") from error
        try:
            mapped = load_tensors(path)[0]
        except Exception as error:
            raise _broken(path, error) from error
        _check(model, mapped, str(path), f"the network of {CONFIG}")
        tensors = {name: value.clone() for name, value in mapped.items()}  # of its own: the file may change
        for name, value in model.state_dict().items():
            if not value.is_floating_point():  # counters of batches, which checkpoints may leave out
                held = tensors.get(name, torch.zeros_like(value, device="cpu"))
                tensors[name] = held.to(value.dtype)
        model.load_state_dict(tensors, assign=True)
        return model.to(device=device, dtype=dtype).eval()


def from_pretrained(folder: str | Path, **arguments: Any) -> Network:
    """As :meth:`Network.from_pretrained`."""
    return Network.from_pretrained(folder, **arguments)


def _check(model: Network, tensors: dict[str, torch.Tensor], title: str, into: str) -> None:
    """Whether the tensors are the model's, as :func:`check_weights` says, and of dtypes that the ops know."""
    from zbkernels.models.reference.weights import check_weights  # imports what builds networks

    check_weights(model, tensors, title, into=into)
    for name, value in tensors.items():
        if value.is_floating_point() and value.dtype not in FLOATING:
            raise CheckpointError(
                f"{title}: expected {name} of dtype float32, float64, float16 or bfloat16, got {value.dtype}"
            )


def _check_layers(model: Network, outline: Network, folder: Path) -> None:
    """Whether the model's layers are those that its configuration makes: tensors don't tell of those without any."""
    here, wanted = _layers(model), _layers(outline)
    for name in (*here, *wanted):
        if here.get(name) != wanted.get(name):
            got, expected = (each.get(name, "no such layer") for each in (here, wanted))
            raise CheckpointError(
                f"{folder}: expected the layers of the network's configuration; {name}: {got} instead of {expected}"
            )
    if list(here) != list(wanted):
        raise CheckpointError(f"{folder}: expected the layers in the order of the network's configuration")


def _layers(model: nn.Module) -> dict[str, str]:
    """Each layer below ``model`` by name: its class, without what fusion or torch put on it, and its settings."""
    from zbkernels.nn.fusion.guards import as_written
    from zbkernels.nn.fusion.tracing import written

    found = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        if name:
            kind = written(as_written(type(layer)))
            if issubclass(kind, nn.SyncBatchNorm):  # predicts as that from which torch converts it
                kind = nn.BatchNorm2d
            title = kind.__qualname__ if kind.__module__.startswith(("torch.", "zbkernels.")) else str(kind)
            found[name] = f"{title}({_NO_MATTER.sub('', layer.extra_repr()).removeprefix(', ')})"
    return found


def _outline(configuration: Configuration) -> Network:
    """The network without memory for its weights."""
    from zbkernels.models.build import build

    with torch.device("meta"):
        return build(
            configuration.architecture,
            configuration.image_shape,
            configuration.classes,
            bias=configuration.bias,
            fused=configuration.fused,
        )


def _look_at(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: expected a folder with {CONFIG} and {WEIGHTS}, got none; nothing is downloaded"
        )
    for name in (CONFIG, WEIGHTS):
        if (folder / name).is_file():
            continue
        there = {path.name for path in folder.iterdir()}
        got = "no such file"
        if name == WEIGHTS and f"{WEIGHTS}.index.json" in there:
            got = "weights in several files, which networks of this package never are"
        elif name == WEIGHTS and there.intersection(_PICKLES):
            got = "a pickle, which could run code and is not read"
        raise CheckpointError(f"{folder}: expected {name}, got {got}")


def _read_config(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > _LARGEST_CONFIG:
            raise CheckpointError(f"{path}: expected at most {_LARGEST_CONFIG} bytes, got {size}")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, error) from error


def _read_header(path: Path) -> tuple[Any, int]:
    """(the configuration that the weights were saved with, None where it isn't there; how many tensors there are)."""
    try:
        with safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(_MODEL)
            return None if text is None else json.loads(text), len(opened.keys())
    except Exception as error:  # of many kinds where the bytes are arbitrary
        raise _broken(path, error) from error


def _check_count(configuration: Configuration, tensors: int, folder: Path) -> None:
    """Each block has a weight: a configuration of more blocks than the file has tensors is not even begun."""
    row = configuration.architecture
    blocks = len(getattr(row, "blocks", ())) or sum(getattr(row, "depths", ()))
    if blocks > tensors:
        raise CheckpointError(
            f"{folder}: {CONFIG} is of a network of {blocks} blocks, {WEIGHTS} has {tensors} tensors"
        )


def _broken(path: Path, error: BaseException) -> CheckpointError:
    said = (str(error).strip().splitlines() or [""])[0]
    return CheckpointError(f"{path}: the file cannot be read ({type(error).__name__}: {said})")
