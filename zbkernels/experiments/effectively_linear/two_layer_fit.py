"""Two-layer bias-free networks fitted to their least error to rounding: L-BFGS, then Levenberg and Marquardt's method.

L-BFGS comes near and then crawls: at their best the networks' even part is 0, which many networks do alike, so that the
error is flat in many directions. A method with second derivatives does not mind. Gauss and Newton's matrix JᵀJ leaves
out the residuals times the second derivatives of f; these are act'(w1·x) x, and the residual of a best network is odd
and at right angles to all linear functions, so that on symmetric inputs what is left out is 0 there, however large the
residual.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.fitted_networks import Fitted, Kind, fit

STEPS = 100  # of Levenberg and Marquardt's method, from one start
RESTARTS = 12  # samples on units' borders can hold the method, so that it starts again a little beside
_DAMPING = 1e-3  # at the start of a round
_STUCK = 1e8  # damping from which a step moves nothing
_SMALLEST = 1e-10
_FLAT = 1e-9  # largest derivative of the error by a weight, at which it counts as least
_KICK = 0.05  # relative size of the change of weights at a restart


def fit_closely(kind: Kind, x: Tensor, y: Tensor, seed: int, iterations: int) -> Fitted:
    """As :func:`fitted_networks.fit`, then on to the least error: from there, and up to ``RESTARTS`` times from beside.

    Args:
        kind: two layers without biases.
        iterations: of L-BFGS, at most.

    Raises:
        ValueError: the kind has biases or another number of layers.
    """
    if kind.bias or len(kind.hidden) != 1:
        raise ValueError(f"fit_closely: expected two layers without biases, got {kind}")
    best = polish(fit(kind, x, y, seed, iterations), x, y)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(RESTARTS):
        if _steepest(best, x, y) <= _FLAT:
            break
        weights = [
            w * (1 + _KICK * torch.randn(w.shape, dtype=w.dtype, generator=generator)) for w in best.weights
        ]
        net = polish(Fitted(kind, weights, best.biases, best.iterations), x, y)
        best = min(best, net, key=lambda n: float((n(x) - y).square().mean()))
    return best


def _steepest(net: Fitted, x: Tensor, y: Tensor) -> float:
    """The largest derivative of the mean squared error by a weight."""
    w1, w2 = net.weights
    residual, hidden, slope = _parts(w1, w2, net.kind.alpha, x, y)
    return float(2 / len(x) * (residual @ _jacobian(w2, hidden, slope, x)).abs().max())


def polish(net: Fitted, x: Tensor, y: Tensor) -> Fitted:
    """Up to ``STEPS`` steps of Levenberg and Marquardt's method on the mean squared error on x [N, D], y [N]."""
    w1, w2 = net.weights
    residual, hidden, slope = _parts(w1, w2, net.kind.alpha, x, y)
    error, damping, growth = residual.square().mean(), _DAMPING, 2.0
    jacobian = _jacobian(w2, hidden, slope, x)
    square, pull = jacobian.mT @ jacobian, jacobian.mT @ residual[:, None]
    eye = torch.eye(len(square), dtype=square.dtype)
    for _ in range(STEPS):
        step = torch.cholesky_solve(-pull, torch.linalg.cholesky(square + len(x) * damping * eye))
        told = -(2 * pull + square @ step).mT @ step / len(x)  # how far the error would fall if f were linear
        w1_next, w2_next = w1 + step[: w1.numel(), 0].view_as(w1), w2 + step[w1.numel() :].mT
        residual, hidden, slope = _parts(w1_next, w2_next, net.kind.alpha, x, y)
        fallen = error - residual.square().mean()
        if fallen > 0:
            w1, w2, error = w1_next, w2_next, error - fallen
            jacobian = _jacobian(w2, hidden, slope, x)
            square, pull = jacobian.mT @ jacobian, jacobian.mT @ residual[:, None]
            kept = float(fallen / told)
            damping, growth = max(damping * max(1 / 3, 1 - (2 * kept - 1) ** 3), _SMALLEST), 2.0
        else:
            damping, growth = damping * growth, 2 * growth
            if damping > _STUCK:
                break
    return Fitted(net.kind, [w1, w2], net.biases, net.iterations)


def _parts(w1: Tensor, w2: Tensor, alpha: float, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(f - y [N], hidden units [N, H], slopes act' [N, H])."""
    z = x @ w1.mT
    slope = torch.where(z > 0, torch.ones_like(z), alpha)
    return (z * slope) @ w2[0] - y, z * slope, slope


def _jacobian(w2: Tensor, hidden: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """Derivatives of f by w1 and w2, [N, H·D + H]."""
    return torch.cat([((slope * w2)[:, :, None] * x[:, None]).flatten(1), hidden], 1)
