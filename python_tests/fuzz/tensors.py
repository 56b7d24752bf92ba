"""Tensors of a drawn shape, memory layout and kind of values."""

from __future__ import annotations

import math
import os
import random
from typing import Any

import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
DEVICE = os.environ.get("FUZZ_DEVICE", "cpu")  # of a process that checks problems; see ways.py
Spec = dict[str, Any]  # of a tensor: "shape", and what of "order", "steps", ... differs from a plain one

KINDS = ("plain", "channels_last", "permuted", "sliced", "expanded", "offset", "flipped", "negated")
_ODDS = (34, 18, 9, 13, 9, 9, 4, 4)
_INT_ODDS = (40, 0, 14, 18, 12, 12, 4, 0)


def draw_spec(r: random.Random, shape: list[int], integers: bool = False) -> Spec:
    """A layout for a tensor of this shape."""
    kind = r.choices(KINDS, _INT_ODDS if integers else _ODDS)[0]
    spec: Spec = {"shape": shape}
    dims = len(shape)
    if kind == "channels_last" and dims in (3, 4):
        spec["order"] = [0, 2, 3, 1] if dims == 4 else [1, 2, 0]
    elif kind == "permuted":
        spec["order"] = r.sample(range(dims), dims)
    elif kind == "sliced":
        spec["steps"] = [r.choice([1, 1, 2, 3]) for _ in shape]
        spec["starts"] = [r.choice([0, 0, 1, 2]) for _ in shape]
        if r.random() < 0.3:
            spec["order"] = r.sample(range(dims), dims)
    elif kind == "expanded" and dims:
        spec["expand"] = sorted(r.sample(range(dims), r.choice([1, 1, min(2, dims)])))
    elif kind == "flipped" and dims:
        spec["flip"] = sorted(r.sample(range(dims), r.randint(1, dims)))
    elif kind == "negated":
        spec["negated"] = True
    if kind == "offset" or r.random() < 0.15:
        spec["offset"] = r.randint(1, 9)
    return spec


def laid_out(values: torch.Tensor, spec: Spec) -> torch.Tensor:
    """``values`` in this layout; the memory around them is NaN (or odd words), so that reading past them shows.

    Along an expanded dimension the first values are repeated.
    """
    shape, dims = list(values.shape), values.dim()
    if spec.get("negated"):
        values = -values
    steps, starts = spec.get("steps", [1] * dims), spec.get("starts", [0] * dims)
    order = spec.get("order", list(range(dims)))
    expanded = [d for d in spec.get("expand", ()) if shape[d] > 0]
    base = [
        1 if d in expanded else n * s + o
        for d, (n, s, o) in enumerate(zip(shape, steps, starts, strict=True))
    ]
    offset = spec.get("offset", 0)
    around: Any = torch.nan if values.is_floating_point() else 0x5A5A5A5A5A5A5A5A
    if values.dtype == torch.bool:
        around = True
    flat = torch.full((offset + math.prod(base) + 7,), around, dtype=values.dtype, device=DEVICE)[offset:]
    t = flat[: math.prod(base)].view([base[d] for d in order]).permute([order.index(d) for d in range(dims)])
    for d in range(dims):
        if d in expanded:
            values = values.narrow(d, 0, 1)
        elif steps[d] != 1 or starts[d]:
            t = t.narrow(d, starts[d], shape[d] * steps[d])
            t = t[(slice(None),) * d + (slice(None, None, steps[d]),)]
    t.copy_(values)
    t = t.expand(shape)
    if spec.get("flip"):
        t = t.flip(spec["flip"])
    return torch._neg_view(t) if spec.get("negated") else t


# --- values -------------------------------------------------------------------------------------------------------

SPECIALS = ("nan", "inf", "-inf", "-0", "zeros", "negative", "huge", "tiny", "subnormal", "blank")


def draw_values(r: random.Random, inexact: bool = True) -> list[str]:
    """Up to two kinds of special values; those that round are left out where sums must be exact."""
    if r.random() < 0.6:
        return []
    allowed = SPECIALS if inexact else [s for s in SPECIALS if s not in ("huge", "tiny", "subnormal")]
    return sorted(r.sample(allowed, r.choice([1, 1, 1, 2])))


def make(
    spec: Spec,
    dtype: torch.dtype,
    data: int,
    *,
    whole: int = 0,
    special: list[str] | None = None,
    taps: int = 1,
) -> torch.Tensor:
    """Random numbers in this layout: whole ones from -whole to whole, or normal ones where ``whole`` is 0.

    ``taps`` is how many of them are summed: huge values are such that a sum just fits.
    """
    g = torch.Generator().manual_seed(data)
    shape = spec["shape"]
    if whole:
        values = torch.randint(-whole, whole + 1, shape, generator=g).double()
    else:
        values = torch.randn(shape, generator=g, dtype=torch.float64)
    info = torch.finfo(dtype)
    for kind in special or ():
        if kind == "huge":
            values *= info.max / (4 * max(taps, 1))
        elif kind == "tiny":
            values *= info.tiny * 16
        elif kind == "subnormal":
            values *= info.tiny / 16
        elif kind == "negative":
            values = -values.abs()
        else:
            share = 0.6 if kind in ("zeros", "-0") else 0.02
            at = torch.rand(shape, generator=g) < share
            if kind == "blank" and values.dim() >= 2:  # a border of zeros, as images have
                values[..., : shape[-2] // 2, :] = 0
                continue
            if kind not in ("zeros", "-0") and values.numel():
                at.view(-1)[torch.randint(values.numel(), (1,), generator=g)] = True
            fill = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}.get(kind, 0.0)
            values = torch.where(at, fill, values)
    return laid_out(values.to(dtype), spec)


def words(spec: Spec, data: int, kind: str) -> torch.Tensor:
    """int64 words: "any" bits, "few" kinds of words (so that rows are equal), or all bits "near" on or off."""
    g = torch.Generator().manual_seed(data)
    shape = spec["shape"]
    if kind == "any":
        values = torch.randint(-(2**63), 2**63 - 1, shape, generator=g)
    elif kind == "few":
        values = torch.randint(-2, 3, shape, generator=g) * 0x1E3779B97F4A7C15
    else:
        values = torch.randint(-2, 2, shape, generator=g)
    return laid_out(values, spec)
