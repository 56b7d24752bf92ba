"""Checkpoints in the format of torchvision's ResNets, loaded into the rows with batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zbkernels.models.reference.weights import load_weights, read_weights, title_of


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
    load_weights(model, read_weights(source), title_of(source))
