"""fuse across modules: a chain that begins in one and ends in another, and what stays a step of its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.nn.fusion import FusionReport
from zbkernels.nn.fusion.apply import fuse, unfuse
from zbkernels.nn.fusion.rewritten import is_fused

pytestmark = pytest.mark.usefixtures("one_thread")

POOLED = True


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x))


class Act(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


class Net(nn.Module):
    """Pools outside of blocks and of blocks in blocks, an activation in a wrapper, a map that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block(1, 4)
        self.two = nn.Sequential(Block(4, 4), nn.Sequential(Block(4, 8)))
        self.conv = nn.Conv2d(8, 8, 3, bias=False)
        self.act = Act()
        self.last = Block(8, 8)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.one(x)) if POOLED else self.one(x)[..., ::2, ::2]
        x = self.pool(self.two(x))
        x = F.avg_pool2d(self.act(self.conv(x)), 2)
        x = self.last(x)
        return self.pool(x).flatten(1).mean(1) + x.flatten(1).mean(1)


POOL = "conv → relu → max_pool"
CHAINS = {
    "one.conv": POOL,
    "two.0.conv": "conv → relu",
    "two.1.0.conv": POOL,
    "conv": "conv → relu → avg_pool",
    "last.conv": "conv → relu",
}


def net() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 1, 32, 32)


def chains(report: FusionReport) -> dict[str, str]:
    return {each.path: each.chain for each in report.fused}


def calls_of(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The result, and how often an op of this package ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = model(x)
    return y, sum(each.count for each in profile.key_averages() if each.key == "zb::conv_relu_pool2d")


def test_chains_cross_borders_and_gradients_stay() -> None:
    model, x = net()
    plain = copy.deepcopy(model)
    report = fuse(model, when="always")
    assert chains(report) == CHAINS and not report.left
    model.train(), plain.train()
    for each in (model, plain):
        each(x).sum().backward()
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)
    _, count = calls_of(model.eval(), x)
    assert count == len(CHAINS)
    assert unfuse(model) and type(model) is Net and torch.equal(model(x), plain.eval()(x))


def test_each_chain_is_measured_once_and_named_once() -> None:
    model, x = net()
    report = fuse(model, x)
    assert sorted([*chains(report), *(each.path for each in report.left)]) == sorted(CHAINS)
    assert all("measured" in each.why for each in (*report.fused, *report.left))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_cross_borders_too(copied: Callable[[nn.Module], nn.Module]) -> None:
    model, x = net()
    expected = model(x)
    fuse(model, when="always")
    y, count = calls_of(copied(model), x)
    torch.testing.assert_close(y, expected)
    assert count == len(CHAINS)


def _hook(model: Net) -> list[Any]:
    seen: list[Any] = []
    model.one.register_forward_hook(lambda module, args, y: seen.append(y.shape))
    return seen


def _wrap(model: Net) -> list[Any]:
    seen: list[Any] = []
    forward = model.one.forward

    def wrapped(x: torch.Tensor) -> torch.Tensor:
        y = forward(x)
        seen.append(y.shape)
        return y

    model.one.forward = wrapped
    return seen


@pytest.mark.parametrize("watch", [_hook, _wrap])
@pytest.mark.parametrize("before", [True, False])
def test_who_watches_a_block_sees_its_own_result(watch: Callable[[Net], list[Any]], before: bool) -> None:
    model, x = net()
    expected = model(x)
    if before:
        seen = watch(model)
        report = fuse(model, when="always")
        assert "one.conv" not in chains(report) or chains(report)["one.conv"] == "conv → relu"
        assert chains(report)["two.1.0.conv"] == POOL
    else:
        fuse(model, when="always")
        seen = watch(model)
    torch.testing.assert_close(model(x), expected)
    assert seen == [torch.Size([2, 4, 32, 32])]


def test_a_block_that_is_replaced_or_whose_neighbours_change_is_followed() -> None:
    model, x = net()
    fuse(model, when="always")
    model.one = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Sigmoid())
    model.two[1][0].act = nn.Tanh()
    plain = copy.deepcopy(model)
    unfuse(plain)
    torch.testing.assert_close(model(x), plain(x))


def test_a_block_that_is_also_called_alone_is_fused_there_too() -> None:
    class Inner(nn.Module):
        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x) * 2

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(1, 1)
            self.inner = Inner(self.block)
            self.pool = nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.pool(self.block(x)) + self.pool(self.inner(x))

    model, x = Twice().eval(), torch.randn(2, 1, 8, 8)
    expected = model(x)
    fuse(model, when="always")
    y, count = calls_of(model, x)
    torch.testing.assert_close(y, expected)
    assert count == 2


def test_a_block_that_has_no_graph_stays_a_step() -> None:
    class Careful(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return super().forward(x)

    model = nn.Sequential(Careful(1, 4), nn.MaxPool2d(2), Block(4, 4), nn.MaxPool2d(2))
    x = torch.randn(2, 1, 16, 16)
    report = fuse(model, when="always")
    assert chains(report) == {"2.conv": POOL}
    model(x).sum().backward()
    assert model[0].conv.weight.grad is None


def test_a_global_setting_is_looked_at_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    plain = copy.deepcopy(model)
    fuse(model, when="always")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x))
    monkeypatch.setitem(globals(), "POOLED", False)
    for each in (model, compiled):
        torch.testing.assert_close(each(x), plain(x))


def test_activations_in_wrappers_and_linear_layers() -> None:
    model = nn.Sequential(
        nn.Linear(6, 5, bias=False), Act(), nn.Sequential(nn.Linear(5, 4, bias=False)), nn.ReLU()
    )
    x = torch.randn(3, 6)
    expected = model(x)
    assert chains(fuse(model, when="always")) == {"0": "linear → relu", "2.0": "linear → relu"}
    torch.testing.assert_close(model(x), expected)
    assert is_fused(model) and not is_fused(model[2])
