"""The degree of every operation of a forward pass, by running it at several scalars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zbkernels.invariance.degrees import Degree, relative_deviation
from zbkernels.invariance.tensors import call, named_tensors, outputs_of, scaled
from zbkernels.invariance.watching import Recorded, Recorder, Source, Watch, function_of, is_unset, repeatable

SEED = 0  # of whatever is random in every run but the second


class Comparer(Watch):
    """Holds each operation of a run against the recorded one, as long as they are the same operations.

    Attributes:
        diverged: the first recorded operation in whose place another one ran.
    """

    def __init__(self, model: nn.Module, structure: Structure) -> None:
        super().__init__(model)
        self.structure = structure
        self.diverged: int | None = None
        self._next = 0

    def after(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor], wrote: bool) -> None:
        if is_unset(func) or self.diverged is not None:
            return
        index, recorded = self._next, self.structure.operations
        self._next += 1
        if index >= len(recorded) or recorded[index].function != function_of(func):
            self.diverged = min(index, len(recorded) - 1)
            return
        self.compare(index, made)

    def compare(self, index: int, made: list[torch.Tensor]) -> None:
        raise NotImplementedError


class AtScalar(Comparer):
    """Fits the degrees of a structure's operations to a run at scalar s."""

    def __init__(self, model: nn.Module, structure: Structure, s: float) -> None:
        super().__init__(model, structure)
        self.s = s

    def compare(self, index: int, made: list[torch.Tensor]) -> None:
        expected, coarsest = self.structure.expected(index), self.structure.coarsest[index]
        for y, degree in zip(made, self.structure.degrees[index], strict=False):
            degree.compare(y, self.s, coarsest, expected)


class Again(Comparer):
    """Finds the first operation that does not give the recorded result: ``differs``."""

    differs: int | None = None

    def compare(self, index: int, made: list[torch.Tensor]) -> None:
        allowed = torch.finfo(self.structure.coarsest[index]).eps ** 0.75
        pairs = zip(made, self.structure.operations[index].outputs, strict=False)
        if self.differs is None and any(relative_deviation(y, base, 1.0) > allowed for y, base in pairs):
            self.differs = index


@dataclass
class Structure:
    """A recorded forward pass, held against others at powers of four.

    Attributes:
        coarsest: of each operation, the least precise dtype met up to it.
        degrees: of each operation, of each of its outputs.
        returned: of each tensor that the model returned, where it came from and its degree.
        diverged: where the operations were no longer the recorded ones, and the scalar.
    """

    operations: list[Recorded]
    coarsest: list[torch.dtype]
    degrees: list[list[Degree]]
    returned: dict[str, tuple[Source, Degree]]
    diverged: tuple[int, float] | None = None

    @classmethod
    def of(cls, model: nn.Module, x: Any, dtype: torch.dtype | None, scalars: Sequence[float]) -> Structure:
        """Run ``model`` (in evaluation mode, its tensors in ``dtype``) at scalar 1, again, and at each of ``scalars``.

        Raises:
            ValueError: it does not give the same result twice; the message names the operation.
        """
        given = scaled(x, 1.0, dtype)
        inputs = [t for _, t in named_tensors(given) if t.is_floating_point()]
        recorder = Recorder(model, inputs)
        with repeatable(SEED, dtype), recorder:
            result = outputs_of(call(model, given))
        structure = cls(
            recorder.operations,
            _coarsest(inputs, recorder.operations),
            [[Degree(t) for t in op.outputs] for op in recorder.operations],
            {name: (recorder.source(t), Degree(t.clone())) for name, t in result.items()},
        )
        structure._refuse_random(model, scaled(x, 1.0, dtype), dtype)
        for s in scalars:
            structure._run_at(s, model, scaled(x, s, dtype), dtype)
        return structure

    def _run_at(self, s: float, model: nn.Module, given: Any, dtype: torch.dtype | None) -> None:
        comparer = AtScalar(model, self, s)
        with repeatable(SEED, dtype), comparer:
            outputs = outputs_of(call(model, given))
        if comparer.diverged is not None and self.diverged is None:
            self.diverged = (comparer.diverged, s)
        if outputs.keys() != self.returned.keys():
            names, now = (", ".join(found) for found in (self.returned, outputs))
            raise ValueError(
                "check_scalar_invariance: expected the same outputs at each scalar, "
                f"got {names} at 1 and {now} at {s:.3g}"
            )
        for name, (source, degree) in self.returned.items():
            degree.compare(outputs[name], s, self.dtype_at_end, self.degree_of(source) or 1.0)

    @property
    def dtype_at_end(self) -> torch.dtype:
        """The least precise dtype of all."""
        return self.coarsest[-1] if self.coarsest else torch.float64

    def _refuse_random(self, model: nn.Module, given: Any, dtype: torch.dtype | None) -> None:
        comparer = Again(model, self)
        with repeatable(SEED + 1, dtype), comparer:
            again = outputs_of(call(model, given))
        allowed = torch.finfo(self.dtype_at_end).eps ** 0.75
        if all(
            name in again and relative_deviation(again[name], degree.base, 1.0) <= allowed
            for name, (_, degree) in self.returned.items()
        ):
            return
        place = comparer.differs if comparer.differs is not None else comparer.diverged
        where = "something outside torch"
        if place is not None:
            op = self.operations[place]
            where = f"{op.function} in '{op.path}' ({op.module})"
        raise ValueError(
            "check_scalar_invariance: expected a model that gives the same result twice in evaluation mode, "
            f"got another from {where}: dropout that ignores eval(), random numbers, or a state that is carried on"
        )

    def expected(self, index: int) -> float:
        """The degree that an operation's result should have: the largest of what went in."""
        return max((d for d in self.source_degrees(index) if d is not None), default=1.0)

    def ancestors(self, sources: Iterable[Source]) -> set[int]:
        """All operations that the sources depend on, those that made them among them."""
        waiting = [source.made_by[0] for source in sources if source.made_by is not None]
        seen: set[int] = set()
        while waiting:
            index = waiting.pop()
            if index not in seen:
                seen.add(index)
                op = self.operations[index]
                leads = (*op.sources, *op.numbers)
                waiting += [source.made_by[0] for source in leads if source.made_by is not None]
                waiting += [op.before[0]] if op.before is not None else []
        return seen

    def source_degrees(self, index: int) -> list[float | None]:
        return [self.degree_of(source) for source in self.operations[index].sources]

    def degree_of(self, source: Source) -> float | None:
        """None where it has none, is not known, or is any (of zeros)."""
        if source.made_by is not None:
            index, output = source.made_by
            degree = self.degrees[index][output]
            return None if degree.zero else degree.known
        if source.is_input:
            return 1.0
        return 0.0 if source.parameter is not None else None


def _coarsest(inputs: list[torch.Tensor], operations: list[Recorded]) -> list[torch.dtype]:
    found = []
    worst = max((t.dtype for t in inputs), key=lambda dtype: torch.finfo(dtype).eps)
    for op in operations:
        for t in op.outputs:
            if t.is_floating_point() and torch.finfo(t.dtype).eps > torch.finfo(worst).eps:
                worst = t.dtype
        found.append(worst)
    return found
