"""The calls that tests of ``conv_relu_pool2d`` and its internal ops must make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops._conv_reference import forward_reference
from zbkernels.ops._geometry import Geometry
from zbkernels.ops._op import Sample


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    """The cases at which kernels of this kind fail in public trackers; see the design's list."""
    gen = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).to(device, dtype)

    def call(label: str, x: torch.Tensor, weight: torch.Tensor, smooth: bool = True, **kwargs: Any) -> Sample:
        return Sample(label, (x, weight), kwargs, smooth)

    cl = torch.channels_last
    yield call("plain", draw(2, 3, 8, 8), draw(4, 3, 3, 3))
    yield call("same padding", draw(2, 3, 8, 8), draw(4, 3, 3, 3), padding=1)
    yield call("5x5", draw(2, 1, 9, 10), draw(3, 1, 5, 5), padding=2)
    yield call("channels_last", draw(2, 3, 8, 8).to(memory_format=cl), draw(5, 3, 3, 3), padding=1)
    yield call(
        "both channels_last", draw(2, 4, 7, 6).to(memory_format=cl), draw(5, 4, 3, 3).to(memory_format=cl)
    )
    yield call("weight channels_last", draw(2, 3, 6, 6), draw(5, 3, 3, 3).to(memory_format=cl))
    yield call("sliced", draw(2, 3, 12, 9)[:, :, ::2, 1:], draw(5, 3, 3, 3), padding=1)
    yield call("transposed", draw(2, 3, 7, 9).transpose(2, 3), draw(4, 3, 3, 3))
    yield call("expanded", draw(1, 1, 8, 8).expand(3, 2, 8, 8), draw(1, 2, 3, 3).expand(4, 2, 3, 3))
    yield call(
        "odd storage offset", draw(2 * 3 * 64 + 3)[3:].view(2, 3, 8, 8), draw(109)[1:].view(4, 3, 3, 3)
    )
    yield call("unbatched", draw(3, 8, 8), draw(4, 3, 3, 3), padding=1)
    yield call("no images", draw(0, 3, 8, 8), draw(4, 3, 3, 3))
    yield call("no images, channels_last", draw(0, 3, 8, 8).to(memory_format=cl), draw(4, 3, 3, 3))
    yield call("one channel", draw(1, 1, 6, 6).to(memory_format=cl), draw(1, 1, 3, 3))
    yield call("one pixel", draw(2, 5, 1, 1), draw(3, 5, 1, 1), pool="none")
    for channels in (7, 16, 17, 33):
        yield call(f"{channels} channels", draw(2, channels, 5, 5), draw(channels, channels, 3, 3), padding=1)
    yield call("kernel larger than the image", draw(2, 2, 3, 3), draw(3, 2, 5, 5), padding=2)
    yield call("1x1", draw(2, 5, 6, 6), draw(6, 5, 1, 1))
    yield call("even kernel", draw(2, 3, 7, 7), draw(4, 3, 2, 4), padding=(1, 2))
    yield call("stride", draw(2, 3, 11, 12), draw(4, 3, 3, 3), stride=2, padding=1)
    yield call("stride larger than the kernel", draw(2, 3, 13, 12), draw(4, 3, 2, 2), stride=(3, 4))
    yield call("dilation", draw(2, 3, 11, 10), draw(4, 3, 3, 3), dilation=(2, 3), padding=2)
    yield call("huge dilation of one position", draw(2, 3, 4, 4), draw(4, 3, 1, 1), dilation=2**31 - 1)
    yield call("groups", draw(2, 6, 8, 8), draw(4, 3, 3, 3), groups=2, padding=1)
    yield call("depthwise", draw(2, 5, 8, 8), draw(10, 1, 3, 3), groups=5, padding=1)
    yield call("odd size", draw(2, 3, 9, 7), draw(4, 3, 3, 3), padding=1)
    yield call("odd size, ceil_mode", draw(2, 3, 9, 7), draw(4, 3, 3, 3), padding=1, ceil_mode=True)
    yield call(
        "last window starts inside",
        draw(1, 2, 6, 6),
        draw(3, 2, 1, 1),
        pool_kernel=2,
        pool_stride=(3, 3),
        pool_padding=1,
        ceil_mode=True,
    )
    overlapping: dict[str, Any] = {"pool_kernel": 3, "pool_stride": (2, 2), "pool_padding": 1}
    yield call("overlapping pool", draw(2, 3, 11, 11), draw(4, 3, 3, 3), padding=1, **overlapping)
    yield call("stem", draw(1, 3, 20, 18), draw(4, 3, 7, 7), stride=2, padding=3, **overlapping)
    yield call("pool stride larger", draw(2, 3, 11, 12), draw(4, 3, 3, 3), pool_kernel=2, pool_stride=(3, 3))
    yield call("uneven pool", draw(2, 3, 10, 11), draw(4, 3, 3, 3), pool_kernel=(2, 3), pool_stride=(1, 2))
    yield call("large window", draw(1, 2, 18, 18), draw(3, 2, 3, 3), pool_kernel=16)
    yield call("slope", draw(2, 3, 8, 8), draw(4, 3, 3, 3), negative_slope=0.1, padding=1)
    yield call("slope, overlapping", draw(2, 3, 9, 9), draw(4, 3, 3, 3), negative_slope=0.3, **overlapping)
    yield call(
        "slope, large window", draw(1, 2, 14, 14), draw(3, 2, 3, 3), negative_slope=0.3, pool_kernel=12
    )
    yield call("slope 1", draw(2, 3, 8, 8), draw(4, 3, 3, 3), negative_slope=1.0)
    yield call("no pool", draw(2, 3, 8, 7), draw(4, 3, 3, 3), pool="none", padding=1)
    yield call(
        "no pool, slope",
        draw(2, 3, 8, 9).to(memory_format=cl),
        draw(4, 3, 3, 3),
        pool="none",
        negative_slope=0.2,
    )
    yield call("average", draw(2, 3, 8, 8), draw(4, 3, 3, 3), pool="avg", padding=1)
    yield call("average, channels_last", draw(2, 3, 9, 8).to(memory_format=cl), draw(4, 3, 3, 3), pool="avg")
    for include in (True, False):
        yield call(
            f"average, padded, ceil_mode, count_include_pad={include}",
            draw(2, 3, 10, 9),
            draw(4, 3, 3, 3),
            pool="avg",
            ceil_mode=True,
            count_include_pad=include,
            negative_slope=0.1,
            **overlapping,
        )
    negative = -torch.rand(2, 3, 8, 8, generator=gen).to(device, dtype) - 0.1
    ones = torch.ones(4, 3, 3, 3, device=device, dtype=dtype)
    yield call("all-negative windows", negative, ones, False, padding=1)
    yield call(
        "all-negative windows, slope", negative, ones, False, padding=1, negative_slope=0.1, **overlapping
    )
    whole = torch.randint(-1, 2, (2, 3, 8, 8), generator=gen).to(device, dtype)
    yield call("ties", whole, torch.ones(2, 3, 1, 1, device=device, dtype=dtype), False)
    yield call(
        "ties, slope, overlapping", whole, ones[:, :, :1, :1], False, negative_slope=0.5, **overlapping
    )
    special = draw(2, 3, 8, 8)
    special[0, 1, 4, 4] = float("nan")
    special[1, 0, 2, 3] = float("inf")
    special[1, 2, 6, 6] = -float("inf")
    for pool in ("max", "avg", "none"):
        yield call(f"NaN and inf, {pool}", special, draw(4, 3, 3, 3), False, pool=pool, padding=1)
    yield call("NaN and inf, slope", special, draw(4, 3, 3, 3), False, padding=1, negative_slope=0.1)
    two = special.clone()
    two[0, :, 2:4, 2:4] = float("nan")
    yield call("window of NaN", two, draw(3, 1, 1, 1), False, groups=3)
    zeros = torch.tensor([[[[-0.0, 0.0], [-0.0, -0.0]]]]).to(device, dtype)
    yield call("zeros of both signs", zeros, torch.ones(1, 1, 1, 1, device=device, dtype=dtype), False)
    tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    small = torch.tensor([[[[tiny, -tiny], [0.0, 4 * tiny]]]], dtype=torch.float64).to(device, dtype)
    yield call("subnormals", small, torch.ones(1, 1, 1, 1, device=device, dtype=dtype), False, pool="none")
    big = torch.full((1, 2, 4, 4), torch.finfo(dtype).max / 2, device=device, dtype=dtype)
    yield call("overflow", big, torch.full((2, 2, 3, 3), 2.0, device=device, dtype=dtype), False)

    def added(
        label: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, **kwargs: Any
    ) -> Sample:
        smooth = bool(residual.isfinite().all())
        return call(f"residual, {label}", x, weight, smooth, residual=residual, **{"pool": "none", **kwargs})

    wide = draw(5, 3, 3, 3)
    yield added("no pool", draw(2, 3, 8, 7), draw(4, 3, 3, 3), draw(2, 4, 8, 7), padding=1)
    yield added(
        "channels_last", *(t.to(memory_format=cl) for t in (draw(2, 3, 8, 8), wide, draw(2, 5, 6, 6)))
    )
    yield added("other format", draw(2, 3, 8, 8), wide, draw(2, 5, 6, 6).to(memory_format=cl))
    yield added("sliced", draw(2, 3, 8, 8).to(memory_format=cl), wide, draw(2, 5, 6, 12)[..., ::2])
    yield added("expanded", draw(2, 3, 8, 8), wide, draw(1, 1, 1, 1).expand(2, 5, 6, 6))
    yield added("unbatched", draw(3, 8, 8), draw(4, 3, 3, 3), draw(4, 8, 8), padding=1, negative_slope=0.2)
    yield added("1x1", draw(2, 17, 6, 6), draw(24, 17, 1, 1), draw(2, 24, 6, 6))
    yield added("8 channels", draw(2, 8, 8, 8), draw(16, 8, 3, 3), draw(2, 16, 8, 8), padding=1)
    yield added("slope 1", draw(2, 3, 8, 8), wide, draw(2, 5, 6, 6), negative_slope=1.0)
    yield added(
        "stride", draw(2, 6, 9, 9), draw(10, 3, 3, 3), draw(2, 10, 5, 5), stride=2, padding=1, groups=2
    )
    yield added("depthwise", draw(2, 5, 8, 8), draw(5, 1, 3, 3), draw(2, 5, 8, 8), padding=1, groups=5)
    yield added(
        "max", draw(2, 3, 9, 8), draw(4, 3, 3, 3), draw(2, 4, 9, 8), padding=1, pool="max", **overlapping
    )
    yield added("average", draw(2, 3, 8, 8), wide, draw(2, 5, 6, 6), pool="avg", negative_slope=0.1)
    marked = draw(2, 5, 6, 6)
    marked[0, 1, 4, 4], marked[1, 0, 2, 3], marked[1, 2, 5, 5] = float("nan"), float("inf"), -float("inf")
    yield added("NaN and inf", special, wide, marked)


def _apart(op: str, sample: Sample) -> tuple[Geometry, torch.Tensor | None]:
    kwargs = dict(sample.kwargs)
    residual = kwargs.pop("residual", None)
    return Geometry.of(op, **kwargs), residual


def forward_samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    for number, s in enumerate(samples(device, dtype)):
        g, residual = _apart("_conv_relu_pool2d_forward", s)
        winner = g.pool == "max" and g.negative_slope == 0
        units = ("", "relu", "output", "winner" if winner else "relu")[number % 4]
        kwargs = {**g.pool_kwargs(), "need_code": number % 3 != 0, "units": units}
        if residual is not None:
            kwargs["residual"] = residual
        yield Sample(f"{s.label}, units={units!r}", (*s.args, *g.conv_args()), kwargs, s.smooth)


def backward_samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(1)
    for number, s in enumerate(samples(device, dtype)):
        x, weight = s.args
        g, residual = _apart("_conv_relu_pool2d_backward", s)
        y, code, _ = forward_reference(x, weight, g, True, "", residual)
        grad = torch.randn(y.shape, generator=gen).to(device, dtype)
        kind = number % 4
        if kind == 1:
            grad = grad.flatten()[:1].expand(grad.shape) if grad.numel() else grad
        elif kind == 2 and grad.dim() == 4:
            grad = grad.to(memory_format=torch.channels_last)
        elif kind == 3:
            grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
        needs = {"need_x": number % 5 != 1, "need_weight": number % 5 != 2}
        yield Sample(s.label, (grad, x, weight, code, *g.conv_args()), {**g.pool_kwargs(), **needs}, s.smooth)
