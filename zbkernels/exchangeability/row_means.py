"""(E^n)² of a weight matrix: how far the weights into a unit are from having mean 0.

"Exchangeability and Kernel Invariance in Trained MLPs", Section 5.2: a unit's weights W_j1 … W_jn are exchangeable,
their mean tends to the E_A whose square's mean is E[W₁₁ W₁₂], the covariance in the bounds (10) and (11). With that
at 0 the layer's normalised kernel is the arc-cosine kernel of degree one, whatever the inputs' sums.
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_means(weight: Tensor) -> Tensor:
    """The mean of each unit's weights, in float64.

    Args:
        weight: [..., out, in], a row a unit.

    Returns:
        [..., out].

    Raises:
        ValueError: fewer than two dimensions, or no inputs.
    """
    if weight.dim() < 2 or weight.shape[-1] == 0:
        raise ValueError(
            f"row_means: expected weight of shape [..., out, in] with in > 0, got {list(weight.shape)}"
        )
    return weight.double().mean(-1)


def greatest_squared_row_mean(weight: Tensor) -> Tensor:
    """(E^n)² = max_j (mean_i W_ji)², in float64; NaN where a weight is.

    Args:
        weight: [..., out, in].

    Returns:
        [...], one for each matrix of a stack.

    Raises:
        ValueError: as :func:`row_means`, or no units.
    """
    if weight.dim() >= 2 and weight.shape[-2] == 0:
        raise ValueError(
            f"greatest_squared_row_mean: expected at least one unit, got weight {list(weight.shape)}"
        )
    return row_means(weight).square().amax(-1)


def expected_by_chance(out: int, inputs: int, std: float) -> float:
    """What (E^n)² is near for independent weights of mean 0: std²/in · 2 ln(out), the greatest of ``out`` squares."""
    return std**2 / inputs * 2 * float(torch.log(torch.tensor(float(out))))
