"""The layers: arguments, state_dict and repr as torch users expect them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zbkernels as zb


def test_a_conv_checkpoint_loads_and_gives_the_same() -> None:
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    layer = zb.nn.ConvReLUPool2d(3, 8, 3, padding=1)
    layer.load_state_dict(conv.state_dict())
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(layer(x), nn.functional.max_pool2d(conv(x).relu(), 2), rtol=1e-5, atol=1e-5)
    conv.load_state_dict(layer.state_dict())


def test_a_linear_checkpoint_loads_and_gives_the_same() -> None:
    linear = nn.Linear(7, 5, bias=False)
    layer = zb.nn.LinearReLU(7, 5)
    layer.load_state_dict(linear.state_dict())
    x = torch.randn(2, 3, 7)
    torch.testing.assert_close(layer(x), linear(x).relu())
    last = zb.nn.LinearReLU(7, 5, negative_slope=1.0)
    last.load_state_dict(linear.state_dict())
    torch.testing.assert_close(last(x), linear(x))


def test_initial_weights_are_torchs() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3, bias=False)
    torch.manual_seed(0)
    assert torch.equal(zb.nn.ConvReLUPool2d(3, 8, 3).weight, conv.weight)
    torch.manual_seed(0)
    linear = nn.Linear(7, 5, bias=False)
    torch.manual_seed(0)
    assert torch.equal(zb.nn.LinearReLU(7, 5).weight, linear.weight)


@pytest.mark.parametrize("padding", ["same", "valid", 1, (1, 2)])
def test_padding_words(padding: object) -> None:
    conv = nn.Conv2d(3, 4, (3, 4), padding=padding, bias=False)  # type: ignore[arg-type]
    layer = zb.nn.ConvReLUPool2d(3, 4, (3, 4), padding=padding, pool="none")  # type: ignore[arg-type]
    layer.load_state_dict(conv.state_dict())
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(layer(x), conv(x).relu(), rtol=1e-5, atol=1e-5)


def test_repr_says_what_differs_from_the_defaults() -> None:
    assert repr(zb.nn.LinearReLU(7, 5)) == "LinearReLU(in_features=7, out_features=5)"
    layer = zb.nn.ConvReLUPool2d(3, 8, 5, padding="same", pool_kernel=3, pool_stride=2, negative_slope=0.1)
    assert repr(layer) == (
        "ConvReLUPool2d(3, 8, kernel_size=(5, 5), stride=(1, 1), padding='same', pool='max', pool_kernel=3, "
        "pool_stride=2, negative_slope=0.1)"
    )
    assert "pool_kernel" not in repr(zb.nn.ConvReLUPool2d(3, 8, 5, pool="none"))


def test_device_and_dtype() -> None:
    layer = zb.nn.ConvReLUPool2d(3, 8, 3, device="meta", dtype=torch.float64)
    assert layer.weight.is_meta and layer.weight.dtype == torch.float64
    assert zb.nn.LinearReLU(3, 2, device="meta").weight.is_meta


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: zb.nn.ConvReLUPool2d(3, 8, 0), "ConvReLUPool2d: expected kernel_size of at least 1, got 0"),
        (lambda: zb.nn.ConvReLUPool2d(3, 8, 3, groups=2), "expected channels divisible by groups"),
        (lambda: zb.nn.ConvReLUPool2d(3, 8, 3, pool="mean"), "expected pool to be one of max, avg, none"),
        (lambda: zb.nn.ConvReLUPool2d(3, 8, 3, stride=2, padding="same"), "padding='same' needs stride 1"),
        (lambda: zb.nn.ConvReLUPool2d(3, 8, 3, pool_padding=2), "at most half of pool_kernel"),
        (lambda: zb.nn.LinearReLU(3, -1), "LinearReLU: expected sizes of at least 0, got 3 and -1"),
        (lambda: zb.nn.LinearReLU(3, 1, 1.5), "expected 0 <= negative_slope <= 1, got 1.5"),
    ],
)
def test_bad_arguments_are_named_when_the_layer_is_made(make: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()  # type: ignore[operator]


def test_a_network_is_positively_homogeneous() -> None:
    net = nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 8, 3, padding=1),
        zb.nn.ConvReLUPool2d(8, 16, 3, padding=1, pool="avg"),
        nn.Flatten(),
        zb.nn.LinearReLU(16 * 7 * 7, 32),
        zb.nn.LinearReLU(32, 10, negative_slope=1.0),
    ).double()
    x = torch.randn(4, 1, 28, 28, dtype=torch.float64)
    for scale in (0.25, 3.0, 1e-4):
        torch.testing.assert_close(net(scale * x), scale * net(x))


def test_forward_nap_of_the_layers() -> None:
    x = torch.randn(2, 3, 8, 8)
    layer = zb.nn.ConvReLUPool2d(3, 4, 3)
    y, sig = layer.forward_nap(x, units="output")
    assert torch.equal(y, layer(x)) and torch.equal(sig, zb.nap_pack(y))
    rows, bits = zb.nn.LinearReLU(36, 70).forward_nap(y.flatten(1))
    assert torch.equal(bits, zb.nap_pack(rows))


def test_the_arguments_of_the_replaced_layers_are_taken() -> None:
    """bias=False stands in each line that one replaces; what the layers can't do is named with the way out."""
    conv = zb.nn.ConvReLUPool2d(3, 8, 3, 1, 1, 1, 1, False, "zeros")
    assert repr(conv) == repr(zb.nn.ConvReLUPool2d(3, 8, 3, padding=1, bias=False, padding_mode="zeros"))
    assert zb.nn.LinearReLU(7, 5, False).negative_slope == 0.0
    assert zb.nn.LinearReLU(7, 5, bias=False, dtype=torch.float64).weight.dtype == torch.float64
    for make in (
        lambda: zb.nn.ConvReLUPool2d(3, 8, 3, bias=True),
        lambda: zb.nn.LinearReLU(7, 5, bias=True),
        lambda: zb.nn.LinearReLU(7, 5, True),
    ):
        with pytest.raises(ValueError, match=r"expected bias=False, got True: .*remove_bias"):
            make()
    with pytest.raises(ValueError, match="expected padding_mode='zeros', got 'reflect'"):
        zb.nn.ConvReLUPool2d(3, 8, 3, padding_mode="reflect")
