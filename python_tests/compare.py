"""How tests compare results with the reference: tolerances come from torch's own error, not from what passes."""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.ops._op import Op, Sample

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def call(function: Any, sample: Sample) -> tuple[torch.Tensor, ...]:
    return outputs(function(*sample.args, **sample.kwargs))


def float64_reference(op: Op, sample: Sample) -> tuple[torch.Tensor, ...]:
    kwargs = {name: in_float64(value) for name, value in sample.kwargs.items()}
    return outputs(op.reference(*map(in_float64, sample.args), **kwargs))


def value_fault(
    got: torch.Tensor, same_dtype: torch.Tensor, exact: torch.Tensor, *, slack: float = 0.0
) -> str | None:
    """What is wrong with ``got``, or None.

    Its error against float64 may be four times the largest that torch's own run in the same dtype makes, plus
    four units in the last place of the largest value: two orders of summing differ by that much. ``slack`` of the
    largest value comes on top.
    """
    if got.shape != exact.shape:
        return f"shape {list(got.shape)}, expected {list(exact.shape)}"
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        # An overflow shows only in the same dtype; torch's bfloat16 convolution smears an inf, float64's does not.
        here = test(got)
        if ((here != test(same_dtype)) & (here != test(exact))).any():
            return f"{name} stands elsewhere than in the reference"
    finite = torch.isfinite(got) & torch.isfinite(exact) & torch.isfinite(same_dtype)
    if not finite.any():
        return None
    wanted = exact[finite]
    error = (got[finite].double() - wanted).abs().max().item()
    torch_error = (same_dtype[finite].double() - wanted).abs().max().item()
    units = 4 * torch.finfo(got.dtype).eps + slack
    floor = units * wanted.abs().max().item() + torch.finfo(got.dtype).smallest_normal
    allowed = 4 * torch_error + floor
    return (
        None
        if error <= allowed
        else f"error {error:.3g}, allowed {allowed:.3g} (torch's own {torch_error:.3g})"
    )


def whole_numbers(sample: Sample) -> Sample:
    """The sample with small whole numbers in place of its values: then every sum is exact, and ties abound."""

    def rounded(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        if 0 in t.stride() and t.numel():  # an expanded tensor: round its base
            base = t.as_strided(
                [1 if s == 0 else n for n, s in zip(t.shape, t.stride(), strict=True)], t.stride()
            )
            return whole(base).expand(t.shape)
        return out.copy_(whole(t))

    def whole(t: torch.Tensor) -> torch.Tensor:
        return torch.where(t.isfinite(), (t.double() * 1.5).round().clamp(-3, 3).to(t.dtype), t)

    kwargs = {name: rounded(value) for name, value in sample.kwargs.items()}
    return Sample(sample.label, tuple(map(rounded, sample.args)), kwargs, sample.smooth)
