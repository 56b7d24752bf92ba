"""What is wrong with a result. Tolerances come from torch's own error against float64."""

from __future__ import annotations

import torch

import zbkernels as zb

kernels: set[str] = set()  # that the problem at hand has run; see ``noted``
HIGH = 1e-5  # zb.set_conv_precision("high"): of the norm of the sums of magnitudes


def noted() -> str:
    """The kernel that has just run."""
    name = zb.last_kernel()
    if name:
        kernels.add(name)
    return name


def same(what: str, got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Equal in shape, dtype and every value, NaN included (the sign of a zero is free)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{what}: {got.dtype} {list(got.shape)}, expected {want.dtype} {list(want.shape)}"
    differ = got != want
    if got.is_floating_point():
        differ &= ~(got.isnan() & want.isnan())
    if not differ.any():
        return None
    at = differ.nonzero()[0].tolist()
    a, b = got[tuple(at)].item(), want[tuple(at)].item()
    return f"{what}: {int(differ.sum())} of {got.numel()} values differ, at {at} {a!r}, expected {b!r}"


def allowance(
    same_dtype: torch.Tensor,
    exact: torch.Tensor,
    magnitude: torch.Tensor,
    fast: bool,
    unit: float | None = None,
) -> float:
    """How far a single value may be from ``exact``.

    Four times the largest error of torch's own run in this dtype, and four units in the last place: of the largest
    value, for its last rounding, and of the largest sum of magnitudes, in the precision that is summed in, since two
    orders of summing differ by that. ``fast``: what the "high" precision allows. ``unit`` is that of a sum.
    """
    info = torch.finfo(same_dtype.dtype)
    use = same_dtype.isfinite() & exact.isfinite() & magnitude.isfinite()
    if not use.any():
        return info.tiny
    torch_error = (same_dtype[use].double() - exact[use]).abs().max().item()
    if unit is None:  # half precisions are summed in float32
        unit = min(info.eps, torch.finfo(torch.float32).eps)
    largest, most = exact[use].abs().max().item(), magnitude[use].max().item()
    floor = 4 * info.eps * largest + 4 * unit * most + info.tiny
    if fast:
        floor += HIGH * magnitude[use].norm().item()
    return 4 * torch_error + floor


def close(
    what: str,
    got: torch.Tensor,
    same_dtype: torch.Tensor,
    exact: torch.Tensor,
    magnitude: torch.Tensor,
    fast: bool = False,
    loose: bool = False,
    unit: float | None = None,
) -> str | None:
    """``got`` against float64. ``magnitude``: the same sums of the terms' absolute values.

    Where that comes near the largest number of the dtype, one order of summing overflows and another one does not:
    nothing is said about such values. ``loose``: nor where the reference is not finite.
    """
    if got.shape != exact.shape or got.dtype != same_dtype.dtype:
        return f"{what}: {got.dtype} {list(got.shape)}, expected {same_dtype.dtype} {list(exact.shape)}"
    risky = magnitude > torch.finfo(got.dtype).max * 0.98
    if loose:
        risky |= ~(exact.isfinite() & same_dtype.isfinite())
    if risky.any():
        got, same_dtype, exact, magnitude = (
            t.masked_fill(risky, 0) for t in (got, same_dtype, exact, magnitude)
        )
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        here = test(got)
        wrong = (here != test(same_dtype)) & (here != test(exact))
        if wrong.any():
            at = wrong.nonzero()[0].tolist()
            return f"{what}: {name} stands elsewhere than in the reference, at {at}"
    use = got.isfinite() & exact.isfinite() & same_dtype.isfinite()
    if not use.any():
        return None
    error = (got[use].double() - exact[use]).abs()
    allowed = allowance(same_dtype[use], exact[use], magnitude[use], fast, unit)
    if error.max().item() <= allowed:
        return None
    return f"{what}: error {error.max().item():.3g}, allowed {allowed:.3g}"
