"""The tiled Triton kernels in Triton's interpreter: exact results at every edge that tiles have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

from exact import check_forward, expected_forward, same, whole

import zbkernels as zb
from zbkernels.ops._geometry import Geometry
from zbkernels.triton import conv_relu_pool, conv_tiles
from zbkernels.triton.config import Config
from zbkernels.triton.launch import recording
from zbkernels.triton.target import GFX_942, SM_80, SM_90, SM_100, assuming

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
UNITS = ("", "output", "relu", "winner")


def check(
    x: torch.Tensor, weight: torch.Tensor, g: Geometry, need_code: bool = True, units: str = "output"
) -> None:
    assert conv_tiles.can_run(x if x.dim() == 4 else x[None], weight, g) is None
    check_forward(
        conv_relu_pool.forward, x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=need_code, units=units
    )


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many tiles and steps from a small tensor: 32 windows × 16 channels, 16 channels of the sum a step."""

    def smallest(*_: Any) -> Config:
        return Config({"BLOCK_M": 128, "BLOCK_N": 16, "BLOCK_C": 16}, 4, 2)

    monkeypatch.setattr(conv_tiles, "choose", smallest)
    yield


# x, weight, geometry. Windows, channels and steps that fill tiles, and that don't; 35 windows reach into a
# second tile.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same padding": ((1, 16, 10, 14), (16, 16, 3, 3), {"padding": 1}),
    "channels that fill no chunk": ((2, 17, 6, 7), (19, 17, 2, 3), {"padding": (1, 0)}),
    "channels that fill no step": ((2, 40, 6, 6), (33, 40, 1, 1), {}),
    "odd size": ((1, 16, 9, 11), (16, 16, 3, 3), {"padding": 1}),
    "odd size, ceil_mode": ((2, 16, 9, 11), (20, 16, 3, 3), {"padding": 1, "ceil_mode": True}),
    "stride": ((2, 16, 12, 15), (16, 16, 3, 3), {"stride": (2, 1), "padding": (0, 2)}),
    "stride larger than the kernel": ((1, 16, 13, 14), (16, 16, 1, 2), {"stride": (2, 3)}),
    "dilation": ((1, 16, 11, 10), (16, 16, 3, 2), {"dilation": (2, 3), "padding": 2}),
    "huge dilation of one position": ((1, 16, 6, 6), (16, 16, 1, 1), {"dilation": 2**31 - 1}),
    "groups": ((2, 40, 6, 6), (36, 20, 3, 3), {"groups": 2, "padding": 1}),
    "groups in whole chunks": ((1, 48, 6, 8), (48, 16, 1, 1), {"groups": 3}),
    "5x5": ((1, 16, 8, 8), (16, 16, 5, 5), {"padding": 2}),
    "one row of windows": ((1, 16, 2, 5), (16, 16, 1, 1), {}),
    "small maps": ((5, 16, 4, 4), (18, 16, 1, 1), {}),
    "no images": ((0, 16, 4, 4), (16, 16, 1, 1), {}),
    "unbatched": ((16, 6, 6), (16, 16, 3, 3), {"padding": 1}),
}


def operands(case: str, dtype: torch.dtype, channels_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    shape, weight_shape, _ = CASES[case]
    x, weight = whole(*shape, dtype=dtype), whole(*weight_shape, dtype=dtype, seed=1, most=1)
    if channels_last and x.dim() == 4:
        x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
    return x, weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_conv(small_tiles: None, case: str, dtype: str) -> None:
    """Each case in each dtype; the memory format, and what is saved and packed, go round."""
    number = list(CASES).index(case) + list(DTYPES).index(dtype)
    x, weight = operands(case, DTYPES[dtype], channels_last=number % 2 == 0)
    units = UNITS[number % 4]
    slope = 0.0 if units == "winner" else (0.0, 0.5)[number % 3 == 1]
    g = Geometry.of("test", negative_slope=slope, **CASES[case][2])
    check(x, weight, g, need_code=number % 3 != 0, units=units)


@pytest.mark.parametrize("target", (SM_80, SM_90, SM_100, GFX_942), ids=lambda target: target.arch)
@pytest.mark.parametrize("dtype", ("f16", "f32"))
def test_conv_in_each_order_of_positions(target: Any, dtype: str) -> None:
    """With the tiles and the order of positions that each GPU would get."""
    x = whole(1, 16, 9, 11, dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
    weight = whole(20, 16, 1, 2, dtype=DTYPES[dtype], seed=1)
    with assuming(target):
        for pool, ceil_mode, units in (("max", True, ""), ("avg", False, "relu"), ("none", False, "output")):
            g = Geometry.of("test", 1, 1, pool=pool, ceil_mode=ceil_mode)
            check(x, weight, g, need_code=True, units=units)
        check(x, weight, Geometry.of("test", 1, 1), need_code=False, units="")


@pytest.mark.parametrize(
    "size", ((2, 9, 13), (1, 16, 16), (2, 4, 4)), ids=("odd", "whole words", "less than a word")
)
@pytest.mark.parametrize(
    "pool, ceil_mode, slope",
    (("max", False, 0.0), ("max", True, 0.25), ("avg", False, 0.25), ("avg", True, 0.0)),
)
def test_bits(
    small_tiles: None, size: tuple[int, int, int], pool: str, ceil_mode: bool, slope: float
) -> None:
    """Bits of the map and of y, by windows and by positions, those in no window too; NaN among them."""
    N, H, W = size
    x = whole(N, 16, H, W, dtype=torch.float32).to(memory_format=torch.channels_last)
    x[-1, 2, 3, 3] = float("nan")
    weight = whole(16, 16, 1, 1, dtype=torch.float32, seed=1)
    g = Geometry.of("test", pool=pool, ceil_mode=ceil_mode, negative_slope=slope)
    for units in ("relu", "output"):
        check(x, weight, g, units=units)


@pytest.mark.parametrize("pool", ("max", "avg", "none"))
@pytest.mark.parametrize("side", (1, 2, 4, 9, 16))
def test_no_images_with_everything_asked_for(pool: str, side: int) -> None:
    """The shapes of codes and signatures of an empty batch too, of maps that are packed by windows or from y."""
    x, weight = whole(0, 16, side, 12, dtype=torch.float32), whole(16, 16, 1, 1, dtype=torch.float32)
    g = Geometry.of("test", pool=pool, ceil_mode=True)
    for units in UNITS if pool == "max" else UNITS[:3]:
        check(x, weight, g, units=units)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pool", ("max", "avg", "none"))
@pytest.mark.parametrize("slope", (0.0, 0.5))
def test_ties_nan_and_infinities(small_tiles: None, dtype: str, pool: str, slope: float) -> None:
    """One channel picks one input: windows of equal values, of several NaN, all negative, infinite."""
    x = whole(1, 16, 8, 12, dtype=DTYPES[dtype], most=1)
    x[0, 1] = 0
    x[0, 2], x[0, 2, 1::3, ::5] = -3, float("nan")
    x[0, 3] = -1
    weight = torch.eye(16, dtype=DTYPES[dtype]).view(16, 16, 1, 1)[[0, 1, 2, 3] * 4]
    weight[:, 2] = 0  # 0 × NaN is NaN everywhere: channel 2 has them for all
    g = Geometry.of("test", pool=pool, negative_slope=slope)
    check(x, weight, g)
    x[0, 2, 1::3, ::5] = 0
    weight[4:8, 3] = float("inf")
    check(x, weight, g)


@pytest.mark.parametrize("channels_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("view", ("sliced", "odd offset", "expanded", "every other channel", "transposed"))
def test_views(small_tiles: None, view: str, channels_last: bool) -> None:
    """What can't be read in 16-byte chunks is copied; what can, is not."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = whole(2, 32, 9, 10, dtype=torch.float16).to(memory_format=layout)
    views = {
        "sliced": x[:, 8:24, ::2, 1:],
        "odd offset": x[:, 3:19],
        "expanded": x[:1, :16, :1].expand(3, 16, 6, 10),
        "every other channel": x[:, ::2],
        "transposed": x[:, :16].transpose(2, 3),
    }
    weight = whole(16, 16, 3, 3, dtype=torch.float16, seed=1, most=1)
    check(views[view], weight, Geometry.of("test", 1, 1))


def launched(x: torch.Tensor, weight: torch.Tensor, g: Geometry, units: str = "") -> list[str]:
    with recording() as launches:
        conv_relu_pool.forward(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units=units)
    return [launch.kernel.__name__ for launch in launches]


def test_channels_last_in_whole_chunks_is_not_copied() -> None:
    x = whole(2, 32, 8, 8, dtype=torch.float16).to(memory_format=torch.channels_last)
    unlike = torch.empty(2, 32, 8, 8, dtype=torch.float16)
    for t, copied in ((x, False), (x[:, 8:, 1:], False), (x[:, 4:], True), (unlike, True)):
        chunks, channels = conv_tiles._chunks(t, 1, (8, 8))
        assert (chunks.data_ptr() != t.data_ptr()) == copied
        assert channels % 8 == 0 and chunks.data_ptr() % 16 == 0


def test_the_map_is_pooled_in_the_launch_that_packs_it() -> None:
    x, weight = whole(2, 16, 16, 16, dtype=torch.float16), whole(16, 16, 3, 3, dtype=torch.float16)
    for pool in ("max", "avg"):
        names = launched(x, weight, Geometry.of("test", 1, 1, pool=pool), "relu")
        assert names[0] == "conv_tiles_kernel" and set(names[1:]) == {"windows_to_map_kernel"}


@pytest.mark.parametrize(
    "x, weight, geometry, reason",
    (
        ((1, 16, 8, 8), (16, 16, 3, 3), {"pool_kernel": 3}, "not 2x2 side by side"),
        ((1, 16, 8, 8), (16, 16, 3, 3), {"pool_padding": 1}, "not 2x2 side by side"),
        ((1, 32, 8, 8), (32, 8, 3, 3), {"groups": 4}, "8 channels to 8 in a group"),
        ((1, 3, 8, 8), (64, 3, 3, 3), {}, "3 channels to 64"),
    ),
)
def test_the_general_kernel_takes_the_rest(x: Any, weight: Any, geometry: Any, reason: str) -> None:
    x, weight = whole(*x, dtype=torch.float16), whole(*weight, dtype=torch.float16)
    g = Geometry.of("test", **geometry)
    assert reason in conv_tiles.can_run(x, weight, g)
    assert launched(x, weight, g) == ["conv_act_pool_kernel"]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_residual_is_added_in_the_tiles(small_tiles: None, dtype: torch.dtype) -> None:
    def forward(*args: Any, **kwargs: Any) -> Any:
        results = conv_relu_pool.forward(*args, **kwargs)
        assert zb.last_kernel() == "triton: conv_relu_pool.forward (tiles)"
        return results

    x, weight = whole(2, 16, 9, 8, dtype=dtype), whole(24, 16, 3, 3, dtype=dtype, seed=1, most=1)
    residual = whole(2, 24, 9, 8, dtype=dtype, seed=2, most=20)
    last = {"memory_format": torch.channels_last}
    none = {"pool": "none", "pool_kernel": (1, 1), "pool_stride": (1, 1), "pool_padding": (0, 0)}
    kwargs = {**none, "ceil_mode": False, "count_include_pad": True}
    for a, b in ((x, residual), (x.to(**last), residual.to(**last)), (x, residual.to(**last))):
        for units, slope in (("output", 0.0), ("", 0.5)):
            check_forward(
                forward,
                a,
                weight,
                (1, 1),
                (1, 1),
                (1, 1),
                1,
                **kwargs,
                negative_slope=slope,
                need_code=True,
                units=units,
                residual=b,
            )
    assert conv_tiles.can_run(x, weight, Geometry.of("test"), True) == "a residual before a pool"


def test_what_32_bits_cannot_count_is_refused() -> None:
    g = Geometry.of("test")
    weight = torch.empty(16, 16, 1, 1, device="meta", dtype=torch.float16)
    for shape in ((1, 16, 2**14, 2**13), (2**20, 16, 64, 64)):
        x = torch.empty(shape, device="meta", dtype=torch.float16)
        assert "32 bits" in conv_tiles.can_run(x, weight, g)
    assert "float64" in conv_tiles.can_run(x.double(), weight.double(), g)


@pytest.fixture
def tf32_switches() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def test_case_10_tf32_is_taken_only_where_it_is_allowed(tf32_switches: None) -> None:
    """By the switch for convolutions, and never for a signature. (The products: test_triton_aot.)"""
    x, weight = torch.ones(1, 64, 4, 4), torch.full((16, 64, 1, 1), 1 + 2**-12)
    g = Geometry.of("test")
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed, not allowed
        for units in ("", "relu", "output", "winner"):
            with recording() as launches:
                conv_relu_pool.forward(
                    x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units=units
                )
            assert launches[0].kernel.__name__ == "conv_tiles_kernel"
            assert launches[0].constants["TF32"] == (allowed and not units)


def test_random_tiles_agree_to_rounding(small_tiles: None) -> None:
    x, weight = torch.randn(1, 33, 9, 9), torch.randn(17, 33, 3, 3)
    g = Geometry.of("test", 1, 1)
    y, _, _ = conv_relu_pool.forward(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units="")
    want = expected_forward(x, weight, g, False, "")[0]
    same(y.isnan(), want.isnan())
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


def test_last_kernel_tells_tiles_from_general() -> None:
    def run(channels: int) -> str:
        with zb.use_backend("triton"):
            zb.conv_relu_pool2d(torch.ones(1, channels, 4, 4), torch.ones(16, channels, 1, 1))
        return zb.last_kernel()

    assert run(16) == "triton: conv_relu_pool.forward (tiles)"
    assert run(3) == "triton: conv_relu_pool.forward (general: 3 channels to 16 in a group, fewer than 16)"
