"""The kernel for few pixels and many weights: one image in the deep layers of a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import zbkernels as zb
from zbkernels import _loader

pytestmark = pytest.mark.skipif(_loader.handle("_C_cpu") is None, reason="the CPU kernels are not built")
POOLS: list[dict[str, Any]] = [
    {"pool": "none"},
    {"pool": "max"},
    {"pool": "avg"},
    {"pool": "max", "pool_kernel": 3, "pool_stride": 1, "pool_padding": 1},
]


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return ((got.double() - exact.double()).norm() / exact.double().norm()).item()


def reference(
    x: torch.Tensor, weight: torch.Tensor, conv: tuple[int, ...], pool: dict[str, Any]
) -> torch.Tensor:
    y = F.conv2d(x, weight, None, *conv).relu()
    size = (pool.get("pool_kernel", 2), pool.get("pool_stride"), pool.get("pool_padding", 0))
    if pool["pool"] == "none":
        return y
    return F.max_pool2d(y, *size) if pool["pool"] == "max" else F.avg_pool2d(y, *size)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_values_at_odd_sizes(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel, stride, padding, dilation = (draw(1, 4), draw(1, 5)), draw(1, 2), draw(0, 2), draw(1, 2)
    n, h, w, c = draw(1, 3), draw(2, 7), draw(2, 7), draw(90, 300)
    k = -(-(1 << 18) // (c * kernel[0] * kernel[1])) + draw(0, 40)  # just enough weights
    map_size = [
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps in zip((h, w), kernel, strict=True)
    ]
    pool = data.draw(st.sampled_from(POOLS))
    if min(map_size) < 2 or n * map_size[0] * map_size[1] > 48:
        return
    layouts = st.sampled_from([torch.contiguous_format, torch.channels_last])
    x = torch.randn(n, c, h, w).contiguous(memory_format=data.draw(layouts))
    weight = torch.randn(k, c, *kernel).contiguous(memory_format=data.draw(layouts))
    y = zb.conv_relu_pool2d(x, weight, stride, padding, dilation, **pool)
    assert "few-pixels" in zb.last_kernel()
    name = zb.explain("conv_relu_pool2d", x, weight, stride, padding, dilation, **pool).kernel
    assert name == zb.last_kernel()
    expected = reference(x.double(), weight.double(), (stride, padding, dilation), pool)
    torch_error = relative_error(reference(x, weight, (stride, padding, dilation), pool), expected)
    assert relative_error(y, expected) <= 2 * torch_error + 1e-7


def test_where_it_is_not_taken() -> None:
    x, weight = torch.randn(1, 512, 4, 4), torch.randn(512, 512, 3, 3)

    def kernel(*args: Any, **kwargs: Any) -> str:
        return zb.explain("conv_relu_pool2d", *args, padding=1, **kwargs).kernel

    assert "few-pixels" in kernel(x, weight) and "few-pixels" in kernel(x[0], weight)
    many = torch.randn(4, 512, 4, 4)
    assert "winograd" in kernel(many, weight)
    gaps = torch.randn(512, 1024, 3, 3)[:, ::2]
    for other in (
        kernel(x.double(), weight.double()),
        kernel(x.bfloat16(), weight.bfloat16()),
        kernel(x, gaps),
        kernel(x, weight[:32]),
        kernel(torch.randn(1, 1024, 4, 4), weight, groups=2),
    ):
        assert "few-pixels" not in other
    zb.set_conv_precision("highest")
    try:
        assert "few-pixels" not in kernel(x, weight)
    finally:
        zb.set_conv_precision("high")
    _, sig = zb.conv_relu_pool2d_nap(x, weight, padding=1)
    assert "few-pixels" not in zb.last_kernel()
    _, same = zb.conv_relu_pool2d_nap(torch.cat([x, many]), weight, padding=1)
    assert torch.equal(sig[0], same[0]), "a pattern does not depend on the batch"


def test_a_row_of_weights_does_not_see_the_next_one() -> None:
    """341 taps are no whole number of vectors: the last one must not multiply what lies behind the row."""
    x, weight = torch.randn(1, 341, 3, 3), torch.randn(800, 341, 1, 1)
    weight[7] = float("nan")
    weight[9] = float("inf")
    y = zb.conv_relu_pool2d(x, weight, pool="none")
    assert "few-pixels" in zb.last_kernel()
    expected = F.conv2d(x, weight).relu()
    assert torch.equal(y.isnan(), expected.isnan()) and y[:, 7].isnan().all()
    assert not y[:, 6].isnan().any() and not y[:, 8].isnan().any()


def test_new_weights_and_gradients() -> None:
    x, weight = torch.randn(1, 256, 4, 4), torch.randn(256, 256, 3, 3)
    y = zb.conv_relu_pool2d(x, weight, padding=1)
    weight *= 2
    assert torch.equal(zb.conv_relu_pool2d(x, weight, padding=1), 2 * y)
    ours = [t.clone().requires_grad_() for t in (x, weight)]
    theirs = [t.double().requires_grad_() for t in (x, weight)]
    grad = torch.randn(1, 256, 2, 2)
    result = zb.conv_relu_pool2d(*ours, padding=1)
    result.backward(grad)
    reference(*theirs, (1, 1), {"pool": "max"}).backward(grad.double())
    for got, expected in zip(ours, theirs, strict=True):
        assert got.grad is not None and expected.grad is not None
        assert relative_error(got.grad, expected.grad) < 1e-5
    assert torch.equal(result, zb.conv_relu_pool2d(x, weight, padding=1))
