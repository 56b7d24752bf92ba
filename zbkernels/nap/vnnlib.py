"""Pattern regions as VNN-LIB queries, so that other verifiers can take them.

VNN-LIB 1.0 states a query in SMT-LIB's syntax over a network's inputs X_i and outputs Y_j: the file describes inputs, and
outputs that must not occur together with them, so that "unsat" proves the property. It compares with <= and >= only, so that a
strict inequality is written as its closure: a superset, hence what is proved of it holds for the region.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import torch

from zbkernels.files import replacing
from zbkernels.nap.hull import Region
from zbkernels.nap.linear import Inequalities, LocalLinearMap


def write_vnnlib(
    path: str | Path,
    region: LocalLinearMap | Region,
    *,
    index: int = 0,
    prediction: bool = False,
    slack: float = 0.0,
    box: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Write the query whether an input of this activation pattern can get another prediction.

    The constraints on X are the region's inequalities, linear in all inputs; the one on Y says that some other logit is at
    least that of the prediction.

    Args:
        path: the file, written as a whole or not at all.
        region: what :func:`local_linear_map` or :func:`certify_hull` returned.
        index: which of the map's inputs.
        prediction: put the rows f_c >= f_j among the constraints too. The query is then unsatisfiable but for ties, and with
            a ``slack`` altogether: a test of a verifier.
        slack: each inequality is written as >= slack.
        box: (least, largest) values of the inputs, each a tensor of one input's shape or a scalar tensor, which many verifiers
            need. None: none is written, and a cone is unbounded.

    Raises:
        ValueError: an index, slack or box that does not fit.
    """
    if isinstance(region, Region):
        inequalities, classes, predicted, shape = region.inequalities(), region.classes, region.prediction, region.vertices[0].shape
    else:
        if not 0 <= index < len(region.inputs):
            raise ValueError(f"write_vnnlib: expected index to be in [0, {len(region.inputs)}), got {index}")
        inequalities, classes = region.inequalities(index), region.outputs.shape[1]
        predicted, shape = int(region.predictions[index]), region.inputs[0].shape
    if not slack >= 0 or slack == float("inf"):
        raise ValueError(f"write_vnnlib: expected a finite slack of at least 0, got {slack}")
    limits = None if box is None else _limits(box, shape)
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _lines(inequalities, classes, predicted, prediction, slack, limits))


def _limits(box: tuple[torch.Tensor, torch.Tensor], shape: torch.Size) -> tuple[list[float], list[float]]:
    try:
        low, high = (t.detach().double().expand(shape).flatten() for t in box)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"write_vnnlib: expected box to be two tensors of shape {list(shape)} or scalars") from error
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all() and (low <= high).all()):
        raise ValueError("write_vnnlib: expected box to be finite with least <= largest values")
    return low.tolist(), high.tolist()


def _lines(
    region: Inequalities, classes: int, predicted: int, prediction: bool, slack: float,
    limits: tuple[list[float], list[float]] | None,
) -> Iterator[str]:  # fmt: skip
    count = region.A.shape[1]
    kept = [row for row in range(len(region.b)) if prediction or not region.prediction[row]]
    yield f"; Inputs of one activation pattern: {len(kept)} inequalities over {count} inputs, strict ones as their closure."
    yield f"; Satisfiable if and only if one of them can get a class other than {predicted} (or ties with it)."
    yield from (f"(declare-const X_{i} Real)" for i in range(count))
    yield from (f"(declare-const Y_{j} Real)" for j in range(classes))
    if limits is not None:
        for i, (low, high) in enumerate(zip(*limits, strict=True)):
            yield f"(assert (>= X_{i} {number(low)}))"
            yield f"(assert (<= X_{i} {number(high)}))"
    for row in kept:
        terms = [f"(* {number(value)} X_{i})" for i, value in enumerate(region.A[row].tolist()) if value]
        if not terms:
            continue  # constant on this piece
        total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
        yield f"; {region.names[row]}"
        yield f"(assert (>= {total} {number(slack - float(region.b[row]))}))"
    others = [f"(and (>= Y_{j} Y_{predicted}))" for j in range(classes) if j != predicted]
    yield f"(assert (or {' '.join(others)}))" if others else "(assert false)"


def number(value: float) -> str:
    """The shortest decimal that reads back as ``value``, without an exponent, which the format does not have."""
    text = format(Decimal(repr(float(value))), "f")
    return text if "." in text else text + ".0"
