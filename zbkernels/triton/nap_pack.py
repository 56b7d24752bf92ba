"""nap_pack in Triton: the sign bits of a batch, 64 to a word."""

from __future__ import annotations

import math

import torch

from zbkernels.triton.launch import FLOATS, cannot_run, ceil_div, power_of_two, start, wrong_dtype

# The kernel splits a unit's number over at most this many strided dimensions; more are made contiguous first.
_MAX_DIMS = 3


def can_run(x: torch.Tensor) -> str | None:
    """None if `forward` can run on x, else the reason."""
    return cannot_run("nap_pack", x) or wrong_dtype("nap_pack", x, (*FLOATS, torch.bool))


def forward(x: torch.Tensor) -> torch.Tensor:
    """Packs x > 0.

    x: [N, ...] of at least two dimensions, float32, float64, float16, bfloat16 or bool, any strides. Returns int64
    [N, ceil(F/64)], F the product of the other dimensions: bit j of word k is unit 64k + j in their row-major order,
    padding bits are 0. NaN and -0.0 give 0.
    """
    return pack(x, nan_is_on=False)


def pack(x: torch.Tensor, *, nan_is_on: bool) -> torch.Tensor:
    """As `forward`; with nan_is_on a NaN gives 1 (the gradient passes a ReLU there)."""
    from zbkernels.triton.kernels import bits

    rows, units = x.shape[0], math.prod(x.shape[1:])
    sig = torch.empty((rows, ceil_div(units, 64)), dtype=torch.int64, device=x.device)
    if sig.numel() == 0:
        return sig
    if x.dtype == torch.bool:
        x = x.view(torch.uint8)
    dims = collapse(x.shape[1:], x.stride()[1:])
    if len(dims) > _MAX_DIMS:
        x = x.contiguous()
        dims = [(units, 1)]
    sizes, strides = zip(*(dims + [(1, 0)] * (_MAX_DIMS - len(dims))), strict=True)
    halves = 2 * sig.shape[1]
    block_halves = power_of_two(halves, 2, 64)
    block_rows = power_of_two(min(rows, 64 // block_halves), 1, 64)
    start(
        bits.pack_kernel,
        ceil_div(rows, block_rows) * ceil_div(halves, block_halves),
        x,
        sig.view(torch.int32),
        rows,
        units,
        halves,
        sizes[1],
        sizes[2],
        x.stride(0),
        *strides,
        DIMS=len(dims),
        NAN_IS_ON=nan_is_on,
        BLOCK_ROWS=block_rows,
        BLOCK_HALVES=block_halves,
    )
    return sig


def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """The fewest (size, stride) pairs that walk the same elements in the same row-major order; at least one."""
    pairs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if pairs and pairs[-1][1] == stride * size:
            pairs[-1] = (pairs[-1][0] * size, stride)
        else:
            pairs.append((size, stride))
    return pairs or [(1, 0)]
