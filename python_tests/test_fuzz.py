"""The fuzzer itself: problems come back from their numbers, planted faults are found, runs go on where they stopped."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import conv, dual, patterns, ways
from fuzz.run import Fuzz, minimised
from fuzz.tensors import draw_spec, laid_out

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS


def test_every_op_is_drawn() -> None:
    drawn = {
        *patterns.OPS,
        *dual.NAMES,
        "conv_relu_pool2d",
        "conv_relu_pool2d_nap",
        "linear_relu",
        "linear_relu_nap",
    }
    assert drawn == {op.name for op in OPS.values() if op.public is not None}


@pytest.mark.parametrize("family", ways.FAMILIES)
def test_a_problem_comes_from_its_seed_and_number_alone(family: str) -> None:
    first = [ways.problem(3, family, i) for i in range(200)]
    assert first[::-1] == [ways.problem(3, family, i) for i in reversed(range(200))]
    keys = {ways.key_of(family, p) for p in first}
    assert len(keys) > 190 and keys != {ways.key_of(family, ways.problem(4, family, i)) for i in range(200)}


def test_drawn_layouts_hold_their_values() -> None:
    r = random.Random(0)
    kinds = set()
    for number in range(600):
        shape = [r.randint(0, 5) for _ in range(r.randint(1, 4))]
        spec = draw_spec(r, shape)
        kinds |= set(spec)
        values = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        t = laid_out(values, spec)
        for d in spec.get("expand", ()):
            if shape[d]:
                values = values.narrow(d, 0, 1).expand(shape)
        assert t.shape == values.shape
        assert torch.equal(t.resolve_neg(), values.flip(spec["flip"]) if spec.get("flip") else values)
    assert kinds == {"shape", "order", "steps", "starts", "expand", "flip", "negated", "offset"}


@pytest.mark.parametrize("family", ways.FAMILIES)
def test_sound_problems_pass(family: str) -> None:
    """And what a smaller one is made of is a problem, too."""
    backend = "cpu" if _loader.cpu_capability() else "reference"
    refused = 0
    for number in range(25):
        p, data = ways.problem(0, family, number), ways.data_of(0, family, number)
        verdict = ways.try_it(family, p, backend, data)
        assert not verdict["fault"], (number, p)
        refused += "refused" in verdict
        for q in ways.FAMILIES[family].smaller(p)[:2]:
            assert not ways.try_it(family, q, backend, data)["fault"], (number, q)
    assert refused < 13


def _first_fault(family: str, most: int = 400) -> tuple[dict[str, Any], int]:
    for number in range(most):
        p, data = ways.problem(1, family, number), ways.data_of(1, family, number)
        if ways.try_it(family, p, "reference", data)["fault"]:
            return p, data
    raise AssertionError("the planted fault was not found")


def _scaled(name: str) -> Any:
    op = getattr(zb, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = op(*args, **kwargs)
        return found * (1 + 1e-3) if isinstance(found, torch.Tensor) else (found[0] * (1 + 1e-3), *found[1:])

    return wrong


def _wrong_at_the_border(*args: Any, **kwargs: Any) -> torch.Tensor:
    y = zb.conv_relu_pool2d_nap(*args, **kwargs)[0]
    if kwargs["ceil_mode"] and kwargs["pool"] == "max":
        y = y.clone()
        y[..., -1, -1] += 1
    return y


PLANTED = {
    "conv at the border": ("conv", "conv_relu_pool2d", lambda: _wrong_at_the_border),
    "conv beside a signature": ("conv", "conv_relu_pool2d_nap", lambda: _scaled("conv_relu_pool2d_nap")),
    "linear": ("linear", "linear_relu", lambda: _scaled("linear_relu")),
    "order of ties": (
        "patterns",
        "nap_topk",
        lambda: lambda q, db, k: torch.ops.zb.nap_topk(q, db.flip(0), k),
    ),
    "groups": ("patterns", "nap_group", lambda: lambda sig: torch.ops.zb.nap_group(sig[:, :1])),
    "dual": ("dual", "dual_solve", lambda: _scaled("dual_solve")),
    "layer kernel": ("dual", "layer_kernel", lambda: _scaled("layer_kernel")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_made_smaller(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, op, make = PLANTED[name]
    monkeypatch.setattr(zb, op, make())
    p, data = _first_fault(family)
    small, fault = minimised(
        family, p, lambda q: ways.try_it(family, q, "reference", data)["fault"], seconds=5
    )
    assert fault and ways.FAMILIES[family].cost(small) <= ways.FAMILIES[family].cost(p)


@pytest.mark.parametrize("part", ("code", "gradient"))
def test_a_planted_fault_of_training_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = conv.passes_of("reference")

    def forward(*args: Any, **kwargs: Any) -> Any:
        y, code, sig = real.forward(*args, **kwargs)
        return (
            y,
            (code + (code > 0) if code.dtype == torch.uint8 else code),
            sig,
        )  # the position after the winner

    def backward(*args: Any, **kwargs: Any) -> Any:
        grad_x, grad_weight = real.backward(*args, **kwargs)
        return grad_x, grad_weight * 1.01

    wrong = real._replace(**({"forward": forward} if part == "code" else {"backward": backward}))
    monkeypatch.setattr(conv, "passes_of", lambda backend: wrong)
    _first_fault("conv", 60)


def test_a_run_goes_on_where_it_stopped_and_outlives_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fuzz(count: int) -> Fuzz:
        return Fuzz(2, ["conv"], ["reference"], tmp_path, count)

    first = fuzz(5)
    first.run(60, 1, say=lambda text: None)
    second = fuzz(9)
    assert second.done == {("reference", "conv"): 5} and second.keys == first.keys
    child = second.children["native"]
    child.start()
    assert child.process is not None
    child.process.kill()
    child.process.wait()
    verdict = child.ask("conv", ways.problem(2, "conv", 0), "reference", 0)
    assert verdict["fault"] == "the process ended with -9"
    child.start()
    child.process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(ways, "PATIENCE", 0.2)
        verdict = child.ask("conv", ways.problem(2, "conv", 0), "reference", 0)
    assert verdict["fault"] == "no answer within 0.2 seconds"
    second.run(60, 1, say=lambda text: None)
    assert not second.failures and len(second.keys["conv"]) == 9 and "distinct: conv 9" in second.line()


def test_what_breaks_the_run_itself_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = Fuzz(2, ["conv"], ["reference"], tmp_path, 5)
    monkeypatch.setattr(fuzz, "_failed", lambda *args: None)
    monkeypatch.setattr(ways.Child, "ask", lambda self, *args: {}["verdict"])
    with pytest.raises(KeyError, match="verdict"):
        fuzz.run(60, 1, say=lambda text: None)
