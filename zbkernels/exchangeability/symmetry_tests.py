"""Tests of exchangeability for an ensemble of independent random matrices, with exact levels.

If the law of a matrix is invariant under permutations of its columns, then that of R independent such matrices is
invariant under R independent permutations. So a statistic of the ensemble and its values after random permutations
are exchangeable, and the rank of the first among all is uniform: p ≤ a has a probability of at most a, whatever the
law and however small the ensemble (a Monte Carlo permutation test; with the rank counted as (1 + how many are as
large) / (1 + permutations) nothing about it is asymptotic).

Three statistics look for what tells one column from another, each after the columns' own numbers are standardised
within each matrix, so that no matrix outweighs the others:

- ``mean``: the columns' means differ in expectation,
- ``energy``: the columns' mean squares do,
- ``pairs``: the inner products of two columns do, from pair to pair; the columns may be equal in law one by one.

They are joined by the largest of the three in standard deviations from its mean over all permutations, ranked by the
same permutations, which keeps the level exact.
Rows are tested as the columns of the transpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STATISTICS = ("mean", "energy", "pairs")
SIDES = ("rows", "columns")
# Equal orbits give equal statistics up to the rounding of their sums: as large as the observed is what comes this near.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class SymmetryTest:
    """What a test found.

    Attributes:
        p: of all statistics together; small: the symmetry does not hold.
        parts: of each statistic alone.
    """

    p: float
    parts: dict[str, float]


def exchangeability(
    weights: Tensor,
    side: str,
    *,
    permutations: int = 999,
    generator: torch.Generator | None = None,
    statistics: tuple[str, ...] = STATISTICS,
) -> SymmetryTest:
    """Test that the law of a matrix is invariant under permutations of its rows, or of its columns.

    Args:
        weights: [R, out, in], of R independent networks; any floating dtype, computed in float64.
        side: "rows" or "columns".
        permutations: so many are drawn; p is a multiple of 1 / (permutations + 1).

    Raises:
        ValueError: ``weights`` is no finite floating tensor of three dimensions, or an argument is unknown.
    """
    columns = _columns(weights, side)
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown or not statistics:
        raise ValueError(
            f"exchangeability: expected statistics out of {', '.join(STATISTICS)}, got {statistics}"
        )
    _check_permutations(permutations)
    count, _, size = columns.shape
    prepared = {name: _PREPARE[name](columns) for name in statistics}
    identity = torch.arange(size, device=columns.device).expand(count, size)
    found = torch.empty(len(statistics), permutations + 1, dtype=torch.float64)
    for trial in range(permutations + 1):
        order = identity if trial == 0 else random_orders(count, size, generator, columns.device)
        for row, value in zip(found, prepared.values(), strict=True):
            row[trial] = _unevenness(value, order)
    return _joined(found, statistics)


def entries(
    weights: Tensor, *, permutations: int = 999, generator: torch.Generator | None = None
) -> SymmetryTest:
    """Test that the law is invariant under permutations of all entries, as it is where they are IID.

    This is stronger than row and column exchangeability: permutations of entries tear rows and columns apart. The
    statistics are what rows and columns have in common within each matrix: the unevenness of the mean squares of
    ``rows`` and of ``columns``, and ``rank``, the squared norm of W W' (large where few directions dominate).

    Args, raises: as :func:`exchangeability`.
    """
    _check_permutations(permutations)
    matrices = _columns(weights, "columns")
    count, rows, columns = matrices.shape
    flat = matrices.flatten(1)
    flat = flat / flat.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(flat.dtype).tiny)
    names = ("rows", "columns", "rank")
    found = torch.empty(len(names), permutations + 1, dtype=torch.float64)
    for trial in range(permutations + 1):
        w = flat  # as observed
        if trial:
            w = flat.gather(1, random_orders(count, rows * columns, generator, flat.device))
        w = w.view(count, rows, columns)
        squares = w.square()
        found[0, trial] = squares.mean(2).var(1, correction=0).mean()
        found[1, trial] = squares.mean(1).var(1, correction=0).mean()
        found[2, trial] = (w @ w.mT if rows <= columns else w.mT @ w).square().sum()
    return _joined(found, names)


def linked(
    before: Tensor, after: Tensor, *, permutations: int = 999, generator: torch.Generator | None = None
) -> SymmetryTest:
    """Test that a layer's rows may be permuted while the next layer stays as it is.

    Permuting units permutes the rows of the one layer and the columns of the next *together*; where training has
    joined them, permuting either alone changes the joint law. The statistics are the correlation over the units of
    the two sides' mean squares (``energy``) and means (``mean``), averaged over the ensemble, in absolute value.

    Args:
        before: [R, units, in]; after: [R, out, units], the next layer's.

    Raises:
        ValueError: as :func:`exchangeability`, or the units' numbers differ.
    """
    _check_permutations(permutations)
    inward, outward = _columns(before, "rows"), _columns(after, "columns")
    if inward.shape[0] != outward.shape[0] or inward.shape[2] != outward.shape[2]:
        raise ValueError(
            f"linked: expected weights [R, units, in] and [R, out, units] of one R and number of units, got "
            f"{list(before.shape)} and {list(after.shape)}"
        )
    count, _, size = inward.shape
    names = ("mean", "energy")
    sides = [(_PREPARE[name](inward), _PREPARE[name](outward)) for name in names]
    found = torch.empty(len(names), permutations + 1, dtype=torch.float64)
    for trial in range(permutations + 1):
        for row, (one, other) in zip(found, sides, strict=True):
            if trial:
                one = one.gather(1, random_orders(count, size, generator, one.device))
            row[trial] = (one * other).sum().abs()
    return _joined(found, names)


def labelled(
    weights: Tensor,
    side: str,
    labels: Tensor,
    *,
    permutations: int = 999,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Test *one* network, and each of R for itself, by labels of its rows or columns that are known beforehand.

    An orbit of one matrix looks the same from everywhere, so without labels one network tells nothing (see
    :func:`exchangeability`, whose p is then 1). With them, say the variance of each pixel, the statistic is the
    absolute correlation of the columns' mean squares with the labels.

    Args:
        weights: [R, out, in].
        labels: [rows or columns], of any real dtype.

    Returns:
        p-values [R], float64. The networks share the permutations.

    Raises:
        ValueError: as :func:`exchangeability`, or there is not one finite label for each row or column.
    """
    _check_permutations(permutations)
    values = _PREPARE["energy"](_columns(weights, side))
    size = values.shape[1]
    if tuple(labels.shape) != (size,) or not bool(torch.isfinite(labels).all()):
        raise ValueError(f"labelled: expected {size} finite labels of the {side}, got {list(labels.shape)}")
    wanted = labels.to(values) - labels.to(values).mean()
    orders = random_orders(permutations, size, generator, values.device)
    observed = (values @ wanted).abs()
    others = (values @ wanted[orders].mT).abs()
    as_large = (others >= (observed * (1 - _ROUNDING))[:, None]).sum(1)
    return (1 + as_large).double() / (permutations + 1)


def holm(p_values: list[float]) -> list[float]:
    """p-values adjusted for their number (Holm, 1979): those up to a make a family-wise error with probability ≤ a,
    however the tests depend on each other.

    Raises:
        ValueError: a number that is not in [0, 1].
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"holm: expected p-values in [0, 1], got {p_values}")
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def unevenness_of_energy(weights: Tensor, side: str) -> float:
    """How much the expected mean square differs from column to column (or row to row), relative to its mean.

    The standard deviation over the columns of the ensemble's mean, with the part that chance has in it taken off;
    0 where chance explains all of it. A size of the effect, where a p-value only says whether there is one.
    """
    energy = _columns(weights, side).square().mean(1)
    count = energy.shape[0]
    if count < 2:
        raise ValueError("unevenness_of_energy: expected an ensemble of at least two, got 1")
    # Within a network the energies may share a factor, which is no difference of columns.
    energy = energy / energy.mean(1, keepdim=True)
    between = energy.mean(0).var(correction=1)
    chance = energy.var(0, correction=1).mean() / count
    return float((between - chance).clamp_min(0).sqrt())


def random_orders(
    count: int, size: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """``count`` independent permutations of ``size``: int64 [count, size]."""
    return torch.rand(count, size, generator=generator, dtype=torch.float64).argsort(1).to(device)


def _check_permutations(permutations: int) -> None:
    if permutations < 1:
        raise ValueError(f"expected at least one permutation, got {permutations}")


def _columns(weights: Tensor, side: str) -> Tensor:
    """[R, other, tested] in float64."""
    if side not in SIDES:
        raise ValueError(f"expected a side out of {', '.join(SIDES)}, got {side!r}")
    if weights.ndim != 3 or not weights.is_floating_point() or 0 in weights.shape:
        raise ValueError(
            f"expected floating weights [R, out, in] without an empty side, got {weights.dtype} {list(weights.shape)}"
        )
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("expected finite weights, got NaN or infinity: leave diverged networks out")
    weights = weights.detach().double()
    return weights if side == "columns" else weights.mT


def _standardised(values: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over all but the first dimension; 0 where all are equal."""
    flat = values.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    scale = flat.square().mean(1, keepdim=True).sqrt()
    flat = torch.where(scale > 0, flat / scale, 0.0)
    return flat.view_as(values)


def _means(columns: Tensor) -> Tensor:
    return _standardised(columns.mean(1))


def _energies(columns: Tensor) -> Tensor:
    return _standardised(columns.square().mean(1))


def _pairs(columns: Tensor) -> Tensor:
    """Inner products [R, n, n] of two columns, 0 on the diagonal, which is the energies' business."""
    products = columns.mT @ columns
    size = products.shape[1]
    off = ~torch.eye(size, dtype=torch.bool, device=products.device)
    if size == 1:
        return torch.zeros_like(products)
    result = torch.zeros_like(products)
    result[:, off] = _standardised(products[:, off])
    return result


_PREPARE = {"mean": _means, "energy": _energies, "pairs": _pairs}


def _unevenness(values: Tensor, order: Tensor) -> Tensor:
    """Sum of squares of the ensemble's mean, each network's numbers put in its own order first."""
    count, size = order.shape
    if values.ndim == 2:
        return values.gather(1, order).sum(0).square().sum()
    start = torch.arange(count, device=order.device)[:, None] * (size * size)
    places = (start + order * size)[:, :, None] + order[:, None, :]
    moved = values.flatten().index_select(0, places.flatten())  # faster than take and than two gathers
    return moved.view(count, -1).sum(0).square().sum()


def _joined(found: Tensor, names: tuple[str, ...]) -> SymmetryTest:
    """p-values out of statistics [names, 1 + permutations], the observed ones first."""
    together = _standing_out(found).amax(0)
    parts = {name: _share_as_large(row) for name, row in zip(names, found, strict=True)}
    return SymmetryTest(_share_as_large(together), parts)


def _standing_out(found: Tensor) -> Tensor:
    """Each statistic in standard deviations from its mean over all permutations, the observed one among them.

    Cube roots, since sums of squares are skew and their cube roots are nearly normal. A function that treats all
    permutations alike, so ranks of its values stay exact.
    """
    roots = found.clamp_min(0).pow(1 / 3)
    middle = roots.mean(1, keepdim=True)
    scale = (roots - middle).square().mean(1, keepdim=True).sqrt()
    return torch.where(scale > _ROUNDING * middle, (roots - middle) / scale, 0.0)


def _share_as_large(values: Tensor) -> float:
    return float((values >= values[0] - _ROUNDING * values[0].abs()).double().mean())
