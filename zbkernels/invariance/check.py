"""``check_scalar_invariance``: does f(s·x) = s·f(x) hold, and if not, which operation is the first to break it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zbkernels.experiments.contrast import SCALARS as PAPER_SCALARS
from zbkernels.invariance.between import break_between, far_off, suspects
from zbkernels.invariance.breaks import Breaks
from zbkernels.invariance.copies import fill_zeros_, in_precision, zero_tensors
from zbkernels.invariance.degrees import powers_of_four
from zbkernels.invariance.finite import refuse_not_finite
from zbkernels.invariance.measuring import Measured, measure, scalar_rows
from zbkernels.invariance.report import InvarianceReport, Operation
from zbkernels.invariance.structure import Structure
from zbkernels.invariance.tensors import check_input, named_tensors
from zbkernels.nap.units import evaluating

SCALARS = (*PAPER_SCALARS, 2.0, 10.0, 100.0)  # those of Table 1, and images brighter than they should be


def check_scalar_invariance(
    model: nn.Module, x: Any, scalars: Sequence[float] = SCALARS, *, class_dim: int = 1
) -> InvarianceReport:
    """Whether ``model`` is scalar invariant, f(s·x) = s·f(x) for s > 0, and which operation breaks it first.

    The model is put in evaluation mode by itself, and gets its own mode back. It runs on a float64 copy, at scalar 1
    and at powers of four; each operation's result (modules, functions and operators alike) is compared with that at
    scalar 1 and gets a degree d, y(s) = s^d·y(1), or none. Powers of four scale without rounding, so what differs is
    structure. Then the outputs are compared at
    ``scalars``, on the copy and on the model as it is: what only the latter gets wrong is rounding or underflow. An
    output that has a degree at powers of four and deviates at the scalars by far more than rounding explains has none
    (see :mod:`zbkernels.invariance.between`).

    Args:
        model: any module. It is left as it is; its forward hooks run. What it holds is held twice more meanwhile, and
            all results of one forward pass in float64 are: a few inputs are enough.
        x: a tensor, a tuple or list of the model's arguments, or a dict of its keyword arguments, nested at will. Its
            floating-point tensors are multiplied by the scalars, all together; others are given as they are.
        scalars: positive; the eleven of the paper's Table 1 and three above 1.
        class_dim: the dimension of an output along which the largest value is the prediction; where it has one value
            alone (and for outputs of one dimension) the prediction is its sign.

    Raises:
        TypeError: the model is no module, x holds no floating-point tensor, or the model returns no tensor.
        ValueError: x is empty, not finite or 0 everywhere, scalars is no sequence of positive numbers, the model's
            outputs are NaN or infinite at scalar 1 (the message names where this begins, and parameters that are), or
            it does not give the same result twice (dropout that ignores evaluation mode, random numbers, a carried
            state).

    Source: Sections 2.2 to 2.4 of "Scalar Invariant Networks with Zero Bias": equations 3 to 5 and 8 for what is
    homogeneous, 6 for a last softmax, 9 and 10 for batch normalisation.
    """
    name = "check_scalar_invariance"
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}: expected model to be an nn.Module, got {type(model).__name__}")
    check_input(x)
    scalars = _numbers(scalars)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    own = _own_dtype(model, x)
    with evaluating(model):
        twin, precision, structure, notes = _structure(model, x, powers_of_four(scalars))
        refuse_not_finite(structure, twin, precision or own)
        breaks = Breaks(structure)
        outputs = breaks.outputs(class_dim)
        degrees = [output.degree for output in outputs]
        exact = measure(twin, x, scalars, precision, class_dim, degrees, outside=own)
        off = far_off(structure, outputs, scalars, exact.each)
        said = break_between(structure, twin, x, precision, suspects(outputs, scalars, off))
        breaks = Breaks(structure) if said else breaks
        before, outputs = outputs, breaks.outputs(class_dim)
        if off and outputs == before:
            s, deviation = next(iter(off.items()))
            notes.append(
                f"at scalar {s:g} the outputs are off by {deviation:.2g} in {_plain(precision or own)}: rounding, of "
                "which the network makes so much (terms that cancel, values that tie), not structure"
            )
        elif outputs != before:
            notes.append(said)
            degrees = [output.degree for output in outputs]
            exact = measure(twin, x, scalars, precision, class_dim, degrees, outside=own)
        alone: Measured | None = None
        if precision not in (None, own):
            try:
                alone = measure(model, x, scalars, None, class_dim, degrees)
            except (RuntimeError, NotImplementedError) as error:
                notes.append(f"does not run in {_plain(own)} here ({_first_line(error)})")
        if alone is not None and not alone.finite:
            notes.append(f"in {_plain(own)} its outputs are NaN or infinite at scalar 1 already")
        invariant = all(output.invariant for output in outputs)
        latent = _latent(model, x, precision, class_dim) if invariant and precision is not None else None
    if all(output.zero for output in outputs):
        filled = "its structure was judged with other numbers where parameters are 0"
        said = filled if zero_tensors(model) else "nothing can be told"
        notes.append(f"every output is 0 for this x; {said}")
    return InvarianceReport(
        operations=breaks.operations,
        outputs=outputs,
        scalars=scalar_rows(scalars, exact, alone, own),
        first_break=breaks.first(),
        latent=latent,
        dtype=_plain(own),
        precision=_plain(precision or own),
        predictions=exact.predictions,
        notes=tuple(notes),
    )


def _structure(
    model: nn.Module, x: Any, scalars: list[float]
) -> tuple[nn.Module, torch.dtype | None, Structure, list[str]]:
    """What was run, in which precision (None: the model itself, as it is), what was found, and what has to be said."""
    notes: list[str] = []
    for dtype in (torch.float64, torch.float32):
        try:
            twin = in_precision(model, dtype)
            return twin, dtype, Structure.of(twin, x, dtype, scalars), notes
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            notes.append(f"cannot be run in {_plain(dtype)} ({_first_line(error)})")
    return model, None, Structure.of(model, x, None, scalars), notes


def _numbers(scalars: Any) -> tuple[float, ...]:
    said = "check_scalar_invariance: expected positive finite scalars"
    try:
        found = () if isinstance(scalars, str) else tuple(float(s) for s in scalars)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{said}, in a sequence such as (1, 0.1), got {scalars!r}") from error
    if not found or not all(0 < s < math.inf for s in found):
        got = repr(scalars) if isinstance(scalars, str) else ", ".join(map(str, found)) or "none"
        raise ValueError(f"{said}, got {got}")
    return found


def _latent(model: nn.Module, x: Any, dtype: torch.dtype, class_dim: int) -> Operation | None:
    """What breaks once training has moved what is 0 now."""
    if not zero_tensors(model):
        return None
    twin = in_precision(model, dtype)
    fill_zeros_(twin)
    breaks = Breaks(Structure.of(twin, x, dtype, powers_of_four(())))
    return None if all(output.invariant for output in breaks.outputs(class_dim)) else breaks.first()


def _own_dtype(model: nn.Module, x: Any) -> torch.dtype:
    """The least precise floating-point dtype of the model's parameters and the input."""
    tensors = [*(t for _, t in named_tensors(x)), *model.parameters()]
    return max((t.dtype for t in tensors if t.is_floating_point()), key=lambda d: torch.finfo(d).eps)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
