"""The CUDA backward kernels, emulated: which of them runs, and exact gradients in small whole numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulation import MISSING
from exact import DTYPE_IDS, DTYPES, conv_ops, same, whole

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import _tf32
from zbkernels.ops._geometry import Geometry, memory_format

SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
state = _loader.load_emulated()
assert state.loaded, state.reason
BACKWARD = torch.ops.zb_emulated._conv_relu_pool2d_backward
CL = torch.channels_last


def check(
    x: torch.Tensor,
    weight: torch.Tensor,
    kernel: str,
    change: Any = None,
    needs: tuple[bool, bool] = (True, True),
    **geometry: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both gradients equal the reference's in float64; `change` may alter the incoming gradient."""
    g = Geometry.of("test", **geometry)
    y, code, _ = conv_ops.forward_reference(x.double(), weight.double(), g, True, "")
    grad = whole(*y.shape, seed=2).to(x.dtype).contiguous(memory_format=memory_format(x))
    if change is not None:
        grad = change(grad, code)
    got = BACKWARD(
        grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=needs[0], need_weight=needs[1]
    )
    assert zb.last_kernel() == f"cuda-emulated: backward {kernel}"
    want = conv_ops.backward_reference(grad.double(), x.double(), weight.double(), code, g, *needs)
    for result, right in zip(got, want, strict=True):
        same(result, right.to(x.dtype))
    return got


STEM = {"stride": 2, "padding": 3, "pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
DIRECT_WEIGHT, DIRECT = "simt input + direct weight", "direct input + direct weight"
SIMT, TILES, TILES_WEIGHT = (
    "simt input + simt weight",
    "tiles input + tiles weight",
    "simt input + tiles weight",
)
# Tensor cores are worth more taps than ordinary multiply-adds; float64 has neither them nor tiles.
BY_DTYPE = {torch.float32: "tiles input + direct weight", torch.float64: DIRECT_WEIGHT}


def kernel_of(named: str, dtype: torch.dtype) -> str:
    """Of a call in this dtype: tiles don't take float64."""
    if named == "by dtype":
        return BY_DTYPE.get(dtype, TILES)
    return named.replace("tiles", "simt") if dtype == torch.float64 else named


# label: shape of x, shape of weight, kernel, arguments
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, dict[str, Any]]] = {
    "first layer": ((1, 3, 18, 20), (33, 3, 3, 3), DIRECT_WEIGHT, {"padding": 1}),
    "5x5": ((3, 1, 13, 14), (33, 1, 5, 5), DIRECT_WEIGHT, {"padding": 2}),
    "stem": ((1, 3, 30, 26), (32, 3, 7, 7), DIRECT_WEIGHT, STEM),
    "1x1": ((2, 5, 8, 9), (6, 5, 1, 1), DIRECT_WEIGHT, {}),
    "even kernel": ((2, 3, 11, 12), (20, 3, 2, 4), DIRECT_WEIGHT, {"padding": (1, 2)}),
    "dilation": ((2, 2, 15, 16), (20, 2, 3, 3), DIRECT_WEIGHT, {"dilation": (2, 3), "padding": 2}),
    "taps of several channels": ((2, 16, 9, 9), (17, 16, 3, 3), "by dtype", {"padding": 1}),
    "many slices": ((530, 1, 4, 4), (2, 1, 3, 3), DIRECT, {"padding": 1}),
    "wide groups": ((2, 4, 9, 9), (40, 2, 3, 3), DIRECT_WEIGHT, {"groups": 2, "padding": 1}),
    "narrow groups": ((2, 4, 9, 9), (8, 2, 3, 3), SIMT, {"groups": 2}),
    "many taps": ((2, 17, 7, 7), (20, 17, 3, 3), TILES, {"padding": 1}),
    # The tiles: more rows and columns than one, groups that end within a chunk, positions that end within a buffer,
    # each residue of a stride (with and without a tap), padding that no tap needs.
    "two tiles of rows": ((1, 9, 6, 6), (200, 9, 3, 3), "by dtype", {"padding": 1}),
    "tiles of columns": ((1, 40, 8, 6), (24, 40, 3, 3), TILES, {"padding": 1}),
    "many positions": ((9, 20, 11, 10), (9, 20, 3, 3), TILES, {"padding": 1}),
    "groups in tiles": ((2, 24, 9, 8), (20, 12, 5, 3), TILES, {"groups": 2, "padding": 2}),
    "stride in tiles": ((2, 16, 11, 13), (12, 16, 4, 3), TILES, {"stride": 2, "padding": 1}),
    "strides in tiles": ((2, 8, 12, 9), (10, 8, 5, 5), TILES, {"stride": (3, 1), "padding": (2, 4)}),
    "stride beyond the kernel": (
        (2, 40, 9, 10),
        (8, 40, 2, 2),
        TILES,
        {"stride": 3, "pool": "none", "negative_slope": 0.5},
    ),
    "dilation in tiles": ((2, 20, 14, 13), (9, 20, 3, 3), TILES, {"dilation": (2, 3), "padding": (1, 6)}),
    "stride and dilation": (
        (2, 20, 15, 14),
        (9, 20, 3, 3),
        TILES_WEIGHT,
        {"stride": 2, "dilation": 2, "padding": 2},
    ),
    "padding beyond the kernel": ((2, 20, 5, 6), (9, 20, 3, 3), TILES, {"padding": 4}),
    "few outputs": ((2, 40, 8, 8), (4, 40, 3, 3), SIMT, {"padding": 1}),
    "average in tiles": (
        (2, 8, 9, 11),
        (12, 8, 3, 3),
        TILES,
        {"pool": "avg", "padding": 1, "ceil_mode": True, "negative_slope": 0.5},
    ),
    "no pool in tiles": ((2, 8, 9, 7), (12, 8, 3, 3), TILES, {"pool": "none", "padding": 1}),
    "overlapping in tiles": (
        (2, 20, 12, 13),
        (9, 20, 3, 3),
        TILES,
        {"pool_kernel": 3, "pool_stride": (1, 2), "pool_padding": 1, "negative_slope": 0.5},
    ),
    "plane of one position in tiles": ((40, 24, 3, 3), (9, 24, 2, 2), "by dtype", {}),
    "depthwise": ((1, 33, 14, 13), (33, 1, 3, 3), DIRECT, {"groups": 33, "padding": 1}),
    "depthwise, two of each": ((1, 17, 10, 9), (34, 1, 3, 3), DIRECT, {"groups": 17, "padding": 1}),
    "depthwise, eight of each": ((1, 5, 12, 12), (40, 1, 3, 3), DIRECT_WEIGHT, {"groups": 5}),
    "depthwise, 5x5 stride 2": (
        (2, 6, 19, 21),
        (6, 1, 5, 5),
        DIRECT,
        {"groups": 6, "padding": 2, "stride": 2},
    ),
    "depthwise, dilated": (
        (1, 3, 17, 18),
        (3, 1, 3, 3),
        DIRECT,
        {"groups": 3, "padding": 2, "dilation": (2, 3)},
    ),
    "depthwise, larger than a tile": ((1, 2, 70, 67), (2, 1, 3, 3), DIRECT, {"groups": 2, "padding": 1}),
    "ceil_mode": (
        (2, 2, 9, 11),
        (2, 1, 3, 3),
        DIRECT,
        {"groups": 2, "padding": 1, "ceil_mode": True},
    ),
    "overlapping": (
        (2, 3, 12, 13),
        (3, 1, 3, 3),
        DIRECT,
        {"groups": 3, "padding": 1, "pool_kernel": 3, "pool_stride": (1, 2), "pool_padding": 1},
    ),
    "gaps between windows": (
        (2, 3, 14, 14),
        (3, 1, 3, 3),
        DIRECT,
        {"groups": 3, "padding": 1, "pool_kernel": 2, "pool_stride": 3},
    ),
    "codes of four bytes": ((1, 2, 20, 20), (16, 2, 3, 3), DIRECT_WEIGHT, {"pool_kernel": 16}),
    "depthwise, codes of four bytes": (
        (1, 2, 20, 20),
        (2, 1, 3, 3),
        "direct input + simt weight",
        {"groups": 2, "pool_kernel": 16},
    ),
    "slope": ((2, 3, 12, 12), (32, 3, 3, 3), DIRECT_WEIGHT, {"padding": 1, "negative_slope": 0.5}),
    "depthwise, slope, overlapping": (
        (2, 3, 12, 12),
        (3, 1, 3, 3),
        DIRECT,
        {"groups": 3, "negative_slope": 0.5, "pool_kernel": 3, "pool_stride": 2},
    ),
    "no tile fits": ((1, 2, 95, 95), (16, 2, 4, 4), SIMT, {"pool_kernel": 90}),
    "average": ((2, 3, 8, 8), (16, 3, 3, 3), SIMT, {"pool": "avg", "padding": 1}),
    "no pool": ((2, 3, 8, 8), (16, 3, 3, 3), SIMT, {"pool": "none", "padding": 1}),
}
LARGE = ("many slices", "no tile fits")


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("channels_last", (False, True), ids=("contiguous", "channels_last"))
@pytest.mark.parametrize("label", CASES)
def test_gradients(label: str, channels_last: bool, dtype: torch.dtype) -> None:
    number = list(CASES).index(label)
    if SANITIZER == "tsan" and (
        label in LARGE or number % 2 != channels_last or DTYPES[number // 2 % 4] != dtype
    ):
        pytest.skip("ThreadSanitizer takes a share")
    x_shape, weight_shape, kernel, geometry = CASES[label]
    x, weight = whole(*x_shape, seed=0).to(dtype), whole(*weight_shape, seed=1).to(dtype)
    if channels_last:
        x, weight = x.to(memory_format=CL), weight.to(memory_format=CL)
    check(x, weight, kernel_of(kernel, dtype), **geometry)


def test_what_tiles_refuse_is_told() -> None:
    x_shape, weight_shape, _, geometry = CASES["stride and dilation"]
    x, weight, g = whole(*x_shape), whole(*weight_shape), Geometry.of("test", **geometry)
    y, code, _ = conv_ops.forward_reference(x, weight, g, True, "")
    BACKWARD(y, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=True)
    assert zb.last_refusals() == ["tiles input: a stride and a dilation"]


@pytest.fixture
def tf32() -> Iterator[None]:
    _loader.allow_tf32(True, True)
    yield
    _loader.allow_tf32(False, False)
    _tf32._told = None  # the next public call tells torch's own switches again


@pytest.mark.parametrize(
    "label", ("taps of several channels", "tiles of columns", "groups in tiles", "stride in tiles")
)
def test_gradients_in_tf32(label: str, tf32: None) -> None:
    x_shape, weight_shape, _, geometry = CASES[label]
    x, weight = whole(*x_shape, seed=0), whole(*weight_shape, seed=1)
    check(x, weight, TILES, **geometry)


def test_tf32_gradients_round_both_factors(tf32: None) -> None:
    """1 + 2^-12 is 1 in TF32, as the factor of either product; elsewhere it stays."""
    g = Geometry.of("test", pool="none")
    x, weight = torch.full((2, 8, 5, 5), 1 + 2**-12), torch.full((8, 8, 1, 1), 1 + 2**-12)
    code = conv_ops.forward_reference(x, weight, g, True, "")[1]
    grad = torch.full((2, 8, 5, 5), 1 + 2**-12)
    call = lambda: BACKWARD(  # noqa: E731
        grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=True
    )
    grad_x, grad_weight = call()
    assert (grad_x == 8).all() and (grad_weight == 50).all()
    _loader.allow_tf32(False, False)
    grad_x, grad_weight = call()
    assert (grad_x > 8.003).all() and (grad_weight > 50.02).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_gradients_repeat(dtype: torch.dtype) -> None:
    """Sums of any numbers come out the same bits again, over several slices too."""
    g = Geometry.of("test", padding=1)
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((9, 20, 10, 10), (9, 20, 3, 3))
    )
    y, code, _ = conv_ops.forward_reference(x, weight, g, True, "")
    grad = torch.randn(y.shape, generator=generator).to(dtype)
    flags = {"need_x": True, "need_weight": True}
    results = [BACKWARD(grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), **flags) for _ in range(2)]
    for first, second in zip(*results, strict=True):
        same(first, second)
    wide = conv_ops.backward_reference(grad.double(), x.double(), weight.double(), code, g, True, True)
    exact = conv_ops.backward_reference(grad, x, weight, code, g, True, True)
    for result, right, torchs in zip(results[0], wide, exact, strict=True):
        error, torchs_error = (result.double() - right).norm(), (torchs.double() - right).norm()
        assert error <= 2 * torchs_error + 1e-15 * right.norm()


@pytest.mark.parametrize("groups, kernel", ((1, DIRECT_WEIGHT), (6, DIRECT), (0, TILES)))
def test_gradients_of_any_strides(groups: int, kernel: str) -> None:
    """Expanded and transposed gradients, sliced x, an unbatched call, one gradient at a time."""
    x, weight = whole(2, 6, 10, 12, seed=0), whole(18, 6 // max(groups, 1), 3, 3, seed=1)
    if kernel == TILES:
        groups, x, weight = 1, whole(2, 20, 10, 12, seed=0), whole(18, 20, 3, 3, seed=1)
    expanded = lambda grad, _: grad[:1, :1, :1, :1].expand(grad.shape)  # noqa: E731
    transposed = lambda grad, _: grad.transpose(2, 3).contiguous().transpose(2, 3)  # noqa: E731
    for change in (expanded, transposed):
        check(x, weight, kernel, change, groups=groups)
    check(x[:, :, ::2, 1:], weight.flip(2).transpose(2, 3), kernel, groups=groups, padding=1)
    check(x[1], weight, kernel, groups=groups)
    check(x, weight, kernel.split(" + ")[1], needs=(False, True), groups=groups)
    check(x, weight, kernel.split(" + ")[0], needs=(True, False), groups=groups)


@pytest.mark.parametrize("groups, kernel", ((1, DIRECT_WEIGHT), (6, DIRECT)))
@pytest.mark.parametrize("bad", (float("nan"), float("inf")))
def test_dead_units_pass_nothing(bad: float, groups: int, kernel: str) -> None:
    x, weight = whole(2, 6, 10, 12, seed=0), whole(18, 6 // groups, 3, 3, seed=1)
    clean = check(x, weight, kernel, lambda grad, code: grad.where(code != 0, 0), groups=groups)
    g = Geometry.of("test", groups=groups)
    code = conv_ops.forward_reference(x.double(), weight.double(), g, True, "")[1]
    assert (code == 0).any()
    grad = whole(*code.shape, seed=2).where(code != 0, bad)
    got = BACKWARD(grad, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=True)
    for result, right in zip(got, clean, strict=True):
        same(result, right)
