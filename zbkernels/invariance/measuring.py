"""The outputs of a model at each scalar: how far they are from the multiples, and which predictions change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zbkernels.invariance.breaks import class_place
from zbkernels.invariance.degrees import power, relative_deviation
from zbkernels.invariance.finite import not_finite
from zbkernels.invariance.report import ScalarRow
from zbkernels.invariance.structure import SEED
from zbkernels.invariance.tensors import call, outputs_of, scaled
from zbkernels.invariance.watching import Watch, repeatable

_TIE = 32  # machine epsilons, of the largest of an input's outputs, by which two of them may be told apart wrongly


class RangeCounter(Watch):
    """Counts the values of a forward pass that another dtype cannot hold as normal numbers."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__(model)
        self.info = torch.finfo(dtype)  # type: ignore[arg-type]
        self.below = self.above = 0

    def after(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor], wrote: bool) -> None:
        for t in made:
            if t.is_floating_point():
                size = t.abs()
                self.below += int(((size < self.info.smallest_normal) & (size > 0)).sum())
                self.above += int((size > self.info.max).sum())


@dataclass
class Measured:
    """At each scalar: the worst deviation, which predictions changed, and values out of range below and above.

    ``each``: the deviation of each output, by name. ``finite``: whether the outputs at scalar 1 mean anything.
    ``margins``: of each prediction at scalar 1, the gap of its two best values, relative to the largest.
    """

    deviations: list[float]
    changed: list[torch.Tensor]
    ranges: list[tuple[int, int]]
    margins: torch.Tensor
    each: list[dict[str, float]] = field(default_factory=list)
    finite: bool = True

    @property
    def predictions(self) -> int:
        return self.margins.numel()


def measure(
    model: nn.Module,
    x: Any,
    scalars: Sequence[float],
    dtype: torch.dtype | None,
    class_dim: int,
    degrees: Sequence[float | None],
    *,
    outside: torch.dtype | None = None,
) -> Measured:
    """Run ``model`` at scalar 1 and at each of ``scalars``, its input in ``dtype`` (None: as it is).

    Args:
        degrees: of each output; None stands for 1.
        outside: count the values outside this dtype's range.
    """

    def outputs(s: float) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
        given = scaled(x, s, dtype)
        with repeatable(SEED, dtype):
            if outside in (None, dtype):
                return outputs_of(call(model, given)), (0, 0)
            with RangeCounter(model, outside) as counter:
                found = outputs_of(call(model, given))
            return found, (counter.below, counter.above)

    base, _ = outputs(1.0)
    first = _predictions(base, class_dim)
    measured = Measured([], [], [], _margins(base, class_dim), finite=not any(map(not_finite, base.values())))
    for s in scalars:
        found, ranges = outputs(s)
        deviations = {
            name: relative_deviation(found[name], t, power(s, 1.0 if degree is None else degree))
            for (name, t), degree in zip(base.items(), degrees, strict=True)
            if t.is_floating_point() or degree == 0
        }
        measured.each.append(deviations)
        measured.deviations.append(max(deviations.values(), default=0.0))
        measured.changed.append(_predictions(found, class_dim) != first)
        measured.ranges.append(ranges)
    return measured


def scalar_rows(
    scalars: Sequence[float], exact: Measured, own: Measured | None, dtype: torch.dtype
) -> tuple[ScalarRow, ...]:
    rows = []
    for i, s in enumerate(scalars):
        below, above = exact.ranges[i]
        row = ScalarRow(s, exact.deviations[i], int(exact.changed[i].sum()), below=below, above=above)
        if own is not None:
            changed = own.changed[i]
            ties = int((changed & (exact.margins <= _TIE * torch.finfo(dtype).eps)).sum())
            row = ScalarRow(
                s, row.deviation, row.changed, own.deviations[i], int(changed.sum()), ties, below, above
            )
        rows.append(row)
    return tuple(rows)


def _classified(outputs: dict[str, torch.Tensor], class_dim: int) -> list[torch.Tensor]:
    """The floating-point outputs with the classes last, [..., C]."""
    found = []
    for t in outputs.values():
        if t.is_floating_point() and t.dim():
            place = class_place(class_dim, t.dim())
            found.append(t.unsqueeze(-1) if t.dim() == 1 else t.movedim(place, -1))
    return [t.detach().cpu() for t in found if t.numel()]


def _predictions(outputs: dict[str, torch.Tensor], class_dim: int) -> torch.Tensor:
    """int64 [P]: the class of each prediction of each output, or the sign of a single value."""
    found = []
    for t in _classified(outputs, class_dim):
        found.append((t.argmax(-1) if t.shape[-1] > 1 else t[..., 0].double().sign().long()).flatten())
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _margins(outputs: dict[str, torch.Tensor], class_dim: int) -> torch.Tensor:
    found = []
    for t in _classified(outputs, class_dim):
        values = t.double()
        size = values.abs().amax(-1).clamp_min(torch.finfo(torch.float64).tiny)
        if t.shape[-1] > 1:
            best, second = values.topk(2, dim=-1).values.unbind(-1)
            found.append(((best - second) / size).flatten())
        else:
            found.append(torch.ones_like(size).flatten())
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
