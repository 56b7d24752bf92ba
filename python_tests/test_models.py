"""The same network in its three forms: with bias, without on torch's layers, without on the fused layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zbkernels.models import (
    ARCHITECTURES,
    Architecture,
    Conv,
    Linear,
    Residual,
    ResNet,
    build,
    initialise,
    layer_kernels,
    parameter_count,
)

SHAPE = (1, 28, 28)
# test_resnets.py has the others
SEQUENCES = {name: row for name, row in ARCHITECTURES.items() if not isinstance(row, ResNet)}
SMALL = Architecture("small", (Conv(6), Conv(4, kernel=5, pool=1), Linear(12)))
SKIP = Architecture("skip", (Conv(4), Residual(pool=2)), image=(3, 8, 8))


@pytest.mark.parametrize("name", SEQUENCES)
def test_forms_share_keys_and_weights(name: str) -> None:
    row = ARCHITECTURES[name]
    fused = build(row, row.image, 10, seed=3).state_dict()
    plain = build(row, row.image, 10, fused=False, seed=3).state_dict()
    biased = build(row, row.image, 10, bias=True, seed=3).state_dict()
    assert list(fused) == list(plain)
    assert all(key.endswith(".weight") for key in fused)
    assert set(biased) == set(plain) | {key.replace("weight", "bias") for key in plain}
    for key, value in plain.items():
        assert torch.equal(value, fused[key])
        assert torch.equal(value, biased[key])
    for key in plain:
        bound = plain[key][0].numel() ** -0.5
        bias = biased[key.replace("weight", "bias")]
        assert 0.2 * bound < bias.abs().max() <= bound


@pytest.mark.parametrize("row", [*SEQUENCES.values(), SMALL, SKIP], ids=lambda row: row.name)
def test_fused_and_plain_give_the_same_logits(row: Architecture) -> None:
    images = torch.rand(5, *row.image)
    fused, plain = build(row, row.image, 10), build(row, row.image, 10, fused=False)
    torch.testing.assert_close(fused(images), plain(images), rtol=1e-4, atol=1e-5)


def test_checkpoints_move_between_the_forms() -> None:
    images = torch.rand(3, *SHAPE)
    fused = build(SMALL, SHAPE, 10, seed=1)
    plain = build(SMALL, SHAPE, 10, fused=False, seed=2)
    plain.load_state_dict(fused.state_dict())
    torch.testing.assert_close(plain(images), fused(images), rtol=1e-4, atol=1e-5)
    other = build(SMALL, SHAPE, 10, seed=4)
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other(images), fused(images))


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_without_bias_the_network_is_homogeneous(fused: bool) -> None:
    model = build(SMALL, SHAPE, 10, fused=fused)
    images = torch.rand(4, *SHAPE)
    assert torch.equal(
        model(images * 0.125), model(images) * 0.125
    )  # a power of two: exact in floating point
    assert not model(torch.zeros(1, *SHAPE)).any()


def test_which_layers_are_used() -> None:
    from zbkernels.nn import ConvReLUPool2d, LinearReLU

    fused = build(SMALL, SHAPE, 10)
    assert isinstance(fused.conv1, ConvReLUPool2d)
    assert isinstance(fused.fc3, LinearReLU)
    for model in (build(SMALL, SHAPE, 10, bias=True), build(SMALL, SHAPE, 10, fused=False)):
        assert all(type(module).__module__.startswith("torch.") for module in model)
    assert isinstance(fused.classifier, nn.Linear)


def test_initialisation_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = build(SMALL, SHAPE, 10, seed=5).state_dict()
    torch.manual_seed(2)
    torch.rand(3)
    model = build(SMALL, SHAPE, 10, seed=5)
    assert all(torch.equal(value, one[key]) for key, value in model.state_dict().items())
    other = build(SMALL, SHAPE, 10, seed=6).state_dict()
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])
    state = torch.get_rng_state()
    initialise(model, 7)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_have_he_variance() -> None:
    model = build(Architecture("wide", (Conv(64), Linear(256))), SHAPE, 10, fused=False, seed=0)
    assert model.conv1.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.1)
    fan_in = 64 * 14 * 14
    assert model.fc2.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02)


def test_initialisation_does_not_depend_on_the_memory_format() -> None:
    one = build(SMALL, SHAPE, 10, fused=False, seed=5)
    two = build(SMALL, SHAPE, 10, fused=False, seed=6).to(memory_format=torch.channels_last)
    initialise(two, 5)
    assert torch.equal(one.conv2.weight, two.conv2.weight)
    assert two.conv2.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_a_residual_adds_its_input(fused: bool) -> None:
    model = build(SKIP, SKIP.image, 10, fused=fused)
    x = torch.randn(2, 4, 4, 4)
    first, second = (model.residual2.inside.get_parameter(f"conv{i}.weight") for i in (1, 2))
    inside = x
    for weight in (first, second):
        inside = torch.relu(torch.conv2d(inside, weight, padding=1))
    torch.testing.assert_close(model.residual2(x), x + inside)
    assert model.pool2(x).shape == (2, 4, 2, 2)
    assert str(SKIP) == "conv3×3(4)-pool2-residual3×3-pool2-fc(classes)"


def test_each_fused_layer_names_its_kernels() -> None:
    model, images = build(SMALL, SHAPE, 10), torch.rand(2, *SHAPE)
    with torch.no_grad():
        forward = layer_kernels(model, lambda: model(images))
    both = layer_kernels(model, lambda: model(images).sum().backward())
    assert list(forward) == list(both) == ["conv1", "conv2", "fc3"]
    assert [ran[:1] for ran in both.values()] == list(forward.values())
    assert all(len(ran) == 2 for ran in both.values())
    assert both["fc3"][1] == "torch"  # whose own its backward is
    assert layer_kernels(build(SMALL, SHAPE, 10, fused=False), lambda: None) == {}
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_sizes_and_names() -> None:
    assert str(SMALL) == "conv3×3(6)-pool2-conv5×5(4)-fc(12)-fc(classes)"
    assert parameter_count(build(SMALL, SHAPE, 10)) == 6 * 9 + 4 * 6 * 25 + 12 * 4 * 14 * 14 + 10 * 12
    only_convs = build(Architecture("convs", (Conv(2),)), (3, 8, 8), 7)
    assert only_convs(torch.rand(2, 3, 8, 8)).shape == (2, 7)
    assert build(Architecture("linear", ()), (1, 8, 8), 3)(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_what_cannot_be_built_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="fused layers have no bias; expected fused=False"):
        build(SMALL, SHAPE, 10, bias=True, fused=True)
    with pytest.raises(ValueError, match="odd: expected convolutions before linear layers"):
        build(Architecture("odd", (Linear(3), Conv(2))), SHAPE, 10)
    with pytest.raises(ValueError, match="deep: block 3 pools 2×2, got a map of 1×1 from images of shape"):
        build(Architecture("deep", (Conv(2), Conv(2), Conv(2))), (1, 4, 4), 10)
    with pytest.raises(ValueError, match="even: expected an odd kernel, got 4"):
        build(Architecture("even", (Conv(2, kernel=4),)), SHAPE, 10)
