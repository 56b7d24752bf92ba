"""``check_scalar_invariance``: what it names, what it lets pass, and what it refuses."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from invariance_nets import (
    CHANNELS,
    Embedded,
    Functional,
    LinearAttention,
    TransformerBlock,
    trained_resnet,
    vgg,
)
from torch import nn

import zbkernels as zb
from zbkernels.invariance import SCALARS, InvarianceReport
from zbkernels.invariance.degrees import powers_of_four, relative_deviation
from zbkernels.models import ARCHITECTURES, build

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = (1.0, 0.1, 1e-4, 10.0)


def check(model: nn.Module, x=None, scalars=FEW, **options) -> InvarianceReport:
    return zb.check_scalar_invariance(model, images() if x is None else x, scalars, **options)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*(shape or (4, 3, 8, 8)), generator=torch.Generator().manual_seed(seed))


class Lambda(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# --- what is invariant -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fcn-mnist", "cnn-fashion"])
@pytest.mark.parametrize("bias", [False, True])
def test_networks_of_the_package(name, bias):
    row = ARCHITECTURES[name]
    report = check(build(row, row.image, 5, bias=bias), images(1, *row.image), (1.0, 0.1))
    assert report.invariant == report.homogeneous == (not bias)
    assert (report.first_break is None) == (not bias)
    if bias:
        assert report.first_break.kind == "bias" and report.first_break.path in ("fc1", "conv1")
    else:
        assert report.worst_deviation < 1e-12 and {op.degree for op in report.operations} == {1}


HOMOGENEOUS = {
    "vgg": vgg(),
    "functional": Functional(bias=False),
    "fused": nn.Sequential(zb.nn.ConvReLUPool2d(3, 4, 3), nn.Flatten(), zb.nn.LinearReLU(36, 5, 1.0)),
    "leaky, prelu, average": nn.Sequential(
        nn.LeakyReLU(0.2), nn.PReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    ),
    "weight norm": nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(192, 5, bias=False))
    ),
    "spectral norm": nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(192, 5, bias=False))
    ),
    "branches that do nothing": Lambda(lambda x: x.flatten(1) * (x.sum() > -1)),
    "mask": Lambda(lambda x: torch.where(x.flatten(1) > 0, x.flatten(1), 0.0)),
    "square root of squares": Lambda(lambda x: x.square().sum((2, 3)).sqrt()),
    "cube root": Lambda(lambda x: x.pow(3).sum((2, 3)).pow(1 / 3)),
    "cancels to rounding": Lambda(lambda x: (x * 0.1 + x * 0.2 - x * 0.3).flatten(1)),
    "complex numbers": Lambda(lambda x: torch.fft.rfft2(x).abs().flatten(1)),
    "sorted": Lambda(lambda x: x.flatten(1).sort(1).values),
    "written in parts": Lambda(lambda x: _filled(x)),
}


def _filled(x):
    y = torch.empty(len(x), 6, dtype=x.dtype)
    y[:, :3] = x.sum((2, 3))
    y[:, 3:] = x.amax((2, 3))
    return y


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous(name):
    report = check(HOMOGENEOUS[name])
    assert report.homogeneous and report.invariant and report.first_break is None and not report.breaks, str(
        report
    )
    assert report.verdict == "scalar invariant: f(s·x) = s·f(x)"


def test_a_resnet_names_batch_norm_first():
    report = check(trained_resnet())
    assert not report.invariant and report.changed == 4
    assert (report.first_break.path, report.first_break.kind) == ("bn1", "batch norm")
    assert report.first_break.deviation > 1 and "bn1" in str(report)


def test_training_mode_and_random_state_are_left_alone():
    model, x = trained_resnet().train(), images()
    before, x_before, state = copy.deepcopy(model.state_dict()), x.clone(), torch.get_rng_state()
    check(model, x)
    assert all(module.training for module in model.modules()) and not any(
        m._forward_hooks for m in model.modules()
    )
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert torch.equal(x, x_before) and torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32 and torch.backends.mha.get_fastpath_enabled()


def test_powers_of_two_scale_bit_for_bit():
    rows = check(vgg(), scalars=(2.0**-13, 0.5, 4.0, 2.0**10)).scalars
    assert all(row.deviation == row.own_deviation == 0 for row in rows)
    assert check(vgg(), scalars=(0.1,)).scalars[0].own_deviation > 0  # 0.1 does not


# --- which operation breaks, and why -----------------------------------------------------------------------------


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm2d(CHANNELS)
    nn.init.normal_(norm.running_mean)
    return norm


# Layers [N, 4, H, W] -> the same, by kind
BREAKERS = {
    "bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "batch norm": batch_norm,
    "instance norm": lambda: nn.InstanceNorm2d(CHANNELS),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "layer norm": lambda: nn.LayerNorm(6),
    "RMS norm": lambda: nn.RMSNorm(6, eps=1e-3),
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "hard swish": nn.Hardswish,
    "clamp": nn.ReLU6,
    "softmax": lambda: nn.Softmax(1),
    "constant": lambda: Lambda(lambda x: x + 0.25),
}


def layer(kind: str) -> nn.Module:
    return {
        "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        "relu": lambda: nn.ReLU(inplace=True),
        "leaky": lambda: nn.LeakyReLU(0.1),
        "pool": lambda: nn.MaxPool2d(3, 1, 1),
        "mean": lambda: nn.AvgPool2d(3, 1, 1),
        "sum": lambda: zb.models.residual.Sum(nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)),
    }[kind]()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["conv", "relu", "leaky", "pool", "mean", "sum"]), min_size=1, max_size=5),
    st.sampled_from(sorted(BREAKERS)),
    st.data(),
)
def test_names_exactly_the_breaker(kinds, breaker, data):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), *map(layer, kinds)]
    head = [nn.Flatten(), nn.Linear(CHANNELS * 36, 3, bias=False)]
    x = images(2, 3, 6, 6) - 0.3
    place = data.draw(st.integers(1, len(layers)))
    layers.insert(place, BREAKERS[breaker]())
    report = check(nn.Sequential(*layers, *head), x, (1.0, 1e6))
    assume(not any(op.zero for op in report.operations))
    assert not report.homogeneous and report.breaks == (report.first_break,)
    first = report.first_break
    assert (first.path.split(".")[0], first.kind) == (str(place), breaker), str(report)
    before = [op for op in report.operations if op.index < first.index and op.path != first.path]
    assert all(op.degree == 1 for op in before)


NAMED = {
    "ELU": (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ELU(), nn.Flatten()), "1", "ELU", "not homogeneous"),
    "a function's bias": (Functional(bias=True), "forward", "bias", "offset"),
    "linear on sequences": (nn.Sequential(nn.Flatten(2), nn.Linear(64, 5)), "1", "bias", "1.bias"),
    "position embedding": (Embedded(position=True, token=False), "forward", "constant", "pos_embed"),
    "class token": (Embedded(position=False, token=True), "forward", "join", "cls_token"),
    "softmax inside": (Lambda(lambda x: x.flatten(1).softmax(1) @ torch.ones(192, 3).to(x)), "forward", "softmax", ""),
    "a threshold": (Lambda(lambda x: x.flatten(1).masked_fill(x.flatten(1) < 0.5, 0)), "forward", "comparison", ""),
    "a constant written": (Lambda(lambda x: _written(x)), "forward", "overwriting", "degree 0 and 1"),
    "a square added": (Lambda(lambda x: (x + x * x).flatten(1)), "forward", "mixed degrees", "degree 1 and 2"),
    "branch": (Lambda(lambda x: x.flatten(1) * (2 if x.sum() > 3 else 1)), "forward", "comparison", ""),
    "other operations": (Lambda(lambda x: _branches(x, x.sum() > 30)), "forward", "comparison", "compares"),
    "Python's numbers": (Lambda(lambda x: _branches(x, x.sum().item() > 30)), "forward", "control flow", "branches"),
    "rounding": (Lambda(lambda x: (x * 255).round().flatten(1)), "forward", "rounding", ""),
    "constants joined": (
        Lambda(lambda x: torch.cat([torch.ones_like(x), x], 1)), "forward", "join", "different degree: 0 and 1"
    ),
    "attention as a function": (Lambda(lambda x: _attention(x.flatten(2))), "forward", "softmax", ""),
    "a gate": (Lambda(lambda x: F.glu(x.flatten(1))), "forward", "GLU", ""),
    "bins": (Lambda(lambda x: torch.bucketize(x, torch.tensor([0.3]).to(x)) * x), "forward", "comparison", ""),
    "padding": (Lambda(lambda x: F.pad(x, (1, 1), value=1.5)), "forward", "constant", "pads with the constant 1.5"),
    "running products": (Lambda(lambda x: x.cumprod(3)), "forward", "product of activations", "cumprod"),
    "a remainder": (Lambda(lambda x: x % 0.3), "forward", "remainder", ""),
    "a division that rounds": (Lambda(lambda x: x.div(0.3, rounding_mode="floor")), "forward", "rounding", "div"),
    "a power of two": (Lambda(lambda x: 2.0**x), "forward", "exp", "a power of 2"),
    "recurrent": (nn.Sequential(nn.Flatten(2), nn.GRU(64, 3, bias=False)), "1", "sigmoid", ""),
}  # fmt: skip


def _attention(x):
    return F.scaled_dot_product_attention(x, x, x)


def _branches(x, other):
    return (x.neg() if other else x).flatten(1) * 2


def _written(x):
    y = x.flatten(1).clone()
    y[:, 0] = 1.0
    return y @ torch.ones(192, 3, dtype=x.dtype)


@pytest.mark.parametrize("name", NAMED)
def test_names_the_place_and_the_reason(name):
    model, path, kind, said = NAMED[name]
    report = check(model)
    assert not report.homogeneous
    assert (report.first_break.path, report.first_break.kind) == (path, kind), str(report)
    assert said in report.first_break.reason


def test_a_transformer_block():
    model = TransformerBlock()
    report = check(model, images(2, 5, 8))
    assert (
        not report.invariant
        and report.first_break.path == "norm1"
        and report.first_break.kind == "layer norm"
    )
    assert {"layer norm"} <= {op.kind for op in report.breaks}
    model.norm1, model.norm2 = nn.Identity(), nn.Identity()
    with torch.no_grad():
        model.attention.in_proj_bias.zero_()
    report = check(model, images(2, 5, 8))
    assert (report.first_break.path, report.first_break.kind) == ("attention", "attention")


def test_shared_modules_and_tied_weights():
    shared = nn.Linear(6, 6)
    with torch.no_grad():
        shared.bias.zero_()  # only the second of the two is a break
    tied = nn.Linear(6, 6)
    tied.weight = shared.weight
    report = check(nn.Sequential(shared, nn.ReLU(), shared, tied), images(3, 6))
    assert (report.first_break.path, report.first_break.reason) == ("3", "adds the bias '3.bias'")
    assert [op.path for op in report.operations] == ["0", "1", "0", "3"]


def test_a_break_that_the_outputs_do_not_depend_on_is_not_the_first():
    class Aside(nn.Module):
        def forward(self, x):
            torch.sigmoid(x)
            return F.relu(x).flatten(1) + 0.5

    report = check(Aside())
    assert report.first_break.kind == "constant" and [op.kind for op in report.breaks] == [
        "sigmoid",
        "constant",
    ]


def test_a_small_bias_is_found():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    with torch.no_grad():
        model[1].bias.fill_(1e-13)
    report = check(model)
    assert not report.invariant and report.first_break.path == "1" and report.worst_deviation < 1e-6


# --- degrees, and predictions that keep without homogeneity ------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "degree"),
    [
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(192, eps=0), nn.Linear(192, 5)), 0),
        (Lambda(lambda x: F.normalize(x.flatten(1), eps=0)), 0),
        (Lambda(lambda x: x.flatten(1) ** 2), 2),
        (Lambda(lambda x: x.flatten(1) ** 0.3), 0.3),
        (Lambda(lambda x: 1 / (x.flatten(1) + x.max())), -1),
    ],
)
def test_other_degrees_keep_predictions(model, degree):
    report = check(model)
    assert report.invariant and not report.homogeneous and report.outputs[0].degree == pytest.approx(degree)
    assert report.changed == 0 and report.worst_deviation < 1e-9 and not report.breaks
    assert report.first_break is not None and not report.first_break.breaks


def test_attention_without_softmax_is_of_degree_three():
    report = check(LinearAttention(), images(3, 5, 6))
    assert report.outputs[0].degree == 3 and report.invariant
    assert [op.degree for op in report.operations if op.function == "bmm"] == [2, 3]
    assert report.first_break.kind == "product of activations"


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), nn.Tanh()])
def test_a_last_step_that_keeps_the_order(last):
    assert check(nn.Sequential(vgg(), last)).invariant
    broken = check(nn.Sequential(vgg(bias=True), last))
    assert not broken.invariant and broken.first_break.kind == "bias"


def test_a_last_step_times_a_number():
    def ends(step):
        return check(nn.Sequential(vgg(), Lambda(step))).outputs[0]

    assert ends(lambda y: 2 * y.softmax(1)).through == ends(lambda y: y.softmax(1) / 3).through == "_softmax"
    assert not ends(lambda y: -2 * y.softmax(1)).invariant
    assert not ends(lambda y: y.sigmoid().div(0.3, rounding_mode="floor")).invariant


def test_a_softmax_along_another_dimension_is_no_such_step():
    assert not check(nn.Sequential(vgg(), nn.Softmax(0))).invariant
    images_of_classes = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.Softmax(1))
    assert check(images_of_classes).invariant and not check(images_of_classes, class_dim=-1).invariant


def test_unchanged_predictions_of_a_biased_network_are_no_invariance():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with torch.no_grad():
        model[1].weight.fill_(0.01)
        model[1].weight[0] = 1
        model[1].bias.copy_(torch.tensor([1e-9, 0.0]))
    report = check(model)
    assert report.changed == 0 and not report.invariant and "which nothing guarantees" in report.verdict
    for of_it in (
        lambda y: y.argmax(1),
        lambda y: F.one_hot(y.argmax(1), 2).double(),
        lambda y: y.max(1).indices + 1,
    ):
        chosen = check(nn.Sequential(model, Lambda(of_it)))
        assert not chosen.invariant and chosen.first_break.path == "0.1"
    model[1].bias = None
    assert check(nn.Sequential(model, Lambda(lambda y: y.argmax(1)))).invariant


def test_what_is_zero_now_is_told():
    norm = check(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten()))
    assert norm.invariant and norm.latent.path == "1" and norm.latent.kind == "batch norm"
    assert "until it is trained" in str(norm)
    zero = nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False))
    nn.init.zeros_(zero[1].weight)
    report = check(zero)
    assert report.outputs[0].zero and report.latent is None and "every output is 0" in str(report)


# --- rounding and underflow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_half_precision_is_told_from_structure(dtype, bias):
    torch.manual_seed(0)
    model = vgg(bias).to(dtype)
    report = check(model, images(64, 3, 8, 8).to(dtype) * 0.05, SCALARS)
    assert report.precision == "float64" and report.dtype == str(dtype).split(".")[1]
    assert report.homogeneous == (not bias)
    least = report.scalars[SCALARS.index(1e-4)]
    if bias:
        assert least.cause == "" and report.first_break.path == "0"
        return
    assert least.changed == 0 and least.deviation < 1e-12 and report.scalars[0].own_deviation == 0
    if dtype == torch.float16:
        assert least.below > 1000 and least.own_deviation > 0.01 and least.own_changed
        assert least.cause in ("underflow", "rounding (near ties)")
        assert least.cause in str(report) and "not by structure" in str(report)
    else:  # bfloat16 has float32's range
        assert least.below == 0 and least.own_deviation < 0.1


def test_float16_of_values_too_small_underflows_by_name():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False)).half()
    report = check(model, (images(32, 3, 8, 8) * 1e-4).half(), (1.0, 1e-4))
    assert report.homogeneous and report.scalars[1].own_changed > 0
    assert report.scalars[1].cause == "underflow" and report.scalars[1].own_deviation == 1


def test_models_that_run_in_one_precision_only():
    model = Lambda(lambda x: F.linear(x.flatten(1).float(), torch.ones(5, 192) / 7) + 0.0)
    model.register_parameter("w", nn.Parameter(torch.ones(5, 192)))
    for bias in (0.0, 0.5):
        model.function = lambda x, bias=bias: F.linear(x.flatten(1).float(), model.w) + bias
        report = check(model)
        assert report.homogeneous == (bias == 0), str(report)
    half = nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False))
    half.register_forward_pre_hook(lambda m, args: _only_float32(args[0]))
    report = check(half)
    assert report.precision == "float32" and report.homogeneous and "cannot be run in float64" in str(report)
    alone = nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False))
    alone[1].lock = threading.Lock()  # deepcopy cannot copy it
    report = check(alone)
    assert report.homogeneous and all(
        f"cannot be run in {kind} (" in str(report) for kind in ("float64", "float32")
    )


def _only_float32(x):
    if x.dtype != torch.float32:
        raise RuntimeError("float32 only")


# --- forms of models, inputs and outputs -------------------------------------------------------------------------


def test_scripted_compiled_and_exported_models():
    for bias in (False, True):
        model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=bias), nn.ReLU(), nn.Flatten()).eval()
        exported = torch.export.export(model, (images(),)).module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.jit, which is going away
            scripted = torch.jit.script(model)
        for form in (exported, scripted, torch.compile(model)):
            report = check(form)
            assert report.homogeneous == (not bias), str(report)
            assert not bias or report.first_break.kind == "bias"


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Answer:
    logits: torch.Tensor
    extra: dict


class Many(nn.Module):
    """Two inputs, a mask and outputs in every container."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3, bias=False)

    def forward(self, pair, mask, flag=True):
        y = self.fc(pair.left) * mask.unsqueeze(1) + self.fc(pair.right)
        return Answer(y, {"hidden": [F.relu(y)], "class": y.argmax(1), "flag": flag})


def test_containers():
    inputs = (Pair(images(4, 6), images(4, 6, seed=1)), torch.tensor([1, 0, 1, 1]))
    for x in (inputs, {"pair": inputs[0], "mask": inputs[1]}):
        report = check(Many(), x)
        assert [(o.name, o.degree) for o in report.outputs] == [
            ("logits", 1),
            ("extra.hidden.0", 1),
            ("extra.class", 0),
        ]
        assert report.invariant and report.predictions == 8 and report.changed == 0


def test_one_score_is_judged_by_its_sign():
    report = check(nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), images() - 0.5)
    assert report.predictions == 4 and report.changed > 0
    assert check(nn.Sequential(nn.Flatten(), nn.Linear(192, 1, bias=False), nn.Flatten(0))).predictions == 4


class Carries(nn.Module):
    def forward(self, x):
        self.state = getattr(self, "state", 0) + x.flatten(1)
        return self.state


@pytest.mark.parametrize(
    ("model", "x", "error", "said"),
    [
        (lambda x: x, None, TypeError, "expected model to be an nn.Module, got function"),
        (vgg(), torch.zeros(2, 3, 8, 8), ValueError, "expected x that is not 0 everywhere"),
        (
            vgg(),
            torch.ones(2, 3, 8, 8, dtype=torch.uint8),
            TypeError,
            "expected a floating-point x, got torch.uint8",
        ),
        (vgg(), torch.full((2, 3, 8, 8), torch.nan), ValueError, "expected finite x"),
        (vgg(), torch.rand(0, 3, 8, 8), ValueError, "holds values, got an empty one of shape [0, 3, 8, 8]"),
        (vgg(), "images", TypeError, "expected x to be a tensor, a tuple or list"),
        (Lambda(lambda x: "cat"), None, TypeError, "expected the model to return tensors"),
        (Lambda(lambda x: F.dropout(x, 0.5)), None, ValueError, "bernoulli_ in 'forward'"),
        (
            nn.Sequential(nn.Flatten(), Lambda(lambda x: x + torch.randn_like(x))),
            None,
            ValueError,
            "'1' (Lambda)",
        ),
        (Carries(), None, ValueError, "a state that is carried on"),
    ],
)
def test_refusals(model, x, error, said):
    with pytest.raises(error, match=r"^check_scalar_invariance: ") as caught:
        check(model, x)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "scalars",
    [(), (0.0,), (-1.0,), (float("nan"),), (float("inf"),), 0.5, None, "10", (1.0, "a"), torch.tensor(2.0)],
)
def test_scalars_that_are_none(scalars):
    with pytest.raises(ValueError, match="expected positive finite scalars"):
        check(vgg(), scalars=scalars)


def test_scalars_far_away():
    report = check(nn.Sequential(nn.Flatten(), LinearSquare()), scalars=(1e-300, 1e300))
    assert report.outputs[0].degree == 2 and report.invariant


class LinearSquare(nn.Module):
    def forward(self, x):
        return (x @ torch.ones(192, 3, dtype=x.dtype)).square()


def test_an_error_of_the_model_is_its_own():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        check(nn.Sequential(nn.Flatten(), nn.Linear(3, 3)))


def test_old_weight_norm_is_checked_in_float64():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = nn.utils.weight_norm(nn.Linear(192, 5, bias=False))
    report = check(nn.Sequential(nn.Flatten(), normed))
    assert report.homogeneous and report.precision == "float64" and not report.notes


def test_unused_noise_is_no_refusal():
    class Noisy(nn.Module):
        def forward(self, x):
            torch.randn(3)
            return x.flatten(1) * 2

    assert check(Noisy()).homogeneous


def test_json():
    one = check(Lambda(lambda x: x.flatten(1) * 2))
    assert "(1 operation, compared in float64)" in str(one)
    values = json.loads(json.dumps(check(trained_resnet()).to_json(), allow_nan=False))
    assert values["first_break"]["path"] == "bn1" and values["invariant"] is False
    assert [row["scalar"] for row in values["scalars"]] == list(FEW) and values["operations"][0][
        "degree"
    ] == 1


def test_powers_of_four():
    assert powers_of_four([0.1, 1.0]) == [0.25, 4.0, 0.0625, 16.0]
    assert powers_of_four([1e-4, 100.0])[-2:] == [64.0, 4.0**-7]


def test_deviation_of_what_is_not_finite():
    base = torch.tensor([1.0, torch.inf, torch.nan])
    assert relative_deviation(torch.tensor([2.0, torch.inf, torch.nan]), base, 2.0) == 0
    assert relative_deviation(torch.tensor([3.0, torch.inf, torch.nan]), base, 2.0) == 0.5
    for other in ([2.0, -torch.inf, torch.nan], [2.0, torch.inf, 0.0], [torch.nan, torch.inf, torch.nan]):
        assert relative_deviation(torch.tensor(other), base, 2.0) == torch.inf
