"""Known networks on the zero image: those whose weights the user names, and untrained ones of three families."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.experiments.base import ExperimentError
from zbkernels.experiments.zero_image_measures import distribution
from zbkernels.models import ARCHITECTURES, build, parameter_count
from zbkernels.models.reference import (
    IMAGENET,
    PACKAGES,
    EfficientNet,
    PackageUnavailable,
    Reference,
    VisionTransformer,
    load_from_package,
    load_reference,
)

ZERO_TENSOR = "zero tensor"  # what follows the normalisation is 0: a picture of the mean colour


@dataclass(frozen=True)
class CheckpointName:
    """What the user wrote after ``--checkpoint``: PATH, or PACKAGE:NAME=PATH."""

    package: str | None
    name: str | None
    path: Path


def parse(text: str) -> CheckpointName:
    """
    Raises:
        ExperimentError: the package is unknown, a part is missing, or there is no such file.
    """
    package, name, path = None, None, text
    before, colon, rest = text.partition(":")
    if colon and "=" in rest and not Path(text).exists():
        package = before
        name, _, path = rest.partition("=")
        if package not in PACKAGES or not name:
            raise ExperimentError(
                f"--checkpoint {text}: expected PATH, torchvision:NAME=PATH or timm:NAME=PATH"
            )
    if not Path(path).is_file():
        raise ExperimentError(f"--checkpoint {text}: {path}: there is no such file")
    return CheckpointName(package, name, Path(path))


def digest(text: str) -> str:
    """SHA-256 of the checkpoint that ``text`` names: another file under the same name is another run."""
    sha = hashlib.sha256()
    with parse(text).path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def look_at(text: str, device: torch.device) -> dict[str, Any]:
    """What the checkpoint that ``text`` names makes of the zero image (see :func:`on_zero_inputs`).

    Where the package it asks for can't be imported: ``skipped``, the reason.

    Raises:
        CheckpointError: the file can't be used, or its network gives no finite logits.
        ExperimentError: see :func:`parse`.
    """
    wanted = parse(text)
    named = {"checkpoint": text, "trained": True}
    try:
        if wanted.package is None or wanted.name is None:
            reference = load_reference(wanted.path)
        else:
            reference = load_from_package(wanted.package, wanted.name, wanted.path)
    except PackageUnavailable as error:
        return {**named, "skipped": str(error)}
    try:
        return {**named, **on_zero_inputs(reference, device)}
    except ValueError as error:
        raise CheckpointError(f"{wanted.path}: {error}") from error


def untrained(device: torch.device, seed: int = 0) -> list[dict[str, Any]]:
    """Known networks of three families with initial weights only: shown for what they are."""
    makers: dict[tuple[str, str], Callable[[], nn.Module]] = {
        ("ResNet", "ResNet50"): lambda: build(
            ARCHITECTURES["resnet50-bn"], (3, 224, 224), 1000, bias=True, seed=seed
        ),
        ("EfficientNet", "EfficientNet-B0"): EfficientNet,
        ("ViT", "ViT-B/16"): VisionTransformer,
    }
    found = []
    for (family, title), make in makers.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make()
        reference = Reference(model.eval(), family, title, 224, {"ImageNet": IMAGENET})
        found.append({"checkpoint": None, "trained": False, **on_zero_inputs(reference, device)})
    return found


@torch.inference_mode()
def on_zero_inputs(reference: Reference, device: torch.device) -> dict[str, Any]:
    """The network's :func:`distribution` for a black picture after each normalisation, and for the zero tensor.

    They differ: networks of ImageNet see pixels from which a mean was taken, so a tensor of zeros is to them a picture
    of the mean colour, and black is a negative constant in each channel. The paper does not say which it means.
    """
    model = reference.model.to(device)
    inputs = {
        f"black picture, {name} normalisation": -torch.tensor(mean) / torch.tensor(deviation)
        for name, (mean, deviation) in reference.normalisations.items()
    }
    inputs[ZERO_TENSOR] = torch.zeros(3)
    images = torch.stack(list(inputs.values()))[:, :, None, None].to(device)
    logits = model(images.expand(-1, -1, reference.image, reference.image).contiguous())
    return {
        "title": reference.title,
        "family": reference.family,
        "parameters": parameter_count(model),
        "inputs": [{"input": name, **distribution(row)} for name, row in zip(inputs, logits, strict=True)],
    }
