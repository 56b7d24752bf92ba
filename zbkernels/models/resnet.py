"""From a :class:`ResNet` row to its layers, named as torchvision names them (``conv1``, ``layer1.0.conv1``, …, ``fc``).

The styles:

- ``plain``: ``relu(shortcut(x) + branch(x))`` and no normalisation. With bias every convolution has one.
- ``fixup``: the same, started and scaled by Fixup (``fixup.py``). With bias: its scalar shifts, and ``fc``'s biases.
- ``nf``: pre-activation blocks ``x + alpha·G(x/beta)`` (``normalizer_free.py``). With bias every convolution has one.
- ``bn``: batch normalisation after each convolution: torchvision's ResNet, whose outputs depend on contrast.

On fused layers each convolution that a ReLU or a pool follows is one op with it. So is the last 3×3 convolution of a
branch from 64 channels on, with the identity for a ReLU (slope 1): on a CPU with AVX-512 it was measured to be faster
than torch's. Narrower ones were slower in training, 1×1 convolutions slower in channels_last: these stay torch's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from zbkernels.models.blocks import ResidualBlock
from zbkernels.models.fixup import FixupConv2d, FixupConvReLU2d, FixupLinear, ScalarShift, branch_scale
from zbkernels.models.normalizer_free import RELU_GAIN, StandardizedConv2d, StandardizedConvReLU2d
from zbkernels.models.rows import ResNet
from zbkernels.nn import ConvReLUPool2d

Layers = OrderedDict[str, nn.Module]
_STEM_POOL = {"pool": "max", "pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
_IDENTITY_FROM = 64  # channels
_EXPANSION = {"basic": 1, "bottleneck": 4}  # a block's channels out, in widths


def resnet_layers(
    row: ResNet, image_shape: tuple[int, int, int], classes: int, bias: bool, fused: bool
) -> Layers:
    """All layers of the network, uninitialised.

    Raises:
        ValueError: batch normalisation without bias.
    """
    if row.style == "bn" and not bias:
        raise ValueError(
            f"{row.name}: batch normalisation shifts, so it has no form without bias; expected bias=True"
        )
    layers = _stem(row, image_shape[0], bias, fused)
    inputs, variance = row.width, 1.0  # expected of a block's input, for images of variance 1
    for stage, depth in enumerate(row.depths):
        blocks = []
        for position in range(depth):
            stride = 2 if stage and not position else 1
            block = _block(row, inputs, row.width << stage, stride, variance, bias, fused)
            # a shortcut with a convolution of its own starts again at 1
            variance = (variance if block.downsample is None else 1.0) + row.alpha**2
            inputs = (row.width << stage) * _EXPANSION[row.block]
            blocks.append(block)
        layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    if row.style == "nf":
        layers["relu"] = nn.ReLU()  # the blocks end before it
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    if row.style == "fixup" and bias:
        layers["shift2"] = ScalarShift()
    layers["fc"] = (FixupLinear if row.style == "fixup" else nn.Linear)(inputs, classes, bias=bias)
    return layers


def _stem(row: ResNet, channels: int, bias: bool, fused: bool) -> Layers:
    arguments = (channels, row.width, 3, 1, 1) if row.stem == "cifar" else (channels, row.width, 7, 2, 3)
    pool: dict[str, Any] = _STEM_POOL if row.stem == "imagenet" else {"pool": "none"}
    relu = row.style != "nf"  # whose first block begins with it
    if fused:
        of = ConvReLUPool2d if relu else StandardizedConvReLU2d
        return OrderedDict(conv1=of(*arguments, **pool, negative_slope=0.0 if relu else 1.0))
    own_bias = bias and row.style in ("plain", "nf")
    of_plain = nn.Conv2d if relu else StandardizedConv2d
    layers: Layers = OrderedDict(conv1=of_plain(*arguments, bias=own_bias))
    if row.style == "bn":
        layers["bn1"] = nn.BatchNorm2d(row.width)
    if row.style == "fixup" and bias:
        layers["shift1"] = ScalarShift()
    if relu:
        layers["relu"] = nn.ReLU()
    if row.stem == "imagenet":
        layers["maxpool"] = nn.MaxPool2d(3, 2, 1)
    return layers


def _block(
    row: ResNet, inputs: int, width: int, stride: int, variance: float, bias: bool, fused: bool
) -> ResidualBlock:
    """One block for maps of ``inputs`` channels, whose variance at initialisation is ``variance`` by expectation."""
    outputs = width * _EXPANSION[row.block]
    if row.block == "basic":
        shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
    else:
        shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
    branch: Layers = OrderedDict()
    for number, shape in enumerate(shapes, start=1):
        last = number == len(shapes)
        factors: dict[str, Any] = {}
        if row.style == "nf":
            beta = variance**0.5 if number == 1 else 1.0
            factors = {"input_scale": RELU_GAIN / beta, "output_scale": row.alpha if last else 1.0}
        elif row.style == "fixup":
            factors = {"start_scale": 0.0 if last else branch_scale(sum(row.depths), len(shapes))}
        branch.update(_conv(row.style, number, *shape, factors, relu=not last, bias=bias, fused=fused))
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = _downsample(row.style, inputs, outputs, stride, variance, bias)
    return ResidualBlock(branch, downsample, pre_activation=row.style == "nf")


def _conv(
    style: str,
    number: int,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    factors: dict[str, Any],
    *,
    relu: bool,
    bias: bool,
    fused: bool,
) -> Layers:
    """A branch's convolution, its normalisation and its ReLU, where it has them."""
    arguments = (inputs, outputs, kernel, stride, kernel // 2)
    if fused and (relu or (kernel > 1 and inputs >= _IDENTITY_FROM)):
        layer: nn.Module
        if style == "fixup":
            layer = FixupConvReLU2d(*arguments, relu=relu, **factors)
        else:
            of = ConvReLUPool2d if style == "plain" else StandardizedConvReLU2d
            layer = of(*arguments, pool="none", negative_slope=0.0 if relu else 1.0, **factors)
        return OrderedDict({f"conv{number}": layer})
    if style == "fixup":
        layer = FixupConv2d(*arguments, relu=relu, shift=bias, **factors)
    elif style == "nf":
        layer = StandardizedConv2d(*arguments, bias=bias, **factors)
    else:
        layer = nn.Conv2d(*arguments, bias=bias and style == "plain")
    layers: Layers = OrderedDict({f"conv{number}": layer})
    if style == "bn":
        layers[f"bn{number}"] = nn.BatchNorm2d(outputs)
    if relu:
        layers[f"relu{number}"] = nn.ReLU()
    return layers


def _downsample(
    style: str, inputs: int, outputs: int, stride: int, variance: float, bias: bool
) -> nn.Sequential:
    """The shortcut's 1×1 convolution; no ReLU follows it."""
    if style == "nf":
        scale = RELU_GAIN / variance**0.5
        return nn.Sequential(StandardizedConv2d(inputs, outputs, 1, stride, bias=bias, input_scale=scale))
    layers: Layers = OrderedDict()
    if style == "fixup" and bias:
        layers["shift"] = ScalarShift()
    layers["0"] = nn.Conv2d(inputs, outputs, 1, stride, bias=bias and style == "plain")
    if style == "bn":
        layers["1"] = nn.BatchNorm2d(outputs)
    return nn.Sequential(layers)
