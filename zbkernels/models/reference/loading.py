"""A network of a known family from a file of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.models.build import build
from zbkernels.models.reference.efficientnet import EfficientNet
from zbkernels.models.reference.names import (
    is_efficientnet,
    is_resnet,
    is_timm_vit,
    is_vit,
    resnet_row,
    timm_vit_names,
    torchvision_vit_names,
    vit_size,
    vit_title,
)
from zbkernels.models.reference.vit import VisionTransformer
from zbkernels.models.reference.weights import load_weights, read_weights

# Mean and deviation of each channel.
Normalisation = tuple[tuple[float, float, float], tuple[float, float, float]]
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Normalisation = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # of many of timm's vision transformers


@dataclass(frozen=True)
class Reference:
    """A network with its weights, in evaluation mode.

    Attributes:
        family: "ResNet", "EfficientNet", "ViT", or a package's own name of a network of none of these.
        title: the network's name and whose names its parameters have.
        image: side of its square images.
        normalisations: what may be done to pixels in [0, 1] before it sees them, by name. Weights do not tell which
            of them it was trained with.
    """

    model: nn.Module
    family: str
    title: str
    image: int
    normalisations: dict[str, Normalisation]


def load_reference(path: Path) -> Reference:
    """The network whose weights ``path`` holds, told by their names and shapes.

    Raises:
        CheckpointError: see :func:`read_weights` and :func:`load_weights`; or the names are of no known network.
    """
    weights = read_weights(path)
    try:
        reference, weights = _made_for(weights, path)
    except (ValueError, IndexError, RuntimeError) as error:  # shapes that no network of these names has
        raise CheckpointError(f"{path}: its tensors have shapes of no known network ({error})") from error
    load_weights(reference.model, weights, str(path), into=reference.title)
    return reference


def _made_for(weights: dict[str, Tensor], path: Path) -> tuple[Reference, dict[str, Tensor]]:
    """The network that has such weights, with others of its own, and the weights by its own names."""
    normalisations = {"ImageNet": IMAGENET}
    model: nn.Module
    if is_vit(weights) or is_timm_vit(weights):
        timm = is_timm_vit(weights)
        weights = timm_vit_names(weights) if timm else torchvision_vit_names(weights)
        size = vit_size(weights, path)
        model, family, image = VisionTransformer(size), "ViT", size.image
        title = f"{vit_title(size)}, {'timm' if timm else 'torchvision'}"
        if timm:
            normalisations["halves"] = HALVES
    elif is_efficientnet(weights) and "classifier.1.weight" in weights:
        model, family, image = EfficientNet(weights["classifier.1.weight"].shape[0]), "EfficientNet", 224
        title = "EfficientNet-B0, torchvision"
    elif is_resnet(weights):
        row = resnet_row(weights)
        model, family, image = build(row, row.image, weights["fc.weight"].shape[0], bias=True), "ResNet", 224
        title = f"{row.name}, torchvision"
    else:
        known = "torchvision's ResNet, EfficientNet-B0 and ViT, and timm's ViT"
        raise CheckpointError(
            f"{path}: no known network has such weights ({', '.join(list(weights)[:4])}, ...); known by their names: "
            f"{known}. Others: torchvision:NAME={path} or timm:NAME={path}"
        )
    return Reference(model.eval(), family, title, image, normalisations), weights
