"""Class specifications: the units that are on, or off, for nearly all inputs of a class.

Algorithm 1 of Geng et al., "Towards reliable neural specifications" (ICML 2023): a unit belongs to a class's pattern
as on where it is on (its value > 0) for at least 1 - delta of the class's inputs, as off where it is off for as many,
and to neither in between. An input satisfies the specification of a class where all its units are as the pattern
says.

Counts are whole numbers, and ``delta`` is an exact decimal that is turned into a whole number to compare them with:
no fraction is ever rounded. Batches of packed signatures are counted as they come, so that any number of inputs
streams through.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, overload

import torch

from zbkernels.nap.batches import labelled_batches
from zbkernels.nap.layers import Layer, layers_from_json
from zbkernels.nap.patterns import PatternReader
from zbkernels.nap.recording import Recording
from zbkernels.ops import nap_frequency, nap_pack
from zbkernels.tensor_file import load_tensors, save_tensors

Delta = str | int | Decimal | Fraction
Source = Recording | tuple[torch.nn.Module, Iterable[Any]]
BY = ("labels", "correct", "predictions")
_ROWS = 2**16  # of a recording at a time
_FORMAT = "zbkernels specification 1"


def exact_delta(delta: Delta) -> Fraction:
    """``delta`` as the fraction it says.

    Raises:
        TypeError: a float, which is hardly ever the decimal it was written as.
        ValueError: not a number, or not in [0, 1/2), where no unit can be both on and off.
    """
    if isinstance(delta, float):
        raise TypeError(f"delta: expected an exact decimal such as '{delta}', got the float {Decimal(delta)}")
    if not isinstance(delta, (str, int, Decimal, Fraction)) or isinstance(delta, bool):
        raise TypeError(f"delta: expected a str, int, Decimal or Fraction, got {type(delta).__name__}")
    try:
        exact = Fraction(delta)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"delta: expected an exact decimal such as '0.01', got {delta!r}") from error
    if not 0 <= exact < Fraction(1, 2):
        raise ValueError(f"delta: expected 0 <= delta < 1/2, got {delta}")
    return exact


def cut_off(delta: Fraction, count: int) -> int:
    """The least whole number that is at least (1 - delta) · count."""
    return -((delta - 1) * count // 1)


@dataclass(frozen=True)
class Specification:
    """What the units of each class are for at least 1 - delta of its inputs.

    Attributes:
        delta: the exact decimal or fraction, as text.
        classes: the classes, in order.
        on, off: int64 [classes, words]: the units that must be on (off), packed as in a signature.
        counts: int64 [classes], the inputs that each class was mined from.
        layers: where the units are in a signature.
        units: ``"relu"`` or ``"output"``.
        by: which inputs counted for a class; see :func:`mine_specifications`.
    """

    delta: str
    classes: tuple[int, ...]
    on: torch.Tensor
    off: torch.Tensor
    counts: torch.Tensor
    layers: tuple[Layer, ...]
    units: str
    by: str

    def satisfied(self, signatures: torch.Tensor) -> torch.Tensor:
        """bool [N, classes] for signatures int64 [N, words]: which specifications each pattern satisfies.

        Raises:
            ValueError: signatures of another shape or dtype.
        """
        words = self.on.shape[1]
        if signatures.dtype != torch.int64 or signatures.dim() != 2 or signatures.shape[1] != words:
            raise ValueError(
                f"satisfied: expected signatures int64 [N, {words}], got {signatures.dtype} {list(signatures.shape)}"
            )
        on, care = self.on.to(signatures.device), (self.on | self.off).to(signatures.device)
        if not len(signatures):
            return torch.zeros(0, len(self.classes), dtype=torch.bool, device=signatures.device)
        parts = [
            torch.stack([(((part ^ on[c]) & care[c]) == 0).all(1) for c in range(len(self.classes))], 1)
            for part in signatures.split(_ROWS)
        ]
        return torch.cat(parts)

    def sizes(self) -> torch.Tensor:
        """int64 [classes, 2]: how many units must be on, and off."""
        return torch.stack([_ones(self.on), _ones(self.off)], 1)

    def save(self, path: str | Path) -> None:
        """Write to ``path`` (safetensors), as a whole or not at all."""
        about = {
            "format": _FORMAT,
            "delta": self.delta,
            "classes": list(self.classes),
            "layers": [layer.to_json() for layer in self.layers],
            "units": self.units,
            "by": self.by,
        }
        tensors = {"on": self.on.cpu(), "off": self.off.cpu(), "counts": self.counts.cpu()}
        save_tensors(Path(path), tensors, {"specification": json.dumps(about)})

    @staticmethod
    def load(path: str | Path) -> Specification:
        """What :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no specification, or truncated.
        """
        try:
            tensors, metadata = load_tensors(path)
            about = json.loads(metadata.get("specification", "{}"))
            form = about.get("format") if isinstance(about, dict) else None
            if form != _FORMAT:
                raise ValueError(f"expected a file of format {_FORMAT!r}, got {str(form)[:60]!r}")
            on, off, counts = (tensors[name] for name in ("on", "off", "counts"))
            layers, classes = layers_from_json(about["layers"]), tuple(about["classes"])
            exact_delta(about["delta"])
            _check_by("by", about["by"])
            _check_units("units", about["units"])
            if not all(isinstance(c, int) for c in classes):
                raise ValueError("expected whole numbers as classes")
            pattern = (len(classes), sum(layer.words for layer in layers))
            for name, shape in (("on", pattern), ("off", pattern), ("counts", pattern[:1])):
                found = tensors[name]
                if found.dtype != torch.int64 or found.shape != shape:
                    raise ValueError(
                        f"expected {name} int64 {list(shape)}, got {found.dtype} {list(found.shape)}"
                    )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError(f"{path}: the specification cannot be read ({error})") from error
        return Specification(about["delta"], classes, on, off, counts, layers, about["units"], about["by"])


@dataclass(frozen=True)
class UnitCounts:
    """How often each unit is on for each class: all that specifications of any delta are cut from.

    Attributes:
        classes: in order.
        on: int64 [classes, 64 · words].
        counts: int64 [classes], inputs.
        layers, units, by: as in :class:`Specification`.
    """

    classes: tuple[int, ...]
    on: torch.Tensor
    counts: torch.Tensor
    layers: tuple[Layer, ...]
    units: str
    by: str

    def specification(self, delta: Delta) -> Specification:
        """Units that are on (off) for at least 1 - delta of each class's inputs.

        Raises:
            TypeError, ValueError: as :func:`exact_delta`.
        """
        exact = exact_delta(delta)
        least = torch.tensor([cut_off(exact, n) for n in self.counts.tolist()]).unsqueeze(1)
        real = torch.zeros(
            self.on.shape[1], dtype=torch.bool
        )  # not the bits that fill up a layer's last word
        for layer in self.layers:
            real[64 * layer.start : 64 * layer.start + layer.bits] = True
        on = (self.on >= least) & real
        off = (self.counts.unsqueeze(1) - self.on >= least) & real
        text = str(delta) if not isinstance(delta, Fraction) else f"{delta.numerator}/{delta.denominator}"
        return Specification(
            text, self.classes, _pack(on), _pack(off), self.counts, self.layers, self.units, self.by
        )


def count_units(
    source: Source,
    *,
    by: str = "labels",
    classes: Sequence[int] | None = None,
    units: str = "relu",
    layers: Sequence[str] | None = None,
) -> UnitCounts:
    """One pass over ``source``; the arguments and errors are those of :func:`mine_specifications`."""
    _check_by("count_units", by)
    found, units, batches = _patterns("count_units", source, units, layers)
    on: dict[int, torch.Tensor] = {}
    counts: dict[int, int] = {}
    bits = 64 * sum(layer.words for layer in found)
    for signatures, labels, predictions in batches:
        classes_of = _classes_of("count_units", by, labels, predictions)
        for c in classes_of.unique().tolist():
            if c < 0 or (classes is not None and c not in classes):
                continue
            rows = signatures[(classes_of == c).to(signatures.device)]
            each = nap_frequency(rows, bits).cpu()
            on[c] = on[c] + each if c in on else each
            counts[c] = counts.get(c, 0) + len(rows)
    wanted = sorted(on) if classes is None else list(classes)
    missing = [c for c in wanted if c not in on]
    if missing or not wanted:
        raise ValueError(f"count_units: expected inputs of each class, got none of {missing or 'any'}")
    return UnitCounts(
        tuple(wanted), torch.stack([on[c] for c in wanted]), torch.tensor([counts[c] for c in wanted]), found, units, by
    )  # fmt: skip


@overload
def mine_specifications(
    source: Source, delta: Delta, *, by: str = ..., classes: Sequence[int] | None = ..., units: str = ...,
    layers: Sequence[str] | None = ...,
) -> Specification: ...  # fmt: skip
@overload
def mine_specifications(
    source: Source, delta: list[Any] | tuple[Any, ...], *, by: str = ..., classes: Sequence[int] | None = ...,
    units: str = ...,
    layers: Sequence[str] | None = ...,
) -> tuple[Specification, ...]: ...  # fmt: skip
def mine_specifications(
    source: Source,
    delta: Any,
    *,
    by: str = "labels",
    classes: Sequence[int] | None = None,
    units: str = "relu",
    layers: Sequence[str] | None = None,
) -> Any:
    """The specification of each class: units on (off) for at least 1 - delta of its inputs (Algorithm 1 of Geng et
    al.).

    Args:
        source: a :class:`Recording`, or ``(model, loader)``: any model that :func:`zbkernels.nap.record` takes and
            batches (x, labels), which are read once and not kept.
        delta: an exact decimal: ``"0.01"``, a Decimal, a Fraction or 0. A list of them takes one pass for all.
        by: which inputs belong to a class: those labelled so (``"labels"``), those of them that the model predicts so
            too (``"correct"``), or all that it predicts so (``"predictions"``).
        classes: which classes, in order; None: all that occur, ascending.
        units: of a model: ``"relu"`` (a bit each activation) or ``"output"`` (each pooled output); a recording has
            its own.
        layers: of a model: the names of the sites that count, with ``*`` and ``?``; None: all.

    Returns:
        A :class:`Specification`, or one for each delta.

    Raises:
        TypeError, ValueError: a delta that is not exact or not in [0, 1/2), a class without inputs, a source without
            labels or predictions where they are needed, or winner codes, which are no units that are on or off.
    """
    several = isinstance(delta, (list, tuple))
    deltas = list(delta) if several else [delta]
    for each in deltas:
        exact_delta(each)
    counted = count_units(source, by=by, classes=classes, units=units, layers=layers)
    mined = tuple(counted.specification(each) for each in deltas)
    return mined if several else mined[0]


@dataclass(frozen=True)
class Coverage:
    """Which inputs satisfy which specification.

    Attributes:
        delta: of the specification.
        classes: of the specification (rows), then ``labels`` (columns).
        satisfied: int64 [classes, labels]: the inputs of a label that satisfy a class's specification.
        totals: int64 [labels].
        none, several: int64 [labels]: inputs that satisfy no specification, or more than one.
    """

    delta: str
    classes: tuple[int, ...]
    labels: tuple[int, ...]
    satisfied: torch.Tensor
    totals: torch.Tensor
    none: torch.Tensor
    several: torch.Tensor

    def recall(self) -> Fraction:
        """The share of inputs that satisfy the specification of their own class."""
        own = sum(
            int(self.satisfied[row, self.labels.index(c)])
            for row, c in enumerate(self.classes)
            if c in self.labels
        )
        return Fraction(own, int(self.totals.sum()))

    def confused(self) -> int:
        """Pairs of an input and a specification of another class that it satisfies."""
        total = int(self.satisfied.sum())
        return total - int(self.recall() * int(self.totals.sum()))


def coverage(
    specifications: Specification | Sequence[Specification], source: Source, *, by: str = "labels"
) -> tuple[Coverage, ...]:
    """The confusion table of each specification, such as those of several deltas, in one pass over ``source``.

    Args:
        specifications: mined with the same layers and units.
        source: as in :func:`mine_specifications`, of the same model.
        by: which class an input counts for.

    Raises:
        ValueError: layers that are not the specifications', or a source without labels or predictions where needed.
    """
    specs = [specifications] if isinstance(specifications, Specification) else list(specifications)
    _check_by("coverage", by)
    if not specs:
        raise ValueError("coverage: expected at least one specification, got none")
    first = specs[0]
    found, units, batches = _patterns("coverage", source, first.units, [layer.name for layer in first.layers])
    for spec in specs:
        if spec.layers != found or spec.units != units:
            raise ValueError(
                f"coverage: expected the layers {[layer.name for layer in spec.layers]} of units {spec.units!r}, "
                f"got {[layer.name for layer in found]} of {units!r}"
            )
    tables: list[dict[int, torch.Tensor]] = [{} for _ in specs]  # label -> [classes + none, several, total]
    for signatures, labels, predictions in batches:
        classes_of = _classes_of("coverage", by, labels, predictions)
        for spec, table in zip(specs, tables, strict=True):
            holds = spec.satisfied(signatures).cpu()
            many = holds.sum(1)
            columns = torch.cat(
                [holds, (many == 0)[:, None], (many > 1)[:, None], torch.ones_like(holds[:, :1])], 1
            )
            for c in classes_of.unique().tolist():
                if c >= 0:
                    rows = columns[classes_of == c].sum(0)
                    table[c] = table[c] + rows if c in table else rows
    if not tables[0]:
        raise ValueError("coverage: expected at least one input, got none")
    results = []
    for spec, table in zip(specs, tables, strict=True):
        seen = sorted(table)
        whole = torch.stack([table[c] for c in seen], 1)  # [classes + 3, labels]
        results.append(
            Coverage(spec.delta, spec.classes, tuple(seen), whole[:-3], whole[-1], whole[-3], whole[-2])
        )
    return tuple(results)


Rows = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def _patterns(
    who: str, source: Any, units: str, layers: Sequence[str] | None
) -> tuple[tuple[Layer, ...], str, Iterator[Rows]]:
    """(layers, units, batches of (signatures, labels, predictions))."""
    if isinstance(source, Recording):
        _check_units(who, source.units)
        return source.layers, source.units, _of_recording(source)
    if not isinstance(source, tuple) or len(source) != 2 or not isinstance(source[0], torch.nn.Module):
        raise TypeError(f"{who}: expected a Recording or (model, loader), got {type(source).__name__}")
    _check_units(who, units)
    batches = labelled_batches(source[1], who)
    first = next(batches, None)
    if first is None:
        raise ValueError(f"{who}: expected at least one input, got a loader without any")
    reader = PatternReader(source[0], first[0], units=units, layers=layers, who=who)

    def read() -> Iterator[Rows]:
        for x, labels in _chain(first, batches):
            signatures, y = reader.read(x)
            yield signatures, labels, y.argmax(1).cpu() if reader.classes else None

    return reader.layers, units, read()


def _of_recording(recording: Recording) -> Iterator[Rows]:
    for start in range(0, len(recording), _ROWS):
        rows = slice(start, start + _ROWS)
        labels, predictions = (
            None if t is None else t[rows] for t in (recording.labels, recording.predictions)
        )
        yield recording.signatures[rows], labels, predictions


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _classes_of(
    who: str, by: str, labels: torch.Tensor | None, predictions: torch.Tensor | None
) -> torch.Tensor:
    """The class that each input counts for, -1 for none."""
    if (labels is None and by != "predictions") or (predictions is None and by != "labels"):
        raise ValueError(
            f"{who}: by={by!r} needs {'labels' if labels is None else 'predictions'}, which are not there"
        )
    if by == "labels":
        assert labels is not None
        return labels
    assert predictions is not None
    if by == "predictions":
        return predictions
    assert labels is not None
    return torch.where(labels == predictions, labels, -1)


def _check_by(who: str, by: str) -> None:
    if by not in BY:
        raise ValueError(f"{who}: expected by to be one of {', '.join(BY)}, got {by!r}")


def _check_units(who: str, units: str) -> None:
    if units not in ("relu", "output"):
        raise ValueError(
            f"{who}: expected units 'relu' or 'output', got {units!r}: a winner's code is no unit's bit"
        )


def _pack(on: torch.Tensor) -> torch.Tensor:
    """bool [N, F] -> int64 [N, F / 64]."""
    return nap_pack(on.float())


def _ones(words: torch.Tensor) -> torch.Tensor:
    return torch.tensor(
        [sum(int(w).bit_count() if w >= 0 else (int(w) + 2**64).bit_count() for w in row) for row in words]
    )
