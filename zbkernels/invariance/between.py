"""What has a degree at powers of four and none between them, such as a scale that is rounded to a power of two.

Between powers of two values are rounded, and a network may make much of it: where two terms cancel all is rounding, and
of two equal values another one wins. So what counts is not how far a result is off at a scalar s, but whether it is off

- at all of several neighbours s·(1 + k·eps), each of which is rounded in another way, by more than sqrt(eps), and
- at each by 32 times what it is off at any of the neighbours of the power of four next to s, which are rounded as much,
  while what the network does there is known.

The input is shifted by random parts of sqrt(eps) of each value first: images hold values that are exactly equal, or
exactly half way between two steps, and these are decided by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zbkernels.invariance.degrees import powers_of_four
from zbkernels.invariance.report import Output
from zbkernels.invariance.structure import SEED, Comparer, Structure
from zbkernels.invariance.tensors import call, mapped, outputs_of, scaled
from zbkernels.invariance.watching import repeatable

_NEIGHBOURS = (3, 5, 7, 9, 11, 13, 15, 17)  # machine epsilons; that all fall the same way by chance: 2^-16
_FAR = 32.0  # how many times the deviation that is rounding
_PROBE = 0.7  # where all scalars are powers of two
_MOST = 2  # scalars that are looked into

Key = tuple[int, int] | str  # an operation and one of its outputs; or a tensor that the model returned


def far_off(
    structure: Structure,
    outputs: Sequence[Output],
    scalars: Sequence[float],
    each: Sequence[dict[str, float]],
) -> dict[float, float]:
    """The scalars at which an output that has a degree deviates by more than sqrt(eps), and by how much; worst first.

    Args:
        each: the deviation of each output at each scalar.
    """
    far = torch.finfo(structure.dtype_at_end).eps ** 0.5
    known = [output.name for output in outputs if output.zero or output.degree is not None]
    worst = {
        s: max((row.get(n, 0.0) for n in known), default=0.0) for s, row in zip(scalars, each, strict=True)
    }
    return {s: worst[s] for s in sorted(worst, key=lambda s: -worst[s]) if worst[s] > far}


def suspects(outputs: Sequence[Output], scalars: Sequence[float], off: dict[float, float]) -> list[float]:
    """The scalars to look into: the worst of those in ``off``. One more where an output's degree is not seen in its
    deviation (a last softmax), or no scalar lies between powers of two."""
    if off or not any(output.invariant for output in outputs):
        return list(off)[:_MOST]
    between = [s for s in scalars if math.frexp(s)[0] != 0.5]
    if not between or any(output.through for output in outputs):
        return [*between, _PROBE][:1]
    return []


def break_between(
    structure: Structure, model: nn.Module, x: Any, dtype: torch.dtype | None, scalars: Sequence[float]
) -> str:
    """Mark what has no degree at ``scalars`` as broken; what is to be said of it, "" where nothing is broken."""
    if not scalars:
        return ""
    eps = torch.finfo(structure.dtype_at_end).eps
    x = _shifted(scaled(x, 1.0, dtype), eps**0.5)
    base = Structure.of(model, x, dtype, powers_of_four(()))
    if [op.function for op in base.operations] != [op.function for op in structure.operations]:
        return ""  # it takes another branch for other inputs, which is not to be told from rounding
    said = ""
    for s in scalars:
        found = _off(base, model, x, dtype, s, eps)
        for key, (deviation, _) in found.items():
            known = structure.returned[key][1] if isinstance(key, str) else structure.degrees[key[0]][key[1]]
            if not known.broken:
                known.break_between(deviation, s)
        if found and not said:
            returned = [key for key in found if isinstance(key, str)]
            key = max(returned, key=lambda name: found[name][0]) if returned else next(iter(found))
            name = key if isinstance(key, str) else f"{base.operations[key[0]].function}'s result"
            deviation, rounding = found[key]
            said = (
                f"{name} keeps its degree at powers of four alone: at scalar {s:g} it is off by {deviation:.2g}, "
                f"where rounding explains {rounding:.1g}"
            )
    return said


def _off(
    base: Structure, model: nn.Module, x: Any, dtype: torch.dtype | None, s: float, eps: float
) -> dict[Key, tuple[float, float]]:
    """(deviation at s, deviation by rounding) of what is off at s."""
    far = {key: value**0.5 for key, value in _epsilons(base).items()}
    least = dict.fromkeys(far, math.inf)
    for k in _NEIGHBOURS:
        now = _deviations(base, model, x, dtype, s * (1 + k * eps))
        least = {key: min(value, now.get(key, 0.0)) for key, value in least.items()}
        least = {key: value for key, value in least.items() if value > far[key]}
        if not least:
            return {}
    most = dict.fromkeys(least, 0.0)
    near = 4.0 ** round(math.log(s, 4))
    for k in _NEIGHBOURS:
        now = _deviations(base, model, x, dtype, near * (1 + k * eps))
        most = {key: max(value, now.get(key, math.inf)) for key, value in most.items()}
    return {key: (value, most[key]) for key, value in least.items() if value > _FAR * most[key]}


class _AtNeighbour(Comparer):
    """Each result's deviation from its degree; of none there where it has none, or its values leave the range."""

    def __init__(self, model: nn.Module, structure: Structure, s: float) -> None:
        super().__init__(model, structure)
        self.s = s
        self.found: dict[Key, float] = {}

    def compare(self, index: int, made: list[torch.Tensor]) -> None:
        for j, (y, degree) in enumerate(zip(made, self.structure.degrees[index], strict=False)):
            deviation = degree.deviation_at(y, self.s, self.structure.coarsest[index])
            if deviation is not None:
                self.found[index, j] = deviation


def _deviations(
    base: Structure, model: nn.Module, x: Any, dtype: torch.dtype | None, s: float
) -> dict[Key, float]:
    comparer, given = _AtNeighbour(model, base, s), scaled(x, s, dtype)
    with repeatable(SEED, dtype), comparer:
        outputs = outputs_of(call(model, given))
    for name, (_, degree) in base.returned.items():
        deviation = degree.deviation_at(outputs[name], s, base.dtype_at_end) if name in outputs else math.inf
        if deviation is not None:
            comparer.found[name] = deviation
    return comparer.found


def _epsilons(base: Structure) -> dict[Key, float]:
    found: dict[Key, float] = dict.fromkeys(base.returned, torch.finfo(base.dtype_at_end).eps)
    for index, degrees in enumerate(base.degrees):
        found |= {(index, j): torch.finfo(base.coarsest[index]).eps for j in range(len(degrees))}
    return found


def _shifted(x: Any, part: float) -> Any:
    generator = torch.Generator().manual_seed(SEED)

    def change(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        by = torch.rand(t.shape, generator=generator, dtype=torch.float64)
        return t * (1 + part * by).to(t)

    return mapped(x, change)
