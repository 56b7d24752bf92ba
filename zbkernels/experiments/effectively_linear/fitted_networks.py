"""Small networks fitted to a set of points as well as they can be: full batch, float64, L-BFGS from random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu


@dataclass(frozen=True)
class Kind:
    """One shape of network.

    Attributes:
        hidden: widths of the hidden layers; one of them makes a two-layer network.
        alpha: slope of the leaky ReLU for negative values.
    """

    title: str
    hidden: tuple[int, ...]
    alpha: float = 0.0
    bias: bool = False


@dataclass(frozen=True)
class Fitted:
    """A network of one output.

    Attributes:
        weights: of each layer, [outputs, inputs], float64.
        biases: of each layer [outputs]; zeros where the kind has none.
        iterations: that the optimizer made.
    """

    kind: Kind
    weights: list[Tensor]
    biases: list[Tensor]
    iterations: int

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs [N, D] -> [N]."""
        return forward(self.weights, self.biases, self.kind.alpha, x)


def forward(weights: Sequence[Tensor], biases: Sequence[Tensor], alpha: float, x: Tensor) -> Tensor:
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = leaky_relu(x @ weight.mT + bias, alpha)
    return (x @ weights[-1].mT + biases[-1])[:, 0]


def fit(kind: Kind, x: Tensor, y: Tensor, seed: int, iterations: int) -> Fitted:
    """Minimise the mean squared error on x [N, D], y [N] from normal weights of variance 1/fan_in (biases: 1).

    Args:
        iterations: at most so many of L-BFGS (scipy's, with 30 corrections); it stops earlier where it cannot go on.
    """
    from scipy.optimize import minimize

    sizes = [x.shape[1], *kind.hidden, 1]
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, columns) for columns, rows in pairwise(sizes)]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    parts = [normal(*shape) / shape[1] ** 0.5 for shape in shapes]
    if kind.bias:
        parts += [normal(shape[0]) for shape in shapes]
    lengths = [part.numel() for part in parts]

    def layers(flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        pieces = flat.split(lengths)
        weights = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=False)]
        biases = list(pieces[len(shapes) :]) or [flat.new_zeros(shape[0]) for shape in shapes]
        return weights, biases

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(flat).requires_grad_()
        value = (forward(*layers(at), kind.alpha, x) - y).square().mean()
        value.backward()
        assert at.grad is not None
        return value.item(), at.grad.numpy()

    found = minimize(
        loss,
        torch.cat([part.flatten() for part in parts]).numpy(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": iterations,
            "maxfun": 2 * iterations,
            "maxcor": 30,
            "ftol": 0.0,
            "gtol": 1e-13,
        },
    )
    weights, biases = layers(torch.from_numpy(found.x))
    return Fitted(kind, weights, biases, int(found.nit))
