"""From the bits that the convolution kernels pack, plane by plane, to signatures and bits of whole maps."""

from __future__ import annotations

import torch

from zbkernels.ops._geometry import Geometry, Pair
from zbkernels.triton.launch import ceil_div, start

_BLOCK = 32


def join_planes(planes: torch.Tensor, units: int, plane_units: int) -> torch.Tensor:
    """int64 [N, K, words per plane] -> int64 [N, ceil(units/64)], the planes one after another."""
    from zbkernels.triton.kernels import bits

    N, K, plane_words = planes.shape
    if plane_units % 64 == 0:
        return planes.view(N, K * plane_words)
    sig = torch.empty((N, ceil_div(units, 64)), dtype=torch.int64, device=planes.device)
    halves = 2 * sig.shape[1]
    if sig.numel() > 0:
        start(
            bits.planes_to_signature_kernel,
            ceil_div(N * halves, _BLOCK),
            planes.view(torch.int32),
            sig.view(torch.int32),
            N,
            units,
            halves,
            plane_units,
            2 * plane_words,
            2 * K * plane_words,
            BLOCK=_BLOCK,
        )
    return sig


def join_windows(sections: torch.Tensor, map_size: Pair, *, by_plane: bool) -> torch.Tensor:
    """Bits by window and position -> bits of the map, H1 x W1 a plane.

    sections: int64 [N, K, 4, words]: of each position in 2x2 windows the bits of a grid of ceil(H1/2) x
    ceil(W1/2).
    Returns int64 [N, ceil(K*H1*W1/64)], or with by_plane [N, K, ceil(H1*W1/64)].
    """
    from zbkernels.triton.kernels import bits

    N, K, _, words = sections.shape
    H1, W1 = map_size
    rows, planes = (N * K, 1) if by_plane else (N, K)
    units = planes * H1 * W1
    joined = torch.empty((rows, ceil_div(units, 64)), dtype=torch.int64, device=sections.device)
    halves = 2 * joined.shape[1]
    if joined.numel() > 0:
        start(
            bits.windows_to_map_kernel,
            ceil_div(rows * halves, _BLOCK),
            sections.view(torch.int32),
            joined.view(torch.int32),
            rows,
            units,
            halves,
            H1 * W1,
            W1,
            ceil_div(W1, 2),
            2 * words,
            planes,
            BLOCK=_BLOCK,
        )
    return joined.view(N, K, joined.shape[1]) if by_plane else joined


def winner_signature(y: torch.Tensor, code: torch.Tensor, g: Geometry) -> torch.Tensor:
    """The winners' codes of max pooling at slope 0 as one string of bits: int64 [N, ceil(K*P*Q*b/64)]."""
    from zbkernels.triton.kernels import bits

    N, K, P, Q = y.shape
    width = g.unit_bits("winner")
    total = K * P * Q * width
    sig = torch.empty((N, ceil_div(total, 64)), dtype=torch.int64, device=y.device)
    halves = 2 * sig.shape[1]
    if sig.numel() > 0:
        start(
            bits.winner_kernel,
            ceil_div(N * halves, _BLOCK),
            y,
            code,
            sig.view(torch.int32),
            N,
            P,
            Q,
            total,
            halves,
            *y.stride(),
            BITS=width,
            BLOCK=_BLOCK,
        )
    return sig
