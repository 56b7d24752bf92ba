"""Pattern regions and class specifications as VNN-LIB queries, so that other verifiers can take them.

A query describes inputs of a network, and outputs that must not occur together with them: "unsat" proves the
    property.

Version 1.0 (scalars X_i and Y_j in SMT-LIB's syntax) compares by <= and >= only, so that a strict inequality is
written as its
closure: a superset, hence what is proved of it holds for the region. Version 2.0 (arrays X and Y) has strict
    comparisons,
and names hidden values of the network, which a mined specification is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch

from zbkernels.files import replacing
from zbkernels.nap.hull import Region
from zbkernels.nap.linear import Inequalities, LocalLinearMap
from zbkernels.nap.specification import Specification

VERSIONS = ("1.0", "2.0")
Box = tuple[torch.Tensor | float, torch.Tensor | float]


def write_vnnlib(
    path: str | Path,
    region: LocalLinearMap | Region,
    *,
    index: int = 0,
    prediction: bool = False,
    slack: float = 0.0,
    box: Box | None = None,
    version: str = "1.0",
) -> None:
    """Write the query whether an input of this activation pattern can get another prediction.

    The constraints on X are the region's inequalities, linear in all inputs; the one on Y says that some other logit
    is at least that of the prediction.

    Args:
        path: the file, written as a whole or not at all.
        region: what :func:`local_linear_map` or :func:`certify_hull` returned.
        index: which of the map's inputs.
        prediction: put the rows f_c > f_j among the constraints too. The query is then unsatisfiable (in version 1.0
            but for ties, and with a ``slack`` altogether): a test of a verifier.
        slack: each inequality is written as >= slack, none as strict.
        box: (least, largest) values of the inputs, each a number or a tensor of one input's shape, which many
            verifiers need. None: none is written, and a cone is unbounded.
        version: ``"1.0"`` or ``"2.0"``, where X has the shape [1, ...] of one input.

    Raises:
        ValueError: an index, slack, box or version that does not fit.
    """
    if isinstance(region, Region):
        inequalities, classes, predicted = region.inequalities(), region.classes, region.prediction
        shape = region.vertices.shape[1:]
    else:
        if not 0 <= index < len(region.inputs):
            raise ValueError(f"write_vnnlib: expected index to be in [0, {len(region.inputs)}), got {index}")
        inequalities, classes = region.inequalities(index), region.outputs.shape[1]
        predicted, shape = int(region.predictions[index]), region.inputs.shape[1:]
    if not slack >= 0 or slack == float("inf"):
        raise ValueError(f"write_vnnlib: expected a finite slack of at least 0, got {slack}")
    names = _Names("write_vnnlib", version, tuple(shape), classes)
    _write(
        path,
        [
            f"; The inputs of one activation pattern: satisfiable if one can get a class other than {predicted}."
        ],
        names.declarations({}, {}),
        _box_lines("write_vnnlib", names, box),
        _region_lines(names, inequalities, prediction, slack),
        names.another_class(predicted),
    )


def write_specification_vnnlib(
    path: str | Path,
    specification: Specification,
    label: int,
    *,
    shape: Sequence[int],
    classes: int,
    nodes: Mapping[str, str],
    box: Box | None = None,
) -> None:
    """Write the query whether an input that satisfies a class's specification can get another prediction.

    What the units are is a constraint on hidden values, which no inequalities over the inputs alone can state: this
    needs version 2.0. A unit is on where its hidden value is > 0; a ReLU's input and its output serve alike.

    Args:
        path: the file, written as a whole or not at all.
        label: one of the specification's classes, and the number of its output.
        shape: of one input, without the batch dimension.
        classes: how many outputs the network has.
        nodes: layer name -> name of the hidden value in the ONNX file, for each layer of the specification.
        box: as of :func:`write_vnnlib`.

    Raises:
        ValueError: a label without a specification or an output, a layer without a name, or a box that does not fit.
    """
    who = "write_specification_vnnlib"
    if label not in specification.classes or not 0 <= label < classes:
        raise ValueError(
            f"{who}: expected label to be one of {list(specification.classes)} and below classes = {classes}, "
            f"got {label}"
        )
    missing = [layer.name for layer in specification.layers if layer.name not in nodes]
    if missing:
        raise ValueError(
            f"{who}: expected nodes to name the hidden value of each layer, got none for {missing}"
        )
    names = _Names(who, "2.0", tuple(shape), classes)
    row = specification.classes.index(label)
    layers = {f"H{i}": layer for i, layer in enumerate(specification.layers)}
    lines = []
    for name, layer in layers.items():
        for words, comparison in ((specification.on, ">"), (specification.off, "<=")):
            for unit in layer.decode(words[row : row + 1])[0].nonzero().tolist():
                lines.append(f"(assert ({comparison} {name}[{', '.join(map(str, [0, *unit]))}] 0.0))")
    about = f"; Units of class {label}, delta {specification.delta}: satisfiable if their inputs can get another class."
    _write(
        path,
        [about],
        names.declarations(
            {name: layer.shape for name, layer in layers.items()},
            {name: nodes[layer.name] for name, layer in layers.items()},
        ),
        _box_lines(who, names, box),
        lines,
        names.another_class(label),
    )


@dataclass(frozen=True)
class _Names:
    """How a version of the format writes inputs and outputs."""

    who: str
    version: str
    shape: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise ValueError(
                f"{self.who}: expected version to be one of {', '.join(VERSIONS)}, got {self.version!r}"
            )

    @property
    def arrays(self) -> bool:
        return self.version == "2.0"

    def x(self, i: int) -> str:
        if not self.arrays:
            return f"X_{i}"
        place = []
        for size in reversed(self.shape):
            i, at = divmod(i, size)
            place.append(at)
        return f"X[{', '.join(map(str, [0, *reversed(place)]))}]"

    def y(self, j: int) -> str:
        return f"Y[0, {j}]" if self.arrays else f"Y_{j}"

    def inputs(self) -> int:
        return torch.Size(self.shape).numel()

    def declarations(self, hidden: Mapping[str, Sequence[int]], nodes: Mapping[str, str]) -> Iterator[str]:
        if not self.arrays:
            yield from (f"(declare-const X_{i} Real)" for i in range(self.inputs()))
            yield from (f"(declare-const Y_{j} Real)" for j in range(self.classes))
            return
        yield "(vnnlib-version <2.0>)"
        yield "(declare-network f"
        yield f"  (declare-input X float32 {[1, *self.shape]})"
        yield from (
            f'  (declare-hidden {name} float32 {[1, *shape]} "{nodes[name]}")'
            for name, shape in hidden.items()
        )
        yield f"  (declare-output Y float32 {[1, self.classes]})"
        yield ")"

    def another_class(self, predicted: int) -> Iterator[str]:
        others = [f"(>= {self.y(j)} {self.y(predicted)})" for j in range(self.classes) if j != predicted]
        if not self.arrays:
            others = [f"(and {other})" for other in others]  # as the competition's files have it
        if not others:
            others = [f"(> {self.y(0)} {self.y(0)})"]  # a single class: no output is another
        yield f"(assert (or {' '.join(others)}))"


def _box_lines(who: str, names: _Names, box: Box | None) -> Iterator[str]:
    if box is None:
        return
    try:
        low, high = (torch.as_tensor(t).detach().cpu().double().expand(names.shape).flatten() for t in box)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{who}: expected box to be two numbers or tensors of shape {list(names.shape)}, got {_kinds(box)}"
        ) from error
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all() and (low <= high).all()):
        raise ValueError(f"{who}: expected a finite box with least <= largest values")
    for i, (least, largest) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        yield f"(assert (>= {names.x(i)} {number(least)}))"
        yield f"(assert (<= {names.x(i)} {number(largest)}))"


def _kinds(box: object) -> str:
    parts = box if isinstance(box, (tuple, list)) else (box,)
    return ", ".join(
        f"a tensor {list(part.shape)}" if isinstance(part, torch.Tensor) else repr(part)[:60]
        for part in parts
    )


def _region_lines(names: _Names, region: Inequalities, prediction: bool, slack: float) -> Iterator[str]:
    for row in range(len(region.b)):
        terms = [
            f"(* {number(value)} {names.x(i)})" for i, value in enumerate(region.A[row].tolist()) if value
        ]
        if not terms or (region.prediction[row] and not prediction):
            continue  # constant on this piece, or not asked for
        total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
        strict = names.arrays and not slack and bool(region.strict[row])
        yield f"; {region.names[row]}"
        yield f"(assert ({'>' if strict else '>='} {total} {number(slack - float(region.b[row]))}))"


def _write(path: str | Path, *parts: Sequence[str] | Iterator[str]) -> None:
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        for part in parts:
            file.writelines(f"{line}\n" for line in part)


def number(value: float) -> str:
    """The shortest decimal that reads back as ``value``, without an exponent, which the formats do not have."""
    text = format(Decimal(repr(float(value))), "f")
    return text if "." in text else text + ".0"
