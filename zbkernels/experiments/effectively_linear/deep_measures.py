"""What deep linear networks are known for, measured on any weights: rank, alignment, balance; and how linear f is."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from zbkernels.experiments.effectively_linear.deep_nets import Problem, Weights


def shares(weights: Weights, rank: int) -> Tensor:
    """The part of ‖W_l‖² in the first ``rank`` singular values, [R, L]."""
    found = []
    for w in weights:
        squares = torch.linalg.svdvals(w).square()
        found.append(squares[:, :rank].sum(1) / squares.sum(1))
    return torch.stack(found, 1)


def alignment(weights: Weights, ranks: list[int]) -> Tensor:
    """How far the output space of each layer lies in the input space of the next, or holds it, [R, L - 1].

    The mean squared cosine of the principal angles between the first ``ranks[l]`` left singular vectors of W_l and the
    first ``ranks[l + 1]`` right ones of W_(l+1): 1 where one space holds the other, about max(rank)/n by chance.
    """
    found = []
    for layer, (one, other) in enumerate(pairwise(weights)):
        k, m = ranks[layer], ranks[layer + 1]
        left = torch.linalg.svd(one, full_matrices=False)[0][..., :k]  # [R, n, k]
        right = torch.linalg.svd(other, full_matrices=False)[2][:, :m]  # [R, m, n]
        found.append((right @ left).square().sum((1, 2)) / min(k, m))
    return torch.stack(found, 1)


def norms(weights: Weights) -> Tensor:
    """‖W_l‖ (Frobenius), [R, L]."""
    return torch.stack([w.square().sum((1, 2)).sqrt() for w in weights], 1)


def drifts(start: Weights, end: Weights) -> dict[str, Tensor]:
    """How far the differences between neighbouring layers moved, of the largest squared norm at the end, each [R].

    ``layers``: of ‖W_(l+1)‖² - ‖W_l‖². ``units``: of each hidden unit's outgoing less incoming squared norm.
    ``matrices``: of W_(l+1)ᵀ W_(l+1) - W_l W_lᵀ, by the Frobenius norm. The first two are constants of every such flow,
    since (leaky) ReLU is homogeneous; the third is one of linear networks.
    """
    moved: dict[str, list[Tensor]] = {"layers": [], "units": [], "matrices": []}
    for layer in range(len(start) - 1):
        gap = _gap(end, layer) - _gap(start, layer)  # [R, n, n]
        diagonal = gap.diagonal(dim1=1, dim2=2)
        moved["layers"].append(diagonal.sum(1).abs())
        moved["units"].append(diagonal.abs().amax(1))
        moved["matrices"].append(gap.square().sum((1, 2)).sqrt())
    largest = norms(end).square().amax(1)
    return {name: torch.stack(values).amax(0) / largest for name, values in moved.items()}


def _gap(weights: Weights, layer: int) -> Tensor:
    return weights[layer + 1].mT @ weights[layer + 1] - weights[layer] @ weights[layer].mT


def linear_span(problem: Problem) -> Tensor:
    """An orthonormal basis of the linear maps' outputs at the inputs, times √p, [1 or R, N, d]."""
    p = problem.p if problem.p.dim() == 2 else problem.p[None]
    left, values, _ = torch.linalg.svd(p[..., None].sqrt() * problem.x, full_matrices=False)
    return left * (values > 1e-10 * values[:, :1])[:, None]  # pixels that are always 0 give no direction


def linear_share(problem: Problem, f: Tensor, span: Tensor) -> Tensor:
    """The part of E‖f‖² that the best linear map of x explains, [R], of outputs f [R, N, o].

    Args:
        span: :func:`linear_span` of the problem.
    """
    weighted = problem.p[..., None].sqrt() * f
    return (span.mT @ weighted).square().sum((1, 2)) / weighted.square().sum((1, 2))


def odd_share(f: Tensor) -> Tensor:
    """The part of the mean square of f that is odd, [R]; of outputs [R, 2 count, o] at x and then at -x."""
    there, mirror = f.chunk(2, 1)
    odd, even = ((there - mirror).square().sum((1, 2)), (there + mirror).square().sum((1, 2)))
    return odd / (odd + even)


def fixed_units(problem: Problem, weights: Weights, count: int) -> Tensor:
    """The part of ‖W_1‖² in units that are on at 99 % of the first ``count`` inputs or more, or at 1 % or less, [R]."""
    on = (problem.hidden(weights)[0][:, :count] > 0).double().mean(1)  # [R, n]
    squares = weights[0].square().sum(2)
    return (squares * ((on >= 0.99) | (on <= 0.01))).sum(1) / squares.sum(1)


def halves(problem: Problem, f: Tensor) -> Tensor:
    """How much of a target y [N, 1] is learned where y > 0 and where y < 0: E[f y]/E[y²] on each, [R, 2]."""
    found = []
    for here in (problem.y > 0, problem.y < 0):
        y = problem.y * here
        found.append((problem.p * (f * y).sum(-1)).sum(-1) / (problem.p * y.square().sum(-1)).sum(-1))
    return torch.stack(found, 1)


def crossing(times: Tensor, values: Tensor, level: float) -> Tensor:
    """When each rising curve first reaches ``level``, between two points by a straight line; inf: it does not, [R].

    Args:
        times, values: [K, R].
    """
    there = values >= level
    k = there.to(torch.int8).argmax(0).clamp(min=1)
    (t0, t1), (v0, v1) = ((q.gather(0, k[None] - 1)[0], q.gather(0, k[None])[0]) for q in (times, values))
    at = t0 + (t1 - t0) * ((level - v0) / (v1 - v0)).nan_to_num(0.0).clamp(0, 1)
    return torch.where(there.any(0), at, torch.inf)


def thinned(times: Tensor, values: Tensor, most: int = 160) -> tuple[Tensor, Tensor]:
    """Of curves [S, m] over times [S], at most ``most`` points to draw them by, equally far apart along the curves.

    Lengths are those of a picture whose sides are the ranges of time and of values.
    """
    sides = torch.cat([times[:, None], values], 1)
    span = torch.stack([times[-1] - times[0], *[values.max() - values.min()] * values.shape[1]])
    steps = (sides.diff(dim=0) / span.clamp_min(1e-300)).norm(dim=1)
    along = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    at = torch.linspace(0, float(along[-1]), most, dtype=along.dtype)
    kept = torch.unique(torch.searchsorted(along, at).clamp(max=len(times) - 1))
    return times[kept], values[kept]


def best_linear_loss(problem: Problem, span: Tensor) -> Tensor:
    """The least loss of a linear map, of that of f = 0, [1] or [R]."""
    y = problem.y if problem.y.dim() == 3 else problem.y[None]
    return 1 - linear_share(problem, y, span)
