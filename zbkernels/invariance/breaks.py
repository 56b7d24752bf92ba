"""From the degrees of a forward pass to the operations that break homogeneity, and to what its outputs are."""

from __future__ import annotations

import math
from dataclasses import replace

from zbkernels.invariance.degrees import Degree
from zbkernels.invariance.reasons import BETWEEN, ORDER_PRESERVING, UNEXPLAINED, degree_list, why, why_degree
from zbkernels.invariance.report import Operation, Output
from zbkernels.invariance.structure import Structure
from zbkernels.invariance.watching import Recorded, Source


class Breaks:
    """What a structure means.

    Attributes:
        operations: all of them, with reasons where the degree is lost or changes.
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._mixed: dict[tuple[int, int], bool] = {}
        self._lucky: dict[tuple[int, int], bool] = {}
        for source in (s for op in structure.operations for s in op.sources):
            self._by_luck(source)  # in order, so that no recursion is deep
        named: dict[int, int] = {}  # the operation to name -> where it shows
        for index in range(len(structure.operations)):
            name = self._named(index)
            if name is not None:
                named.setdefault(name, index)
        self.operations = tuple(self._row(i, named.get(i)) for i in range(len(structure.operations)))

    def first(self) -> Operation | None:
        """The first operation, in execution order, on which an output that is not of degree 1 depends and at which the
        degree is lost; where no degree is lost, at which it changes."""
        lost: list[Source] = []
        other: list[Source] = []
        for source, degree in self.structure.returned.values():
            known = self._certain(source, degree)
            if not degree.zero and known != 1:
                (lost if known is None else other).append(source)
        leads = self.structure.ancestors(lost or other)
        for row in self.operations:
            if row.index in leads and (row.breaks if lost else row.kind):
                return row
        branches = (row for row in self.operations if row.kind == "control flow")
        return next(branches, None) if lost else None

    def outputs(self, class_dim: int) -> tuple[Output, ...]:
        found = []
        for name, (source, degree) in self.structure.returned.items():
            shape, known, through = tuple(degree.base.shape), self._certain(source, degree), ""
            if known is None and not degree.zero:
                through = self._through(source, shape, class_dim)
            found.append(Output(name, shape, known, degree.zero, through))
        return tuple(found)

    def _broken(self, source: Source) -> bool:
        if source.made_by is None:
            return False
        index, output = source.made_by
        return self.structure.degrees[index][output].broken

    def _certain(self, source: Source, degree: Degree) -> float | None:
        """The degree of an output; None too where it only was the same so far."""
        return None if self._by_luck(source) else degree.known

    def _by_luck(self, source: Source) -> bool:
        """Whether it depends on integers or booleans that were made of what is not homogeneous: these stay the same as
        long as no decision flips, such as the argmax of biased logits."""
        if source.made_by is None:
            return False
        if source.made_by not in self._lucky:
            index, output = source.made_by
            sources, base = (
                self.structure.operations[index].sources,
                self.structure.degrees[index][output].base,
            )
            decided = not (base.is_floating_point() or base.is_complex()) and any(map(self._broken, sources))
            self._lucky[source.made_by] = decided or any(map(self._by_luck, sources))
        return self._lucky[source.made_by]

    def _mixes(self, place: tuple[int, int]) -> bool:
        """Whether the memory that an operation wrote holds parts of other degrees than the part it wrote."""
        if place not in self._mixed:
            index, output = place
            before = self.structure.operations[index].before if output == 0 else None
            self._mixed[place] = False
            if before is not None:
                mine, other = (self.structure.degrees[i][o] for i, o in (place, before))
                differ = not (mine.zero or other.zero) and mine.known != other.known
                self._mixed[place] = differ or self._mixes(before)
        return self._mixed[place]

    def _named(self, index: int) -> int | None:
        """The operation to name where the result of ``index`` has no degree and all that went in has one: that one, or
        the one that wrote something of another degree into what it was given, or of which Python took a number. Else
        None."""
        op, degrees = self.structure.operations[index], self.structure.degrees[index]
        broken = [j for j, degree in enumerate(degrees) if degree.broken]
        if not any(j == 0 or j in op.used for j in broken) or any(map(self._broken, op.sources)):
            return None
        mixed = (s.made_by[0] for s in op.sources if s.made_by is not None and self._mixes(s.made_by))
        named = next(mixed, index)
        if named == index and why(op, self.structure.source_degrees(index))[0] == UNEXPLAINED:
            numbers = (s.made_by[0] for s in op.numbers if s.made_by is not None and self._broken(s))
            named = next(numbers, index)  # such as the comparison by which an `if` chose what it is given
        return named

    def _row(self, index: int, shows_at: int | None) -> Operation:
        structure = self.structure
        op, degree = structure.operations[index], structure.degrees[index][0]
        row = Operation(index, op.path, op.module, op.function, degree.known, degree.zero)
        degrees = structure.source_degrees(index)
        if structure.diverged is not None and structure.diverged[0] == index:
            at = structure.diverged[1]
            reason = f"the network branches on its input: at scalar {at:.3g} it runs another operation here"
            return replace(row, breaks=True, kind="control flow", reason=reason, deviation=math.inf, at=at)
        if shows_at is not None:
            shown = max(
                (d for d in structure.degrees[shows_at] if d.broken), key=lambda d: (d.between, d.deviation)
            )
            over = shows_at != index and not degree.broken
            kind, reason = ("overwriting", self._overwrites(index)) if over else why(op, degrees)
            if shown.between and kind == UNEXPLAINED:
                kind, reason = BETWEEN
            return replace(row, breaks=True, kind=kind, reason=reason, deviation=shown.deviation, at=shown.at)
        if self._changes(index) and degree.known is not None:
            kind, reason = why_degree(op, structure.expected(index), degree.known, degrees)
            return replace(row, kind=kind, reason=reason)
        return row

    def _overwrites(self, index: int) -> str:
        places = [(index, 0), self.structure.operations[index].before]
        degrees = [self.structure.degrees[p[0]][p[1]].known for p in places if p is not None]
        known = degree_list([d for d in degrees if d is not None])
        return f"writes into a tensor, which then holds values of degree {known}"

    def _changes(self, index: int) -> bool:
        """Whether the result has a degree, which is not that of what went in."""
        degree = self.structure.degrees[index][0]
        floating = degree.base.is_floating_point() or degree.base.is_complex()
        known = any(d is not None for d in self.structure.source_degrees(index))
        return (
            floating
            and known
            and not degree.zero
            and degree.known not in (None, self.structure.expected(index))
        )

    def _through(self, source: Source, shape: tuple[int, ...], class_dim: int) -> str:
        """The last function, where it and those before it keep the order of values that have a degree; else ""."""
        last = ""
        while source.made_by is not None and source.made_by[1] == 0:
            index = source.made_by[0]
            op, degree = self.structure.operations[index], self.structure.degrees[index][0]
            if last and (degree.zero or degree.known is not None):
                return last
            name = op.function if op.function.startswith("_") else op.function.rstrip("_")
            if len(op.sources) != 1 or op.arguments["shape"] != shape:
                return ""
            if _multiplies(op):
                source = op.sources[0]
                continue
            if name not in ORDER_PRESERVING:
                return ""
            along = op.arguments.get("dim")  # of a softmax; it keeps the order along this one only
            if along is not None and shape and along % len(shape) != class_place(class_dim, len(shape)):
                return ""
            last, source = last or name, op.sources[0]
        return last if source.is_input else ""


def _multiplies(op: Recorded) -> bool:
    """Whether it multiplies or divides by a positive number, and no more."""
    number, rounds = op.arguments.get("other"), op.arguments.get("rounding_mode")
    return (
        op.function.rstrip("_") in ("mul", "div")
        and number is not None
        and 0 < number < math.inf
        and rounds is None
    )


def class_place(class_dim: int, dims: int) -> int:
    """Which dimension of an output holds its classes: ``class_dim``, or the last where there are not so many."""
    return min(class_dim, dims - 1) if class_dim >= 0 else class_dim % dims
