"""VNN-LIB files are read back, by a small reader of s-expressions and by the format's own parser where it is
installed, and say what the region and the specification say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nap_models import fused, make, near, pattern_and_prediction
from torch import nn

from zbkernels.nap import (
    certify_hull,
    local_linear_map,
    mine_specifications,
    patterns,
    write_specification_vnnlib,
    write_vnnlib,
)
from zbkernels.nap.vnnlib import number

Value = Callable[[str], torch.Tensor]  # of a variable, for many points at once


def read(text: str) -> list[Any]:
    """Nested lists of the file's s-expressions; an array element is one word."""
    text = re.sub(r";.*", "", text)
    text = re.sub(r"(\w)\s*\[([^\]]*)\]", lambda m: m[1] + "[" + m[2].replace(" ", "") + "]", text)
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    assert len(stack) == 1
    return stack[0]


def evaluate(expression: Any, value: Value) -> torch.Tensor:
    if isinstance(expression, str):
        return (
            value(expression)
            if expression[0].isalpha()
            else torch.tensor(float(expression), dtype=torch.float64)
        )
    name, *rest = expression
    args = [evaluate(each, value) for each in rest]
    if name == "+":
        return torch.stack(args).sum(0)
    if name == "*":
        return math.prod(args[1:], start=args[0])
    if name in ("and", "or"):
        stacked = torch.stack(args)
        return stacked.all(0) if name == "and" else stacked.any(0)
    return {"<=": torch.le, ">=": torch.ge, ">": torch.gt}[name](*args)


def holds(
    text: str, x: torch.Tensor, y: torch.Tensor, **hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row: (do the constraints on inputs and hidden values hold, does the last one, on outputs)."""
    tensors = {"X": x.double(), "Y": y.double(), **{k: v.double() for k, v in hidden.items()}}

    def value(name: str) -> torch.Tensor:
        if "_" in name:
            return tensors[name[0]].flatten(1)[:, int(name[2:])]
        array, place = name[:-1].split("[")
        at = tuple(map(int, place.split(",")))
        assert at[0] == 0
        return tensors[array][(slice(None), *at[1:])]

    asserted = [e[1] for e in read(text) if e[0] == "assert"]
    each = [evaluate(e, value).expand(len(x)) for e in asserted]
    return torch.stack([torch.ones(len(x), dtype=torch.bool), *each[:-1]]).all(0), each[-1]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("name", ["fcn", "pools", "fcn with bias", "normalised"])
def test_a_region_reads_back(name: str, version: str, tmp_path: Path) -> None:
    model, x = make(name, 1, torch.float64)
    file = tmp_path / "region.vnnlib"
    points = torch.cat([near(model, x, 40), near(model, x, 40, reach=1.3), near(model, x, 10, reach=4.0)])
    y = model(points)
    region = certify_hull(model, x)
    want = region.contains(points, "region")
    assert 20 < want.sum() < 85
    write_vnnlib(file, region, prediction=True, version=version)
    inside, other = holds(file.read_text(), points, y)
    assert torch.equal(inside, want) and torch.equal(other, y.argmax(1) != region.prediction)
    assert not bool((inside & other).any())  # no counterexample among them
    # Without the rows of the prediction: all that have the units' pattern.
    write_vnnlib(file, local_linear_map(model, torch.cat([-x, x])), index=1, version=version)
    units = pattern_and_prediction(model, points)[:, :-1]
    inside, _ = holds(file.read_text(), points, y)
    assert torch.equal(inside, (units == pattern_and_prediction(model, x)[:, :-1]).all(1))


def test_a_box_of_plain_numbers_is_that_of_tensors(tmp_path: Path) -> None:
    region = local_linear_map(nn.Linear(2, 2, bias=False), torch.rand(1, 2))
    for name, box in (("numbers", (0, 1.0)), ("tensors", (torch.zeros(2), torch.ones(2)))):
        write_vnnlib(tmp_path / name, region, box=box)
    text = (tmp_path / "numbers").read_text()
    assert text == (tmp_path / "tensors").read_text() and "(<= X_1 1.0)" in text


def test_declarations_box_and_slack(tmp_path: Path) -> None:
    model, x = make("pools", 1, torch.float64)
    file = tmp_path / "region.vnnlib"
    region = certify_hull(model, x)
    low, high = x[0] - 0.25, torch.tensor(4.0)
    write_vnnlib(file, region, box=(low, high), slack=1e-3, prediction=True)
    text = file.read_text()
    declared = [e[1] for e in read(text) if e[0] == "declare-const"]
    assert declared == [f"X_{i}" for i in range(50)] + [f"Y_{j}" for j in range(4)]
    points = torch.cat([x, x - 0.2, x - 0.3, x + 5, 1e-9 * x])
    inside, _ = holds(text, points, model(points))
    A = region.inequalities()
    g = points.flatten(1) @ A.A.T + A.b
    want = (g >= 1e-3).all(1) & (points >= low).flatten(1).all(1) & (points <= high).flatten(1).all(1)
    assert torch.equal(inside, want) and " > " not in text and "(>= X_0 " in text
    assert not re.search(r"\d[eE][+-]?\d", re.sub(r";.*", "", text))
    for wrong, message in (
        ({"slack": -1.0}, "slack of at least 0"),
        ({"slack": math.nan}, "slack of at least 0"),
        ({"version": "3"}, "one of 1.0, 2.0, got '3'"),
        ({"box": (high, low)}, "least <= largest"),
        ({"box": (low[0, 0, :3], high)}, "box to be two numbers or tensors of shape"),
        ({"box": (None, high)}, "got None, a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            write_vnnlib(tmp_path / "wrong.vnnlib", region, **wrong)
        assert not (tmp_path / "wrong.vnnlib").exists()
    with pytest.raises(ValueError, match=r"index to be in \[0, 1\), got 1"):
        write_vnnlib(file, local_linear_map(model, x), index=1)


@pytest.mark.parametrize("value", [0.1, -3.0, 1e-30, -1.2345678901234567e300, 5e-324, 0.0])
def test_numbers_read_back_exactly(value: float) -> None:
    assert float(number(value)) == value and "e" not in number(value)


def specification_file(path: Path) -> tuple[Any, Any, torch.Tensor]:
    torch.manual_seed(0)
    model, x = fused().requires_grad_(False), torch.randn(60, 2, 10, 10)
    labels = model(x).argmax(1)
    spec = mine_specifications((model, [(x, labels)]), "0.1")
    nodes = {"0": "/0/Relu_output_0", "1": "/1/LeakyRelu_output_0", "3": "/3/Relu_output_0"}
    label = spec.classes[-1]
    write_specification_vnnlib(
        path, spec, label, shape=x.shape[1:], classes=4, nodes=nodes, box=(x.amin(0), x.amax(0))
    )
    for wrong, message in (
        ({"label": 17}, "label to be one of"),
        ({"nodes": {"0": "a"}}, r"got none for \['1', '3'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            arguments = {"label": label, "shape": x.shape[1:], "classes": 4, "nodes": nodes} | wrong
            write_specification_vnnlib(path.with_name("wrong"), spec, **arguments)
    return model, spec, x


def test_a_specification_reads_back(tmp_path: Path) -> None:
    model, spec, x = specification_file(tmp_path / "spec.vnnlib")
    words = patterns(model, x)
    values = {f"H{i}": layer.decode(words) for i, layer in enumerate(spec.layers)}
    y = model[0](x)
    on = torch.nn.functional.conv2d(y, model[1].weight) > 0
    assert torch.equal(values["H1"], on)  # what the file is compared with is what the layer computes
    inside, other = holds((tmp_path / "spec.vnnlib").read_text(), x, model(x), **values)
    row = len(spec.classes) - 1
    assert torch.equal(inside, spec.satisfied(words)[:, row]) and inside.any() and not inside.all()
    assert torch.equal(other, model(x).argmax(1) != spec.classes[-1])


def test_the_formats_own_parser_takes_version_2(tmp_path: Path) -> None:
    vnnlib = pytest.importorskip("vnnlib", reason="the parser of VNN-LIB 2.0 is not installed")
    if not hasattr(vnnlib, "parse_query_file"):
        pytest.skip("this vnnlib reads version 1.0 only")
    model, x = make("pools", 1, torch.float64)
    write_vnnlib(
        tmp_path / "region.vnnlib",
        certify_hull(model, x),
        version="2.0",
        prediction=True,
        box=(x[0] - 1, x[0] + 1),
    )
    query = vnnlib.parse_query_file(str(tmp_path / "region.vnnlib"))
    text = (tmp_path / "region.vnnlib").read_text()
    assert len(query.assertions) == sum(e[0] == "assert" for e in read(text))
    points = torch.cat([near(model, x, 10), near(model, x, 10, reach=1.3)])
    again = "\n".join(map(str, query.assertions))
    assert all(
        torch.equal(a, b)
        for a, b in zip(holds(again, points, model(points)), holds(text, points, model(points)), strict=True)
    )
    specification_file(tmp_path / "spec.vnnlib")
    query = vnnlib.parse_query_file(str(tmp_path / "spec.vnnlib"))
    assert len(query.assertions) == sum(
        e[0] == "assert" for e in read((tmp_path / "spec.vnnlib").read_text())
    )
