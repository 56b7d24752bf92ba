"""The logit of a network along a ray from the origin, exactly: linear piece by linear piece.

Without biases f(t·d) = t·f(d) for t > 0, so there is one piece on each side of the origin and neither has a constant
part; with biases there is a piece for each pattern that the ray meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from zbkernels.experiments.piecewise import Array, HiddenLayer
from zbkernels.experiments.region_lines import sweep_lines

RAY, LINE = (0.0, np.inf), (-np.inf, np.inf)
_BENT = 1e-9  # slopes that differ by less of the largest are one
_POWERS = 20  # of two, by which a direction is scaled up and down


@dataclass(frozen=True)
class Pieces:
    """slope·t + intercept for start < t < end; [P] each, in the order of t."""

    start: Array
    end: Array
    slope: Array
    intercept: Array

    def __len__(self) -> int:
        return len(self.start)

    def at(self, t: Array) -> Array:
        """The logit at each of ``t`` [N], inside the interval of the pieces."""
        piece = np.searchsorted(self.end, t).clip(max=len(self) - 1)
        return self.slope[piece] * t + self.intercept[piece]

    def bends(self) -> int:
        """Breakpoints at which the slope changes: not those of a unit that the logit does not depend on there."""
        apart = np.abs(np.diff(self.slope))
        return int((apart > _BENT * np.abs(self.slope).max()).sum())


def logit_pieces(
    layers: list[HiddenLayer], last: HiddenLayer, direction: Array, interval: tuple[float, float] = RAY
) -> Pieces:
    """The pieces of ``last.weight @ h + last.bias`` at t·direction ([2] or [inputs]), t inside ``interval``.

    Args:
        last: of one unit: the logit, :func:`logit_layer`.

    Raises:
        ValueError: ``last`` has several units, or the shapes do not fit.
    """
    if len(last.weight) != 1:
        raise ValueError(f"logit_pieces: expected one logit, got {len(last.weight)}")
    found = sweep_lines(layers, np.zeros((1, len(direction))), direction[None], interval)
    intercept, slope = np.zeros((len(found.line), len(direction))), np.tile(direction, (len(found.line), 1))
    first = 0
    for layer in layers:
        on = found.bits[:, first : first + len(layer.weight)]  # [P, units]
        first += len(layer.weight)
        intercept = (intercept @ layer.weight.T + layer.bias) * on
        slope = slope @ layer.weight.T * on
    return Pieces(
        found.start,
        found.end,
        (slope @ last.weight.T)[:, 0],
        (intercept @ last.weight.T + last.bias)[:, 0],
    )


def logit_layer(model: nn.Sequential) -> HiddenLayer:
    """The logit before the sigmoid of a network of two outputs, as a linear layer of one unit in float64.

    Softmax over two outputs is the sigmoid of their difference: so the logit is output 1 less output 0.

    Raises:
        ValueError: the last layer is not ``nn.Linear`` with two outputs.
    """
    last = model[-1]
    if not isinstance(last, nn.Linear) or last.out_features != 2:
        raise ValueError(f"logit_layer: expected a last layer nn.Linear with two outputs, got {last}")
    weight = last.weight.detach().double().cpu().numpy()
    bias = np.zeros(2) if last.bias is None else last.bias.detach().double().cpu().numpy()
    return HiddenLayer(weight[1:] - weight[:1], bias[1:] - bias[:1])


@torch.inference_mode()
def homogeneity(model: nn.Sequential, direction: Array) -> dict[str, float]:
    """How far a zero-bias network, as it computes (float32), is from f(t·d) = t·f(d).

    Each point is a batch of its own, so that all sums have one order. Differences are relative to |W3|·|W2|·|W1|·|d|,
    the sizes of the terms that an output is the sum of.

    Returns:
        ``powers_of_two``: largest |f(t·d) / t - f(d)| over t = 2^-20 … 2^20, by which products and sums are scaled
        without rounding: 0; ``others``: over 200 values of t in between; ``bound``: what rounding can make of it, with
        n summands a layer 2·(1 + Σ n)·2^-24.
    """
    point = torch.from_numpy(direction).float().view(1, 1, 1, -1)
    base = model(point).double()
    size, summands = point.double().flatten().abs(), 1
    for weight in (parameter.double() for parameter in model.parameters()):
        size, summands = weight.abs() @ size, summands + weight.shape[1]

    def farthest(scales: Tensor) -> float:
        found = [((model(point * t).double() / t.double() - base).abs() / size).max() for t in scales]
        return float(torch.stack(found).max())

    return {
        "powers_of_two": farthest(2.0 ** torch.arange(-_POWERS, _POWERS + 1)),
        "others": farthest(torch.logspace(-_POWERS, _POWERS, 200, base=2)),
        "bound": 2 * summands * 2.0**-24,
    }
