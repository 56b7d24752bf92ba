"""Deep bias-free networks trained side by side: R networks of one shape, float64, weights [R, out, in].

The loss of network i is ½ Σ_n p_in ‖y_in - f_i(x_n)‖² with sample weights that sum to 1, so that it stands for an
expectation. All networks see the same inputs x [N, d]; targets and sample weights may differ from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

import zbkernels as zb

Weights = list[Tensor]  # W_1 [R, n, d], W_2 [R, n, n], ..., W_L [R, o, n]


@dataclass(frozen=True)
class Problem:
    """What the networks are trained on.

    Attributes:
        x: inputs [N, d], float64.
        y: targets [N, o], or [R, N, o] where each network has its own.
        p: sample weights [N] or [R, N], each row with the sum 1.
        slope: of the leaky ReLU between the layers: 0 is ReLU, 1 a linear network.
    """

    x: Tensor
    y: Tensor
    p: Tensor
    slope: float

    def hidden(self, weights: Weights) -> list[Tensor]:
        """What the hidden layers give, h_1 to h_(L-1), each [R, N, n]."""
        first = weights[0]
        # The inputs are everybody's, so all first layers are one wide fused layer.
        wide = zb.linear_relu(self.x, first.reshape(-1, first.shape[-1]), self.slope)  # [N, R n]
        found = [wide.unflatten(1, first.shape[:2]).transpose(0, 1)]
        for weight in weights[1:-1]:
            found.append(torch.nn.functional.leaky_relu(found[-1] @ weight.mT, self.slope))
        return found

    def outputs(self, weights: Weights) -> Tensor:
        """f(x), [R, N, o]."""
        return self.hidden(weights)[-1] @ weights[-1].mT

    def loss(self, weights: Weights) -> Tensor:
        """[R]"""
        return self.loss_of(self.outputs(weights))

    def loss_of(self, f: Tensor) -> Tensor:
        """The loss [R] of outputs f [R, N, o]."""
        return 0.5 * (self.p * (self.y - f).square().sum(-1)).sum(-1)

    def descent(self, weights: Weights) -> Weights:
        """-∂loss/∂W_l for each layer; the derivative of ReLU at 0 is taken as 0."""
        hidden = self.hidden(weights)
        back = self.p[..., None] * (self.y - hidden[-1] @ weights[-1].mT)  # [R, N, o]
        found = []
        for layer in range(len(weights) - 1, 0, -1):
            h = hidden[layer - 1]
            found.append(back.mT @ h)
            back = back @ weights[layer]
            if self.slope != 1:  # the sign of h is that of what went in
                back = torch.where(h > 0, back, self.slope * back)
        found.append(back.mT @ self.x)
        return found[::-1]


def draw(sizes: Sequence[int], norm: float, seeds: Sequence[int]) -> Weights:
    """Gaussian weights of a network for each seed, each layer scaled to the Frobenius norm ``norm``.

    Args:
        sizes: inputs, hidden units of each layer, outputs.

    Returns:
        W_l of shape [len(seeds), sizes[l], sizes[l - 1]], float64.
    """
    layers: list[list[Tensor]] = [[] for _ in sizes[1:]]
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            w = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            layers[layer].append(w * norm / w.norm())
    return [torch.stack(layer) for layer in layers]
