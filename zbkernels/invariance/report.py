"""What the check found, to be read and to be asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Operation:
    """One operation of the forward pass, in execution order.

    Attributes:
        path, module: of the innermost module that ran it (``forward`` where that is the model itself), and its class.
        function: torch's name for it, such as ``convolution`` or ``addmm``.
        degree: d where its result is multiplied by s^d when the input is multiplied by s; None: no such d.
        zero: the result is 0 everywhere, which is of every degree.
        breaks: the result has no degree while all that went in had one.
        kind, reason: why, in a word and in a sentence ("bias", "batch norm", …); "" where the degree stays.
        deviation: of a break, max |y(s) - s^d·y(1)| / max |s^d·y(1)| for the degree d of what went in, at the scalar
            ``at`` where it is largest: a power of four, unless it has a degree at these and none between them.
    """

    index: int
    path: str
    module: str
    function: str
    degree: float | None
    zero: bool = False
    breaks: bool = False
    kind: str = ""
    reason: str = ""
    deviation: float = 0.0
    at: float = 1.0

    def __str__(self) -> str:
        by = f"; off by {self.size}" if self.breaks and math.isfinite(self.deviation) else ""
        return f"{self.where}: {self.reason}{by}"

    @property
    def size(self) -> str:
        """Of a break, by how much, and where."""
        return f"{_relative(self.deviation)} at scalar {self.at:.3g}"

    @property
    def where(self) -> str:
        return f"'{self.path}' ({self.module}, {self.function})"


@dataclass(frozen=True)
class Output:
    """One tensor that the model returned.

    Attributes:
        name: its path in what the model returned, such as ``logits`` or ``0.1``; ``output`` where there is one alone.
        degree, zero: as of an :class:`Operation`.
        through: the function that keeps the order of homogeneous values and was applied last, such as ``_softmax``;
            "" where there is none.
    """

    name: str
    shape: tuple[int, ...]
    degree: float | None
    zero: bool
    through: str

    @property
    def invariant(self) -> bool:
        return self.zero or self.degree is not None or bool(self.through)

    @property
    def homogeneous(self) -> bool:
        return self.zero or self.degree == 1


@dataclass(frozen=True)
class ScalarRow:
    """What happens to the outputs at one scalar.

    Attributes:
        deviation: max |f(s·x) - s^d·f(x)| / max |s^d·f(x)|, the worst of the outputs; d is the output's degree, 1 where
            it has none. In the report's ``precision``, as ``changed``: predictions that differ from those at scalar 1.
        own_deviation, own_changed: the same as the model runs in its own ``dtype``; None where that is ``precision``.
        near_ties: of ``own_changed``, predictions whose two best values differ by rounding alone.
        below, above: values of the forward pass under the smallest normal number of ``dtype``, or over its largest.
    """

    scalar: float
    deviation: float
    changed: int
    own_deviation: float | None = None
    own_changed: int | None = None
    near_ties: int = 0
    below: int = 0
    above: int = 0

    @property
    def cause(self) -> str:
        """What its own dtype does to a network that is invariant in ``precision``; "" where that is nothing."""
        if self.changed or not self.own_changed:
            return ""
        if self.near_ties == self.own_changed:
            return "rounding (near ties)"
        return "underflow" if self.below else "overflow" if self.above else "precision"


@dataclass(frozen=True)
class InvarianceReport:
    """What :func:`zbkernels.check_scalar_invariance` found.

    Attributes:
        operations: all operations in execution order, with the degree of each.
        outputs, scalars: one row for each tensor that the model returns, and for each scalar.
        first_break: the first operation, in execution order, that keeps an output from being homogeneous of degree 1;
            None where all are.
        latent: the operation that would break the network were its all-zero parameters and running means not 0, as
            they are before training; None where there is none, or the network is not invariant as it is.
        dtype, precision: the model's own, and the one in which the operations were compared.
        predictions: how many there are at each scalar.
        notes: what the user should know of how this was found.
    """

    operations: tuple[Operation, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[ScalarRow, ...]
    first_break: Operation | None
    latent: Operation | None
    dtype: str
    precision: str
    predictions: int
    notes: tuple[str, ...] = ()

    @property
    def invariant(self) -> bool:
        """Whether predictions are kept by what the network is: every output is homogeneous of some degree, or becomes
        what it is by a last softmax or the like. That no prediction changed on a few inputs is no such thing."""
        return all(output.invariant for output in self.outputs)

    @property
    def homogeneous(self) -> bool:
        """Whether f(s·x) = s·f(x)."""
        return all(output.homogeneous for output in self.outputs)

    @property
    def breaks(self) -> tuple[Operation, ...]:
        """All operations whose result has no degree while what went in had one, in execution order."""
        return tuple(op for op in self.operations if op.breaks)

    @property
    def changed(self) -> int:
        """The most predictions that changed at one scalar, in ``precision``."""
        return max(row.changed for row in self.scalars)

    @property
    def worst_deviation(self) -> float:
        return max(row.deviation for row in self.scalars)

    @property
    def count(self) -> str:
        """Of the operations, in words."""
        return f"{len(self.operations):,} operation{'' if len(self.operations) == 1 else 's'}"

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.homogeneous:
            return "scalar invariant: f(s·x) = s·f(x)"
        if self.invariant:
            ways = dict.fromkeys(map(_way, self.outputs))
            return f"scalar invariant in its predictions, not in value: {'; '.join(ways)}"
        if self.predictions and not self.changed:
            return "not scalar invariant; no prediction changed on these inputs, which nothing guarantees"
        at = max(self.scalars, key=lambda row: row.changed).scalar
        lost = (
            f": {self.changed:,} of {self.predictions:,} predictions change at scalar {at:g}"
            if self.changed
            else ""
        )
        return f"not scalar invariant{lost}"

    def to_json(self) -> dict[str, Any]:
        """All of it, with null for what is infinite."""
        return _plain(
            {
                "invariant": self.invariant,
                "homogeneous": self.homogeneous,
                "verdict": self.verdict,
                "first_break": None if self.first_break is None else asdict(self.first_break),
                "latent": None if self.latent is None else asdict(self.latent),
                "breaks": [asdict(op) for op in self.breaks],
                "outputs": [asdict(output) for output in self.outputs],
                "scalars": [asdict(row) | {"cause": row.cause} for row in self.scalars],
                "operations": [asdict(op) for op in self.operations],
                "predictions": self.predictions,
                "dtype": self.dtype,
                "precision": self.precision,
                "notes": list(self.notes),
            }
        )

    def lines(self, most: int = 8) -> Iterator[str]:
        """What is said beside the table of scalars, a sentence each."""
        yield f"{self.verdict} ({self.count}, compared in {self.precision})"
        if self.first_break is not None:
            yield f"first break: {self.first_break}"
        others = [op for op in self.breaks if op != self.first_break]
        for op in others[:most]:
            yield f"also: {op}"
        if len(others) > most:
            yield f"and {len(others) - most} more, in report.breaks"
        yield from self.remarks()

    def remarks(self) -> Iterator[str]:
        """What the verdict, the operations and the table of scalars don't say."""
        if self.latent is not None:
            yield f"only until it is trained, as what is 0 now hides: {self.latent.where}: {self.latent.reason}"
        for row in self.scalars:
            if row.cause:
                changed = f"{row.own_changed:,} of {self.predictions:,} predictions change"
                yield f"{self.dtype} at scalar {row.scalar:g}: {changed} by {row.cause}, not by structure"
        yield from self.notes

    def __str__(self) -> str:
        header = ("scalar", *self.columns)
        rows = [(f"{row.scalar:g}", *self.cells(row)) for row in self.scalars]
        widths = [max(len(cells[i]) for cells in (header, *rows)) for i in range(len(header))]
        table = [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in (header, *rows)
        ]
        return "\n".join([*self.lines(), *table])

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table of scalars, without the scalar."""
        own = (f"in {self.dtype}", "changed") if self._own else ()
        return (
            "deviation",
            "predictions changed",
            *own,
            *([f"outside {self.dtype}"] if self._outside else []),
        )

    def cells(self, row: ScalarRow) -> tuple[str, ...]:
        own = () if row.own_deviation is None else (_relative(row.own_deviation), f"{row.own_changed:,}")
        outside = (f"{row.below + row.above:,}",) if self._outside else ()
        return (_relative(row.deviation), f"{row.changed:,}", *own, *outside)

    @property
    def _own(self) -> bool:
        return self.scalars[0].own_deviation is not None

    @property
    def _outside(self) -> bool:
        return any(row.below or row.above for row in self.scalars)


def _way(output: Output) -> str:
    if output.through:
        return f"what {output.through.lstrip('_')} is given is homogeneous"
    return f"{output.name} is homogeneous of degree {output.degree:.3g}"


def _relative(value: float) -> str:
    if math.isinf(value):
        return "inf"
    return "0" if value == 0 else f"{value:.1e}" if value < 1e-3 or value >= 1e4 else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
