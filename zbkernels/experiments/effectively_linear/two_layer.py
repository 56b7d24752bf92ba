"""Two-layer bias-free leaky ReLU networks f(x) = W2 act(W1 x), taken apart into a linear odd part and an even part.

act(z) = max(z, 0) + slope min(z, 0) is c z + s |z| with c = (1 + slope)/2 and s = (1 - slope)/2, so that

    f(x) = c W2 W1 x + s Σ_h w2_h |w1_h · x|,

the first term odd and linear, the second even. All functions take stacks of networks: ``...`` are batch dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu


def slopes(alpha: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    """(c, s) of a leaky ReLU: the factor of its odd part z and of its even part |z|."""
    return (1 + alpha) / 2, (1 - alpha) / 2


def network(w1: Tensor, w2: Tensor, alpha: float, x: Tensor) -> Tensor:
    """f of the inputs.

    Args:
        w1: first layers, [..., H, D].
        w2: second layers, [..., O, H].
        x: inputs [N, D], or [..., N, D].

    Returns:
        [..., N, O].
    """
    return leaky_relu(x @ w1.mT, alpha) @ w2.mT


def odd_map(w1: Tensor, w2: Tensor, alpha: float | Tensor) -> Tensor:
    """The matrix c W2 W1 of the odd part, [..., O, D]; ``alpha`` a number or [..., 1, 1]."""
    return slopes(alpha)[0] * (w2 @ w1)


def even_part(w1: Tensor, w2: Tensor, alpha: float | Tensor, x: Tensor) -> Tensor:
    """s Σ_h w2_h |w1_h · x|, [..., N, O]; shapes as in :func:`network`."""
    return slopes(alpha)[1] * ((x @ w1.mT).abs() @ w2.mT)


def rounding_unit(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """eps times Σ_hd |w2_h| |w1_hd| |x_d|, [..., N, O]: the scale of an error that rounding alone makes of f."""
    return torch.finfo(x.dtype).eps * ((x.abs() @ w1.abs().mT) @ w2.abs().mT)


def linear_network(linear: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """A two-layer leaky ReLU network that is the linear map ``linear`` [O, D] exactly: its even part is 0.

    Each output o has two units, ±linear_o, with second-layer weights ±1/(2c): act(z) - act(-z) = 2c z.

    Returns:
        (w1 [2·O, D], w2 [O, 2·O]).

    Raises:
        ValueError: alpha is -1, where the activation is even, and so is the network.
    """
    c = (1 + alpha) / 2
    if c == 0:
        raise ValueError("linear_network: expected alpha other than -1, where the network is even, got -1")
    eye = torch.eye(len(linear), dtype=linear.dtype) / (2 * c)
    return torch.cat([linear, -linear]), torch.cat([eye, -eye], 1)
