"""From a row of configuration to a :class:`zbkernels.models.Network`, an ``nn.Sequential``.

The same row gives three networks: with bias (plain torch layers), without bias on the fused layers, and
without bias on plain torch layers. Layer names are the same in all three, so the two zero-bias forms have the
same ``state_dict`` keys, and the biased one adds ``<layer>.bias`` only (a ResNet by Fixup its shifts).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

from zbkernels.models.configuration import Configuration
from zbkernels.models.network import Network
from zbkernels.models.residual import Sum
from zbkernels.models.resnet import resnet_layers
from zbkernels.models.rows import Architecture, Conv, Residual, ResNet

_BIAS_SEED = 1 << 32  # apart from every seed that a user would count up to


def build(
    architecture: Architecture | ResNet,
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    bias: bool = False,
    fused: bool | None = None,
    seed: int = 0,
) -> Network:
    """Build and initialise a network for images ``[N, *image_shape]``; it returns logits ``[N, classes]``.

    Args:
        bias: every convolution and linear layer has a bias (plain torch layers). ResNets with batch normalisation have
            biases in it and in their linear layer, and no other form: equation 10 of the zero-bias paper.
        fused: use ``zbkernels.nn``'s layers. ``None``: yes where there is no bias.
        seed: decides the initial weights. For one seed they are the same in all forms, with or without bias.

    Raises:
        ValueError: fused layers are asked for in a network with bias, batch normalisation in one without, convolutions
            follow linear layers, or a pool does not fit the map it is given.
    """
    fused = not bias if fused is None else fused
    if fused and bias:
        raise ValueError("build: the fused layers have no bias; expected fused=False with bias=True")
    with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own when they are made
        if isinstance(architecture, ResNet):
            model = Network(resnet_layers(architecture, image_shape, classes, bias, fused))
        else:
            model = Network(_layers(architecture, image_shape, classes, bias, fused))
    channels, height, width = map(int, image_shape)
    model.configuration = Configuration(architecture, (channels, height, width), int(classes), bias, fused)
    initialise(model, seed)
    return model


def _layers(
    architecture: Architecture, image_shape: tuple[int, int, int], classes: int, bias: bool, fused: bool
) -> OrderedDict[str, nn.Module]:
    conv, linear = (_fused_conv, _fused_linear) if fused else (_plain_conv, _plain_linear)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, height, width = image_shape
    features: int | None = None  # known once the map has been flattened
    for index, block in enumerate(architecture.blocks, start=1):
        if isinstance(block, Conv | Residual):
            if features is not None:
                raise ValueError(
                    f"{architecture.name}: expected convolutions before linear layers, got {block}"
                )
            if block.kernel % 2 == 0:
                raise ValueError(f"{architecture.name}: expected an odd kernel, got {block.kernel}")
            if min(height, width) < block.pool:
                raise ValueError(
                    f"{architecture.name}: block {index} pools {block.pool}×{block.pool}, got a map of "
                    f"{height}×{width} from images of shape {list(image_shape)}"
                )
            if isinstance(block, Conv):
                layers.update(conv(index, channels, block, bias))
                channels = block.out
            else:
                half = Conv(channels, block.kernel, pool=1)
                inside = OrderedDict(**conv(1, channels, half, bias), **conv(2, channels, half, bias))
                layers[f"residual{index}"] = Sum(nn.Sequential(inside))
                if block.pool > 1:
                    layers[f"pool{index}"] = nn.MaxPool2d(block.pool)
            height, width = height // block.pool, width // block.pool
            continue
        if features is None:
            layers["flatten"] = nn.Flatten()
            features = channels * height * width
        layers.update(linear(index, features, block.out, bias))
        features = block.out
    if features is None:
        layers["flatten"] = nn.Flatten()
        features = channels * height * width
    layers["classifier"] = nn.Linear(features, classes, bias=bias)
    return layers


def initialise(model: nn.Module, seed: int) -> None:
    """Draw every weight from N(0, 2 / fan_in) (He) and every bias from U(-b, b), b = fan_in**-0.5, in place.

    The biases are PyTorch's default. The draws depend on the seed, the order and the shapes of the parameters, and
    on nothing else: not on the layer classes, the memory format or torch's global generator. Biases come from a
    generator of their own, so that networks with and without bias start from the same weights. A layer's
    ``start_scale`` multiplies its draws, and its ``reset_scalars()`` is called (see ``fixup.py``); batch normalisation
    starts as PyTorch's does.
    """
    for_weights = torch.Generator().manual_seed(seed)
    for_biases = torch.Generator().manual_seed(seed + _BIAS_SEED)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
                continue
            reset_scalars: Callable[[], None] | None = getattr(module, "reset_scalars", None)
            if reset_scalars is not None:
                reset_scalars()
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            if weight is None:
                continue
            fan_in = weight[0].numel()  # C/groups · R · S, or the number of inputs
            scale = getattr(module, "start_scale", 1.0)
            weight.copy_(torch.randn(weight.shape, generator=for_weights) * ((2 / fan_in) ** 0.5 * scale))
            if bias is not None:
                bias.copy_((2 * torch.rand(bias.shape, generator=for_biases) - 1) * (fan_in**-0.5 * scale))


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _plain_conv(index: int, channels: int, block: Conv, bias: bool) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {
        f"conv{index}": nn.Conv2d(channels, block.out, block.kernel, padding=block.kernel // 2, bias=bias),
        f"relu{index}": nn.ReLU(),
    }
    if block.pool > 1:
        layers[f"pool{index}"] = nn.MaxPool2d(block.pool)
    return layers


def _plain_linear(index: int, inputs: int, outputs: int, bias: bool) -> dict[str, nn.Module]:
    return {f"fc{index}": nn.Linear(inputs, outputs, bias=bias), f"relu{index}": nn.ReLU()}


def _fused_conv(index: int, channels: int, block: Conv, bias: bool) -> dict[str, nn.Module]:
    from zbkernels.nn import ConvReLUPool2d

    layer = ConvReLUPool2d(
        channels,
        block.out,
        block.kernel,
        padding=block.kernel // 2,
        pool="max" if block.pool > 1 else "none",
        pool_kernel=block.pool,
    )
    return {f"conv{index}": layer}


def _fused_linear(index: int, inputs: int, outputs: int, bias: bool) -> dict[str, nn.Module]:
    from zbkernels.nn import LinearReLU

    return {f"fc{index}": LinearReLU(inputs, outputs)}
