"""Mined specifications against a scalar oracle, exact cut-offs, coverage, files."""

from __future__ import annotations

import importlib
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nap_models import fused, make
from torch import nn

from zbkernels.nap import Specification, count_units, coverage, mine_specifications, record
from zbkernels.nap.specification import cut_off, exact_delta

specification = importlib.import_module("zbkernels.nap.specification")


def oracle(on: list[list[bool]], labels: list[int], delta: Fraction) -> dict[int, tuple[set[int], set[int]]]:
    """Algorithm 1, one input and one unit at a time: class -> (units on, units off)."""
    mined = {}
    for c in sorted(set(labels)):
        rows = [row for row, label in zip(on, labels, strict=True) if label == c]
        active, inactive = set(), set()
        for unit in range(len(on[0])):
            count = 0
            for row in rows:
                if row[unit]:
                    count += 1
            if Fraction(count, len(rows)) >= 1 - delta:
                active.add(unit)
            if Fraction(len(rows) - count, len(rows)) >= 1 - delta:
                inactive.add(unit)
        mined[c] = (active, inactive)
    return mined


def units_of(spec: Specification, row: int, words: torch.Tensor) -> set[int]:
    """Numbers of the units in a class's pattern, layers one after another without the bits between."""
    found, offset = set(), 0
    for layer in spec.layers:
        bits = layer.decode(words[row : row + 1])[0].flatten()
        found |= {offset + i for i in bits.nonzero().flatten().tolist()}
        offset += layer.units
    return found


def activations(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """bool [N, units] of a plain Sequential, layer after layer."""
    on = []
    for layer in model:
        if isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
            on.append((x > 0).flatten(1))
        x = layer(x)
    return torch.cat(on, 1)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_mining_is_the_scalar_algorithm(data: st.DataObject) -> None:
    model, x = make("fcn", data.draw(st.integers(4, 40)), seed=data.draw(st.integers(0, 5)))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(x), max_size=len(x))))
    deltas = data.draw(st.lists(st.integers(0, 499), min_size=1, max_size=3))
    texts = [str(Decimal(d).scaleb(-3)) for d in deltas]
    loader = list(zip(x.split(7), labels.split(7), strict=True))
    specs = mine_specifications((model, loader), texts)
    on = activations(model, x).tolist()
    for text, spec in zip(texts, specs, strict=True):
        want = oracle(on, labels.tolist(), Fraction(text))
        assert spec.classes == tuple(sorted(want)) and spec.delta == text
        for row, c in enumerate(spec.classes):
            active, inactive = want[c]
            assert units_of(spec, row, spec.on) == active and units_of(spec, row, spec.off) == inactive
            assert spec.counts[row] == labels.eq(c).sum()
        assert spec.sizes().tolist() == [[len(a), len(b)] for a, b in want.values()]
        (table,) = coverage(spec, (model, loader))
        for row, c in enumerate(spec.classes):
            active, inactive = want[c]
            for column, label in enumerate(table.labels):
                holds = [
                    all(bits[u] for u in active) and not any(bits[u] for u in inactive)
                    for bits, own in zip(on, labels.tolist(), strict=True)
                    if own == label
                ]
                assert table.satisfied[row, column] == sum(holds) and table.totals[column] == len(holds)


def test_cut_offs_are_exact() -> None:
    assert cut_off(exact_delta("0.1"), 10) == 9 and cut_off(exact_delta(Fraction(1, 3)), 3) == 2
    # In floating point the product is a little more than the whole number, and one more input would be asked for.
    assert cut_off(exact_delta("0.42"), 50) == 29 and math.ceil((1 - 0.42) * 50) == 30
    assert cut_off(exact_delta("0.01"), 5923) == 5864 and cut_off(Fraction(0), 7) == 7
    assert (
        exact_delta(Decimal("0.25")) == Fraction(1, 4)
        and exact_delta(0) == 0
        and exact_delta("1e-3") == Fraction(1, 1000)
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4999), st.integers(1, 10**9))
def test_cut_off_is_the_least_whole_number(delta: int, count: int) -> None:
    exact = Fraction(delta, 10000)
    least = cut_off(exact, count)
    assert Fraction(least, count) >= 1 - exact > Fraction(least - 1, count)


@pytest.mark.parametrize(
    ("delta", "error", "message"),
    [
        (0.1, TypeError, r"exact decimal such as '0.1', got the float 0.1000000000000000055"),
        (True, TypeError, "got bool"),
        (None, TypeError, "got NoneType"),
        ("0.5", ValueError, "0 <= delta < 1/2, got 0.5"),
        ("-0.1", ValueError, "0 <= delta < 1/2"),
        ("a few", ValueError, "got 'a few'"),
        (Decimal("NaN"), ValueError, "exact decimal"),
    ],
)
def test_other_deltas_are_refused(delta: object, error: type[Exception], message: str) -> None:
    model, x = make("fcn", 2)
    with pytest.raises(error, match=message):
        mine_specifications((model, [(x, torch.zeros(2, dtype=torch.int64))]), delta)  # type: ignore[call-overload]


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return fused().requires_grad_(False), torch.randn(60, 2, 10, 10), torch.arange(60) % 3


def test_a_recording_and_a_stream_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, labels = problem()
    loader = list(zip(x.split(13), labels.split(13), strict=True))
    recording = record(model, loader, out=tmp_path / "r", progress=False)
    streamed = mine_specifications((model, loader), "0.2")
    monkeypatch.setattr(specification, "_ROWS", 7)
    recorded = mine_specifications(recording, "0.2")
    for field in ("on", "off", "counts"):
        assert torch.equal(getattr(streamed, field), getattr(recorded, field))
    assert streamed.layers == recorded.layers and recorded.sizes().sum() > 0
    assert torch.equal(
        coverage(streamed, recording)[0].satisfied, coverage(recorded, (model, loader))[0].satisfied
    )


def test_delta_zero_covers_what_it_was_mined_from_and_coverage_grows_with_delta() -> None:
    model, x, labels = problem()
    loader = [(x, labels)]
    specs = mine_specifications((model, loader), ["0", "0.05", "0.2", "0.4"])
    tables = coverage(specs, (model, loader))
    assert tables[0].recall() == 1 and int(tables[0].none.sum()) == 0
    sizes = [int(spec.sizes().sum()) for spec in specs]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]  # more units are held,
    recalls = [table.recall() for table in tables]
    assert recalls == sorted(recalls, reverse=True) and recalls[-1] < 1  # so fewer inputs satisfy them
    for spec, table in zip(specs, tables, strict=True):
        holds = spec.satisfied(record(model, loader, progress=False).signatures)
        assert table.delta == spec.delta and table.confused() == int(holds.sum()) - table.recall() * 60
        assert torch.equal(
            table.several, torch.stack([(holds.sum(1) > 1)[labels == c].sum() for c in range(3)])
        )
        assert torch.equal(
            table.none, torch.stack([(holds.sum(1) == 0)[labels == c].sum() for c in range(3)])
        )


def test_which_inputs_count_for_a_class() -> None:
    model, x, _ = problem()
    predicted = model(x).argmax(1)
    labels = torch.where(torch.arange(60) % 4 == 0, (predicted + 1) % 4, predicted)
    source = (model, [(x, labels)])
    right = labels == predicted
    for by, rows, of in (
        ("labels", right | True, labels),
        ("correct", right, labels),
        ("predictions", right | True, predicted),
    ):
        counted = count_units(source, by=by)
        assert counted.counts.tolist() == [int((of[rows] == c).sum()) for c in counted.classes]
    first, second = count_units(source).classes[:2]
    some = mine_specifications(source, "0.1", classes=[second, first])
    assert some.classes == (second, first)
    assert torch.equal(some.on[1], mine_specifications(source, "0.1", classes=[first]).on[0])
    with pytest.raises(ValueError, match=r"got none of \[17\]"):
        mine_specifications(source, "0.1", classes=[17])
    with pytest.raises(ValueError, match="labels, correct, predictions, got 'truth'"):
        count_units(source, by="truth")
    with pytest.raises(ValueError, match="needs labels, which are not there"):
        count_units((model, [x]))
    assert count_units((model, [x]), by="predictions").counts.sum() == 60


def test_layers_units_and_sources(tmp_path: Path) -> None:
    model, x, labels = problem()
    loader = [(x, labels)]
    one = mine_specifications((model, loader), "0.1", layers=["3"])
    assert [layer.name for layer in one.layers] == ["3"] and one.on.shape == (3, 1)
    pooled = mine_specifications((model, loader), "0.1", units="output")
    assert (
        pooled.units == "output"
        and pooled.on.shape[1] < mine_specifications((model, loader), "0.1").on.shape[1]
    )
    assert coverage(one, (model, loader))[0].totals.sum() == 60
    recording = record(model, loader, units="winner", out=tmp_path / "w", progress=False)
    with pytest.raises(ValueError, match="'winner': a winner's code is no unit's bit"):
        mine_specifications(recording, "0.1")
    with pytest.raises(ValueError, match="expected the layers"):
        coverage(one, record(model, loader, out=tmp_path / "all", progress=False))
    with pytest.raises(TypeError, match=r"a Recording or \(model, loader\), got list"):
        mine_specifications(loader, "0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without any"):
        mine_specifications((model, []), "0.1")
    with pytest.raises(ValueError, match=r"signatures int64 \[N, 1\], got torch.int64 \[2, 3\]"):
        one.satisfied(torch.zeros(2, 3, dtype=torch.int64))
    assert one.satisfied(torch.zeros(0, 1, dtype=torch.int64)).shape == (0, 3)


def test_files(tmp_path: Path) -> None:
    model, x, labels = problem()
    spec = mine_specifications((model, [(x, labels)]), Fraction(1, 7))
    spec.save(tmp_path / "spec.safetensors")
    again = Specification.load(tmp_path / "spec.safetensors")
    assert again.delta == "1/7" and exact_delta(again.delta) == Fraction(1, 7)
    for field in ("on", "off", "counts"):
        assert torch.equal(getattr(again, field), getattr(spec, field))
    assert (again.classes, again.layers, again.units, again.by) == (
        spec.classes,
        spec.layers,
        spec.units,
        spec.by,
    )
    whole = (tmp_path / "spec.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.safetensors: the specification cannot be read"):
        Specification.load(tmp_path / "cut.safetensors")
    from safetensors.torch import save_file

    save_file({"on": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expected a file of format 'zbkernels specification 1'"):
        Specification.load(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError):
        Specification.load(tmp_path / "none.safetensors")
