"""Networks that torchvision or timm define, where these packages can be imported.

PyPI's torchvision does not import beside a CPU-only torch, and timm needs it: then the reason is what the user gets.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from torch import nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.models.reference.loading import IMAGENET, Reference
from zbkernels.models.reference.weights import load_weights, read_weights

PACKAGES = ("torchvision", "timm")
_FAMILIES = {
    "resnet": "ResNet",
    "efficientnet": "EfficientNet",
    "vit": "ViT",
    "deit": "ViT",
}  # by how a name begins


class PackageUnavailable(Exception):
    """A package cannot be imported; the message is one line."""


def import_package(package: str) -> ModuleType:
    """``torchvision.models`` or ``timm``.

    Raises:
        PackageUnavailable: it is not installed, or importing it fails in whatever way.
    """
    try:
        return importlib.import_module({"torchvision": "torchvision.models"}.get(package, package))
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise PackageUnavailable(
            f"{package} does not import here ({type(error).__name__}: {reason})"
        ) from error


def load_from_package(package: str, name: str, path: Path) -> Reference:
    """The package's network ``name`` with the weights in ``path``; nothing is downloaded.

    Raises:
        PackageUnavailable: see :func:`import_package`.
        CheckpointError: the package has no such network, or the weights don't fit it.
    """
    module = import_package(package)
    try:
        model: nn.Module
        if package == "timm":
            model = module.create_model(name, pretrained=False)
        else:
            model = module.get_model(name, weights=None)
    except Exception as error:
        raise CheckpointError(
            f"{package}:{name}={path}: {package} makes no such network ({error})"
        ) from error
    load_weights(model, read_weights(path), str(path), into=f"{package}'s {name}")
    config = getattr(model, "default_cfg", None) or {}  # timm's own, with the normalisation of its weights
    normalisation = (tuple(config.get("mean", IMAGENET[0])), tuple(config.get("std", IMAGENET[1])))
    image = int(config.get("input_size", (3, 224, 224))[-1])
    said = f"{package}'s" if config else "ImageNet"
    family = next((family for begins, family in _FAMILIES.items() if name.startswith(begins)), name)
    return Reference(model.eval(), family, f"{name}, {package}", image, {said: normalisation})
