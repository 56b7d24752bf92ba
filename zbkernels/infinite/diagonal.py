"""The diagonal of a kernel matrix, K(x, x) of each input with itself: N numbers, without the matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from zbkernels.infinite import activations
from zbkernels.infinite.activations import Activation
from zbkernels.infinite.dual_series import Scalar


def diagonal(
    x: Tensor,
    *,
    kernel: str = "nngp",
    activation: str | Scalar | Activation = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> Tensor:
    """The diagonal of :func:`zbkernels.infinite.nngp` or ``ntk`` of x with itself; the angle is 0 in every layer.

    Args:
        x: [N, d], float32 or float64.
        kernel: "nngp" or "ntk"; the rest as there.

    Returns:
        [N], of x's dtype.
    """
    act = activations.named(activation, "diagonal")
    w2, b2 = w_std**2, b_std**2
    q = b2 + w2 / x.shape[1] * x.square().sum(1)
    zero, t = torch.zeros_like(q), q
    for _ in range(depth):
        slope = act.dual_derivative(q, q, q, zero)
        q = b2 + w2 * act.dual(q, q, q, zero)
        t = w2 * slope * t
        if train == "all":
            t = t + q
    return q if kernel == "nngp" else t
