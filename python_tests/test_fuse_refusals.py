"""What fuse must not take, or must notice later: forwards that a trace would settle, settings that change, threads."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dynamo.testing import EagerAndRecordGraphs

import zbkernels as zb
from zbkernels.nn.fusion.apply import fuse, unfuse

pytestmark = pytest.mark.usefixtures("one_thread")


def images() -> torch.Tensor:
    return torch.randn(3, 1, 14, 14, generator=torch.Generator().manual_seed(1))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3, bias=False)


# --- forwards that a trace would settle, or would drop a part of --------------------------------------------------

helpers = types.ModuleType("helpers")
exec(
    """
import torch

def frozen(conv, x):
    with torch.no_grad():
        return torch.relu(conv(x))
""",
    vars(helpers),
)


class Frozen(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.relu(self.conv(x))


class Inherits(Frozen):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Names(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Frozen.forward(self, x)  # type: ignore[arg-type]


class Helped(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helpers.frozen(self.conv, x)


class HelpedByStatic(Plain):
    @staticmethod
    def step(conv: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return helpers.frozen(conv, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self.conv, x)


class HelpedByAttribute(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.step = helpers.frozen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self.conv, x)


class HelpedByObject(Plain):
    class Step:
        def __call__(self, conv: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return helpers.frozen(conv, x)

    def __init__(self) -> None:
        super().__init__()
        self.step = self.Step()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self.conv, x)


class HelpedByProperty(Plain):
    @property
    def frozen(self) -> bool:
        return torch.is_grad_enabled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) * (2.0 if self.frozen else 1.0)


class Matches(Plain):
    def forward(self, x: Any) -> torch.Tensor:
        match x:
            case torch.Tensor():
                return torch.relu(self.conv(x))
        return x


class AsksIsTensor(Plain):
    def forward(self, x: Any) -> torch.Tensor:
        return torch.relu(self.conv(x if torch.is_tensor(x) else x[0]))


class AsksClass(Plain):
    def forward(self, x: Any) -> torch.Tensor:
        return torch.relu(self.conv(x)) * (2 if x.__class__ is torch.Tensor else 1)


class AsksAutograd(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) * (1 if x.grad_fn is None else 2)


class AsksMask(Plain):
    def forward(self, x: Any) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        return y if getattr(x, "mask", None) is None else y * 2


class DrawsFromNumpy(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        return y if np.random.rand() < 0.5 else x


class DrawsFromItsOwn(Plain):
    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        return y if self._rng.random() < 0.5 else x


class HasTuple(Plain):
    def forward(self, x: torch.Tensor, size: tuple[int, int] = (2, 2)) -> torch.Tensor:
        return F.max_pool2d(torch.relu(self.conv(x)), size)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Inherits, "no_grad"),
        (Names, "no_grad"),
        (Helped, "no_grad"),
        (HelpedByStatic, "no_grad"),
        (HelpedByAttribute, "no_grad"),
        (HelpedByObject, "no_grad"),
        (HelpedByProperty, "is_grad_enabled"),
        (Matches, "(match)"),
        (AsksIsTensor, "is_tensor"),
        (AsksClass, "__class__"),
        (AsksAutograd, "grad_fn"),
        (AsksMask, "asks for the attribute mask of an input"),
        (DrawsFromNumpy, "draws random numbers"),
        (DrawsFromItsOwn, "generator of random numbers _rng"),
        (HasTuple, "a tuple as a default (size)"),
    ],
)
def test_a_forward_that_a_trace_would_settle_stays(kind: type[nn.Module], why: str) -> None:
    model, around = kind(), nn.Sequential(kind(), nn.Identity())
    report = fuse(model, when="always")
    assert not report and [each.path for each in report.left] == ["forward"]
    assert why in report.left[0].why, report
    assert not fuse(around, when="always")


def test_what_can_be_asked_of_a_tensor_may_be_asked() -> None:
    class Asks(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            conv = getattr(self, "conv")  # noqa: B009  (layers in a loop are found so)
            y = torch.relu(conv(x.contiguous()))
            return y.reshape(y.shape[0], -1).to(x.dtype)

    model, x = Asks(), images()
    expected = model(x)
    assert len(fuse(model, when="always").fused) == 1
    close(model(x), expected)


def test_a_convolution_that_computes_otherwise_is_no_plain_one() -> None:
    class Doubles(nn.Conv2d):
        def _conv_forward(self, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return super()._conv_forward(x, 2 * weight + 1, bias)

    model, x = nn.Sequential(Doubles(1, 4, 3, bias=False), nn.ReLU()), images()
    expected = model(x)
    assert not fuse(model, when="always")
    close(model(x), expected)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU())
    forward = plain[0]._conv_forward
    plain[0]._conv_forward = lambda *args: 2 * forward(*args)
    assert "forward of its own" in str(fuse(plain, when="always"))
    plain.forward = lambda x: x  # type: ignore[method-assign, assignment]
    assert "which its class does not know" in str(fuse(plain, when="always"))


def test_a_flatten_whose_dimension_is_computed_stays_where_it_is() -> None:
    class Flattens(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.flatten(self.conv(x), x.dim() - 3))

    model, x = Flattens(), images()
    expected = model(x)
    fuse(model, when="always")
    close(model(x), expected)


# --- settings that change ------------------------------------------------------------------------------------------


class Config:
    """With a value that only the class has."""

    halved = False


@dataclasses.dataclass(slots=True)
class Slots:
    tripled: bool = False


class Scale:
    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, y: torch.Tensor) -> torch.Tensor:
        return self.factor * y


class Settings(Plain):
    """A private attribute, one that only the class has, objects of several kinds, one within another, one in a list."""

    doubled = False

    def __init__(self) -> None:
        super().__init__()
        self._pool = True
        self.config = types.SimpleNamespace(shift=False, inner=types.SimpleNamespace(negate=False))
        self.other, self.slots, self.scale = Config(), Slots(), Scale()
        self.stages = [types.SimpleNamespace(square=False)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        y = F.max_pool2d(y, 2) if self._pool else y
        y = 2 * y if self.doubled else y
        y = y + 1 if self.config.shift else y
        y = -y if self.config.inner.negate else y
        y = y / 2 if self.other.halved else y
        y = self.scale(3 * y if self.slots.tripled else y)
        return y.square() if self.stages[0].square else y


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "_pool", False),
        lambda model: setattr(model, "doubled", True),
        lambda model: setattr(model.config, "shift", True),
        lambda model: setattr(model.config.inner, "negate", True),
        lambda model: setattr(model.stages[0], "square", True),
        lambda model: setattr(model.other, "halved", True),
        lambda model: setattr(model.slots, "tripled", True),
        lambda model: setattr(model.scale, "factor", 5.0),
    ],
)
def test_a_setting_that_changes_is_followed(change: Callable[[Any], None]) -> None:
    model, plain, x = Settings(), Settings(), images()
    assert len(fuse(model, when="always").fused) == 1
    close(model(x), plain(x))
    change(model)
    change(plain)
    close(model(x), plain(x))


def test_too_many_settings_are_not_compared_in_each_call() -> None:
    model = Settings()
    model.stages *= 1001
    assert "too much in stages" in str(fuse(model, when="always"))


# --- copies, parts, threads ----------------------------------------------------------------------------------------


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def test_a_copy_that_is_compiled_at_once_is_fused() -> None:
    model = chain()
    fuse(model, when="always")
    graphs = EagerAndRecordGraphs()
    twin, x = copy.deepcopy(model), images()
    close(torch.compile(twin, backend=graphs, fullgraph=True)(x), chain()(x))
    (graph,) = graphs.graphs
    assert "zb.conv_relu_pool2d" in graph.code and "max_pool2d(" not in graph.code.replace("relu_pool2d(", "")


def test_a_part_of_a_fused_model_can_be_fused_and_unfused() -> None:
    model, x = chain(), images()
    expected = model[:3](x)
    fuse(model, when="always")
    part = model[:3]
    assert len(fuse(part, when="always").fused) == 1
    close(part(x), expected)
    unfuse(part)
    assert type(part) is nn.Sequential and type(model[:2]) is not nn.Sequential
    other = model[:2]
    assert unfuse(other) == 1 and type(other) is nn.Sequential
    close(F.max_pool2d(other(x), 2), expected)


def test_threads_that_run_other_models_do_not_see_a_trace() -> None:
    """A loaded model is traced at its first call."""
    model, x = chain(), images()
    fuse(model, when="always")
    expected, saved = model(x), pickle.dumps(model)
    other, rows, stop = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), threading.Event()
    want, faults = other(rows).detach(), []

    def run() -> None:
        while not stop.is_set():
            try:
                y = other(rows)
                if isinstance(y, fx.Proxy) or not torch.equal(y, want):
                    faults.append(str(y))
            except Exception as error:
                faults.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(10):
            close(pickle.loads(saved)(x), expected)
    finally:
        stop.set()
        thread.join()
    assert not faults, (len(faults), faults[0])


def test_the_inductor_pass_leaves_what_is_computed_and_another_pass() -> None:
    from torch._inductor import config

    x, weight = images(), torch.randn(4, 1, 3, 3)

    def function(x: torch.Tensor, weight: torch.Tensor, step: int) -> torch.Tensor:
        return F.max_pool2d(F.relu(F.conv2d(x, weight, None, step)), 2)

    zb.enable_inductor_pass(when="always")
    try:
        with config.patch(force_disable_caches=True):
            compiled = torch.compile(function, dynamic=True)
            close(compiled(x, weight, 2), function(x, weight, 2))
    finally:
        zb.enable_inductor_pass(False)
    with config.patch(pre_grad_custom_pass=print):
        zb.enable_inductor_pass(False)
        assert config.pre_grad_custom_pass is print
