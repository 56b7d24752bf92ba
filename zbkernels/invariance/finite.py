"""Outputs of which nothing can be told: NaN and infinities keep whatever they are multiplied by."""

from __future__ import annotations

import torch
from torch import nn

from zbkernels.invariance.structure import Structure
from zbkernels.invariance.watching import Source

_FAR = 1 / 16  # of the dtype's largest value: beyond, an infinity beside it is an overflow


def not_finite(t: torch.Tensor) -> bool:
    """Whether an output holds NaN or infinities; -inf beside ordinary values, a class that is masked, is fine."""
    if not (t.is_floating_point() or t.is_complex()) or bool(t.isfinite().all()):
        return False
    if t.is_complex() or bool((t.isnan() | t.isposinf()).any()):
        return True
    rest = t[t.isfinite()]
    return not rest.numel() or float(rest.abs().max()) > torch.finfo(t.dtype).max * _FAR


def refuse_not_finite(structure: Structure, model: nn.Module, dtype: torch.dtype) -> None:
    """Refuse a network of whose outputs nothing can be told.

    Raises:
        ValueError: an output at scalar 1 is NaN or infinite, or is an integer or boolean made of what is.
    """
    for name, (source, degree) in structure.returned.items():
        sources = _numbers_behind(structure, source, degree.base)
        if not (not_finite(degree.base) or any(not_finite(_result(structure, s)) for s in sources)):
            continue
        leads = sorted(structure.ancestors([source]))
        made = [
            op for op in map(structure.operations.__getitem__, leads) if op.sources
        ]  # not a mask of -inf alone
        op = next((op for op in made if any(map(not_finite, op.outputs))), None)
        where = f", first from {op.function} in '{op.path}' ({op.module})" if op is not None else ""
        held = [f"'{n}'" for n, t in (*model.named_parameters(), *model.named_buffers()) if not_finite(t)]
        holds = f"; NaN or infinities are in {', '.join(held[:3])}" if held else ""
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"check_scalar_invariance: expected finite outputs, got NaN or infinities in '{name}' at scalar 1 in {kind}"
            f"{where}{holds}: whether it is invariant cannot be told"
        )


def _numbers_behind(structure: Structure, source: Source, base: torch.Tensor) -> list[Source]:
    """The floating-point results that an integer or boolean output was made of, such as the logits of an argmax."""
    if base.is_floating_point() or base.is_complex():
        return []
    found, waiting, seen = [], [source], {source}
    while waiting:
        each = waiting.pop()
        if each.made_by is None:
            continue
        if _result(structure, each).is_floating_point():
            found.append(each)
            continue
        new = [s for s in structure.operations[each.made_by[0]].sources if s not in seen]
        seen.update(new)
        waiting += new
    return found


def _result(structure: Structure, source: Source) -> torch.Tensor:
    assert source.made_by is not None
    index, output = source.made_by
    return structure.operations[index].outputs[output]
