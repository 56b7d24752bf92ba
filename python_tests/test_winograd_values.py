"""NaN, infinities and numbers near float32's largest, where Winograd's transforms would spread or overflow them.

What is held: NaN, +inf and -inf stand where a direct convolution has them, and outputs that do not see the planted
value are what they are without it. csrc/conv_relu_pool/README.md promises it.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import zbkernels as zb

FILTERS = [
    (2, 1),
    (3, 1),
    (4, 1),
    (5, 1),
    (6, 1),
    (7, 1),
    (5, 2),
    (6, 2),
    (7, 2),
    (8, 2),
    (9, 2),
]  # size, stride
SHAPES = [
    *((*f, c, 40) for f, c in itertools.product(FILTERS, (16, 33))),  # two and a half vectors of 16 outputs
    *((3, 1, c, 72) for c in (2, 3, 7)),  # of few channels
    *((5, 1, c, 72) for c in (1, 4)),
]
FORMATS = (torch.contiguous_format, torch.channels_last)
NAN, INF = math.nan, math.inf
VALUES = (NAN, INF, -INF, 1e37, -1e37, 1e38, -1e38)
MAX = torch.finfo(torch.float32).max

shapes = pytest.mark.parametrize(("kernel", "stride", "channels", "outputs"), SHAPES)
planted = pytest.mark.parametrize("value", VALUES, ids=str)
layouts = pytest.mark.parametrize("layout", FORMATS, ids=("contiguous", "channels_last"))


def drawn(kernel: int, stride: int, channels: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two images of 17x19 (stride 2: twice that) and a filter whose outputs are about 1."""
    gen = torch.Generator().manual_seed(kernel * 100 + channels)
    x = torch.randn(2, channels, 17 * stride, 19 * stride, generator=gen)
    weight = torch.randn(outputs, channels, kernel, kernel, generator=gen) / (channels * kernel**2) ** 0.5
    return x, weight


def winograd(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, pool: str = "none"
) -> torch.Tensor:
    """Pre-activations (slope 1), by Winograd for certain."""
    y = zb.conv_relu_pool2d(x, weight, stride, padding, pool=pool, negative_slope=1.0)
    assert "winograd" in zb.last_kernel()
    assert zb.explain("conv_relu_pool2d", x, weight, stride, padding, pool=pool).kernel == zb.last_kernel()
    return y


def direct(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    """In float64, where nothing here overflows."""
    return F.conv2d(x.double(), weight.double(), None, stride, padding)


def seen_from(pixels: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
    """bool [N, 1, H1, W1]: outputs whose window holds one of the pixels [N, 1, H, W]."""
    return F.conv2d(pixels.float(), torch.ones(1, 1, kernel, kernel), None, stride, padding) > 0


def check_classes(got: torch.Tensor, exact: torch.Tensor, magnitudes: torch.Tensor) -> None:
    """NaN, inf and finite where a direct sum has them, the rest within the bound of "high" precision.

    ``exact`` are float64 sums, ``magnitudes`` those of the absolute values.
    """
    assert torch.equal(got.isnan(), exact.isnan())
    for infinite in (torch.isposinf, torch.isneginf):
        assert (infinite(got) | ~infinite(exact)).all()
    # No order of summing overflows below, and every one does above.
    assert got[magnitudes < 0.99 * MAX].isfinite().all()
    over = exact.isfinite() & (exact.abs() > 1.01 * MAX)
    assert not got[over].isfinite().any()
    finite = got.isfinite() & exact.isfinite()
    assert relative_error(got[finite], exact[finite]) <= 1e-5


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item() if want.any() else got.abs().sum().item()


def places(x: torch.Tensor) -> list[tuple[int, int, int]]:
    """Channel, row and column of single pixels: two neighbours within, a corner, near the other one."""
    channels, h, w = x.shape[1:]
    return [
        (0, h // 2, w // 2 - 1),
        (channels - 1, h // 2 + 1, w // 2),
        (channels // 3, 0, 0),
        (channels // 2, h - 1, w - 2),
    ]


def planted_in(
    x: torch.Tensor, place: tuple[int, int, int], value: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x with the value in its second image, and where that is, [N, 1, H, W]."""
    channel, row, column = place
    bad, pixels = x.clone(), torch.zeros(x.shape[0], 1, *x.shape[2:])
    bad[1, channel, row, column] = value
    pixels[1, 0, row, column] = 1
    return bad, pixels


@layouts
@planted
@shapes
def test_planted_in_the_image(
    kernel: int, stride: int, channels: int, outputs: int, value: float, layout: torch.memory_format
) -> None:
    x, weight = drawn(kernel, stride, channels, outputs)
    for place in places(x):
        bad, _ = planted_in(x, place, value)
        got = winograd(bad.contiguous(memory_format=layout), weight, stride, kernel // 2)
        exact = direct(bad, weight, stride, kernel // 2)
        check_classes(got, exact, direct(bad.abs(), weight.abs(), stride, kernel // 2))


@layouts
@planted
@shapes
def test_what_is_planted_is_not_felt_where_it_is_not_seen(
    kernel: int, stride: int, channels: int, outputs: int, value: float, layout: torch.memory_format
) -> None:
    """Outputs whose windows do not hold it are as near to float64's as without it, beside it in a tile or not."""
    x, weight = drawn(kernel, stride, channels, outputs)
    clean = direct(x, weight, stride, kernel // 2)
    for place in places(x):
        bad, pixels = planted_in(x, place, value)
        got = winograd(bad.contiguous(memory_format=layout), weight, stride, kernel // 2)
        unseen = ~seen_from(pixels, kernel, stride, kernel // 2).expand_as(got)
        assert relative_error(got[unseen], clean[unseen]) <= 1e-5, place


@layouts
@planted
@shapes
def test_planted_in_the_filter(
    kernel: int, stride: int, channels: int, outputs: int, value: float, layout: torch.memory_format
) -> None:
    """One channel of the output sees it, whole; no padding, since 0 times infinity is torch's to decide there."""
    x, weight = drawn(kernel, stride, channels, outputs)
    clean = direct(x, weight, stride, 0)
    for k, c, r, s in (
        (0, 0, 0, 0),
        (17, channels - 1, kernel - 1, kernel // 2),
        (outputs - 1, channels // 3, 1, kernel - 1),
    ):
        bad = weight.clone()
        bad[k, c, r, s] = value
        got = winograd(x.contiguous(memory_format=layout), bad, stride, 0)
        check_classes(got, direct(x, bad, stride, 0), direct(x.abs(), bad.abs(), stride, 0))
        others = [i for i in range(outputs) if i != k]
        assert relative_error(got[:, others], clean[:, others]) <= 1e-5


@layouts
@planted
@shapes
def test_planted_in_a_blank_image(
    kernel: int, stride: int, channels: int, outputs: int, value: float, layout: torch.memory_format
) -> None:
    """What does not see the value is 0 exactly."""
    x, weight = drawn(kernel, stride, channels, outputs)
    for place in places(x):
        bad, pixels = planted_in(torch.zeros_like(x), place, value)
        got = winograd(bad.contiguous(memory_format=layout), weight, stride, kernel // 2)
        seen = seen_from(pixels, kernel, stride, kernel // 2).expand_as(got)
        assert not got[~seen].any()
        check_classes(
            got,
            direct(bad, weight, stride, kernel // 2),
            direct(bad.abs(), weight.abs(), stride, kernel // 2),
        )


@layouts
@shapes
def test_sums_that_overflow(
    kernel: int, stride: int, channels: int, outputs: int, layout: torch.memory_format
) -> None:
    """Pixels of 1e38: sums far above the largest float are inf of their sign, and those far below it finite."""
    x, weight = drawn(kernel, stride, channels, outputs)
    padding = kernel // 2
    bad = x.clone()
    bad[1, :, 5:7, 6:9] = 1e38
    for w in (weight.abs() * 4, -weight.abs() * 4, weight):
        got = winograd(bad.contiguous(memory_format=layout), w, stride, padding)
        exact, magnitudes = direct(bad, w, stride, padding), direct(bad.abs(), w.abs(), stride, padding)
        assert got[magnitudes < 0.99 * MAX].isfinite().all()
        one_sign = exact.abs() > 0.999 * magnitudes
        over = one_sign & (exact.abs() > 1.01 * MAX)
        assert torch.equal(got[over].double(), exact[over].sign() * INF)
        assert over.any() or w is weight


@layouts
@pytest.mark.parametrize("value", (NAN, INF, -INF), ids=str)
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize(("kernel", "stride"), FILTERS)
def test_planted_in_half_precision(
    kernel: int, stride: int, dtype: torch.dtype, value: float, layout: torch.memory_format
) -> None:
    # So many channels that bfloat16 has no faster kernel, whatever the processor.
    x, weight = (t.to(dtype) for t in drawn(kernel, stride, 64, 40))
    x[1, 7, 8, 9] = value
    exact = direct(x, weight, stride, kernel // 2)
    got = winograd(x.contiguous(memory_format=layout), weight, stride, kernel // 2).double()
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(got), kind(exact))
    finite = exact.isfinite()
    assert (got - exact)[finite].norm() <= torch.finfo(dtype).eps * exact[finite].norm()


@layouts
@pytest.mark.parametrize("value", (NAN, INF, 1e38), ids=str)
@pytest.mark.parametrize(("kernel", "stride"), FILTERS)
def test_planted_under_a_pool(kernel: int, stride: int, value: float, layout: torch.memory_format) -> None:
    """Windows of the pool that do not see the value are what they are without it."""
    x, weight = drawn(kernel, stride, 16, 40)
    padding = kernel // 2
    bad = x.clone()
    bad[0, 3, 9, 6] = value
    pixels = torch.zeros(2, 1, *x.shape[2:])
    pixels[0, 0, 9, 6] = 1
    seen = F.max_pool2d(seen_from(pixels, kernel, stride, padding).float(), 2) > 0
    want = F.max_pool2d(direct(bad, weight, stride, padding), 2)
    got = winograd(bad.contiguous(memory_format=layout), weight, stride, padding, "max").double()
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(got), kind(want))
    unseen = ~seen.expand_as(got)
    assert (got - want)[unseen].norm() <= 1e-5 * want[unseen].norm()
