"""fuse and unfuse: what is found and what is left, that no call changes its result, and that nothing else changes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain_dense import FPN, SiameseNet
from torch import nn

import zbkernels as zb
from zbkernels.nn.fusion import FusionReport, gains
from zbkernels.nn.fusion.apply import fuse, unfuse
from zbkernels.nn.fusion.chains import Chain
from zbkernels.nn.fusion.rewritten import is_fused

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Modules, functions and methods, a pool before its ReLU, a bias, a shared ReLU and pool, a mode and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, bias=False)
        self.conv2 = nn.Conv2d(8, 8, 3, padding="same", bias=False)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv4 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16, 12, bias=False)
        self.out = nn.Linear(12, 5, bias=False)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, shift: float | None = None) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = self.relu(self.pool(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = F.avg_pool2d(F.leaky_relu(self.conv4(x), 0.1), 2)
        x = x.flatten(2).amax(2)
        x = self.relu(self.fc(x))
        if self.training:
            x = x * 2
        x = self.out(x) * self.scale
        return x if shift is None else x + shift


def images(size: int = 14) -> torch.Tensor:
    return torch.randn(3, 1, size, size, generator=torch.Generator().manual_seed(1))


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def names(report: FusionReport) -> list[str]:
    return [each.path for each in report.fused]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_every_spelling_is_found_and_nothing_else_changes() -> None:
    model, x = net(), images()
    expected, keys = model(x), list(model.state_dict())
    parameters = [id(each) for each in model.parameters()]
    report = zb.fuse(model, when="always")
    assert names(report) == ["conv1", "conv2", "conv4", "fc"]
    assert [each.chain for each in report.fused] == [
        "conv → relu → max_pool",
        "conv → relu → max_pool",
        "conv → leaky_relu(0.1) → avg_pool",
        "linear → relu",
    ]
    assert {each.path: each.why for each in report.left} == {
        "conv3": "it has a bias",
        "out": "no ReLU follows",
    }
    with torch.no_grad(), zb.use_backend("reference"):
        model(x)
    assert zb.last_kernel() == "reference"  # an op of ours ran
    close(model(x), expected)
    assert isinstance(model, Net)
    assert list(model.state_dict()) == keys
    assert [id(each) for each in model.parameters()] == parameters
    assert zb.unfuse(model) == 1
    assert type(model) is Net
    assert torch.equal(model(x), expected)
    assert zb.unfuse(model) == 0


def test_gradients_stay_the_same() -> None:
    model = net().train()
    x = images().requires_grad_()

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])

    expected = gradients()
    assert fuse(model, when="always")
    for actual, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-6)


def test_a_call_that_goes_another_way_runs_as_it_was_written() -> None:
    model, plain, x = net(), net(), images(28)
    fuse(model, when="always")

    def same() -> None:
        close(model(x), plain(x))

    for change in (
        lambda m: m.train(),
        lambda m: m.eval(),
        lambda m: setattr(m, "scale", 3.0),
        lambda m: setattr(m.conv1, "stride", (2, 2)),
        lambda m: setattr(m, "conv2", nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False)),
        lambda m: setattr(m, "pool", nn.AvgPool2d(2)),
        lambda m: setattr(m, "relu", nn.GELU()),
        lambda m: setattr(m.conv4, "padding_mode", "reflect"),
    ):
        torch.manual_seed(2)
        change(model)
        torch.manual_seed(2)
        change(plain)
        same()
    close(model(x, 0.5), plain(x, shift=0.5))
    close(model(x, shift=0.5), plain(x, 0.5))


def test_a_container_that_grows_or_is_sliced_is_followed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    x = images()
    expected = model(x)
    assert names(fuse(model)) == ["0"]
    close(model(x), expected)
    assert model[:2](x).shape == (3, 4, 12, 12)
    close(F.max_pool2d(model[:2](x), 2), expected)
    model.append(nn.Softmax(1))
    close(model(x), expected.softmax(1))
    del model[2]
    assert model(x).shape == (3, 4, 12, 12)


def test_a_hook_sees_what_it_saw_before() -> None:
    model, x = net(), images()
    expected = model.conv1(x)
    fuse(model, when="always")
    seen: list[torch.Tensor] = []
    handle = model.conv1.register_forward_hook(
        lambda module, args, output: seen.append(output.detach().clone())
    )
    model(x)
    assert torch.equal(seen[0], expected)
    report = fuse(model, when="always")
    assert {each.path: each.why for each in report.left}["conv1"] == "a hook is on it"
    handle.remove()
    model.pool.register_forward_pre_hook(lambda module, args: None)
    assert names(fuse(model, when="always")) == ["conv1", "conv4", "fc"]  # conv2's pool has the hook


def test_an_unpooled_map_that_is_used_elsewhere_is_kept() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, bias=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = F.relu(self.conv(x))
            return F.max_pool2d(y, 2), y

    model, x = Skip(), images()
    expected = model(x)
    report = fuse(model, when="always")
    assert report.fused[0].chain == "conv → relu"
    assert "the un-pooled map is used elsewhere" in report.fused[0].why
    for actual, wanted in zip(model(x), expected, strict=True):
        close(actual, wanted)


def test_a_layer_called_twice_is_two_chains() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.max_pool2d(F.relu(self.conv(x)), 2)
            return torch.sigmoid(self.conv(x)) + F.avg_pool2d(F.relu(self.conv(x)), 3, 1, 1, False, False)

    model, x = Twice(), images()
    expected = model(x)
    report = fuse(model, when="always")
    assert names(report) == ["conv", "conv (call 3)"]
    assert [each.path for each in report.left] == ["conv (call 2)"]
    close(model(x), expected)


def test_functional_convolutions_are_found() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 1, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.conv2d(x, self.weight * 2, stride=1, padding=(1, 1)).flatten(1).relu_()
            return torch.cat(
                [y, torch.max_pool2d(torch.relu(F.conv2d(x, self.weight)), 3, 2, 1).flatten(1)], 1
            )

    model, x = Functional(), images()
    expected = model(x)
    report = fuse(model, when="always")
    assert [each.chain for each in report.fused] == ["conv → relu", "conv → relu → max_pool"]
    close(model(x), expected)


def _forward(body: Callable[[Any, torch.Tensor], torch.Tensor]) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.kept: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return body(self, x)

    return Model()


def _writes(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = torch.relu(self.conv(x))
    return self.last


def _collects(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(torch.relu(self.conv(x)))
    return self.kept[-1]


def _decides(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(self.conv(x)) if x.sum() > 0 else x


def _draws(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(self.conv(x)) * float(torch.rand(()))


def _without_gradients(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.relu(self.conv(x))


@torch.no_grad()
def _decorated(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(self.conv(x))


def _in_bfloat16(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.relu(self.conv(x))


def _helped(self: Any, x: torch.Tensor) -> torch.Tensor:
    return _without_gradients(self, x)


CALLS = 0


def _counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return torch.relu(self.conv(x))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_without_gradients, "no_grad"),
        (_decorated, "with statement"),
        (_in_bfloat16, "autocast"),
        (_helped, "no_grad"),
        (_counts, "changes the global CALLS"),
        (_writes, "changes the attribute last"),
        (_collects, "changes the attribute kept"),
        (_decides, "cannot be traced"),
        (_draws, "draws random numbers"),
    ],
)
def test_a_forward_that_a_graph_would_not_do_justice_stays(
    body: Callable[[Any, torch.Tensor], torch.Tensor], why: str
) -> None:
    model, x = _forward(body), images()
    report = fuse(model, when="always")
    assert not report
    assert [each.path for each in report.left] == ["forward"]
    assert why in report.left[0].why
    assert not is_fused(model)
    assert not (model(x).requires_grad and body in (_without_gradients, _decorated, _helped))
    assert not any(type(value).__name__ == "Proxy" for value in vars(model).values())


def test_a_forward_that_asks_for_types_stays_and_its_children_are_fused() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, bias=False)
            self.body = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2))

        def forward(self, x: Any) -> torch.Tensor:
            x = self.body(x if isinstance(x, torch.Tensor) else x[0])
            return torch.relu(self.conv(x))

    model, x = Asks(), images()
    expected = model(x)
    report = fuse(model, when="always")
    assert names(report) == ["body.0"]
    assert "asks for the type of a value (isinstance)" in str(report)
    close(model(x), expected)
    close(model([x]), expected)


def _pickled(model: nn.Module) -> nn.Module:
    result: nn.Module = pickle.loads(pickle.dumps(model))
    return result


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    result: nn.Module = torch.load(file, weights_only=False)
    return result


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, _pickled, _saved])
def test_copies_are_fused_too_and_independent(copied: Callable[[nn.Module], nn.Module]) -> None:
    model, x = net(), images()
    expected = model(x)
    fuse(model, when="always")
    twin = copied(model)
    close(twin(x), expected)
    assert is_fused(twin)
    assert twin._zb_fused.ways  # type: ignore[union-attr]
    if copied is not copy.copy:
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        close(twin(x), expected)
    unfuse(twin)
    assert type(twin) is Net
    assert is_fused(model)


def test_measuring_leaves_no_trace_in_the_model_or_in_chance() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.Dropout(),
        nn.Linear(12, 3, bias=False),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    report = zb.fuse(model, images())
    gains = [each for each in (*report.fused, *report.left) if "measured" in each.why]
    assert len(gains) == 1
    assert "a training step of [3, 1, 14, 14] measured" in str(report)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        assert "forward of" in str(fuse(model.eval(), (images(),)))


def test_the_rule_takes_pools_and_leaves_linear_layers() -> None:
    report = fuse(net())
    assert names(report) == ["conv1", "conv2", "conv4"]
    assert "give x to have it measured" in {each.path: each.why for each in report.left}["fc"]
    assert str(report).startswith(
        "fuse: 3 fused, 3 left as they were\n  fused conv1: conv → relu → max_pool ("
    )


def test_parametrised_and_shared_weights_are_read_at_each_call() -> None:
    model, x = net(), images()
    fuse(model, when="always")
    torch.nn.utils.parametrizations.weight_norm(model.conv1)
    assert names(fuse(model, when="always"))[0] == "conv1"
    plain = copy.deepcopy(model)
    unfuse(plain)
    with torch.no_grad():
        for each in (model, plain):
            each.conv1.parametrizations.weight.original0.mul_(3)
    close(model(x), plain(x))


def test_compiles_and_exports_in_one_graph() -> None:
    model, x = net(), images()
    expected = model(x)
    fuse(model)
    close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
    for strict in (False, True):
        program = torch.export.export(model, (x,), strict=strict)
        assert sum("zb.conv_relu_pool2d" in str(node.target) for node in program.graph.nodes) == 3
        close(program.module()(x), expected)


def test_what_only_passes_a_value_on_stands_in_no_chains_way() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.bn = nn.Identity()  # what is left of a batch norm
            self.drop = nn.Dropout2d()
            self.conv2 = nn.Conv2d(4, 4, 3, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.max_pool2d(self.drop(F.relu(self.bn(self.conv(x)))), 2)
            return F.relu(F.max_pool2d(F.dropout(self.conv2(x), training=self.training), 2))

    torch.manual_seed(0)
    model, x = Passing(), images()
    plain = copy.deepcopy(model)
    report = fuse(model, when="always")
    assert {each.path: each.chain for each in report.fused} == {
        "conv": "conv → relu",  # in training, which is looked at first: the dropout is awake
        "conv2": "conv → relu → max_pool",
    }
    assert "in eval() alone: a dropout stands within" in str(report)
    for change in (
        nn.Module.train,
        nn.Module.eval,
        lambda m: m.drop.train(),
        lambda m: m.train().drop.eval(),
    ):
        outputs = []
        for each in (model, plain):
            change(each)
            torch.manual_seed(1)
            outputs.append(each(x))
        close(*outputs)
    assert "x did not come through here; in eval() alone" in str(fuse(model.train(), x))
    fuse(model, when="always")
    model.eval().bn.register_forward_hook(lambda module, args, output: output * 3)
    close(model(x), plain.eval()(x) * 3)


def test_an_assert_of_a_value_stays_one() -> None:
    torch.manual_seed(0)
    model = FPN(bias=False, width=4)  # in a file of its own, since pytest rewrites the asserts of this one
    plain = copy.deepcopy(model)
    x = torch.randn(2, 3, 16, 16)
    assert "smooth.0" in names(fuse(model, when="always"))
    for actual, expected in zip(model(x), plain(x), strict=True):
        close(actual, expected)
    for wrong in (x[0], x[:, :2]):
        with pytest.raises(AssertionError, match="expected images, got"):
            plain(wrong)
        with pytest.raises(AssertionError, match="an assert in the forward of a fused module does not hold"):
            model(wrong)


def test_a_result_may_be_written_into_where_it_could_be_before() -> None:
    """linear_relu keeps its result for the gradient, as torch's ReLU does and its leaky ReLU does not."""
    linear = nn.Linear(5, 4, bias=False)
    for relu, why in ((nn.LeakyReLU(0.1), "its leaky ReLU is not in place"), (nn.LeakyReLU(0.1, True), "")):
        report = fuse(nn.Sequential(linear, relu), when="always")
        assert bool(report) == (not why) and why in str(report)
    for steps in ([nn.LeakyReLU(0.1)], [nn.ReLU(), nn.MaxPool2d(2)], [nn.MaxPool2d(2), nn.LeakyReLU(0.1)]):
        model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), *steps)
        (expected,) = torch.autograd.grad(model(images()).mul_(2).sum(), model[0].weight)
        assert fuse(model, when="always")
        (actual,) = torch.autograd.grad(model(images()).mul_(2).sum(), model[0].weight)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_layer_in_the_relus_place_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    assert fuse(model).left[0].why == "no ReLU follows, but 1 (BatchNorm2d)"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_gets_the_layers_as_they_were_written() -> None:
    model, plain = SiameseNet(bias=False, width=4), SiameseNet(bias=False, width=4)
    plain.load_state_dict(model.state_dict())
    assert fuse(model, when="always")
    x = images(28)
    for make in (torch.jit.script, lambda module: torch.jit.trace(module, (x, x + 1))):
        close(make(model)(x, x + 1), plain(x, x + 1))
        assert is_fused(model)
    with pytest.raises(TypeError, match="got TorchScript"):
        fuse(torch.jit.script(model))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_older_onnx_exporter_sees_the_layers_as_they_were_written() -> None:
    onnx = pytest.importorskip("onnx")
    model, file = net(), io.BytesIO()
    assert fuse(model, when="always")
    torch.onnx.export(model, (images(),), file, dynamo=False)
    found = [node.op_type for node in onnx.load_model_from_string(file.getvalue()).graph.node]
    assert found[:6] == ["Conv", "Relu", "MaxPool", "Conv", "MaxPool", "Relu"]


def test_a_disturbed_measurement_goes_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which no two tries take the same, and one on which only the first does not."""
    x = torch.randn(1, 4, 8, 8)
    chain = Chain(
        "conv2d", [], {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "negative_slope": 0.0}
    )
    chain.arguments |= {
        "pool": "max",
        "pool_kernel": 2,
        "pool_stride": None,
        "pool_padding": 0,
        "ceil_mode": False,
    }
    weight = torch.randn(4, 4, 3, 3)

    def with_times(times: list[float]) -> gains.Choice:
        ticks = iter(tick for time in times for tick in (0.0, time))
        monkeypatch.setattr(gains, "_now", lambda x: next(ticks))
        return gains.measured(chain, x, weight, training=False)

    noisy = with_times([2.0**n for n in range(100)])
    assert noisy.take and noisy.gain is None
    assert noisy.why.startswith(
        "forward of [1, 4, 8, 8] could not be measured, other work disturbs it (0.50 times"
    )
    assert noisy.why.endswith("; by the rule: the un-pooled map is not written")
    warm_up = [9.0] * 2 * gains.WARM_UP
    steady = with_times([*warm_up, 50.0, 1.0, *[2.0, 1.05] * 20])
    assert steady.take and steady.gain == pytest.approx(2.0)
    slower = with_times([*warm_up, *[1.0, 2.0] * 20])
    assert not slower.take and slower.gain == pytest.approx(0.5)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="fuse: 'the model' is compiled; fuse the model before"):
        fuse(torch.compile(net()))
    with pytest.raises(TypeError, match="expected x to be an input or a tuple of inputs, got dict"):
        fuse(net(), {"x": images()})
    with pytest.raises(ValueError, match=r"fuse: the model cannot be run on x \(RuntimeError: .*channels"):
        fuse(net(), torch.randn(3, 2, 14, 14))
    with pytest.raises(TypeError, match="enable_inductor_pass: expected True or False, got Net"):
        zb.enable_inductor_pass(net())  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"fuse: expected model to be an nn.Module, got function"):
        fuse(F.relu)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="fuse: expected when to be one of measured, rule, always, got 'never'"
    ):
        fuse(net(), when="never")
    with pytest.raises(ValueError, match="fuse: expected when to be 'rule' or 'always' where x is not given"):
        fuse(net(), when="measured")
    with pytest.raises(TypeError, match="got TorchScript"):
        fuse(torch.jit.trace(net(), images()))
