"""Regions in which a network is certified to keep its pattern and prediction (Theorems 2 and 3, zero-bias paper).

Inputs of one pattern and one prediction lie in one region {g > 0 where strict, else g >= 0}, an intersection of
half-spaces, hence so does every convex combination. Where no bias is added the half-spaces go through the origin, and
every conic combination (weights >= 0, not all 0) lies there too. Both need a pattern that fixes the linear piece.
Appendix A of the paper asks only that layers be scalar associative, which is not enough: max pooling is, yet under one
pattern of ReLU bits its windows can have other winners, and a combination another prediction (under a 1x2 max pool,
[1, .1, .8, .8] and [.1, 1, .8, .8] share all bits and class 0, and their midpoint gets class 1). With the winners in
the pattern it holds.

On the border of a region (a g that is 0) the network is continuous: its value is still that of the piece, whichever
side the bits are on. So is the prediction, but where logits tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zbkernels.nap.linear import Inequalities, lost, region_inequalities
from zbkernels.nap.piece import Piece, check_inputs
from zbkernels.nap.rounding import Rounding

KINDS = ("cone", "hull")
_BUDGET = 2**20  # numbers of float64 in one evaluation: 8 MiB
_DTYPES = (torch.float32, torch.float64)


class NotCertified(ValueError):
    """The inputs have not one pattern and prediction, or float64 cannot tell; the message names input and unit."""


@dataclass(frozen=True)
class Margin:
    """How far the vertices are from where rounding in ``dtype`` could change a unit or the prediction.

    A row g is safe at an input where it is more than e, the most by which its computed value can be off
    (``errors.py``). g is linear in the weights of a combination and e at most that, so what holds at each vertex holds
    at every combination. e counts 2 n + 2 roundings for the combination of n vertices, whose weights sum to 1 up to
    rounding.

    Attributes:
        dtype: of weights, inputs and sums.
        relative: the least g / e over vertices and rows (but rows that are 0 however they are rounded).
        holds: whether each row of each vertex is safe (``relative`` is above 1, errors of g itself taken off): then
            the network computed in ``dtype`` by direct sums in any order keeps pattern and prediction at every
            combination whose weights sum to 1.
        scales: for a cone, between which sums of weights this holds too, so that nothing of weight is lost below the
            normal numbers, and nothing overflows; (1, 1) for a hull, and for a cone where ``holds`` is False.
    """

    dtype: torch.dtype
    relative: float
    holds: bool
    scales: tuple[float, float]


class Region:
    """What :func:`certify_hull` has verified.

    Attributes:
        vertices: float64 [n, ...], the inputs.
        prediction: the class of all of them.
        kind: ``"cone"``: every conic combination of the vertices keeps pattern and prediction; ``"hull"``: every
            convex one.
        classes: how many logits the model has.
        units: what the pattern holds.
        lost: "" for a zero-bias network; else what its biases cost.
        margins: a :class:`Margin` for float64, and one for float32 where each weight is a number of float32.
    """

    def __init__(
        self, piece: Piece, vertices: torch.Tensor, kind: str, margins: dict[torch.dtype, Margin]
    ) -> None:
        self._piece = piece
        self.vertices = vertices
        self.prediction = int(piece.predictions[0])
        self.kind = kind
        self.classes = piece.outputs.shape[1]
        self.units = piece.units
        self.lost = lost(piece)
        self.margins = margins

    def __repr__(self) -> str:
        holds = ", ".join(str(dtype).removeprefix("torch.") for dtype, m in self.margins.items() if m.holds)
        return (
            f"Region(kind={self.kind!r}, vertices={len(self.vertices)}, prediction={self.prediction}, "
            f"units={self.units!r}, margin={self.margins[torch.float64].relative:.3g}, "
            f"holds in: {holds or 'exact arithmetic only'})"
        )

    def contains(
        self,
        x: torch.Tensor,
        within: str | None = None,
        *,
        dtype: torch.dtype | None = None,
        tolerance: float | None = None,
    ) -> torch.Tensor:
        """Which inputs are certified: bool [N] for x [N, ...].

        Args:
            within: ``"hull"`` or ``"cone"`` of the vertices, by non-negative least squares (scipy), or ``"region"``,
                all inputs of this pattern and prediction, by its inequalities alone; None: as the region was
                certified. The inequalities are checked in any case, so that a True never hangs on the tolerance.
            dtype: None: the inequalities hold at x in exact terms, the rounding of their evaluation in float64 taken
                off. Else they hold with the margin of ``dtype``: the network computed in it keeps pattern and
                prediction at x.
            tolerance: largest distance from the hull or cone, relative to the largest vertex (for a cone: to x);
                None: what the rounding of a combination in x's dtype can make.

        Raises:
            ValueError: x of another shape or not finite, or a cone asked of a biased network.
            ModuleNotFoundError: scipy is missing (not needed for "region").
        """
        points = check_inputs("contains", x) if len(x) else x.detach().double()
        if points.shape[1:] != self.vertices.shape[1:]:
            want = list(self.vertices.shape[1:])
            raise ValueError(
                f"contains: expected x of shape [N, {', '.join(map(str, want))}], got {list(x.shape)}"
            )
        within = self.kind if within is None else within
        if within not in (*KINDS, "region"):
            raise ValueError(f"contains: expected within to be 'hull', 'cone' or 'region', got {within!r}")
        if within == "cone" and self.lost:
            raise ValueError(f"contains: no cone is certified, since {self.lost}")
        if dtype is not None and not self._piece.fits(dtype):
            raise ValueError(f"contains: expected dtype to hold each weight exactly, got {dtype}")
        rounded = 0 if dtype is None else int(not bool((points == points.to(dtype)).all()))  # x itself
        inside = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        for start, some in _some(self._piece, points):
            safe = torch.ones(len(some), dtype=torch.bool, device=points.device)
            for row in _rows(self._piece, some, {} if dtype is None else {dtype: rounded}):
                error = row.error if dtype is None else row.error + row.rounded[dtype][0]
                safe &= _proved(row.g, row.strict, error).all(1)
            inside[start : start + len(some)] = safe
        if within != "region":
            if tolerance is None:
                tolerance = (len(self.vertices) + 2) * torch.finfo(x.dtype).eps
            for i in inside.nonzero().flatten().tolist():
                inside[i] = _distance(self.vertices.flatten(1), points[i].flatten(), within) <= tolerance
        return inside

    def inequalities(self) -> Inequalities:
        """The region of all inputs with this pattern and prediction: needs memory of all its rows times the inputs."""
        return region_inequalities(self._piece)

    def sample(
        self, count: int, *, generator: torch.Generator | None = None, within: str | None = None
    ) -> torch.Tensor:
        """Random combinations of the vertices, float64 [count, ...]: of ``within`` "hull" weights that are uniform on
        the simplex; of "cone" these scaled by powers of ten from 0.01 to 100."""
        within = self.kind if within is None else within
        if within not in KINDS or (within == "cone" and self.lost):
            raise ValueError(f"sample: expected within to be a kind that is certified, got {within!r}")
        weights = (
            torch.rand(count, len(self.vertices), generator=generator, dtype=torch.float64)
            .clamp(min=1e-300)
            .log()
        )
        weights = weights / weights.sum(1, keepdim=True)
        if within == "cone":
            weights = weights * 10 ** (4 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 2)
        return (weights.to(self.vertices.device) @ self.vertices.flatten(1)).view(
            count, *self.vertices.shape[1:]
        )


def certify_hull(
    model: nn.Module, inputs: torch.Tensor, *, kind: str | None = None, units: str = "winner"
) -> Region:
    """Certify that every combination of some inputs keeps their pattern and their prediction.

    Args:
        model: piecewise linear: convolutions, linear layers, (leaky) ReLUs, max and average pools, residual sums,
            batch normalisation in evaluation (a bias), the fused layers of :mod:`zbkernels.nn`. It is taken with its
            weights as they are stored, in real arithmetic; signs are those of a float64 evaluation whose rounding is
            bounded. It must be in evaluation mode (``model.eval()``): dropout and batch normalisation in training are
            refused.
        inputs: [n, ...], the vertices.
        kind: ``"cone"``: every conic combination (weights >= 0, not all 0), for zero-bias networks only; ``"hull"``:
            every convex one. None: a cone where there is no bias, else a hull.
        units: what the pattern holds: ``"winner"``, the bits of the ReLUs and each max pool window's winner (of ReLUs
            that only max pools read, such as the fused layers', the winner's code alone, as ``units="winner"`` of
            :func:`zbkernels.conv_relu_pool2d_nap`); ``"relu"``, bits alone, which is refused where there is a max
            pool.

    Raises:
        NotCertified: the inputs differ in pattern or prediction, or are too near to a boundary for float64 to tell.
        NotPiecewiseLinear: units that do not fix the linear piece, or a layer that is not piecewise linear.
        ValueError: inputs that are not finite or not [n, ...], a cone asked of a biased network. (Both of the above
            are ValueErrors.)

    Example:
        >>> import torch, zbkernels as zb
        >>> from zbkernels.nap import certify_hull
        >>> model = torch.nn.Sequential(zb.nn.LinearReLU(2, 3), torch.nn.Linear(3, 2, bias=False))
        >>> region = certify_hull(model, torch.tensor([[1.0, 2.0], [2.0, 4.1]]))
        >>> region.contains(torch.tensor([[30.0, 61.0]])).tolist()
        [True]
    """
    who = "certify_hull"
    vertices = check_inputs(who, inputs)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{who}: expected kind to be 'cone' or 'hull', got {kind!r}")
    piece = Piece(model, vertices[:1], units, who)
    if kind == "cone" and piece.bias:
        raise ValueError(
            f"{who}: kind='cone' needs a network without biases, but {lost(piece)}; expected kind='hull'"
        )
    kind = kind or ("hull" if piece.bias else "cone")
    tallies = {dtype: _Tally(dtype, len(vertices)) for dtype in _DTYPES if piece.fits(dtype)}
    for start, points in _some(piece, vertices):
        for row in _rows(piece, points, {dtype: tally.more for dtype, tally in tallies.items()}):
            _check_vertices(piece, start, row)
            for tally in tallies.values():
                tally.add(row)
    return Region(piece, vertices, kind, {dtype: tally.margin(kind) for dtype, tally in tallies.items()})


@dataclass(frozen=True)
class _Row:
    """One layer of rows at T points of the first anchor's piece.

    Attributes:
        g: [T, rows]; ``strict``: bool [rows].
        error: by how much g can be off as float64 computed it, [T, rows].
        rounded: for each dtype by how much it can be off there, and what is known of the values.
    """

    layer: int
    g: torch.Tensor
    strict: torch.Tensor
    error: torch.Tensor
    rounded: dict[torch.dtype, tuple[torch.Tensor, Rounding]]


def _rows(piece: Piece, points: torch.Tensor, dtypes: dict[torch.dtype, int]) -> Iterator[_Row]:
    """Args: ``dtypes``, each with the roundings of the points themselves."""
    points = points.unsqueeze(0)
    values, _ = piece.values(points)
    errors = piece.errors(points, torch.float64)
    rounded = {dtype: piece.errors(points, dtype, more=more) for dtype, more in dtypes.items()}
    for layer, (g, strict) in enumerate(zip(values, piece.strict, strict=True)):
        others = {dtype: (each[layer][0][0], each[layer][1]) for dtype, each in rounded.items()}
        yield _Row(layer, g[0], strict[0], errors[layer][0][0], others)


class _Tally:
    """Gathers a :class:`Margin` from the rows of some vertices at a time."""

    def __init__(self, dtype: torch.dtype, vertices: int) -> None:
        self.dtype, self.more = dtype, 2 * vertices + 2
        self.relative, self.holds, self.least, self.largest = float("inf"), True, 0.0, 0.0

    def add(self, row: _Row) -> None:
        error, known = row.rounded[self.dtype]
        self.largest = max(self.largest, known.largest)
        live = error > 0
        if not bool(live.any()):
            return
        g, error = row.g[live], error[live]
        slack = g - row.error[live] - error
        lost = 2 * known.underflow * torch.finfo(self.dtype).tiny
        self.relative = min(self.relative, float((g / error).min()))
        self.holds &= bool((slack > 0).all())
        self.least = max(self.least, float((lost / slack.clamp(min=0)).max()))

    def margin(self, kind: str) -> Margin:
        room = torch.finfo(self.dtype).max / 2 / self.largest if self.largest else float("inf")
        holds = self.holds and room >= 1
        scales = (self.least, room) if kind == "cone" and holds else (1.0, 1.0)
        return Margin(self.dtype, self.relative, holds, scales)


def _some(piece: Piece, points: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    count = max(1, _BUDGET // max(1, piece.rows))
    for start in range(0, len(points), count):
        yield start, points[start : start + count]


def _proved(g: torch.Tensor, strict: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Where the row certainly holds, its value being within ``error`` of g."""
    return torch.where(strict, g > error, g >= error)


def _check_vertices(piece: Piece, start: int, rows: _Row) -> None:
    bad = ~_proved(rows.g, rows.strict, rows.error)
    if not bool(bad.any()):
        return
    fails = torch.where(rows.strict, rows.g <= -rows.error, rows.g < -rows.error)
    at, row = (fails if bool(fails.any()) else bad).nonzero()[0].tolist()
    which = piece.describe(rows.layer, row)
    if bool(fails.any()):
        what = "predictions" if rows.layer == len(piece.strict) - 1 else "patterns"
        raise NotCertified(
            f"{piece.who}: expected inputs of one pattern and one prediction, but inputs 0 and {start + at} have other "
            f"{what}: {which} differs"
        )
    raise NotCertified(
        f"{piece.who}: input {start + at} is too near to a boundary to tell its pattern or prediction: {which} is "
        f"{float(rows.g[at, row]):.3g} from it, and float64 can be off by {float(rows.error[at, row]):.3g}"
    )


def _distance(vertices: torch.Tensor, point: torch.Tensor, within: str) -> float:
    """From ``point`` [D] to the cone or hull of ``vertices`` [n, D], over point's norm or the largest vertex's."""
    nnls = _scipy_nnls()
    size = float(point.norm()) if within == "cone" else float(vertices.norm(dim=1).max())
    if size == 0:
        return 0.0 if not bool(point.any()) else float("inf")
    columns, target = (vertices.T / size).cpu().numpy(), (point / size).cpu().numpy()
    if within == "hull":  # one more equation: the weights sum to 1
        import numpy as np

        columns = np.vstack([columns, np.ones(len(vertices))])
        target = np.append(target, 1.0)
    return float(nnls(columns, target)[1])


def _scipy_nnls() -> Any:
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "contains: hull and cone need scipy: pip install 'zbkernels[experiments]' (within='region' does not)"
        ) from error
    return nnls
