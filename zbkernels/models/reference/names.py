"""Which network a file of weights belongs to, told by the names and shapes in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from zbkernels.checkpoint import CheckpointError
from zbkernels.models.reference.vit import ViTSize
from zbkernels.models.rows import ResNet

HEAD_WIDTH = 64  # of one attention head, in the sizes Ti, S, B and L
_TIMM_VIT = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "norm": "encoder.ln",
    "head": "heads.head",
}
_TIMM_LAYER = {
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attn.qkv": "self_attention.in_proj",
    "attn.proj": "self_attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
}


def is_vit(weights: Mapping[str, Tensor]) -> bool:
    """Torchvision's names."""
    return "conv_proj.weight" in weights and "class_token" in weights


def is_timm_vit(weights: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in weights and "cls_token" in weights


def is_efficientnet(weights: Mapping[str, Tensor]) -> bool:
    """Torchvision's names, of the B series: the first block has no wider layer, so its gate comes second."""
    return "features.0.0.weight" in weights and "features.1.0.block.1.fc1.weight" in weights


def is_resnet(weights: Mapping[str, Tensor]) -> bool:
    """Torchvision's names, of the form for ImageNet: its stem has kernels of 7×7."""
    stem = weights.get("conv1.weight")
    return (
        stem is not None
        and stem.shape[-1] == 7
        and "layer1.0.conv1.weight" in weights
        and "fc.weight" in weights
    )


def resnet_row(weights: Mapping[str, Tensor]) -> ResNet:
    """The row that has such weights, as far as the names of its blocks and the width of its stem tell."""
    blocks = {
        match.groups() for match in (re.match(r"layer(\d+)\.(\d+)\.", name) for name in weights) if match
    }
    stages = sorted({int(stage) for stage, _ in blocks})
    depths = tuple(sum(int(stage) == wanted for stage, _ in blocks) for wanted in stages)
    bottleneck = "layer1.0.conv3.weight" in weights
    layers = sum(depths) * (3 if bottleneck else 2) + 2
    return ResNet(
        f"ResNet{layers}",
        "bottleneck" if bottleneck else "basic",
        depths,
        "imagenet",
        "bn",
        width=weights["conv1.weight"].shape[0],
        image=(3, 224, 224),
    )


def torchvision_vit_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights where an older torchvision named the two layers of an MLP ``linear_1`` and ``linear_2``."""
    renamed = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}
    found = {}
    for name, value in weights.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        found[name] = value
    return found


def timm_vit_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Timm's names of a vision transformer turned into torchvision's; what has no counterpart keeps its name."""
    found = {}
    for name, value in weights.items():
        layer = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        stem, _, kind = name.rpartition(".")
        if layer and layer[2] in _TIMM_LAYER:
            joint = "_" if layer[2] == "attn.qkv" else "."  # in_proj_weight, but out_proj.weight
            new = f"encoder.layers.encoder_layer_{layer[1]}.{_TIMM_LAYER[layer[2]]}{joint}{layer[3]}"
        elif stem in _TIMM_VIT:
            new = f"{_TIMM_VIT[stem]}.{kind}"
        else:
            new = _TIMM_VIT.get(name, name)
        found[new] = value
    return found


def vit_size(weights: Mapping[str, Tensor], path: Path) -> ViTSize:
    """The size of a vision transformer with torchvision's names. ``path`` is for messages.

    Raises:
        CheckpointError: names are missing that the size is told by, or heads are not 64 wide (as in H/14).
    """
    first = "encoder.layers.encoder_layer_0.mlp.0.weight"
    for name in ("encoder.pos_embedding", "heads.head.weight", first):
        if name not in weights:
            raise CheckpointError(f"{path}: looks like a vision transformer, but has no {name}")
    width, _, patch, _ = weights["conv_proj.weight"].shape
    tokens = weights["encoder.pos_embedding"].shape[1]
    side = round((tokens - 1) ** 0.5)
    if width % HEAD_WIDTH or width > 1024 or side * side != tokens - 1:
        raise CheckpointError(
            f"{path}: expected a vision transformer of square images whose attention heads are {HEAD_WIDTH} wide "
            f"(Ti, S, B or L), got width {width} and {tokens} tokens"
        )
    layers = {name.split(".")[2] for name in weights if name.startswith("encoder.layers.")}
    return ViTSize(
        width=width,
        depth=len(layers),
        heads=width // HEAD_WIDTH,
        hidden=weights[first].shape[0],
        patch=patch,
        image=side * patch,
        classes=weights["heads.head.weight"].shape[0],
    )


def vit_title(size: ViTSize) -> str:
    letter = {192: "Ti", 384: "S", 768: "B", 1024: "L"}.get(size.width, f"{size.width} wide, ")
    return f"ViT-{letter}/{size.patch}"
