"""Models and images that the command line names: where they lie, and what is wrong where they can't be used."""

from __future__ import annotations

import importlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from zbkernels import data as image_sets
from zbkernels.data.decode import deep_grey, open_image
from zbkernels.experiments.input_gain import behind_gain
from zbkernels.files import read_json
from zbkernels.models import ARCHITECTURES, Architecture, ResNet, build
from zbkernels.nap.arrays import read_arrays
from zbkernels.nap.exported import load_exported

MODELS = (
    "a trained network's folder (OUT/RUN/units/NAME), a .safetensors file with --architecture, a .pt2 file of "
    "torch.export.save, or module:function"
)
IMAGES = "mnist, fashion-mnist or digits, with :train or :test, a .npy or .npz file, or a .png or .jpg"


class NapError(Exception):
    """A command of ``zb nap`` cannot do what it was asked; the message is one line for the user."""


@dataclass(frozen=True)
class Images:
    """Images [N, C, H, W] float32, labels int64 [N] or None, and how to speak of them."""

    title: str
    images: torch.Tensor
    labels: torch.Tensor | None

    def __len__(self) -> int:
        return self.images.shape[0]

    def rows(self, rows: list[int]) -> torch.Tensor:
        """The images of these rows.

        Raises:
            NapError: there is no such row.
        """
        if rows and max(rows) >= len(self):
            raise NapError(f"{self.title}: no image {max(rows)}; there are {len(self):,}, counted from 0")
        return self.images[rows]

    def first(self, count: int | None) -> Images:
        if count is None or count >= len(self):
            return self
        return Images(self.title, self.images[:count], None if self.labels is None else self.labels[:count])


def load_images(source: str, root: Path | None) -> Images:
    """The images that ``source`` names.

    Raises:
        NapError: it names none, or the file is of another form.
        DataError: an image set is missing or broken.
    """
    name, _, split = source.partition(":")
    if name in image_sets.DATASETS:
        if split not in ("", "train", "test"):
            raise NapError(f"{source}: expected {name}:train or {name}:test")
        data = image_sets.load(name, root)
        part = data.train if split == "train" else data.test
        return Images(f"{data.title}, {split or 'test'} images", part.images, part.labels)
    path = Path(source)
    if not path.is_file():
        raise NapError(f"{source}: expected {IMAGES}; there is no such file")
    if path.suffix in (".npy", ".npz"):
        return _from_numpy(path)
    if path.suffix.lower() in (".png", ".jpg", ".jpeg"):
        return _from_picture(path)
    raise NapError(f"{source}: expected {IMAGES}")


def _from_numpy(path: Path) -> Images:
    try:
        arrays = read_arrays(path)
    except Exception as error:  # a broken file fails in any way
        raise NapError(f"{path}: cannot be read as arrays ({error or type(error).__name__})") from error
    images, labels = arrays.get("images"), arrays.get("labels")
    if images is None:
        raise NapError(
            f"{path}: expected an array 'images' (and 'labels'), got {', '.join(arrays) or 'none'}"
        )
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or not len(images) or images.dtype.kind not in "fu":
        raise NapError(
            f"{path}: expected images [N, C, H, W] or [N, H, W], floating or unsigned bytes, got {images.dtype} "
            f"{list(images.shape)}"
        )
    if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
        raise NapError(
            f"{path}: expected labels to be integers [{len(images)}], got {labels.dtype} {list(labels.shape)}"
        )
    scale = np.iinfo(images.dtype).max if images.dtype.kind == "u" else 1
    if not np.isfinite(images).all():
        raise NapError(
            f"{path}: expected finite pixels, got {np.count_nonzero(~np.isfinite(images)):,} NaN or infinite"
        )
    x = torch.from_numpy(images.astype(np.float32) / np.float32(scale))
    return Images(str(path), x, None if labels is None else torch.from_numpy(labels.astype(np.int64)))


def _from_picture(path: Path) -> Images:
    try:
        with open_image(path) as opened:
            pixels = deep_grey(opened)  # [H, W], here or below, or [H, W, C]
            if pixels is None:
                picture = opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB")
                pixels = np.array(picture, dtype=np.float32) / np.float32(255)
    except Exception as error:  # a broken file fails in any way
        raise NapError(f"{path}: cannot be read as a picture ({error or type(error).__name__})") from error
    x = torch.from_numpy(pixels)
    return Images(str(path), (x if x.dim() == 3 else x.unsqueeze(2)).permute(2, 0, 1)[None], None)


def load_model(source: str, images: Images, architecture: str | None, device: torch.device) -> nn.Module:
    """The network that ``source`` names, for images of that shape, in evaluation mode on ``device``.

    Raises:
        NapError: it names none, or it does not fit the architecture or the images.
    """
    path = Path(source)
    if path.suffix == ".pt2" and path.is_file():
        model = _exported(path)
    elif not path.exists() and ":" in source:
        model = _made_by(source)
    else:
        model = _trained(path, images, architecture)
    return model.to(device)


def check_model(source: str) -> None:
    """Refuse what names no network, before the images, which may be missing, are read.

    Raises:
        NapError: as :func:`load_model`, as far as it can be told without images.
    """
    path = Path(source)
    if path.suffix == ".pt2" and path.is_file():
        _check_archive(path)
    elif path.exists() or ":" not in source:
        _weights_file(path)


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise NapError(f"{path}: cannot be read as an exported program (it is no archive)")


def _exported(path: Path) -> nn.Module:
    _check_archive(path)
    try:
        return load_exported(path)
    except Exception as error:  # whatever part of the archive is broken
        what = (str(error) or type(error).__name__).splitlines()[0]
        raise NapError(f"{path}: cannot be read as an exported program ({what})") from error


def _made_by(source: str) -> nn.Module:
    name, _, function = source.partition(":")
    try:
        made: Any = getattr(importlib.import_module(name), function)
    except (ImportError, AttributeError) as error:
        raise NapError(f"{source}: expected {MODELS}, got no such function ({error})") from error
    model = made() if not isinstance(made, nn.Module) and callable(made) else made
    if not isinstance(model, nn.Module):
        raise NapError(f"{source}: expected it to give an nn.Module, got {type(model).__name__}")
    return model.eval()


def _trained(path: Path, images: Images, wanted: str | None) -> nn.Module:
    state, settings = _state(path)
    state, gain = _without_gain(path, state, settings)
    row = _architecture(path, settings, wanted)
    biased = any(name.endswith(".bias") for name in state)
    fused = not biased and settings.get("form", "fused") == "fused"
    last = state.get("fc.weight" if isinstance(row, ResNet) else "classifier.weight")
    classes = 0 if last is None else last.shape[0]
    shape = tuple(images.images.shape[1:])
    try:
        model = build(row, shape, classes or 1, bias=biased, fused=fused)  # type: ignore[arg-type]
        model.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise NapError(
            f"{path}: the weights don't fit {row.name} for images of shape {list(shape)} ({lines[-1]}); choose the "
            "images it was trained on, or another --architecture"
        ) from error
    return (model if gain is None else behind_gain(model, gain)).eval()


def _without_gain(
    path: Path, state: dict[str, torch.Tensor], settings: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], float | None]:
    """The weights by the names that :func:`build` gives them, and what images are multiplied by before the network (see
    :mod:`zbkernels.experiments.input_gain`); None: by nothing."""
    gain = settings.get("input_gain")
    if gain is not None and (not isinstance(gain, int | float) or isinstance(gain, bool)):
        raise NapError(f"{path}: expected input_gain in its settings.json to be a number, got {gain!r}")
    if not all(name.startswith("network.") for name in state):
        return state, None
    if gain is None:
        raise NapError(
            f"{path}: the weights are of a network that sees multiplied images, and no settings.json beside them says "
            "by what (input_gain)"
        )
    return {name.removeprefix("network."): value for name, value in state.items()}, float(gain)


def _state(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(weights by name, what settings.json says of them)."""
    from zbkernels import checkpoint
    from zbkernels.tensor_file import load_tensors

    settings = _settings((path if path.is_dir() else path.parent) / "settings.json")
    file = _weights_file(path)
    if file is None:
        found = checkpoint.load(path)
        if found is None:
            raise NapError(f"{path}: its checkpoint has gone meanwhile")
        tensors = {k.removeprefix("model."): v for k, v in found.tensors.items() if k.startswith("model.")}
        return tensors, settings
    try:
        return load_tensors(file)[0], settings
    except (OSError, ValueError) as error:
        raise NapError(f"{file}: cannot be read ({error})") from error


def _weights_file(path: Path) -> Path | None:
    """Where a network's weights lie; None: in the checkpoint of a training that was cut off, or is going on."""
    from zbkernels import checkpoint

    file = path / "model.safetensors" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        if checkpoint.load(path) is not None:
            return None
        units = sorted(str(each.parent) for each in path.glob("**/model.safetensors"))
        hint = f"; there are {', '.join(units[:4])}" if units else ""
        raise NapError(f"{path}: no model.safetensors is there{hint}")
    if not file.is_file() or file.suffix != ".safetensors":
        mend = "; write safetensors.torch.save_file(model.state_dict(), …), a pickle could run code"
        raise NapError(f"{path}: expected {MODELS}{mend if file.suffix in ('.pt', '.pth', '.bin') else ''}")
    return file


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NapError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise NapError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _architecture(path: Path, settings: dict[str, Any], wanted: str | None) -> Architecture | ResNet:
    known = ", ".join(ARCHITECTURES)
    if wanted is not None:
        if wanted not in ARCHITECTURES:
            raise NapError(f"--architecture: expected one of {known}, got {wanted!r}")
        return ARCHITECTURES[wanted]
    if "architecture" not in settings:
        raise NapError(
            f"{path}: no settings.json says what network it is; pass --architecture, one of {known}"
        )
    for row in ARCHITECTURES.values():
        if str(row) == settings["architecture"]:
            return row
    raise NapError(f"{path}: no network of this version is {settings['architecture']!r}; known: {known}")


def picked(text: str) -> list[int]:
    """``0,5,7-9`` -> [0, 5, 7, 8, 9].

    Raises:
        NapError: it is something else.
    """
    rows: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            span = range(int(first), int(last or first) + 1) if dash else [int(first)]
            if not span or span[0] < 0:
                raise ValueError
            if len(span) > 1_000_000:
                raise NapError(f"--pick: expected at most a million images, got {text!r}")
            rows += span
    except ValueError as error:
        raise NapError(f"--pick: expected image numbers such as 0,5,7-9, got {text!r}") from error
    return rows
