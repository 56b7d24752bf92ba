"""The tensor cores' kernel for first layers, emulated: exact results at every edge that it has. test_cuda_emulation.py
runs the cases that it shares with the other kernel for first layers."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulation import MISSING
from exact import check_forward, images_of_any_strides, whole

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops._geometry import Geometry

SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
assert _loader.load_emulated().loaded
CONV = torch.ops.zb_emulated._conv_relu_pool2d_forward
DTYPES = (torch.float16, torch.bfloat16)
KERNEL = "first layer tensor core"
SHARE = {"asan": 3, "tsan": 9}.get(SANITIZER, 1)  # one case of so many
# ThreadSanitizer is slow, and the same code runs for both.
each_dtype = pytest.mark.parametrize(
    "dtype",
    DTYPES[:1] if SANITIZER == "tsan" else DTYPES,
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)


@pytest.fixture(autouse=True)
def no_gradients() -> object:
    with torch.no_grad():
        yield


def check(x: torch.Tensor, weight: torch.Tensor, units: tuple[str, ...] = (), **options: Any) -> None:
    """Codes with and without each kind of signature, by the kernel that is meant."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        results = CONV(*args, **kwargs)
        assert zb.last_kernel() == f"cuda-emulated: {KERNEL}"
        return results

    g = Geometry.of("test", **options)
    winner = ("winner",) if g.pool == "max" and g.negative_slope == 0 else ()
    for number, kind in enumerate(units or ("", "relu", "output", *winner)):
        check_forward(
            forward, x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=number != 3, units=kind
        )


# (N, C, H, W), (K, R, S), convolution: channels off the eights, filter rows of odd and even length, columns that
# start at odd numbers, images off the tiles; and so many images that tiles are whole planes.
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "64 channels": ((2, 3, 17, 19), (64, 3, 3), {"padding": 1}),
    "70 channels": ((1, 3, 13, 12), (70, 3, 3), {}),
    "194 channels": ((1, 2, 7, 9), (194, 3, 3), {"padding": 1}),
    "1x1": ((2, 4, 9, 10), (8, 1, 1), {}),
    "4x2, stride (1, 2)": ((2, 2, 9, 12), (6, 4, 2), {"stride": (1, 2)}),
    "1x7": ((1, 3, 12, 20), (40, 1, 7), {"padding": (0, 3)}),
    "2x6": ((1, 1, 16, 24), (5, 2, 6), {"padding": (1, 3)}),
    "stem": ((1, 3, 37, 41), (64, 7, 7), {"stride": 2, "padding": 3}),
    "tiles both ways": ((1, 1, 60, 76), (16, 3, 3), {"padding": 1}),
    "many images": ((264, 1, 28, 28), (12, 5, 5), {"padding": 2}),
    "many images, 40 channels": ((264, 2, 14, 22), (40, 3, 3), {"padding": 1}),
    "a kernel larger than the image": ((1, 3, 4, 5), (8, 7, 7), {"padding": 3}),
    "groups": ((1, 8, 10, 11), (20, 3, 3), {"groups": 2}),
}
POOL_3_2 = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
POOLS: dict[str, dict[str, Any]] = {
    "max": {},
    "max, slope, ceil_mode, padding": {"negative_slope": 0.5, "ceil_mode": True, "pool_padding": 1},
    "max 3/2": POOL_3_2,
    "max 4x3, slope": {
        "pool_kernel": (4, 3),
        "pool_stride": (3, 2),
        "pool_padding": 1,
        "negative_slope": 0.25,
    },
    "avg, ceil_mode": {"pool": "avg", "ceil_mode": True, "pool_padding": 1},
    "avg 3/2": {**POOL_3_2, "pool": "avg", "count_include_pad": False, "negative_slope": 0.5},
    "none": {"pool": "none"},
    "none, slope": {"pool": "none", "negative_slope": 0.5},
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_edge(layer: str, pool: str) -> None:
    number = list(LAYERS).index(layer) + list(POOLS).index(pool)
    if number % SHARE:
        pytest.skip("ThreadSanitizer takes a share: of each layer and each pool")
    dtype = DTYPES[number // 5 % 2]
    image, (k, r, s), conv = LAYERS[layer]
    x = whole(*image, dtype=dtype)
    weight = whole(k, image[1] // conv.get("groups", 1), r, s, dtype=dtype, seed=1, most=1)
    units = ("output",) if layer.startswith("many images") else ()
    if SANITIZER and units:
        x = x[:8]
    formats = (torch.contiguous_format, torch.channels_last)
    for format in formats[number % 2 : number % 2 + 1] if units else formats:  # many images take seconds
        check(x.to(memory_format=format), weight, units, **conv, **POOLS[pool])


@each_dtype
@pytest.mark.parametrize("channels", (1, 2, 3, 4))
@pytest.mark.parametrize("stride", (1, 2))
def test_channels_and_strides(channels: int, stride: int, dtype: torch.dtype) -> None:
    x = whole(2, channels, 15, 18, dtype=dtype)
    weight = whole(9, channels, 3, 3, dtype=dtype, seed=1, most=1)
    for format in (torch.contiguous_format, torch.channels_last):
        for pool in ({}, {"pool": "none"}):
            check(x.to(memory_format=format), weight, ("",), stride=stride, padding=1, **pool)


@each_dtype
def test_any_strides(dtype: torch.dtype) -> None:
    weight = whole(12, 3, 3, 3, dtype=dtype, seed=1, most=1)
    for x in (
        *images_of_any_strides(dtype),
        whole(2, 5, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)[:, 1:4],
    ):
        check(x, weight, ("",), padding=1)
        check(x, weight, ("relu",), padding=1, **POOL_3_2)
    for of_weight in (
        weight.to(memory_format=torch.channels_last),
        weight.flip(2).contiguous().transpose(2, 3),
        whole(12 * 27 + 1, dtype=dtype, most=1)[1:].view(12, 3, 3, 3),
        whole(1, 3, 3, 3, dtype=dtype, most=1).expand(12, 3, 3, 3),
    ):
        check(whole(2, 3, 9, 40, dtype=dtype), of_weight, ("",), padding=1)


@each_dtype
@pytest.mark.parametrize(
    "pool", ({}, POOL_3_2, {"pool": "none"}, {"negative_slope": 0.5}, {"pool": "avg"}), ids=str
)
def test_nan_and_infinity_spread_no_further_than_their_filters(
    pool: dict[str, Any], dtype: torch.dtype
) -> None:
    for channels, columns in ((1, 5), (3, 3), (2, 3)):  # filter rows of odd and even length
        x = whole(2, channels, 14, 17, dtype=dtype)
        weight = whole(9, channels, 3, columns, dtype=dtype, seed=1, most=1)
        x[0, 0, 3, 3], x[0, -1, 4, 4], x[0, 0, 9, 12] = float("nan"), float("nan"), float("inf")
        x[1, 0, 0, 0], x[1, -1, 13, 16], x[1, -1, 6, 7] = float("inf"), -float("inf"), -float("inf")
        check(x, weight, ("relu",), padding=1, **pool)


@each_dtype
def test_windows_of_equals(dtype: torch.dtype) -> None:
    """Ties at 0, below it and among minus infinities: the first position wins, of those that exist."""
    weight = torch.ones(6, 1, 1, 1, dtype=dtype)
    for value in (0.0, 1.0, -1.0, -float("inf")):
        x = torch.full((1, 1, 7, 9), value, dtype=dtype)
        for slope in (0.0, 0.5):
            for pool in ({"ceil_mode": True, "pool_padding": 1}, POOL_3_2):
                check(x, weight, ("output",), negative_slope=slope, **pool)


@each_dtype
def test_sums_are_rounded_once(dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 20, 20, generator=gen).to(dtype)
    weight = torch.randn(64, 3, 7, 7, generator=gen).to(dtype)
    g = Geometry.of("test", stride=2, padding=3, pool="none")
    y = CONV(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units="")[0]
    conv = {"stride": 2, "padding": 3}
    right = F.relu(F.conv2d(x.double(), weight.double(), **conv))
    magnitude = F.conv2d(x.abs().double(), weight.abs().double(), **conv)
    unit = torch.finfo(dtype).eps / 2
    assert ((y.double() - right).abs() <= unit * right + 147 * 2**-24 * magnitude).all()
    assert (y.double() - right).abs().max() > 0


def test_it_says_that_it_was_chosen_and_why_not() -> None:
    def last(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> str:
        zb.conv_relu_pool2d(x, weight, **options)
        if zb.last_kernel() == f"cuda-emulated: {KERNEL}":
            return "chosen"
        return dict(line.split(": ", 1) for line in zb.last_refusals())[KERNEL]

    x, weight = (whole(*shape, dtype=torch.float16) for shape in ((1, 3, 16, 16), (8, 3, 3, 3)))
    with zb.use_backend("cuda-emulated"):
        assert zb.explain("conv_relu_pool2d", x, weight).chosen == "cuda-emulated"
        assert last(x, weight) == last(x.bfloat16(), weight.bfloat16()) == "chosen"
        assert last(x.float(), weight.float()) == "float32"
        assert last(x.double(), weight.double()) == "float64"
        assert last(x, weight[:4]).startswith("fewer than 5 output channels")
        assert last(whole(1, 5, 9, 9, dtype=x.dtype), whole(8, 5, 3, 3, dtype=x.dtype)).startswith(
            "more than 4 input channels"
        )
        assert last(x, weight, dilation=2) == "dilation"
        assert last(x, whole(8, 3, 8, 3, dtype=x.dtype)).startswith("a kernel of more than 7 rows")
        assert last(x, whole(8, 3, 3, 8, dtype=x.dtype)).startswith("a kernel of more than 7 columns")
        assert last(x, weight, stride=(1, 3)).startswith("a kernel of more than 7 columns")
        for pool in ({"pool_kernel": 5}, {"pool_stride": 1}, {"pool_stride": 3}):
            assert last(x, weight, **pool).startswith("a pool window larger than 4 by 4")
