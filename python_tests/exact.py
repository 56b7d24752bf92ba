"""Exact comparisons: in small whole numbers sums are exact in any order, so kernels must agree bit for bit."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from compare import whole_numbers

import zbkernels as zb
from zbkernels.ops import OPS
from zbkernels.ops._geometry import Geometry, memory_format
from zbkernels.ops._op import Sample

# The package's attribute of this name is the public function.
conv_ops = importlib.import_module("zbkernels.ops.conv_relu_pool2d")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPE_IDS = ("f32", "f64", "f16", "bf16")


@functools.cache
def whole(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, most: int = 2) -> torch.Tensor:
    """Whole numbers from -most to most, the same for one shape and seed."""
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=gen).to(dtype)


def images_of_any_strides(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Images of 3 channels: sliced, misaligned, expanded, transposed, unbatched."""
    wide = whole(2, 3, 9, 40, dtype=dtype)
    return (
        wide[..., ::2],
        wide[..., 3:30],
        whole(2 * 3 * 16 * 16 + 1, dtype=dtype)[1:].view(2, 3, 16, 16),
        whole(1, 3, 8, 8, dtype=dtype).expand(3, 3, 8, 8),
        whole(2, 3, 9, 1, dtype=dtype).expand(2, 3, 9, 24),
        whole(2, 3, 9, 16, dtype=dtype).transpose(2, 3),
        whole(3, 16, 16, dtype=dtype),
    )


def samples_of(op: str, dtype: torch.dtype) -> dict[str, Sample]:
    return {sample.label: sample for sample in OPS[op].samples("cpu", dtype)}


def exact_sample(op: str, dtype: torch.dtype, label: str) -> Sample:
    """The sample in small whole numbers: sums are exact in any order, so that results are compared bit for bit."""
    sample = samples_of(op, dtype)[label]
    return sample if label.startswith(("subnormals", "overflow")) else whole_numbers(sample)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal in shape, dtype and every value, NaN included (the sign of a zero is free)."""
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def rounded_conv(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """conv2d in float64, rounded once to x's dtype."""
    dilation = [1 if weight.shape[2 + d] == 1 else g.dilation[d] for d in (0, 1)]
    return F.conv2d(x.double(), weight.double(), None, g.stride, g.padding, dilation, g.groups).to(x.dtype)


def expected_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    need_code: bool,
    units: str,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The reference behind a convolution that is exact up to one rounding: the reference's own is a 1x1 of ones."""
    pre = rounded_conv(x, weight, g).contiguous(memory_format=memory_format(x))
    if residual is not None:
        pre = pre + residual
    K = weight.shape[0]
    pooling = g._replace(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=K)
    subnormal = (pre != 0) & (pre.abs() < torch.finfo(pre.dtype).tiny)
    # torch's bfloat16 convolution takes subnormal numbers for zero where the processor has AVX512-BF16, and smears
    # NaN and inf over neighbours.
    smears = subnormal.any() or not pre.isfinite().all()
    dtype = torch.float32 if pre.dtype == torch.bfloat16 and smears else pre.dtype
    ones = torch.ones(K, 1, 1, 1, dtype=dtype)
    y, code, sig = conv_ops.forward_reference(pre.to(dtype), ones, pooling, need_code, units)
    return y.to(pre.dtype), code, sig


def check_forward(
    forward: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    *conv: Any,
    need_code: bool,
    units: str,
    residual: torch.Tensor | None = None,
    **pool: Any,
) -> None:
    """A forward pass against :func:`expected_forward`: values, codes, signatures and strides."""
    g = Geometry.of("test", *conv, **pool)
    got = forward(x, weight, *conv, residual, need_code=need_code, units=units, **pool)
    want = expected_forward(x, weight, g, need_code, units, residual)
    same(got[0], want[0])
    assert got[0].stride() == want[0].stride()
    if need_code:
        same(got[1], want[1])
        assert got[1].stride() == want[1].stride()
    else:
        assert got[1].shape == (0,)
    same(got[2], want[2])


def check_backward(backward: Any, dtype: torch.dtype, label: str) -> None:
    """Against the reference in float64; the bound is a rounding for each step, relative to the sum of magnitudes.

    A gradient that is exactly zero may meet NaN or inf (the reference makes NaN of that) or be left out.
    """
    sample = samples_of("_conv_relu_pool2d_backward", dtype)[label]
    grad, x, weight, code = sample.args[:4]
    kwargs = {k: v for k, v in sample.kwargs.items() if k not in ("need_x", "need_weight")}
    g = Geometry.of("test", *sample.args[4:], **kwargs)
    needs = sample.kwargs["need_x"], sample.kwargs["need_weight"]
    got = backward(*sample.args, **sample.kwargs)
    wide = [t.double() for t in (grad, x, weight)]
    want = conv_ops.backward_reference(*wide, code, g, *needs)
    bound = conv_ops.backward_reference(*(t.abs().nan_to_num(0.0, 0.0) for t in wide), code, g, *needs)
    finite = [t.nan_to_num(0.0, 1e300, -1e300) for t in wide]
    left_out = conv_ops.backward_reference(*finite, code, g, *needs)
    for result, right, rest, limit, tensor, needed in zip(
        got, want, left_out, bound, (x, weight), needs, strict=True
    ):
        if not needed:
            assert result.shape == (0,) and result.dtype == dtype
            continue
        assert result.shape == tensor.shape and result.dtype == dtype
        assert result.is_contiguous(memory_format=memory_format(tensor))
        largest = limit.max().item() if limit.numel() else 0.0
        rest = torch.where(rest.abs() > 1e200, rest * torch.inf, rest)
        right = torch.where(right.isnan() & ~result.isnan(), rest, right)
        right = right.to(dtype).double()  # half precision may overflow, as it should
        allowed = 8 * torch.finfo(dtype).eps * largest + torch.finfo(dtype).tiny
        torch.testing.assert_close(result.double(), right, rtol=0, atol=allowed, equal_nan=True)


def train_step(backend: str, make_grad: str) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(9)
    x1, x2 = (torch.randn(2, 3, 8, 8, generator=gen).requires_grad_() for _ in range(2))
    weight = torch.randn(4, 3, 3, 3, generator=gen).requires_grad_()
    with zb.use_backend(backend):
        a, b = zb.conv_relu_pool2d(x1, weight, padding=1), zb.conv_relu_pool2d(x2, weight, padding=1)
        r = torch.randn(4, 4, 4, 4, generator=gen)
        if make_grad == "cat":
            (torch.cat([a, b]) * r).sum().backward()
        elif make_grad == "sum":
            (a.sum() + b.sum()).backward()
        else:
            ((a + b).permute(0, 2, 3, 1) * r[:2]).sum().backward()
    return [x1.grad, x2.grad, weight.grad]
