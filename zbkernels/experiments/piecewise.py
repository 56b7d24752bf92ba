"""A fully connected ReLU network as plain matrices in float64: what counting its regions works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]

# A pre-activation within this of 0, relative to what it is a sum of, counts as 0 where regions are told
# apart: so regions thinner than this fraction of the line or window do not count, and breakpoints that
# coincide up to rounding are one.
ON_LINE = 1e-11


@dataclass(frozen=True)
class HiddenLayer:
    """Pre-activations ``weight @ x + bias`` that a ReLU follows: ``weight`` [units, inputs], "
    "``bias`` [units]."""

    weight: Array
    bias: Array


def hidden_layers(model: nn.Sequential) -> list[HiddenLayer]:
    """The layers of ``model`` that a ReLU follows, in order, in float64. The last linear layer has none and
    is left out.

    Args:
        model: ``nn.Flatten``, then ``nn.Linear`` and ``nn.ReLU`` in turns or ``zb.nn.LinearReLU``, then
            ``nn.Linear``.

    Raises:
        ValueError: it is built of anything else, so that a pattern of its ReLUs does not say how it maps.
    """
    from zbkernels.nn import LinearReLU

    found: list[HiddenLayer] = []
    waiting: HiddenLayer | None = None  # a linear layer whose ReLU has not come yet
    for name, module in model.named_children():
        if isinstance(module, nn.Flatten) and not found and waiting is None:
            continue
        if waiting is None and isinstance(module, nn.Linear):
            waiting = _layer(module)
        elif waiting is None and isinstance(module, LinearReLU) and module.negative_slope == 0:
            found.append(_layer(module))
        elif waiting is not None and isinstance(module, nn.ReLU):
            found.append(waiting)
            waiting = None
        else:
            raise ValueError(
                f"hidden_layers: expected linear layers with a ReLU after each but the last, got "
                f"{name}: {module}"
            )
    if waiting is None or not found:
        raise ValueError(
            "hidden_layers: expected hidden layers and one linear layer without a ReLU at the end"
        )
    return found


def patterns_at(layers: list[HiddenLayer], points: Array) -> Bits:
    """Which units are on (pre-activation > 0) at points [N, inputs], all layers side by side: [N, units]."""
    bits = []
    for layer in layers:
        before = points @ layer.weight.T + layer.bias  # [N, units]
        bits.append(before > 0)
        points = before.clip(min=0)
    return np.concatenate(bits, axis=1)


def _layer(module: nn.Module) -> HiddenLayer:
    weight = module.get_parameter("weight").detach().double().cpu().numpy()
    bias = getattr(module, "bias", None)
    return HiddenLayer(
        weight, np.zeros(len(weight)) if bias is None else bias.detach().double().cpu().numpy()
    )
