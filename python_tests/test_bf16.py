"""bfloat16 convolutions on the CPU: pairs of taps by AVX-512-BF16 where the processor has it, else in float32.

The tests hold for both; those of the pairs alone skip where the kernel cannot run.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

import zbkernels as zb
from zbkernels import _loader

PAIRS = "direct bf16 avx512"
HAS_PAIRS = _loader.cpu_capability() == "avx512_bf16"
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="no AVX-512-BF16 here, or held to less")
FORMATS = (torch.contiguous_format, torch.channels_last)
ROUNDING = 2.0**-8  # to bfloat16: the largest relative error
TINY = 2.0**-126

Conv = dict[str, Any]


@pytest.fixture
def highest() -> Iterator[None]:
    """Direct sums everywhere."""
    before = zb.get_conv_precision()
    zb.set_conv_precision("highest")
    yield
    zb.set_conv_precision(before)


def drawn(
    n: int, c: int, h: int, w: int, k: int, cg: int, r: int, s: int, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, c, h, w, generator=gen).bfloat16()
    weight = (torch.randn(k, cg, r, s, generator=gen) / math.sqrt(cg * r * s)).bfloat16()
    return x, weight


def map_of(x: torch.Tensor, weight: torch.Tensor, conv: Conv, slope: float) -> torch.Tensor:
    """The activated map in float64."""
    y = F.conv2d(x.double(), weight.double(), None, **conv)
    return F.leaky_relu(y, slope) if slope else F.relu(y)


def close_to_exact(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, conv: Conv, pool: Conv) -> None:
    """Within one rounding of the float64 result (two where a mean is rounded again, or a slope is applied), and
    float32's own error: of the sum of magnitudes, 2^-20 for a chain of a few hundred."""
    slope = pool.get("negative_slope", 0.0)
    exact, kind = map_of(x, weight, conv, slope), pool["pool"]
    size = F.conv2d(x.double().abs(), weight.double().abs(), None, **conv)
    window = {
        "kernel_size": pool.get("pool_kernel", 2),
        "stride": pool.get("pool_stride"),
        "padding": pool.get("pool_padding", 0),
        "ceil_mode": pool.get("ceil_mode", False),
    }
    if kind == "max":
        exact, size = F.max_pool2d(exact, **window), F.max_pool2d(size, **window)
    elif kind == "avg":
        # The map's own roundings do not shrink where its values cancel under a slope.
        size = F.avg_pool2d(exact.abs(), **window) * (ROUNDING / 2**-20) + F.avg_pool2d(size, **window)
        exact = F.avg_pool2d(exact, **window)
    roundings = 1 + (kind == "avg") + (slope not in (0.0, 1.0))
    allowed = exact.abs() * ROUNDING * 1.01 * roundings + size * 2**-20 + TINY
    assert y.shape == exact.shape
    assert (y.double() - exact).abs().le(allowed).all()


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Conv, Conv]:
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    cg, kg = draw(st.sampled_from((1, 2, 3, 4, 7, 16, 33, 70))), draw(st.sampled_from((1, 8, 16, 17, 32, 40)))
    r, s = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    stride, dilation = (
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4))),
        draw(st.tuples(*[st.integers(1, 3)] * 2)),
    )
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    h = dilation[0] * (r - 1) + draw(st.integers(1, 14))
    w = dilation[1] * (s - 1) + draw(st.integers(1, 40))
    conv = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    kind = draw(st.sampled_from(("max", "max", "avg", "none")))
    pool: Conv = {"pool": kind, "negative_slope": draw(st.sampled_from((0.0, 0.0, 0.25, 1.0)))}
    if kind != "none":
        kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        pool |= {"pool_kernel": draw(st.sampled_from(((2, 2), kernel)))}
        pool |= {
            "pool_stride": draw(st.sampled_from((None, (1, 2), (2, 2)))),
            "ceil_mode": draw(st.booleans()),
        }
    return (draw(st.integers(1, 3)), groups * cg, h, w, groups * kg, cg, r, s), conv, pool


def pooled_size_is_positive(x: torch.Tensor, weight: torch.Tensor, conv: Conv, pool: Conv) -> bool:
    if pool["pool"] == "none":
        return True
    meta = F.conv2d(x.to("meta"), weight.to("meta"), None, **conv)
    return all(have >= want for have, want in zip(meta.shape[2:], pool["pool_kernel"], strict=True))


@settings(max_examples=120, deadline=None)
@given(problems(), st.sampled_from(FORMATS), st.booleans(), st.integers(0, 99))
def test_values_over_odd_shapes(
    problem: tuple[tuple[int, ...], Conv, Conv], layout: torch.memory_format, sliced: bool, seed: int
) -> None:
    sizes, conv, pool = problem
    x, weight = drawn(*sizes, seed=seed)
    x = x.contiguous(memory_format=layout)
    if sliced:  # rows that are not dense, from an odd address
        x = torch.cat((x, x), 3)[..., 1 : 1 + x.shape[3]]
    if not pooled_size_is_positive(x, weight, conv, pool):
        return
    with torch.no_grad():
        y = zb.conv_relu_pool2d(x, weight, **conv, **pool)
    if "winograd" not in zb.last_kernel():
        close_to_exact(y, x, weight, conv, pool)
    # The training pass keeps codes and pools another way, of the same sums.
    again = zb.conv_relu_pool2d(x, weight.requires_grad_(), **conv, **pool).detach()
    assert torch.equal(y, again)
    weight = weight.detach()
    # As do one image, the other memory format, and the pass with a signature where both are direct.
    one = zb.conv_relu_pool2d(x[-1:], weight, **conv, **pool)
    assert torch.equal(one, y[-1:])
    other = zb.conv_relu_pool2d(
        x.contiguous(memory_format=FORMATS[layout == FORMATS[0]]), weight, **conv, **pool
    )
    assert torch.equal(other, y)
    kernel = zb.last_kernel()
    with_bits, sig = zb.conv_relu_pool2d_nap(x, weight, **conv, **pool, units="output")
    if zb.last_kernel() == kernel:
        assert torch.equal(with_bits, y)
    assert torch.equal(zb.nap_unpack(sig, with_bits[0].numel()), (with_bits > 0).flatten(1))


# Channels of a group (pairs, an odd one, one alone), filter columns (odd: the last has no partner), strides and
# dilations (columns by phase, and by tap).
LAYOUTS = [
    (c, s, stride, dilation)
    for c in (1, 2, 3, 6)
    for s, stride, dilation in ((1, 1, 1), (2, 1, 1), (3, 1, 1), (5, 2, 1), (4, 1, 3), (1, 3, 1), (3, 2, 2))
]


@pytest.mark.parametrize("layout", FORMATS, ids=("contiguous", "channels_last"))
@pytest.mark.parametrize(("c", "s", "stride", "dilation"), LAYOUTS)
def test_what_is_not_finite_stands_where_it_is_seen(
    c: int, s: int, stride: int, dilation: int, layout: torch.memory_format
) -> None:
    x, weight = drawn(2, c, 9, 41, 24, c, 3, s)
    conv = {"stride": (1, stride), "padding": (1, s // 2 * dilation), "dilation": (1, dilation)}
    y = zb.conv_relu_pool2d(x, weight, **conv, pool="none", negative_slope=1.0)
    for channel, value in ((0, math.nan), (c - 1, math.inf), (c - 1, math.nan)):
        bad = x.clone()
        bad[1, channel, 4, 17] = bad[1, channel, 0, 40] = value
        got = zb.conv_relu_pool2d(
            bad.contiguous(memory_format=layout), weight, **conv, pool="none", negative_slope=1.0
        )
        exact = F.conv2d(bad.double(), weight.double(), None, **conv)
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(test(got), test(exact))
        if "winograd" not in zb.last_kernel():
            assert torch.equal(got[exact.isfinite()], y[exact.isfinite()])
    # A filter's value is seen by its own channel alone, and not where it meets no column at all.
    bad = weight.clone()
    bad[5, c - 1, 1, s - 1] = math.nan
    got = zb.conv_relu_pool2d(
        x.contiguous(memory_format=layout), bad, **conv, pool="none", negative_slope=1.0
    )
    assert got[:, 5].isnan().all() and got.isnan().sum() == got[:, 5].numel()


@pytest.mark.parametrize("pool", ["max", "none"])
def test_nan_passes_through_a_window_taken_in_registers(pool: str) -> None:
    x, weight = drawn(1, 3, 12, 22, 40, 3, 3, 3)
    for row, column in ((4, 6), (4, 7), (5, 6), (5, 7)):
        bad = x.clone()
        bad[0, 1, row, column] = math.nan
        y = zb.conv_relu_pool2d(bad, weight, padding=1, pool=pool)
        pre = F.conv2d(bad.double(), weight.double(), None, padding=1)
        assert torch.equal(y.isnan(), (F.max_pool2d(pre, 2) if pool == "max" else pre).isnan())


def test_values_below_the_least_normal_one() -> None:
    """They count as 0 for the pairs, as for torch on these processors, and for nobody is the error above that."""
    x, weight = drawn(1, 6, 8, 8, 32, 6, 3, 3)
    tiny = (x.double() * 2.0**-128).bfloat16()
    for small, large in ((tiny, weight), (x * 2.0**-70, weight * 2.0**-60)):
        exact = F.conv2d(small.double(), large.double())
        y = zb.conv_relu_pool2d(small, large, stride=1, pool="none", negative_slope=1.0)
        assert (y.double() - exact).abs().le(exact.abs() * ROUNDING + 54 * TINY).all()
        for units in ("relu", "output"):
            y, sig = zb.conv_relu_pool2d_nap(small, large, pool="none", units=units)
            assert torch.equal(zb.nap_unpack(sig, y.numel()), (y > 0).flatten(1))


@pytest.mark.usefixtures("highest")
@pytest.mark.parametrize("layout", FORMATS, ids=("contiguous", "channels_last"))
def test_small_whole_numbers_are_exact(layout: torch.memory_format) -> None:
    gen = torch.Generator().manual_seed(1)
    for c, k, r, conv, pool in (
        (3, 64, 3, {"padding": 1}, {"pool": "max"}),
        (1, 32, 5, {"padding": 2}, {"pool": "max"}),
        (30, 40, 1, {"stride": 2}, {"pool": "none"}),
        (5, 33, 3, {"stride": 2, "padding": 1}, {"pool": "max", "pool_kernel": 3, "pool_stride": 2}),
    ):
        x = torch.randint(-2, 3, (2, c, 20, 22), generator=gen).bfloat16().contiguous(memory_format=layout)
        weight = torch.randint(-1, 2, (k, c, r, r), generator=gen).bfloat16()
        y = zb.conv_relu_pool2d(x, weight, **conv, **pool)
        exact = F.relu(F.conv2d(x.double(), weight.double(), None, **conv))
        if pool["pool"] == "max":
            exact = F.max_pool2d(exact, pool.get("pool_kernel", 2), pool.get("pool_stride"))
        assert torch.equal(y.double(), exact.bfloat16().double())


def test_threads_do_not_show() -> None:
    x, weight = drawn(5, 3, 34, 30, 72, 3, 3, 3)
    conv = {"stride": 2, "padding": 1}
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(zb.conv_relu_pool2d_nap(x, weight, **conv, units="relu"))
    finally:
        torch.set_num_threads(threads)
    for y, sig in results[1:]:
        assert torch.equal(y, results[0][0]) and torch.equal(sig, results[0][1])


def test_packed_weights_follow_the_weight() -> None:
    x, weight = drawn(2, 8, 12, 12, 64, 8, 3, 3)
    conv = {"stride": 2}
    with torch.no_grad():
        before = zb.conv_relu_pool2d(x, weight, **conv, pool="none")
        weight.mul_(2)
        after = zb.conv_relu_pool2d(x, weight, **conv, pool="none")
    assert torch.equal(after, before * 2)


# (channels, outputs, filter, stride, dilation): what the pairs are for.
DIRECT = [(64, 128, 3, 2, 1), (64, 64, 1, 1, 1), (16, 32, 3, 1, 2), (48, 96, 4, 4, 1)]


@needs_pairs
@pytest.mark.parametrize(("c", "k", "r", "stride", "dilation"), DIRECT)
def test_direct_layers_take_pairs(c: int, k: int, r: int, stride: int, dilation: int) -> None:
    x, weight = drawn(1, c, 16, 16, k, c, r, r)
    args = (x, weight, stride, 0, dilation)
    zb.conv_relu_pool2d(*args, pool="none")
    assert zb.last_kernel() == f"cpu: {PAIRS}" == zb.explain("conv_relu_pool2d", *args, pool="none").kernel
    for other in (torch.float32, torch.float16, torch.float64):
        zb.conv_relu_pool2d(x.to(other), weight.to(other), stride, 0, dilation, pool="none")
        assert "bf16" not in zb.last_kernel()


@needs_pairs
def test_signatures_and_highest_precision_take_pairs() -> None:
    x, weight = drawn(2, 64, 16, 16, 64, 64, 3, 3)
    plain = zb.conv_relu_pool2d(x, weight, padding=1)
    assert "winograd" in zb.last_kernel()
    y, sig = zb.conv_relu_pool2d_nap(x, weight, padding=1)
    assert zb.last_kernel() == f"cpu: {PAIRS}"
    precision = zb.get_conv_precision()
    try:
        zb.set_conv_precision("highest")
        assert torch.equal(zb.conv_relu_pool2d(x, weight, padding=1), y)
        assert zb.last_kernel() == f"cpu: {PAIRS}"
    finally:
        zb.set_conv_precision(precision)
    assert (plain.double() - y.double()).abs().max() <= 2 * ROUNDING * y.abs().max()
    # A pattern does not depend on the contrast.
    assert torch.equal(zb.conv_relu_pool2d_nap(x * 2.0**-20, weight, padding=1)[1], sig)


@pytest.mark.parametrize("capability", ["avx512", "avx2", "portable"])
def test_the_kernel_can_be_held_back(capability: str) -> None:
    code = (
        "import torch, zbkernels as zb, sys\n"
        "x, w = torch.ones(1, 64, 9, 9).bfloat16(), torch.ones(32, 64, 1, 1).bfloat16()\n"
        "y = zb.conv_relu_pool2d(x, w, pool='none')\n"
        "sys.stdout.write(f'{zb.last_kernel()} {y.unique().tolist()} {zb._loader.cpu_capability()}')"
    )
    env = {**os.environ, "ZBKERNELS_CPU_CAPABILITY": capability}
    did = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "bf16" not in did.stdout and "[64.0]" in did.stdout
