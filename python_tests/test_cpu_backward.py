"""The CPU's ways back, each at shapes that it takes, against torch's gradients in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import zbkernels as zb

WINOGRAD, SPARSE, DENSE = "backward winograd", "backward sparse", "backward dense"

# name: x, weight, arguments, words of last_kernel after both gradients
CASES = {
    "3x3": ((3, 24, 17, 15), (40, 24, 3, 3), {"padding": 1}, (WINOGRAD, SPARSE)),
    "3x3, no padding": ((3, 24, 17, 15), (40, 24, 3, 3), {}, (WINOGRAD, SPARSE)),
    "5x5": ((3, 9, 17, 15), (33, 9, 5, 5), {"padding": 2}, (WINOGRAD, SPARSE)),
    "2x2, 7x7 window": ((2, 17, 30, 30), (18, 17, 2, 2), {"pool_kernel": 7}, (SPARSE,)),
    "leaky": ((3, 24, 17, 15), (40, 24, 3, 3), {"padding": 1, "negative_slope": 0.2}, (WINOGRAD, SPARSE)),
    "overlapping": (
        (3, 24, 17, 15),
        (40, 24, 3, 3),
        {"padding": 1, "pool_kernel": 3, "pool_stride": 2, "pool_padding": 1},
        (WINOGRAD,),
    ),
    "average": ((3, 24, 17, 15), (40, 24, 3, 3), {"padding": 1, "pool": "avg"}, (WINOGRAD, DENSE)),
    "average over the edge": (
        (3, 24, 17, 15),
        (40, 24, 3, 3),
        {"pool": "avg", "pool_kernel": 3, "pool_stride": 2, "pool_padding": 1, "count_include_pad": False},
        (WINOGRAD, DENSE),
    ),
    "no pool": ((3, 24, 17, 15), (40, 24, 3, 3), {"padding": 1, "pool": "none"}, (WINOGRAD, SPARSE)),
    "no pool, identity": (
        (3, 24, 17, 15),
        (40, 24, 3, 3),
        {"pool": "none", "negative_slope": 1.0},
        (WINOGRAD,),
    ),
    "codes of 32 bits": (
        (1, 24, 40, 40),
        (16, 24, 3, 3),
        {"padding": 1, "pool_kernel": 16, "pool_stride": 2},
        (),
    ),
    "slices of output channels": ((2, 5, 12, 12), (200, 5, 3, 3), {}, (SPARSE,)),
    "one output channel": ((4, 6, 12, 12), (1, 6, 3, 3), {}, (SPARSE,)),
    "stride": ((3, 24, 17, 15), (40, 24, 3, 3), {"padding": 1, "stride": 2}, (SPARSE,)),
    "groups": ((3, 24, 17, 15), (40, 12, 3, 3), {"padding": 1, "groups": 2}, (SPARSE,)),
}


@pytest.fixture(autouse=True)
def on_the_cpu_library():
    zb.nap_pack(torch.ones(1, 1))
    if not zb.last_kernel().startswith("cpu:"):
        pytest.skip("the CPU library is not loaded")


def drawn(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, dict]:
    x, weight, arguments, _ = CASES[name]
    gen = torch.Generator().manual_seed(len(name))
    return torch.randn(x, generator=gen).to(dtype), torch.randn(weight, generator=gen).to(dtype), arguments


def plain(x: torch.Tensor, weight: torch.Tensor, arguments: dict) -> torch.Tensor:
    pool = {k.removeprefix("pool_"): v for k, v in arguments.items() if k.startswith("pool_")}
    kind, slope = arguments.get("pool", "max"), arguments.get("negative_slope", 0.0)
    names = {k: arguments[k] for k in ("stride", "padding", "groups") if k in arguments}
    y = (
        F.leaky_relu(F.conv2d(x, weight, None, **names), slope)
        if slope
        else F.relu(F.conv2d(x, weight, None, **names))
    )
    kernel = pool.pop("kernel", 2)
    if kind == "max":
        return F.max_pool2d(y, kernel, **pool)
    if kind == "avg":
        return F.avg_pool2d(y, kernel, count_include_pad=arguments.get("count_include_pad", True), **pool)
    return y


def gradients(
    function: Callable, x: torch.Tensor, weight: torch.Tensor, arguments: dict
) -> tuple[torch.Tensor, ...]:
    """Of x and weight, for a drawn gradient of y."""
    inputs = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = function(*inputs, arguments)
    return torch.autograd.grad(
        y, inputs, torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y)
    )


def ours(x: torch.Tensor, weight: torch.Tensor, arguments: dict) -> torch.Tensor:
    """By direct sums, which are exact in whole numbers; the way back is chosen as under "high" precision."""
    zb.set_conv_precision("highest")
    try:
        return zb.conv_relu_pool2d(x, weight, **arguments)
    finally:
        zb.set_conv_precision("high")


def whole(t: torch.Tensor) -> torch.Tensor:
    """Numbers whose sums are exact forward, so that float64 and float32 agree on every winner and sign."""
    return (t * 2).round()


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"]
)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name: str, layout: torch.memory_format) -> None:
    x, weight, arguments = drawn(name)
    x, weight = whole(x).contiguous(memory_format=layout), whole(weight)
    got = gradients(ours, x, weight, arguments)
    assert all(word in zb.last_kernel() for word in CASES[name][3]), zb.last_kernel()
    want = gradients(plain, x.double(), weight.double(), arguments)
    for ours_, theirs in zip(got, want, strict=True):
        assert (ours_.double() - theirs).norm() <= 1e-5 * theirs.norm()
    assert got[0].is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["3x3", "average", "no pool", "leaky"])
def test_half_precision_on_the_same_ways(name: str, dtype: torch.dtype) -> None:
    x, weight, arguments = drawn(name, dtype)
    x, weight = whole(x), whole(weight) / 8
    got = gradients(ours, x, weight, arguments)
    assert WINOGRAD in zb.last_kernel()
    want = gradients(plain, x.double(), weight.double(), arguments)
    # The gradient itself is rounded to the dtype, and so is each sum.
    for ours_, theirs in zip(got, want, strict=True):
        assert (ours_.double() - theirs).norm() <= 8 * torch.finfo(dtype).eps * theirs.norm()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e37], ids=str)
def test_a_bad_gradient_is_felt_where_it_is_seen(value: float) -> None:
    x, weight, arguments = drawn("3x3")
    x.requires_grad_()
    y = zb.conv_relu_pool2d(x, weight, **arguments)
    grad = torch.zeros_like(y)
    alive = (y > 0).nonzero()[len(y)].tolist()
    grad[tuple(alive)] = value
    (bad,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    assert WINOGRAD in zb.last_kernel()
    grad[tuple(alive)] = 1
    (good,) = torch.autograd.grad(y, x, grad)
    seen = good != 0
    assert seen.sum() <= 9 * x.shape[1]  # one window of the filter
    assert not bad[~seen].any()
    assert (bad[seen].isfinite() == (value == 1e37)).all()


def test_gradients_repeat_bit_by_bit_on_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            found.append(
                [gradients(ours, *drawn(name)) for name in ("3x3", "5x5", "slices of output channels")]
            )
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert all(map(torch.equal, mine, theirs))


def test_one_image_of_odd_strides_in_groups() -> None:
    """torch's own gradient of the weight is wrong there; it gets plain strides."""
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(1, 36, 9, 6, dtype=torch.float64, generator=gen).to(memory_format=torch.channels_last)
    odd = x.as_strided(x.shape, (1, 1, 216, 36))
    weight = torch.randn(400, 9, 5, 5, dtype=torch.float64, generator=gen).to(
        memory_format=torch.channels_last
    )
    arguments = {"groups": 4, "pool": "none", "negative_slope": 1.0}
    got = gradients(ours, odd, weight, arguments)
    want = gradients(ours, x.contiguous(), weight.contiguous(), arguments)
    for mine, theirs in zip(got, want, strict=True):
        assert (mine - theirs).norm() <= 1e-12 * theirs.norm()
