"""Residual networks in their four styles: against their formulas, between their forms, at initialisation."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zbkernels.models import ARCHITECTURES, ResNet, build, initialise, layer_kernels, parameter_count, resnet
from zbkernels.models.fixup import branch_scale
from zbkernels.models.normalizer_free import RELU_GAIN, StandardizedConv2d, standardized
from zbkernels.nn import ConvReLUPool2d

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = {name: row for name, row in ARCHITECTURES.items() if isinstance(row, ResNet)}
ZERO_BIAS = [name for name, row in ROWS.items() if row.style != "bn"]
IMAGE = (3, 14, 13)


def tiny(row: ResNet, width: int = 5) -> ResNet:
    """The row with few and narrow blocks; among them one of each kind."""
    return replace(row, width=width, depths=(2, 1, 1))


def stirred(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, with nothing left at 0 or at 1; multipliers of either sign, running statistics that are none."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value.add_(noise.abs() if name.endswith("running_var") else 0.3 * noise)
            if "multiplier" in name and noise.sum() > 0:
                value.neg_()
    return model


def images(count: int = 2, shape: tuple[int, int, int] = IMAGE) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(model: nn.Module, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits.square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture
def fused_as_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches of a few channels end in the layer with which those of 64 and more end."""
    monkeypatch.setattr(resnet, "_IDENTITY_FROM", 1)


# --- forms


@pytest.mark.parametrize("name", ZERO_BIAS)
def test_forms_share_keys_and_weights(name: str) -> None:
    row = tiny(ROWS[name])
    fused = build(row, IMAGE, 10, seed=3).state_dict()
    plain = build(row, IMAGE, 10, fused=False, seed=3).state_dict()
    biased = build(row, IMAGE, 10, bias=True, seed=3).state_dict()
    assert list(fused) == list(plain)
    assert not any(word in key for key in plain for word in ("bias", "shift"))
    added = set(biased) - set(plain)
    assert set(plain) < set(biased) and all(key.rsplit(".")[-1].endswith(("bias", "shift")) for key in added)
    for key, value in plain.items():
        assert torch.equal(value, fused[key]) and torch.equal(value, biased[key])
    if row.style != "fixup":
        assert added == {key.replace("weight", "bias") for key in plain if key.endswith("weight")}


@pytest.mark.usefixtures("fused_as_wide_ones")
@pytest.mark.parametrize("name", ZERO_BIAS)
def test_fused_and_plain_agree_in_value_and_gradients(name: str) -> None:
    row = tiny(ROWS[name])
    fused = stirred(build(row, IMAGE, 10))
    plain = build(row, IMAGE, 10, fused=False).double()
    plain.load_state_dict(fused.state_dict())
    x = images()
    ours, theirs = fused(x), plain(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    expected = gradients(plain, theirs)
    for key, gradient in gradients(fused, ours).items():
        torch.testing.assert_close(
            gradient, expected[key], rtol=1e-8, atol=1e-10 * float(expected[key].abs().max()) + 1e-12
        )
        assert gradient.any(), key


@pytest.mark.usefixtures("fused_as_wide_ones")
@pytest.mark.parametrize("form", ["fused", "plain"])
@pytest.mark.parametrize("name", ZERO_BIAS)
def test_without_bias_the_network_is_homogeneous(name: str, form: str) -> None:
    model = stirred(build(tiny(ROWS[name]), IMAGE, 10, fused=form == "fused"))
    x = images()
    logits = model(x)
    assert logits.abs().min() > 0
    for s in (1e-4, 0.05, 7.3):
        torch.testing.assert_close(model(s * x), s * logits, rtol=1e-9, atol=0)
    assert not model(0 * x).any()


@pytest.mark.parametrize("name", ROWS)
def test_with_bias_it_is_not(name: str) -> None:
    model = stirred(build(tiny(ROWS[name]), IMAGE, 10, bias=True))
    logits, dark = model(images()), model(0.05 * images())
    assert (dark - 0.05 * logits).norm() > 0.1 * 0.05 * logits.norm()


@pytest.mark.parametrize("name", ROWS)
def test_copies_and_pickles_are_the_same_network(name: str) -> None:
    model = build(tiny(ROWS[name]), IMAGE, 10, bias=ROWS[name].style == "bn").eval()
    x = images().float()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        with torch.no_grad():
            other.fc.weight.add_(1)
        assert not torch.equal(other(x), model(x))


@pytest.mark.parametrize("name", ["resnet18", "resnet50-fixup", "resnet50-nf"])
def test_fused_networks_run_in_every_memory_format(name: str) -> None:
    model = build(tiny(ROWS[name], width=16), IMAGE, 10)
    with torch.no_grad():
        model.fc.weight.normal_()
        expected = model(images().float())
        model.to(memory_format=torch.channels_last)
        found = model(images().float().to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


# --- shapes


@pytest.mark.parametrize(
    ("name", "classes", "bias", "parameters"),
    [
        (
            "resnet18",
            10,
            False,
            11_173_962 - 9_600 - 10,
        ),  # of the form with batch normalisation, which has 9,600
        ("resnet18-bn", 10, True, 11_173_962),
        (
            "resnet50-bn",
            1000,
            True,
            25_557_032,
        ),  # this and the next two: as published for torchvision's models
        ("resnet18-imagenet-bn", 1000, True, 11_689_512),
        ("resnet34-imagenet-bn", 1000, True, 21_797_672),
        ("resnet18-fixup", 10, False, 11_164_352 + 8 * 3),
        # and shifts: 4 a block, 1 before each of 3 shortcut convolutions, 2 outside, fc's 10
        ("resnet18-fixup", 10, True, 11_164_352 + 8 * 3 + 8 * 4 + 3 + 2 + 10),
        ("resnet50-fixup", 1000, False, 25_557_032 - 53_120 - 1000 + 16 * 5),
        ("resnet50-nf", 1000, False, 25_557_032 - 53_120 // 2 - 1000),  # a gain a channel
    ],
)
def test_parameters_are_counted_as_published(name: str, classes: int, bias: bool, parameters: int) -> None:
    assert parameter_count(build(ROWS[name], ROWS[name].image, classes, bias=bias)) == parameters


def test_maps_halve_where_they_should() -> None:
    seen: list[tuple[int, ...]] = []
    for name, image in (("resnet18", (3, 32, 32)), ("resnet50", (3, 64, 64))):
        model = build(replace(ROWS[name], width=2), image, 10)
        for layer in (model.conv1, model.layer1, model.layer2, model.layer3, model.layer4):
            layer.register_forward_hook(lambda _, __, y: seen.append(tuple(y.shape[1:])))
        model(torch.rand(1, *image))
    assert seen == [
        *((2, 32, 32), (2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)),
        *((2, 16, 16), (8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)),
    ]


def test_which_layers_are_fused() -> None:
    model = build(ROWS["resnet50"], (3, 224, 224), 10)
    assert model.conv1.pool_arguments | {"pool": "max", "pool_kernel": 3, "pool_stride": 2} == (
        model.conv1.pool_arguments
    )
    block = model.layer2[0]
    kinds = [type(layer) for layer in (block.conv1, block.conv2, block.conv3, block.downsample[0])]
    assert kinds == [ConvReLUPool2d, ConvReLUPool2d, nn.Conv2d, nn.Conv2d]
    last = build(ROWS["resnet18"], (3, 32, 32), 10).layer1[0].conv2
    assert last.pool_arguments["negative_slope"] == 1.0
    narrow = build(ROWS["resnet18-w16"], (3, 32, 32), 10)
    assert [type(narrow.get_submodule(f"layer{k}.1.conv2")) for k in (1, 2, 3, 4)] == [
        *(nn.Conv2d, nn.Conv2d),
        *(ConvReLUPool2d, ConvReLUPool2d),
    ]
    for bias in (False, True):
        plain = build(tiny(ROWS["resnet18-nf"]), IMAGE, 10, bias=bias, fused=False)
        assert not any(isinstance(layer, ConvReLUPool2d) for layer in plain.modules())


@pytest.mark.usefixtures("fused_as_wide_ones")
@pytest.mark.parametrize("name", ["resnet18", "resnet18-fixup", "resnet18-nf"])
def test_each_fused_layer_names_its_kernels(name: str) -> None:
    model = build(tiny(ROWS[name]), IMAGE, 10)
    ran = layer_kernels(model, lambda: model(images().float()).sum().backward())
    branches = [f"layer{k}.{i}.conv{j}" for k, i in ((1, 0), (1, 1), (2, 0), (3, 0)) for j in (1, 2)]
    assert list(ran) == ["conv1", *branches]
    assert all(len(kernels) == 2 for kernels in ran.values())


# --- formulas


def test_a_plain_block_adds_its_input_before_the_relu() -> None:
    model = stirred(build(tiny(ROWS["resnet18"]), IMAGE, 10))
    block, x = model.layer2[0], torch.randn(2, 5, 6, 6, dtype=torch.float64)
    h = F.conv2d(torch.relu(F.conv2d(x, block.conv1.weight, None, 2, 1)), block.conv2.weight, None, 1, 1)
    torch.testing.assert_close(block(x), torch.relu(h + F.conv2d(x, block.downsample[0].weight, None, 2)))


@pytest.mark.usefixtures("fused_as_wide_ones")
@pytest.mark.parametrize("form", ["fused", "plain", "bias"])
@pytest.mark.parametrize("name", ["resnet18-fixup", "resnet50-fixup"])
def test_a_fixup_block_scales_before_each_layer(name: str, form: str) -> None:
    """Appendix B, step 3, multiplier by multiplier; with bias the Fixup paper's shifts after them."""
    model = stirred(build(tiny(ROWS[name]), IMAGE, 10, bias=form == "bias", fused=form == "fused"))
    block = model.layer2[0]
    x = torch.randn(2, block.conv1.in_channels, 6, 6, dtype=torch.float64)
    convs = [block.get_submodule(f"conv{i}") for i in range(1, 3 if name == "resnet18-fixup" else 4)]

    def shift(h: torch.Tensor, scalar: torch.Tensor | None) -> torch.Tensor:
        return h if form != "bias" else h + scalar

    h = x
    for number, conv in enumerate(convs, start=1):
        h = shift(h * conv.multiplier, getattr(conv, "shift", None))
        h = F.conv2d(h, conv.weight, None, conv.stride, conv.padding)
        if number < len(convs):
            h = torch.relu(shift(h * conv.relu_multiplier, getattr(conv, "relu_shift", None)))
    assert convs[-1].relu_multiplier is None
    h = shift(h, getattr(convs[-1], "relu_shift", None))
    before = shift(x, block.downsample.shift.shift if form == "bias" else None)
    expected = torch.relu(h + F.conv2d(before, block.downsample.get_submodule("0").weight, None, 2))
    found = block(x)
    torch.testing.assert_close(found, expected)
    wanted = gradients(block, expected)
    for key, gradient in gradients(block, found).items():
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("name", "layers"), [("resnet18-fixup", 2), ("resnet50-fixup", 3)])
def test_fixup_starts_as_appendix_b_says(name: str, layers: int) -> None:
    row = replace(ROWS[name], width=4)
    fixup = build(row, IMAGE, 10, seed=2, bias=True).state_dict()
    he = build(replace(row, style="plain"), IMAGE, 10, seed=2).state_dict()
    scale = sum(row.depths) ** (-1 / (2 * layers - 2))
    assert branch_scale(sum(row.depths), layers) == scale
    for key, value in he.items():
        if key == "fc.weight" or key.endswith(f".conv{layers}.weight"):
            assert not fixup[key].any(), key
        elif key == "conv1.weight" or "downsample" in key:
            assert torch.equal(fixup[key], value), key
        else:
            torch.testing.assert_close(fixup[key], value * scale, rtol=1e-6, atol=0)
    for key, value in fixup.items():
        if key not in he:
            assert torch.equal(value, torch.full_like(value, float("multiplier" in key))), key


@pytest.mark.usefixtures("fused_as_wide_ones")
@pytest.mark.parametrize("form", ["fused", "plain", "bias"])
@pytest.mark.parametrize("name", ["resnet18-nf", "resnet50-nf"])
def test_a_normaliser_free_block_is_x_plus_alpha_g_of_x_over_beta(name: str, form: str) -> None:
    row = tiny(ROWS[name])
    model = stirred(build(row, IMAGE, 10, bias=form == "bias", fused=form == "fused"))
    variance = 1.0
    for block in (*model.layer1, *model.layer2, *model.layer3):
        x = torch.randn(2, block.conv1.in_channels, 5, 5, dtype=torch.float64)
        beta = variance**0.5
        h = RELU_GAIN * torch.relu(x / beta)

        def conv(h: torch.Tensor, layer: nn.Module) -> torch.Tensor:
            weight = standardized(layer.weight, layer.gain)
            bias = getattr(layer, "bias", None)
            assert (bias is not None) == (form == "bias")
            return F.conv2d(h, weight, bias, layer.stride, layer.padding)

        shortcut = x if block.downsample is None else conv(h, block.downsample[0])
        last = 2 if row.block == "basic" else 3
        for number in range(1, last):
            h = RELU_GAIN * torch.relu(conv(h, block.get_submodule(f"conv{number}")))
        expected = shortcut + row.alpha * conv(h, block.get_submodule(f"conv{last}"))
        torch.testing.assert_close(block(x), expected)
        variance = (variance if block.downsample is None else 1.0) + row.alpha**2


def test_standardised_filters_have_no_mean_and_the_norm_of_their_gain() -> None:
    weight = torch.randn(5, 3, 3, 3, dtype=torch.float64) * 7 + 2
    gain = torch.tensor([1.0, 2.0, -1.0, 0.5, 0.0], dtype=torch.float64).view(5, 1, 1, 1)
    made = standardized(weight, gain)
    torch.testing.assert_close(made.mean((1, 2, 3)), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(made.square().sum((1, 2, 3)), gain.flatten() ** 2)
    torch.testing.assert_close(made, standardized(weight * 100 - 30, gain))
    torch.autograd.gradcheck(standardized, (weight.requires_grad_(), gain.requires_grad_()))


def test_a_filter_of_equal_weights_becomes_zero() -> None:
    weight, gain = torch.full((2, 1, 1, 1), 3.0, requires_grad=True), torch.ones(2, 1, 1, 1)
    made = standardized(weight, gain)
    made.sum().backward()
    assert torch.equal(made, torch.zeros(2, 1, 1, 1)) and weight.grad.isfinite().all()


def test_variance_grows_as_expected_from_block_to_block() -> None:
    """On maps so large, and so wide, that the zeros around them and the few filters matter little."""
    row = replace(ROWS["resnet18-nf"], width=96, depths=(4, 3), alpha=0.6)
    model = build(row, (3, 48, 48), 10, seed=1)
    found: dict[str, float] = {}
    for name, layer in model.named_modules():
        if name == "conv1" or name.count(".") == 1 or name.endswith(".conv2"):
            layer.register_forward_hook(lambda _, __, y, name=name: found.update({name: y.var().item()}))
    with torch.no_grad():
        model(torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(0)))
    grows = [1 + k * 0.36 for k in range(1, 5)]
    expected = {f"layer1.{k}": value for k, value in enumerate(grows)}
    expected |= {f"layer2.{k}": value for k, value in enumerate(grows[:3])}  # it started again at 1
    expected |= {f"{name}.conv2": 0.36 for name in list(expected)} | {"conv1": 1.0}
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.1), name


# --- building


def test_initialise_starts_everything_again() -> None:
    for name in ("resnet18-fixup", "resnet18-nf", "resnet18-bn"):
        model = build(tiny(ROWS[name]), IMAGE, 10, bias=True, seed=5)
        before = copy.deepcopy(model.state_dict())
        stirred(model).float()
        initialise(model, 5)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_cannot_be_built_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"resnet50-bn: batch normalisation shifts, .*expected bias=True"):
        build(ROWS["resnet50-bn"], (3, 224, 224), 10)
    with pytest.raises(ValueError, match="fused layers have no bias; expected fused=False"):
        build(ROWS["resnet18"], (3, 32, 32), 10, bias=True, fused=True)
    for wrong, message in (
        ({"style": "layer"}, "mine: expected style to be one of plain, fixup, nf, bn, got 'layer'"),
        ({"block": "wide"}, "mine: expected block to be one of basic, bottleneck, got 'wide'"),
        ({"stem": "svhn"}, "mine: expected stem to be one of cifar, imagenet, got 'svhn'"),
        ({"depths": (2, 0)}, r"at least one block in each stage and width ≥ 1, got depths \(2, 0\)"),
        ({"width": 0}, "at least one block in each stage and width ≥ 1, got depths .* and width 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(ROWS["resnet18"], name="mine", **wrong)


def test_rows_print_themselves_each_its_own_way() -> None:
    assert str(ROWS["resnet50-nf"]) == (
        "conv7×7/2(64)-pool3/2-3×bottleneck(64)-4×bottleneck(128)-6×bottleneck(256)-3×bottleneck(512)"
        "-average-fc(classes), nf 0.2"
    )
    assert str(ROWS["resnet18-w16"]).startswith("conv3×3(16)-2×basic(16)-2×basic(32)")
    assert len({str(row) for row in ARCHITECTURES.values()}) == len(ARCHITECTURES)


def test_a_standardised_layer_prints_as_a_convolution() -> None:
    assert repr(StandardizedConv2d(2, 3, 3, 2, 1)).startswith("StandardizedConv2d(2, 3, kernel_size=(3, 3)")
