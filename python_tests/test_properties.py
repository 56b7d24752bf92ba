"""hypothesis against torch: shapes, strides and options that no list of samples thought of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import zbkernels as zb

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

COMMON = settings(max_examples=300, deadline=None, derandomize=True)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


@st.composite
def strided(
    draw: Any, shape: tuple[int, ...], dtype: torch.dtype, seed: int, factor: int = 1
) -> torch.Tensor:
    """Whole numbers, so that sums are exact, in a tensor with drawn order, steps, offset and expanded sizes."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    expand = draw(st.sampled_from([None, None, None, *range(len(shape))]))
    base = [1 if d == expand else n * s for d, (n, s) in enumerate(zip(shape, steps, strict=True))]
    offset = draw(st.integers(0, 5))
    g = torch.Generator().manual_seed(seed)
    total = offset + math.prod(base)
    flat = (torch.randint(-2, 3, (total,), generator=g) * factor).to(dtype)[offset:]
    t = (
        flat[: math.prod(base)]
        .view([base[d] for d in order])
        .permute([order.index(d) for d in range(len(shape))])
    )
    t = t[tuple(slice(None) if d == expand else slice(None, None, s) for d, s in enumerate(steps))]
    return t.expand(shape)


@st.composite
def conv_calls(draw: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    per_in, per_out = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    stride, dilation = [(draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in range(2)]
    padding = (draw(st.integers(0, 4)), draw(st.integers(0, 4)))
    pool = draw(st.sampled_from(["max", "max", "avg", "none"]))
    pool_kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    size = []
    for d in (0, 1):
        least = dilation[d] * (kernel[d] - 1) + 1 + stride[d] * (pool_kernel[d] - 1) - 2 * padding[d]
        size.append(draw(st.integers(max(1, least), max(1, least) + 9)))
    dtype = draw(DTYPES)
    unbatched = draw(st.booleans())
    shape = (groups * per_in, *size) if unbatched else (draw(st.integers(0, 3)), groups * per_in, *size)
    x = draw(strided(shape, dtype, draw(st.integers(0, 9999))))
    w = draw(strided((groups * per_out, per_in, *kernel), dtype, draw(st.integers(0, 9999))))
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "pool": pool,
        "pool_kernel": pool_kernel,
        "pool_stride": (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        "pool_padding": tuple(draw(st.integers(0, k // 2)) for k in pool_kernel),
        "ceil_mode": draw(st.booleans()),
        "count_include_pad": draw(st.booleans()),
        "negative_slope": draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
    }
    return x, w, options


def torch_steps(x: torch.Tensor, w: torch.Tensor, o: dict[str, Any]) -> torch.Tensor:
    dilation = tuple(1 if w.shape[d + 2] == 1 else o["dilation"][d] for d in (0, 1))
    y = F.conv2d(x, w, None, o["stride"], o["padding"], dilation, o["groups"])
    y = F.relu(y) if o["negative_slope"] == 0 else F.leaky_relu(y, o["negative_slope"])
    window = (o["pool_kernel"], o["pool_stride"], o["pool_padding"])
    if o["pool"] == "max":
        return F.max_pool2d(y, *window, ceil_mode=o["ceil_mode"])
    if o["pool"] == "avg":
        return F.avg_pool2d(y, *window, o["ceil_mode"], o["count_include_pad"])
    return y


@COMMON
@given(conv_calls())
def test_conv_relu_pool2d_is_its_three_steps(call: Any) -> None:
    x, w, options = call
    zb.set_conv_precision("highest")
    try:
        y = zb.conv_relu_pool2d(x, w, **options)
    finally:
        zb.set_conv_precision("high")
    want = torch_steps(x, w, options)
    exact = options["pool"] != "avg"
    torch.testing.assert_close(y, want, rtol=0 if exact else 4 * torch.finfo(x.dtype).eps, atol=0)


@COMMON
@given(conv_calls(), st.booleans())
def test_conv_relu_pool2d_gradients(call: Any, channels_last_gradient: bool) -> None:
    x, w, options = call
    x, w = x.double(), w.double()  # whole numbers: ties are met, and sums stay exact
    results = []
    for function in (
        lambda a, b: zb.conv_relu_pool2d(a, b, **options),
        lambda a, b: torch_steps(a, b, options),
    ):
        a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = function(a, b)
        r = torch.randint(-2, 3, y.shape, generator=torch.Generator().manual_seed(5)).double()
        if channels_last_gradient and r.dim() == 4:
            r = r.to(memory_format=torch.channels_last)
        results.append(torch.autograd.grad(y, (a, b), r))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@COMMON
@given(conv_calls(), st.sampled_from(["relu", "output"]))
def test_signature_is_the_sign_of_the_map(call: Any, units: str) -> None:
    x, w, options = call
    zb.set_conv_precision("highest")
    try:
        _, sig = zb.conv_relu_pool2d_nap(x, w, **options, units=units)
    finally:
        zb.set_conv_precision("high")
    o = {**options, "pool": "none"} if units == "relu" else options
    on = torch_steps(x, w, o) > 0
    on = on.flatten(1) if x.dim() == 4 else on.flatten()[None]
    assert torch.equal(sig.reshape(on.shape[0], sig.shape[-1]), zb.nap_pack(on))


@COMMON
@given(st.data(), DTYPES)
def test_linear_relu_is_its_two_steps(data: Any, dtype: torch.dtype) -> None:
    features, units = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 140))
    lead = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    x = data.draw(strided((*lead, features), dtype, data.draw(st.integers(0, 9999))))
    w = data.draw(strided((units, features), dtype, data.draw(st.integers(0, 9999))))
    slope = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    y, sig = zb.linear_relu_nap(x, w, slope)
    want = F.linear(x, w)
    want = F.relu(want) if slope == 0 else F.leaky_relu(want, slope)
    assert torch.equal(y, want)
    assert torch.equal(y, zb.linear_relu(x, w, slope))
    assert torch.equal(sig.reshape(-1, sig.shape[-1]), zb.nap_pack(y.reshape(-1, units)))


@COMMON
@given(st.data(), st.integers(0, 5), st.integers(0, 300))
def test_pack_and_unpack_are_inverse(data: Any, rows: int, units: int) -> None:
    x = data.draw(strided((rows, units), data.draw(DTYPES), data.draw(st.integers(0, 9999))))
    words = zb.nap_pack(x)
    assert words.shape == (rows, (units + 63) // 64)
    assert torch.equal(zb.nap_unpack(words, units), x > 0)
    assert torch.equal(zb.nap_pack(x > 0), words)


@st.composite
def signatures(draw: Any, rows: int, words: int) -> torch.Tensor:
    """Words of five values whose bits are spread (ties are met), or which are near 0 and -1."""
    factor = draw(st.sampled_from([1, 0x1E3779B97F4A7C15]))
    return draw(strided((rows, words), torch.int64, draw(st.integers(0, 9999)), factor))


def numpy_bits(sig: torch.Tensor) -> Any:
    """uint8 [N, 64 W] by NumPy, the lowest bit of a word first."""
    octets = np.ascontiguousarray(sig.numpy()).view(np.uint8).reshape(sig.shape[0], 8 * sig.shape[1])
    return np.unpackbits(octets, axis=1, bitorder="little")


@COMMON
@given(st.data(), st.integers(0, 6), st.integers(0, 40), st.integers(0, 35))
def test_hamming_and_topk_against_numpy(data: Any, queries: int, rows: int, words: int) -> None:
    q, db = data.draw(signatures(queries, words)), data.draw(signatures(rows, words))
    table = (numpy_bits(q)[:, None] != numpy_bits(db)[None]).sum(2)
    got = zb.nap_hamming(q, db)
    assert got.dtype == torch.int32 and np.array_equal(got.numpy(), table)
    k = data.draw(st.integers(0, rows))
    distances, ids = zb.nap_topk(q, db, k)
    order = np.argsort(table, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids.numpy(), order)
    assert np.array_equal(distances.numpy(), np.take_along_axis(table, order, 1))


@COMMON
@given(st.data(), st.integers(0, 600), st.integers(0, 4))
def test_frequency_against_numpy(data: Any, rows: int, words: int) -> None:
    sig = data.draw(signatures(rows, words))
    units = data.draw(st.integers(0, 64 * words))
    assert np.array_equal(zb.nap_frequency(sig, units).numpy(), numpy_bits(sig).sum(0)[:units])
