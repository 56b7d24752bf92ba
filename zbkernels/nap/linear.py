"""The linear map that a network is around an input, the region where it holds, and how far away its borders are.

Inside the region of its activation pattern a piecewise-linear network is f(y) = J y + c, with c = 0 for a zero-bias
network (then the region is a cone; section 3 of the zero-bias paper). The rows of the map and of the region's
inequalities come from pushing the basis vectors through the held network, some at a time. Of the region only each row's
norm is kept, so that the memory does not grow with units times inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from zbkernels.nap.piece import NotPiecewiseLinear, Piece, check_inputs
from zbkernels.nap.rounding import gamma

NORMS = (2, float("inf"))
_BUDGET = (
    2**20
)  # numbers of float64 in one push, 8 MiB: 2.2 times as fast as 128 MiB for a CNN (one core of an EPYC)


@dataclass(frozen=True)
class Radii:
    """Distances from each input in one norm, float64 [B]; infinite where there is no such boundary.

    Attributes:
        norm: 2 or infinity.
        unit: to the nearest point where a unit of the pattern is at its boundary, with no rounding taken off. Since
            the region is an intersection of half-spaces that holds the input, this is the distance to the nearest of
            their borders.
        unit_name: which unit that is, for each input ("" where there is none).
        tie: bool [B], whether that border is a tie of two positions of a max pool's window; else a unit's input is 0.
        decision: to the nearest of the hyperplanes f_c = f_j of the linear map, prolonged beyond the region. Where
            ``decision`` <= ``unit`` it is the distance to the nearest input of another prediction; else that lies
            outside the region and is at least ``unit`` away.
        decision_class: int64 [B], the class j of that hyperplane (-1: none).
        certified: min(unit, decision), less what rounding could have added: every y with ‖y - x‖ < certified has the
            pattern and the prediction of x, in the arithmetic that was asked for.
    """

    norm: float
    unit: torch.Tensor
    unit_name: tuple[str, ...]
    tie: torch.Tensor
    decision: torch.Tensor
    decision_class: torch.Tensor
    certified: torch.Tensor


@dataclass(frozen=True)
class Inequalities:
    """The region of one input's pattern and prediction: ``A y + b`` > 0 where ``strict``, else >= 0.

    Attributes:
        A: float64 [rows, D], for y flattened.
        b: float64 [rows], 0 for a cone.
        strict: bool [rows].
        names: what each row is of.
        prediction: bool [rows], of the rows f_c - f_j.
    """

    A: torch.Tensor
    b: torch.Tensor
    strict: torch.Tensor
    names: tuple[str, ...]
    prediction: torch.Tensor

    def contains(self, points: torch.Tensor) -> torch.Tensor:
        """bool [N] for ``points`` [N, ...], in float64 and without a margin."""
        g = points.detach().double().flatten(1) @ self.A.T + self.b
        return torch.where(self.strict, g > 0, g >= 0).all(1)


@dataclass(frozen=True)
class LocalLinearMap:
    """What a network is around each of B inputs (D the numbers in one, C classes); all tensors are float64.

    Attributes:
        inputs: [B, ...].
        outputs: [B, C].
        predictions: int64 [B].
        jacobian: [B, C, D]: f(y) = J y + c in the region, y flattened.
        offset: c, [B, C]; exactly 0 for a zero-bias network.
        lost: "" where the pieces are linear; else why they are not, and what that costs.
        l2, linf: distances and certified radii in either norm.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor
    predictions: torch.Tensor
    jacobian: torch.Tensor
    offset: torch.Tensor
    lost: str
    l2: Radii
    linf: Radii
    _piece: Piece

    @property
    def homogeneous(self) -> bool:
        """Whether c = 0 and each region is a cone."""
        return not self.lost

    def apply(self, points: torch.Tensor) -> torch.Tensor:
        """J y + c: [B, ...] (or [B, T, ...], T points each) -> [B, C] (or [B, T, C]), inside the region or not."""
        y = points.detach().double()
        each = y.reshape(self.inputs.shape[0], -1, self.jacobian.shape[2])
        out = each @ self.jacobian.transpose(1, 2) + self.offset.unsqueeze(1)
        return out if y.dim() > self.inputs.dim() else out.squeeze(1)

    def inequalities(self, index: int = 0) -> Inequalities:
        """The region of input ``index``: needs memory of all its rows times D. Rows that cannot fail are left out."""
        return region_inequalities(self._piece.of_anchor(index))


def region_inequalities(piece: Piece) -> Inequalities:
    """The region of a piece with one anchor."""
    b = torch.cat(piece.values(torch.zeros_like(piece.inputs[:, None]))[0], 2)[0, 0]
    count = piece.inputs[0].numel()
    A = b.new_empty(b.numel(), count)
    for start, picked, rows, _ in _pushes(piece):
        A[:, start : start + len(picked)] = torch.cat(rows, 2)[0].T - b.unsqueeze(1)
    kept = ((A != 0).any(1) | (b != 0)).nonzero().flatten()
    names = tuple(map(piece.describe_row, kept.tolist()))
    strict = torch.cat(piece.strict, 1)[0]
    return Inequalities(A[kept], b[kept], strict[kept], names, kept >= piece.rows - piece.strict[-1].shape[1])


def local_linear_map(
    model: nn.Module,
    x: torch.Tensor,
    *,
    units: str = "winner",
    vary: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> LocalLinearMap:
    """The exact linear map of a piecewise-linear network at each input, with its distances to the borders of the
    region.

    The model may hold convolutions, linear layers, (leaky) ReLUs, max and average pools, residual sums, batch
    normalisation in evaluation (a bias) and the fused layers of :mod:`zbkernels.nn`; it is run in float64. It must be
    in evaluation mode (``model.eval()``): dropout and batch normalisation in training are refused.

    Args:
        x: [B, ...].
        units: ``"winner"``, or ``"relu"`` for models without max pools; see :func:`zbkernels.nap.certify_hull`.
        vary: bool, of the shape of one input or of x: which coordinates the distances let change; None: all. An
            image's blank border makes pre-activations that are exactly 0, so that with the border any radius is 0.
        dtype: arithmetic in which the certified radius holds. None: that of real numbers. Else the model, computed in
            this dtype by direct sums in any order, keeps pattern and prediction at every y of this dtype within the
            radius.

    Raises:
        NotPiecewiseLinear: a ValueError that names the layer in the way.
        ValueError: inputs that are not finite or not [B, ...], or a model that does not return [B, C].
    """
    return _map("local_linear_map", model, x, units, vary, dtype)


def certified_radius(
    model: nn.Module,
    x: torch.Tensor,
    *,
    norm: float = 2,
    units: str = "winner",
    vary: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Radii:
    """:func:`local_linear_map`'s :class:`Radii` in one norm (2 or infinity), with the same arguments and errors."""
    if norm not in NORMS:
        raise ValueError(f"certified_radius: expected norm 2 or inf, got {norm!r}")
    both = _map("certified_radius", model, x, units, vary, dtype)
    return both.l2 if norm == 2 else both.linf


def _map(
    who: str,
    model: nn.Module,
    x: torch.Tensor,
    units: str,
    vary: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> LocalLinearMap:
    x = check_inputs(who, x)
    varies = _check_vary(who, x, vary)  # [B, D]
    piece = Piece(model, x, units, who)
    if dtype is not None and not piece.fits(dtype):
        raise ValueError(
            f"{who}: expected dtype to hold each weight exactly, got {dtype}, in which some would be rounded"
        )
    at, _ = piece.values(torch.stack([x, torch.zeros_like(x)], 1))
    g, b = [torch.cat([rows[:, i] for rows in at], 1) for i in (0, 1)]  # [B, rows]
    zero = piece.values(torch.zeros_like(x[:, None]))[1][:, 0]
    flat = x.flatten(1)
    jacobian = torch.zeros(x.shape[0], piece.outputs.shape[1], flat.shape[1], dtype=x.dtype, device=x.device)
    squares, sums, again = torch.zeros_like(g), torch.zeros_like(g), b.clone()
    for start, picked, rows, outputs in _pushes(piece):
        a = torch.cat(rows, 2) - b.unsqueeze(1)  # [B, T, rows]
        again += (a * flat[:, picked, None]).sum(1)
        a *= varies[:, picked, None]
        squares += a.square().sum(1)
        sums += a.abs().sum(1)
        jacobian[:, :, start : start + a.shape[1]] = (outputs - zero.unsqueeze(1)).transpose(1, 2)
    bounds = _bounds(piece, varies, dtype)
    # What the pushes add up to must be what the network computed: else something in it is not as it seems.
    slack = 1e-9 * (bounds.at_x + flat.abs().sum(1, keepdim=True) * bounds.at_zero)
    if bool(((again - g).abs() > slack).any()):
        raise NotPiecewiseLinear(f"{who}: the model is not affine between its units")
    l2 = _radii(piece, 2, g, squares.sqrt(), bounds)
    linf = _radii(piece, float("inf"), g, sums, bounds)
    return LocalLinearMap(x, piece.outputs, piece.predictions, jacobian, zero, lost(piece), l2, linf, piece)


def lost(piece: Piece) -> str:
    """What a bias costs, in words; "" where there is none."""
    if not piece.bias:
        return ""
    return (
        f"{piece.bias}: the regions are polytopes and no cones, so that pattern and prediction are kept by convex "
        "combinations only, and not by scaling an input"
    )


def _pushes(piece: Piece) -> Iterator[tuple[int, torch.Tensor, list[torch.Tensor], torch.Tensor]]:
    """(start, coordinates, rows at their basis vectors, outputs) for some coordinates at a time."""
    batch, count = piece.inputs.shape[0], piece.inputs[0].numel()
    width = max(1, _BUDGET // (batch * max(piece.rows, count)))
    for start in range(0, count, width):
        picked = torch.arange(start, min(start + width, count), device=piece.inputs.device)
        basis = piece.inputs.new_zeros(len(picked), count)
        basis[torch.arange(len(picked)), picked] = 1
        points = basis.view(1, len(picked), *piece.inputs.shape[1:]).expand(
            batch, *(-1,) * piece.inputs.dim()
        )
        rows, outputs = piece.values(points)
        yield start, picked, rows, outputs


class _Bounds(NamedTuple):
    """What rounding can do to each row, all [B, rows].

    Attributes:
        at_x, at_zero: the row's magnitude at x and at 0.
        error: by how much g(x) can be off.
        spread: by how much each unit of distance can add to that, or to the row's norm.
    """

    at_x: torch.Tensor
    at_zero: torch.Tensor
    error: torch.Tensor
    spread: torch.Tensor


def _bounds(piece: Piece, varies: torch.Tensor, dtype: torch.dtype | None) -> _Bounds:
    """The errors of a row's entries add up to at most gamma(K) times its magnitude at the vector of ones, K the
    roundings on a path, and so does their norm; an entry is the difference of two values where there is a bias. In the
    ball of radius r around x a value's error is at most that at x and gamma(K) r times the magnitude at ones, without
    the biases."""
    x = piece.inputs
    ones = varies.view_as(x).double()
    count = varies.sum(1, keepdim=True)
    around = piece.magnitudes(torch.stack([x, torch.zeros_like(x), ones], 1))
    errors = piece.errors(x.unsqueeze(1), torch.float64)
    rounded = None if dtype is None else piece.errors(x.unsqueeze(1), dtype, grid=False)
    layers = []
    for i, (m, known) in enumerate(around):
        at, zero, one = m.unbind(1)
        error = errors[i][0][:, 0]
        spread = gamma(known.factors, torch.float64) * (1 + 1e-9) * (one + 2 * count * zero)
        if dtype is not None and rounded is not None:
            error = error + rounded[i][0][:, 0]
            spread = spread + torch.where(
                one > zero, gamma(known.factors, dtype) * (1 + 1e-9) * (one - zero), 0.0
            )
        layers.append((at, zero, error, spread))
    return _Bounds(*(torch.cat(each, 1) for each in zip(*layers, strict=True)))


def _radii(piece: Piece, norm: float, g: torch.Tensor, length: torch.Tensor, bounds: _Bounds) -> Radii:
    """Args: g, and ``length``, the dual norm of each row over the coordinates that vary, [B, rows]."""
    distance = torch.where(length > 0, g / length, torch.inf) + 0.0  # no -0
    classes = piece.strict[-1].shape[1]
    unit, decision = distance[:, :-classes], distance[:, -classes:]
    # 1 + 1e-9: the norm is itself a sum in float64
    steepest = length * (1 + 1e-9) + bounds.spread
    safe = (g - bounds.error).clamp(min=0) / steepest
    constant = torch.where((g > bounds.error) | (bounds.at_x == 0), torch.inf, 0.0)
    certified = torch.where(steepest > 0, safe, constant).amin(1) + 0.0  # clamp keeps a -0
    nearest_class = torch.where(decision.amin(1) < torch.inf, decision.argmin(1), -1)
    if not unit.shape[1]:
        return Radii(
            norm,
            torch.full_like(certified, torch.inf),
            ("",) * len(g),
            torch.zeros_like(certified, dtype=torch.bool),
            decision.amin(1),
            nearest_class,
            certified,
        )
    names = tuple(
        "" if value == torch.inf else piece.describe_row(row)
        for value, row in zip(unit.amin(1).tolist(), unit.argmin(1).tolist(), strict=True)
    )
    ties = torch.cat([held.ties for held in piece.held], 1)
    tie = ties.gather(1, unit.argmin(1, keepdim=True)).squeeze(1) & (unit.amin(1) < torch.inf)
    return Radii(norm, unit.amin(1), names, tie, decision.amin(1), nearest_class, certified)


def _check_vary(who: str, x: torch.Tensor, vary: torch.Tensor | None) -> torch.Tensor:
    """bool [B, D]."""
    if vary is None:
        return torch.ones_like(x.flatten(1), dtype=torch.bool)
    if (
        not isinstance(vary, torch.Tensor)
        or vary.dtype != torch.bool
        or vary.shape not in (x.shape, x.shape[1:])
    ):
        got = f"{vary.dtype} {list(vary.shape)}" if isinstance(vary, torch.Tensor) else type(vary).__name__
        raise ValueError(
            f"{who}: expected vary to be bool, of x's shape {list(x.shape)} or one input's, got {got}"
        )
    return vary.to(x.device).expand_as(x).flatten(1)
