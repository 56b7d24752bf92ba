"""A network as nodes of ONNX.

Written out here, and not by ``torch.onnx``: the exporter wants a package that is seldom there, and the few operators
of these networks come out the same everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zbkernels.models.blocks import ResidualBlock
from zbkernels.models.residual import Sum


def nodes_of(model: nn.Module, source: str) -> tuple[list[tuple], dict[str, torch.Tensor]]:
    """(nodes, constants) as :func:`~zbkernels.benchmarking.contestants.onnx_model` takes them.

    Args:
        model: plain torch layers without bias: convolutions (padding in numbers), linear layers, ReLU, square max
            pools, the average of the whole map, flattening, sums, residual blocks and sequences of these. A layer that
            scales its weight first gives the scaled one, as one would export it.
        source: the name of the input, [N, C, H, W].

    Raises:
        TypeError: a layer of another kind.
    """
    nodes: list[tuple] = []
    constants: dict[str, torch.Tensor] = {}

    def add(layer: nn.Module, name: str, source: str) -> str:
        """Append the layer's nodes; returns the name of its result."""
        if isinstance(layer, nn.Sequential):
            for child, inner in layer.named_children():
                source = add(inner, f"{name}{child}", source)
            return source
        if isinstance(layer, Sum):
            nodes.append(("Add", [source, add(layer.inside, f"{name}.", source)], name, {}))
        elif isinstance(layer, ResidualBlock):
            return add_block(layer, name, source)
        elif isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str):
            effective = getattr(layer, "effective_weight", lambda: layer.weight)
            constants[f"{name}.weight"] = effective().detach()
            attributes: dict[str, Any] = {
                "kernel_shape": list(layer.kernel_size),
                "strides": list(layer.stride),
                "pads": [*layer.padding, *layer.padding],
                "dilations": list(layer.dilation),
                "group": layer.groups,
            }
            nodes.append(("Conv", [source, f"{name}.weight"], name, attributes))
        elif isinstance(layer, nn.Linear):
            constants[f"{name}.weight"] = layer.weight.detach()
            nodes.append(("Gemm", [source, f"{name}.weight"], name, {"transB": 1}))
        elif isinstance(layer, nn.MaxPool2d):
            attributes = {"kernel_shape": [layer.kernel_size] * 2, "strides": [layer.stride] * 2}
            attributes["pads"] = [layer.padding] * 4
            nodes.append(("MaxPool", [source], name, attributes))
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size == 1:
            nodes.append(("GlobalAveragePool", [source], name, {}))
        elif isinstance(layer, nn.ReLU):
            nodes.append(("Relu", [source], name, {}))
        elif isinstance(layer, nn.Flatten):
            nodes.append(("Flatten", [source], name, {}))
        else:
            raise TypeError(f"onnx: no operator is known of {name}, a {type(layer).__name__}")
        return name

    def add_block(block: ResidualBlock, name: str, source: str) -> str:
        inside = add(block.relu, f"{name}.before", source) if block.pre_activation else source
        short = source if block.downsample is None else add(block.downsample, f"{name}.downsample", inside)
        for inner, layer in block.branch().items():
            inside = add(layer, f"{name}.{inner}", inside)
        nodes.append(("Add", [short, inside], f"{name}.sum", {}))
        return f"{name}.sum" if block.pre_activation else add(block.relu, name, f"{name}.sum")

    add(model, "", source)
    return nodes, constants
