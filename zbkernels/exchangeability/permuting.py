"""Permuting the hidden units of stacked networks: Observation 4 of the paper, as an operation.

The units of a hidden layer are numbered arbitrarily. Renumbering them permutes the rows of their layer's weights, their
biases, and the columns of the next layer's weights; what the network computes stays the same. Inputs and outputs keep
their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.exchangeability.symmetry_tests import random_orders


def random_hidden_orders(network: StackedMLP, generator: torch.Generator | None = None) -> list[Tensor]:
    """An independent permutation for each hidden layer of each run: int64 [R, units] a layer."""
    device = network.weights[0].device
    return [random_orders(network.runs, w.shape[1], generator, device) for w in network.weights[:-1]]


def permute_hidden(network: StackedMLP, orders: Sequence[Tensor]) -> StackedMLP:
    """The same networks with unit ``orders[l][r, j]`` of hidden layer l of run r in place j, as copies.

    Args:
        orders: int64 [R, units] for each hidden layer, each row a permutation.

    Raises:
        ValueError: not one permutation for each hidden layer and run.
    """
    hidden = [list(w.shape[:2]) for w in network.weights[:-1]]
    shapes = [list(order.shape) for order in orders]
    if shapes != hidden:
        raise ValueError(f"permute_hidden: expected orders of shapes {hidden}, got {shapes}")
    for order in orders:
        if not torch.equal(order.sort(1).values, torch.arange(order.shape[1]).to(order).expand_as(order)):
            raise ValueError("permute_hidden: expected each row to be a permutation of the units")
    weights = []
    for layer, w in enumerate(network.weights):
        if layer < len(orders):
            w = w.gather(1, orders[layer][:, :, None].expand_as(w))
        if layer > 0:
            w = w.gather(2, orders[layer - 1][:, None, :].expand_as(w))
        weights.append(w.clone())
    if network.biases is None:
        return StackedMLP(weights)
    hidden_biases = [b.gather(1, order) for b, order in zip(network.biases, orders, strict=False)]
    return StackedMLP(weights, [*hidden_biases, network.biases[-1].clone()])


def relative_distance(one: StackedMLP, other: StackedMLP) -> Tensor:
    """‖one - other‖/‖other‖ over all parameters of each run, in float64: [R]."""
    squares, wholes = (
        sum(values.double().flatten(1).square().sum(1) for values in tensors)
        for tensors in (
            [a.double() - b.double() for a, b in zip(one.parameters(), other.parameters(), strict=True)],
            other.parameters(),
        )
    )
    return torch.as_tensor(squares).sqrt() / torch.as_tensor(wholes).sqrt()
