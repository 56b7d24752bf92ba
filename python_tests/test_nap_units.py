"""The units that are met while a model runs: every spelling, in order, by name, and what is reported beside them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zbkernels as zb
from zbkernels.nap import Call, Site, Units, find_units


class Call1(nn.Module):
    """A model of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def watch(model, x, handler=None):
    calls: list[tuple[Site, Call]] = []

    def keep(site, call):
        calls.append((site, call))
        return (handler or (lambda s, c: c.run()))(site, call)

    units = Units(model, keep)
    with torch.no_grad(), units:
        y = model(x)
    return units, calls, y


RELUS = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "x.relu": lambda x: x.relu(),
    "x.relu_": lambda x: x.relu_(),
    "threshold": lambda x: F.threshold(x, 0, 0),
    "nn.Threshold": nn.Threshold(0, 0.0, inplace=True),
    "F.threshold_": lambda x: F.threshold_(x, 0, 0),
    "clamp": lambda x: x.clamp(min=0),
    "clamp, positional": lambda x: torch.clamp(x, 0.0),
    "clip": lambda x: x.clip(0),
    "clamp_": lambda x: x.clamp_(min=0),
    "clamp_min": lambda x: torch.clamp_min(x, 0),
    "x.clamp_min_": lambda x: x.clamp_min_(0),
    "aten": torch.ops.aten.relu,
    "aten, self=": lambda x: torch.ops.aten.relu(self=x),
    "aten overload": torch.ops.aten.relu.default,
    "aten in place": torch.ops.aten.relu_.default,
}


@pytest.mark.parametrize("spelling", RELUS)
def test_every_relu(spelling):
    function = RELUS[spelling]
    x = torch.tensor([[1.0, -1.0, 0.0, -0.0, float("inf")]])
    doubled = Call1(lambda x: function(x + x))
    seen = []
    units, calls, y = watch(doubled, x, lambda s, c: (seen.append(c.input.clone()), c.run())[1])
    assert [s for s, _ in calls] == [Site("forward", "relu", (5,))]
    assert torch.equal(seen[0], x + x)  # the values before, in place or not
    assert torch.equal(y, F.relu(x + x)) and units.unsupported == []
    in_place = spelling.endswith("_") or "in place" in spelling or spelling == "nn.Threshold"
    assert calls[0][1].args["inplace"] is in_place


LEAKY = {
    "nn.LeakyReLU": nn.LeakyReLU(0.25),
    "in place": nn.LeakyReLU(0.25, inplace=True),
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "F.leaky_relu_": lambda x: F.leaky_relu_(x, negative_slope=0.25),
    "aten": lambda x: torch.ops.aten.leaky_relu.default(x, 0.25),
}


@pytest.mark.parametrize("spelling", LEAKY)
def test_every_leaky_relu(spelling):
    x = torch.randn(3, 4)
    units, calls, y = watch(Call1(lambda x: LEAKY[spelling](1 * x)), x)
    assert [c.kind for _, c in calls] == ["leaky_relu"] and calls[0][1].args["negative_slope"] == 0.25
    assert torch.equal(y, F.leaky_relu(x, 0.25)) and units.unsupported == []


POOLS = {
    "nn.MaxPool2d": nn.MaxPool2d((2, 1), 2, (1, 0), ceil_mode=True),
    "with indices": lambda x: F.max_pool2d(x, (2, 1), 2, (1, 0), ceil_mode=True, return_indices=True)[0],
    "torch.max_pool2d": lambda x: torch.max_pool2d(x, (2, 1), 2, (1, 0), 1, True),
    "aten": lambda x: torch.ops.aten.max_pool2d.default(x, [2, 1], [2, 2], [1, 0], [1, 1], True),
    "aten with indices": lambda x: torch.ops.aten.max_pool2d_with_indices.default(
        x, [2, 1], [2, 2], [1, 0], [1, 1], True
    )[0],
}


@pytest.mark.parametrize("spelling", POOLS)
def test_every_max_pool(spelling):
    x = torch.randn(2, 3, 6, 7)
    units, calls, y = watch(Call1(POOLS[spelling]), x)
    ((site, call),) = calls
    assert site.kind == "max_pool" and site.shape == y.shape[1:] and units.unsupported == []
    assert call.args["kernel_size"] == (2, 1) and call.args["stride"] == (2, 2)
    assert (
        call.args["padding"] == (1, 0) and call.args["dilation"] == (1, 1) and call.args["ceil_mode"] is True
    )


def test_adaptive_and_dilated_pools():
    x = torch.randn(2, 3, 7, 9)
    for function in (
        lambda x: F.adaptive_max_pool2d(x, (None, 4)),
        lambda x: F.max_pool2d(x, 2, 3, 1, dilation=3),
    ):
        _, ((site, _),), y = watch(Call1(function), x)
        assert site.kind == "max_pool" and site.shape == y.shape[1:]


def fused():
    torch.manual_seed(0)
    return nn.Sequential(
        zb.nn.ConvReLUPool2d(2, 5, 3, padding=1),
        zb.nn.ConvReLUPool2d(5, 4, 2, padding="same", pool="none"),
        nn.Flatten(),
        zb.nn.LinearReLU(4 * 4 * 4, 7, negative_slope=0.1),
        zb.nn.LinearReLU(7, 3, negative_slope=1.0),
    )


@pytest.mark.parametrize("grad", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_fused_layers_are_seen_and_can_be_replaced(grad):
    model = fused()
    x = torch.randn(2, 2, 8, 8)
    signatures = {}

    def handler(site, call):
        op = {
            "conv_relu_pool": torch.ops.zb.conv_relu_pool2d_nap,
            "linear_relu": torch.ops.zb.linear_relu_nap,
        }[call.kind]
        y, signatures[site.name] = op(**call.args)
        return y

    units = Units(model, handler)
    with grad(), units:
        y = model(x)
    assert [(s.name, s.kind, s.shape) for s in units.sites] == [
        ("0", "conv_relu_pool", (5, 4, 4)),
        ("1", "conv_relu_pool", (4, 4, 4)),
        ("3", "linear_relu", (7,)),  # not the last layer: it is linear
    ]
    assert units.unsupported == []
    torch.testing.assert_close(y, model(x))
    _, first = model[0].forward_nap(x)
    assert torch.equal(signatures["0"], first)


def test_nap_forms_keep_what_the_model_asked_for():
    layer = zb.nn.ConvReLUPool2d(2, 5, 3, padding=1)
    model = Call1(lambda x: layer.forward_nap(x, units="winner")[0])
    _, ((site, call),), _ = watch(model, torch.randn(2, 2, 8, 8))
    assert site == Site("forward", "conv_relu_pool", (5, 4, 4)) and call.args["units"] == "winner"
    assert isinstance(call.run(), tuple)


def test_a_forced_reference_shows_its_parts_and_hidden_kernels_are_refused():
    with zb.use_backend("reference"):
        sites = find_units(fused(), torch.randn(1, 2, 8, 8))
    assert [s.kind for s in sites] == ["relu", "max_pool", "relu", "leaky_relu"]
    with (
        zb.use_backend("triton"),
        pytest.raises(RuntimeError, match=r"use_backend\('triton'\).*can't be seen"),
    ):
        find_units(fused(), torch.randn(1, 2, 8, 8))


def test_a_measured_choice_does_not_hide_an_op():
    from zbkernels.ops import _choice

    model, x, looked = fused(), torch.randn(1, 2, 8, 8), []
    watch(model, x, lambda s, c: (looked.append(_choice.looked_at(x, None)), c.run())[1])
    assert looked == [True] * 3 and not _choice.looked_at(x, None)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.inner = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        self.skip = False

    def forward(self, x):
        x = self.act(self.conv(x))
        x = self.act(self.conv(x))
        x = F.relu(x - 1)
        x = F.leaky_relu(x - 1)
        return x if self.skip else self.inner(x)


def test_names_count_calls_and_follow_the_running_module():
    model = nn.Sequential(Block(), Block())
    model[1].skip = True
    x = torch.randn(2, 3, 8, 8)
    units, calls, _ = watch(model, x)
    assert [s.name for s, _ in calls] == [
        "0.act", "0.act#2", "0", "0#2", "0.inner.0", "0.inner.1", "1.act", "1.act#2", "1", "1#2",
    ]  # fmt: skip
    assert find_units(model, x) == [s for s, _ in calls]
    with torch.no_grad(), units:  # a second pass counts from 1 again
        model(x)
        model(x)
    assert len(units.sites) == 10


def test_source_and_only_pooled():
    class Net(nn.Module):
        def forward(self, x):
            a = F.relu(x)  # goes to two pools
            b = F.max_pool2d(a, 2) + F.max_pool2d(F.dropout(a, training=self.training), 2)
            c = F.relu(b)  # goes to a pool and to a sum
            d = F.max_pool2d(c, 2)
            e = F.relu(b - 1)  # changed in place before its pool
            e -= 1
            f = F.max_pool2d(e, 2)
            g = F.relu(b)  # also a result
            return d.sum() + f.sum() + c.sum() + F.max_pool2d(g, 2).sum(), g

    units, calls, _ = watch(Net().eval(), torch.randn(1, 1, 8, 8))
    sources = {s.name: c.source.name for s, c in calls if c.source}
    assert sources == {
        "forward#2": "forward", "forward#3": "forward", "forward#5": "forward#4", "forward#9": "forward#8",
    }  # fmt: skip
    assert units.only_pooled == {"forward"}


def linear_things(x):
    w = torch.full((8, 8), 0.5) * 2
    mask = torch.ones(8) > 0
    buf = torch.zeros(2, 1, 8, 8)
    buf[:, :, :4] = x[:, :, :4]
    x = torch.cat([x, buf], 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    x = (x @ w / 3 - 1).masked_fill(~mask, 0.0) + torch.where(mask, x, 0.0)
    x = F.avg_pool2d(F.pad(F.interpolate(x, scale_factor=2), (1, 1)), 2).flatten(1)
    return torch.addmm(x.mean(0), x, torch.eye(x.shape[1])).sum(1) * torch.sigmoid(w).mean()


def test_affine_calls_are_not_reported():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Dropout(),
        nn.ReLU(),
        nn.Conv2d(4, 1, 1),
        Call1(linear_things),
    ).eval()
    units, calls, _ = watch(model, torch.randn(2, 1, 8, 8))
    assert [s.name for s, _ in calls] == ["3"] and units.unsupported == []


def in_place_into_constant(x):
    buf = torch.zeros_like(x)
    view = buf[0]
    view.copy_(x[0])  # buf holds activations now, though nothing returned it
    return buf * x


REPORTED = {
    "gelu": nn.GELU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": torch.tanh,
    "silu": nn.SiLU(),
    "abs": abs,
    "softmax": nn.Softmax(1),
    "elu": lambda x: F.elu(x, inplace=True),
    "prelu": nn.PReLU(),
    "hardtanh": nn.ReLU6(),
    "clamp": lambda x: x.clamp(0, 1),
    "_threshold": nn.Threshold(0.5, 0.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "max": lambda x: x.max(),
    "amax": lambda x: x.amax(1),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "layer_norm": nn.LayerNorm(6),
    "batch_norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "dropout in training": nn.Dropout(),
    "mul of two activations": lambda x: x * (x + 1),
    "mul of two activations ": lambda x: x * (x > 0),
    "mul of two activations  ": in_place_into_constant,
    "matmul of two activations": lambda x: x.T.matmul(x),
    "div by an activation": lambda x: x.div(x),
    "__rdiv__": lambda x: 1 / x,
    "__getitem__ by an activation": lambda x: x[x > 0],
    "where by an activation": lambda x: torch.where(x > 0, x, 0.0),
    "float of integers or booleans": lambda x: (x > 0).float(),
    "to of integers or booleans": lambda x: x.long().to(torch.float32),
    "__setitem__ of integers or booleans": lambda x: torch.zeros(4, 6).__setitem__(0, x[0] > 0),
    "div that rounds or reads bits": lambda x: x.div(3, rounding_mode="floor"),
    "view that rounds or reads bits": lambda x: x.view(torch.float16),
    "item (a value the network may branch on)": lambda x: x * x.mean().item(),
    "__bool__ (a value the network may branch on)": lambda x: x if x.sum() > 0 else -x,
    "lstm": nn.Sequential(nn.LSTM(6, 6)),
}


@pytest.mark.parametrize("name", REPORTED)
def test_what_is_not_affine_is_reported(name):
    torch.manual_seed(0)
    units, calls, _ = watch(Call1(REPORTED[name]).train(), torch.randn(4, 6))
    assert calls == [] and units.unsupported[:1] == [name.rstrip()]


def test_units_of_weights_are_none():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 6))

        def forward(self, x):
            return F.relu(F.linear(x, F.relu(self.w) * torch.sigmoid(self.w)))

    units, calls, _ = watch(Net(), torch.randn(2, 6))
    assert [s.name for s, _ in calls] == ["forward"] and units.unsupported == []


def test_what_the_handler_returns_goes_on():
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    x = torch.randn(2, 3)
    _, _, y = watch(model, x, lambda s, c: c.run() + 1)
    assert torch.equal(y, F.relu(F.relu(x) + 1) + 1)


def test_hooks_and_modes_are_gone_after_an_error():
    model = fused()

    def fail(site, call):
        raise KeyError(site.name)

    units = Units(model, fail)
    with torch.no_grad(), pytest.raises(KeyError), units:
        model(torch.randn(1, 2, 8, 8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model(torch.randn(1, 2, 8, 8)).shape == (1, 3)


def test_find_units_leaves_the_mode_and_the_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout())
    model[2].eval()
    assert [s.name for s in find_units(model, torch.randn(4, 3))] == ["1"]
    assert model[0].training and not model[2].training and model[0].num_batches_tracked == 0
    both = Call1(None)
    both.forward = lambda a, b: F.relu(a - b)
    assert [s.shape for s in find_units(both, (torch.ones(1, 5), torch.zeros(1, 5)))] == [(5,)]


def test_exported_programs():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.ReLU()
    )
    x = torch.randn(1, 1, 8, 8)
    exported = torch.export.export(model.eval(), (x,)).module()
    assert [(s.kind, s.shape) for s in find_units(exported, x)] == [
        (s.kind, s.shape) for s in find_units(model, x)
    ]


def test_models_that_hide_their_units_are_refused():
    model = nn.Sequential(nn.ReLU())
    x = torch.randn(1, 3)
    for hidden, reason in (
        (torch.jit.trace(model, x), "TorchScript"),
        (nn.Sequential(torch.jit.script(nn.ReLU())), "module '0' is TorchScript"),
        (torch.compile(model), "compiled"),
        (nn.DataParallel(model), "DataParallel"),
    ):
        with pytest.raises(TypeError, match=reason):
            find_units(hidden, x)
    with pytest.raises(TypeError, match=r"expected model to be an nn\.Module, got function"):
        find_units(lambda x: x, x)
