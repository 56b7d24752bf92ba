"""The CUDA kernels made of matrix tiles (tensor cores, FMA), emulated: exact results at every edge that tiles have."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulation import MISSING
from exact import check_forward, same, whole

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS, _tf32
from zbkernels.ops._geometry import Geometry

SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
assert _loader.load_emulated().loaded
LIBRARY = ctypes.CDLL(str(_loader.emulated_path()))
ops = torch.ops.zb_emulated
SHARE = {"asan": 3, "tsan": 8}.get(SANITIZER, 1)  # one case of so many
KINDS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32}


@pytest.fixture(params=KINDS)
def kind(request: Any) -> Iterator[str]:
    _loader.allow_tf32(request.param == "tf32", request.param == "tf32")
    with torch.no_grad():
        yield request.param
    _loader.allow_tf32(False, False)
    _tf32._told = None  # the next public call tells torch's own switches again


def kernel_of(kind: str, signature: bool) -> str:
    if kind == "f32" or (kind == "tf32" and signature):
        return "fma tiles"
    return "tensor core"


def last_kernel() -> str:
    LIBRARY.zb_last_kernel.restype = ctypes.c_char_p
    return LIBRARY.zb_last_kernel().decode()


def check(
    kind: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    need_code: bool = True,
    units: str = "output",
    residual: torch.Tensor | None = None,
    **geometry: Any,
) -> None:
    g = Geometry.of("test", **geometry)
    check_forward(
        ops._conv_relu_pool2d_forward,
        x,
        weight,
        *g.conv_args(),
        **g.pool_kwargs(),
        need_code=need_code,
        units=units,
        residual=residual,
    )
    assert last_kernel() == kernel_of(kind, bool(units))


# (N, C, H, W, K, R, S): rows and columns below, at and above one tile, channels off the chunk, images off the tile.
SHAPES = {
    "one tile": (2, 16, 8, 8, 64, 3, 3),
    "odd sizes": (3, 7, 9, 7, 9, 3, 2),
    "129 columns": (1, 8, 6, 6, 129, 1, 1),
    "256 columns": (1, 5, 4, 5, 256, 2, 2),
    "many images in a tile": (40, 5, 4, 4, 10, 3, 3),
    "several tiles": (1, 6, 24, 26, 70, 1, 3),
}
POOLS: dict[str, dict[str, Any]] = {
    "max": {},
    "max, slope": {"negative_slope": 0.5},
    "max, ceil_mode": {"ceil_mode": True},
    "avg": {"pool": "avg"},
    "avg, ceil_mode": {"pool": "avg", "ceil_mode": True, "count_include_pad": False},
    "none": {"pool": "none"},
    "none, slope": {"pool": "none", "negative_slope": 0.25},
}


@pytest.mark.parametrize("channels_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_edge(kind: str, shape: str, pool: str, channels_last: bool) -> None:
    number = list(SHAPES).index(shape) + list(POOLS).index(pool) + channels_last + list(KINDS).index(kind)
    if number % SHARE:
        pytest.skip("a sanitizer takes a share")
    n, c, h, w, k, r, s = SHAPES[shape]
    x, weight = whole(n, c, h, w, dtype=KINDS[kind]), whole(k, c, r, s, dtype=KINDS[kind], seed=1, most=1)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    for units in ("output", "relu", ""):
        check(kind, x, weight, units=units, padding=1, **POOLS[pool])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_residual_is_added_where_results_are_written(kind: str, shape: str) -> None:
    """In runs where it lies as y does, else one by one; bits are those of the sum. A pool goes elsewhere."""
    n, c, h, w, k, r, s = SHAPES[shape]
    x, weight = whole(n, c, h, w, dtype=KINDS[kind]), whole(k, c, r, s, dtype=KINDS[kind], seed=1, most=1)
    size = (n, k, h + 3 - r, w + 3 - s)
    residual = whole(*size, dtype=KINDS[kind], seed=2, most=20)
    last = {"memory_format": torch.channels_last}
    for number, (a, b) in enumerate(
        ((x, residual), (x.to(**last), residual.to(**last)), (x, residual.to(**last)))
    ):
        if (number + list(SHAPES).index(shape)) % SHARE:
            continue
        for units, slope in (("output", 0.0), ("relu", 0.5), ("", 1.0)):
            check(kind, a, weight, units=units, padding=1, pool="none", negative_slope=slope, residual=b)
    unaligned = torch.cat([residual.flatten(), residual.flatten()[:1]])[1:].view(size)
    check(kind, x, weight, units="", padding=1, pool="none", residual=unaligned)
    if min(size[2:]) > 1:
        ops._conv_relu_pool2d_forward(
            x,
            weight,
            [1, 1],
            [1, 1],
            [1, 1],
            1,
            residual,
            **Geometry.of("test").pool_kwargs(),
            need_code=True,
            units="",
        )
        assert last_kernel() == "general simt"


@pytest.mark.parametrize(
    "geometry",
    (
        {"stride": 2},
        {"stride": (1, 2), "padding": (0, 2)},
        {"dilation": (2, 1)},
        {"dilation": 2, "padding": 3, "stride": 2},
    ),
    ids=str,
)
def test_strides_and_dilations(kind: str, geometry: dict[str, Any]) -> None:
    x, weight = whole(2, 9, 13, 12, dtype=KINDS[kind]), whole(11, 9, 3, 3, dtype=KINDS[kind], seed=1, most=1)
    check(kind, x, weight, **geometry)
    check(kind, x, weight, pool="none", **geometry)


def test_groups(kind: str) -> None:
    x, weight = whole(2, 18, 7, 7, dtype=KINDS[kind]), whole(24, 6, 3, 3, dtype=KINDS[kind], seed=1, most=1)
    check(kind, x, weight, groups=3, padding=1)
    check(kind, x.to(memory_format=torch.channels_last), weight, groups=3, pool="none")


def test_winner_signatures(kind: str) -> None:
    x, weight = whole(3, 8, 9, 10, dtype=KINDS[kind]), whole(20, 8, 3, 3, dtype=KINDS[kind], seed=1, most=1)
    for format in (torch.contiguous_format, torch.channels_last):
        check(kind, x.to(memory_format=format), weight, units="winner")


def test_strided_unaligned_and_expanded_inputs(kind: str) -> None:
    dtype = KINDS[kind]
    weight = whole(12, 8, 2, 2, dtype=dtype, seed=1, most=1)
    image = whole(2, 8, 9, 18, dtype=dtype)
    check(kind, image[..., ::2], weight)
    check(kind, whole(2 * 8 * 6 * 6 + 1, dtype=dtype)[1:].view(2, 8, 6, 6), weight)
    check(kind, whole(1, 8, 6, 6, dtype=dtype).expand(3, 8, 6, 6), weight)
    check(kind, whole(8, 6, 6, dtype=dtype), weight)
    check(kind, image, weight.flip(2).contiguous().transpose(2, 3))
    # channels_last inside a larger tensor, with whole chunks between its pixels: read in place
    inside = whole(2, 16, 6, 6, dtype=dtype).to(memory_format=torch.channels_last)[:, :8]
    check(kind, inside, weight)


def test_nan_and_infinity(kind: str) -> None:
    dtype = KINDS[kind]
    x, weight = whole(2, 8, 10, 10, dtype=dtype), whole(9, 8, 1, 1, dtype=dtype, seed=1, most=1)
    x[0, 2, 3, 3], x[1, 0, 0, 0], x[1, 1, 9, 9] = float("nan"), float("inf"), -float("inf")
    check(kind, x, weight)
    check(kind, x, weight, pool="none")


def test_real_numbers_round_as_their_type_does(kind: str) -> None:
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(2, 40, 8, 8, generator=gen).to(KINDS[kind])
    weight = torch.randn(32, 40, 3, 3, generator=gen).to(KINDS[kind])
    g = Geometry.of("test", pool="none")
    y = ops._conv_relu_pool2d_forward(
        x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units=""
    )[0]
    assert last_kernel() == kernel_of(kind, False)
    wide = F.relu(F.conv2d(x.double(), weight.double()))
    magnitude = F.conv2d(x.abs().double(), weight.abs().double())
    error = (y.double() - wide).abs()
    # each operand rounded to 11 bits, or the result to T; and the float32 sum of 360 products
    unit = {"tf32": 2 * 2**-11, "f16": 2**-11, "bf16": 2**-8, "f32": 0.0}[kind]
    within = unit * (magnitude if kind == "tf32" else wide.abs()) + 360 * 2**-24 * magnitude
    assert (error <= within).all()
    if kind == "tf32":  # and it was TF32
        assert error.max() > 1e-4


@pytest.mark.parametrize(
    "size", ((5, 16, 64), (130, 40, 70), (1, 24, 129), (300, 8, 65), (33, 17, 9)), ids=str
)
@pytest.mark.parametrize("slope", (0.0, 0.25, 1.0))
def test_linear(kind: str, size: tuple[int, int, int], slope: float) -> None:
    rows, features, out = size
    x, weight = (
        whole(rows, features, dtype=KINDS[kind]),
        whole(out, features, dtype=KINDS[kind], seed=1, most=1),
    )
    pre = (x.double() @ weight.double().t()).to(x.dtype)
    want = F.relu(pre) if slope == 0 else pre if slope == 1 else F.leaky_relu(pre, slope)
    same(ops.linear_relu(x, weight, slope), want)
    assert last_kernel() == kernel_of(kind, False)
    y, sig = ops.linear_relu_nap(x, weight, slope)
    assert last_kernel() == kernel_of(kind, True)
    same(y, want)
    same(sig, OPS["nap_pack"].reference(want))


def test_the_general_kernel_takes_the_rest(kind: str) -> None:
    x, weight = whole(2, 8, 9, 9, dtype=KINDS[kind]), whole(9, 8, 3, 3, dtype=KINDS[kind], seed=1, most=1)
    for geometry in ({"pool_kernel": 3}, {"pool_stride": 1}, {"pool_padding": 1}):
        g = Geometry.of("test", **geometry)
        check_forward(
            ops._conv_relu_pool2d_forward,
            x,
            weight,
            *g.conv_args(),
            **g.pool_kwargs(),
            need_code=True,
            units="",
        )
        assert last_kernel() == "general simt"


def test_case_10_tf32_is_taken_only_where_it_is_allowed(kind: str) -> None:
    x, weight = torch.ones(1, 4096, 2, 2), torch.full((8, 4096, 1, 1), 1 + 2**-12)
    g = Geometry.of("test")
    y, _, _ = ops._conv_relu_pool2d_forward(
        x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units=""
    )
    rows = ops.linear_relu(x[0, :, 0, :1].t(), weight.flatten(1))
    for result in (y, rows):  # TF32 takes 1 + 2^-12 for 1
        assert (result == (4096.0 if kind == "tf32" else 4097.0)).all()


@pytest.mark.parametrize(
    "x, weight, geometry, reasons",
    (
        ((1, 8, 6, 6), (9, 8, 3, 3), {"pool_kernel": 3}, "a pool that is not 2 by 2"),
        ((1, 6, 6, 6), (4, 6, 3, 3), {}, "fewer than 8 output channels"),
        ((1, 16, 6, 6), (16, 4, 3, 3), {"groups": 4, "dilation": 2}, "fewer than 5 input channels"),
    ),
    ids=("pool", "few outputs", "few inputs"),
)
def test_the_reason_is_told(x: Any, weight: Any, geometry: dict[str, Any], reasons: str) -> None:
    with zb.use_backend("cuda-emulated"):
        zb.conv_relu_pool2d(whole(*x, dtype=torch.float16), whole(*weight, dtype=torch.float16), **geometry)
        assert zb.last_kernel() == "cuda-emulated: general simt"
        told = dict(line.split(": ", 1) for line in zb.last_refusals())
        assert told["tensor core"].startswith(reasons)
        zb.conv_relu_pool2d(whole(1, 8, 6, 6, dtype=torch.float16), whole(9, 8, 3, 3, dtype=torch.float16))
        assert not any(line.startswith("tensor core") for line in zb.last_refusals())


@pytest.fixture
def tf32_switches() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    _tf32.follow()  # a library's own ops look at what it was told last


def test_tf32_follows_torchs_switches(tf32_switches: None) -> None:
    x, weight = whole(1, 8, 8, 8, dtype=torch.float32), whole(9, 8, 3, 3, dtype=torch.float32)
    rows, features = whole(9, 64, dtype=torch.float32), whole(12, 64, dtype=torch.float32)
    with zb.use_backend("cuda-emulated"):
        for allowed, kernel in ((True, "tensor core"), (False, "fma tiles"), (True, "tensor core")):
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed, not allowed
            zb.conv_relu_pool2d(x, weight)
            assert zb.last_kernel() == f"cuda-emulated: {kernel}"
            zb.linear_relu(rows, features)
            assert zb.last_kernel() == f"cuda-emulated: {'fma tiles' if allowed else 'tensor core'}"
            zb.conv_relu_pool2d_nap(x, weight)
            assert zb.last_kernel() == "cuda-emulated: fma tiles"
            zb.linear_relu_nap(rows, features)
            assert zb.last_kernel() == "cuda-emulated: fma tiles"
