"""The tiled convolution kernel's host side: what it can run, its layouts, its tiles, and one launch of it.

x is NHWC inside, every pixel's channels at multiples of 16 bytes: a channels_last x as it is, any other is
copied once (as the CUDA kernels do). Reading NCHW in place was left out: neighbours in memory would then be
positions, of which a window's tap wants every second one, two bytes each, too small for an asynchronous copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from zbkernels.ops._geometry import Geometry, Pair
from zbkernels.triton import nap_pack
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import INT32_MAX, ceil_div, start
from zbkernels.triton.signature import join_planes, join_windows
from zbkernels.triton.target import target_of
from zbkernels.triton.tiles import Product, candidates, product_kind

_LEAST_CHANNELS = 16  # of a group, in and out: tl.dot's smallest block
_GROUP_M = 8
_FAR = 2**30  # coordinates and distances within an image stay below: no sum of two overflows
# How the kernel numbers positions, by what multiplies; see kernels/conv_tiles.py.
_ORDER = {"fma": "adjacent", "mma": "spread", "wgmma": "spread", "tcgen05": "columns", "mfma": "columns"}


def can_run(x: torch.Tensor, weight: torch.Tensor, g: Geometry, adds: bool = False) -> str | None:
    """None if `forward` can run on x [N, C, H, W], weight and g, else why the general kernel takes them.

    adds: whether there is a residual.
    """
    if adds and g.pool != "none":
        return "a residual before a pool"
    if x.dtype == torch.float64:
        return "float64 has no tiles here"
    K, group_in = weight.shape[:2]
    if min(group_in, K // g.groups) < _LEAST_CHANNELS:
        return f"{group_in} channels to {K // g.groups} in a group, fewer than {_LEAST_CHANNELS}"
    side_by_side = g.pool_kernel == (2, 2) and g.pool_stride == (2, 2) and g.pool_padding == (0, 0)
    if g.pool != "none" and not side_by_side:
        return f"windows of {g.pool_kernel}, stride {g.pool_stride}, padding {g.pool_padding}: not 2x2 side by side"
    H1, W1 = g.map_size(x, weight)
    reach_h, reach_w = _reach(x, weight, g)
    pixel = x.shape[1] + 8 * g.groups  # channels, padded to whole chunks
    largest = max((reach_h * x.shape[3] + reach_w) * pixel, 2 * weight.numel(), K * H1 * W1)
    if largest > _FAR or 2 * x.shape[0] * (H1 + 1) * (W1 + 1) > INT32_MAX:
        return "an image, the weights or the number of rows pass what 32 bits count"
    return None


def _reach(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> Pair:
    """The farthest row and column of x that any position's taps are computed for, padding included."""
    h, w = (
        (size + 2) * g.stride[d] + g.padding[d] + g.dilation[d] * (weight.shape[2 + d] - 1)
        for d, size in enumerate(g.map_size(x, weight))
    )
    return h, w


def packs_map(x: torch.Tensor, weight: torch.Tensor, g: Geometry) -> bool:
    """Whether bits of every un-pooled unit come out of the pooling kernel: not of maps smaller than a word."""
    H1, W1 = g.map_size(x, weight)
    return can_run(x, weight, g) is None and _pack_in_kernel(ceil_div(H1, 2) * ceil_div(W1, 2))


def _pack_in_kernel(windows: int) -> bool:
    """Bits are packed along a plane in whole words, which a small one would leave nearly empty."""
    return _whole_words(windows) <= 2 * windows


def _whole_words(units: int) -> int:
    return ceil_div(units, 64) * 64


class _Rows(NamedTuple):
    """The grid of windows (of positions, without a pool) and what is packed along it."""

    grid: Pair
    per_image: int  # rows of the product's windows for one image: the grid's, rounded up
    output_bits: bool
    unit_bits: bool
    factor_bits: bool

    @property
    def windows(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def packs(self) -> bool:
        return self.output_bits or self.unit_bits or self.factor_bits


def _rows(
    g: Geometry, map_size: Pair, *, need_code: bool, map_sig: bool, output_sig: bool, channels_last: bool
) -> _Rows:
    """Bits of a map want windows that cover it. Those of a small y are packed from y instead."""
    pooled = g.pool != "none"
    factor = need_code and g.pool != "max"
    of_map = pooled and (factor or map_sig)
    grid = (ceil_div(map_size[0], 2), ceil_div(map_size[1], 2)) if of_map else g.pooled_size(map_size)
    windows = grid[0] * grid[1]
    packable = _pack_in_kernel(windows)
    rows = _Rows(
        grid,
        windows,
        packable and output_sig and pooled and not of_map,
        packable and (map_sig or (output_sig and not pooled)),
        packable and factor,
    )
    if rows.packs:
        return rows._replace(per_image=_whole_words(windows))
    sixteens = ceil_div(windows, 16) * 16
    if not channels_last and 8 * sixteens <= 9 * windows:
        return rows._replace(
            per_image=sixteens
        )  # then 16 rows are 16 neighbours in y, which are stored as one
    return rows


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    g: Geometry,
    layout: torch.memory_format,
    residual: torch.Tensor | None,
    *,
    need_code: bool,
    map_sig: bool,
    output_sig: bool,
    tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One launch: y, the code (see `conv_relu_pool.forward`), and a signature.

    residual: [N, K, P, Q] without a pool, else None; copied where its memory format is not y's. map_sig: of the
    un-pooled units, where `packs_map`. output_sig: of y. What isn't asked for comes back as y itself.
    """
    from zbkernels.triton.kernels import conv_tiles

    N, _, H, W = x.shape
    K, _, R, S = weight.shape
    H1, W1 = map_size = g.map_size(x, weight)
    P, Q = g.pooled_size(map_size)
    positions = 1 if g.pool == "none" else 4
    rows = _rows(
        g,
        map_size,
        need_code=need_code,
        map_sig=map_sig,
        output_sig=output_sig,
        channels_last=layout == torch.channels_last,
    )

    y = torch.empty((N, K, P, Q), dtype=x.dtype, device=x.device, memory_format=layout)
    code = y
    if need_code and g.pool == "max":
        code = torch.empty((N, K, P, Q), dtype=torch.uint8, device=x.device, memory_format=layout)

    def bits(wanted: bool, sections: int) -> torch.Tensor:
        shape = (N, K, sections, rows.per_image // 64)
        return torch.empty(shape, dtype=torch.int64, device=x.device) if wanted else y

    outputs, units, factors = (
        bits(rows.output_bits, 1),
        bits(rows.unit_bits, positions),
        bits(rows.factor_bits, positions),
    )
    pixels, group_in = _chunks(x, g.groups, _reach(x, weight, g))
    filters, _ = _chunks(weight, 1, (0, 0))
    product = Product(N * rows.per_image * positions, K // g.groups, group_in, R * S, g.groups)
    kind = product_kind(target_of(x.device), x.dtype, tf32)
    config = _config(x, product, kind, g.pool, rows, residual is not None)
    block = config.constants
    if y.numel() > 0:
        start(
            conv_tiles.conv_tiles_kernel,
            ceil_div(product.rows, block["BLOCK_M"]) * g.groups * ceil_div(product.columns, block["BLOCK_N"]),
            pixels,
            filters.contiguous(),
            y if residual is None else residual.contiguous(memory_format=layout),
            y,
            code,
            *(t if t is y else t.view(torch.int32) for t in (outputs, units, factors)),
            N,
            H,
            W,
            K,
            H1,
            W1,
            P,
            Q,
            rows.grid[1],
            rows.windows,
            rows.per_image,
            group_in,
            product.columns,
            S,
            R * S * group_in,
            R * S * ceil_div(group_in, block["BLOCK_C"]),
            *pixels.stride()[:3],
            *y.stride()[:2],
            y.stride(3),
            *g.stride,
            *g.padding,
            *(1 if weight.shape[2 + d] == 1 else g.dilation[d] for d in (0, 1)),
            POOL=g.pool,
            SLOPE=g.negative_slope,
            ADDS=residual is not None,
            WANT_CODE=code is not y,
            OUTPUT_BITS=rows.output_bits,
            UNIT_BITS=rows.unit_bits,
            FACTOR_BITS=rows.factor_bits,
            EDGE=positions == 4 and (2 * rows.grid[0] > H1 or 2 * rows.grid[1] > W1),
            WHOLE=rows.grid == (P, Q),
            EVEN=group_in % block["BLOCK_C"] == 0,
            TF32=tf32,
            ORDER=_ORDER[kind],
            GROUP_M=_GROUP_M,
            **block,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    if need_code and g.pool != "max":
        code = _factor_code(factors, y, g, map_size)
    if map_sig and g.pool != "none":
        return y, code, join_windows(units, map_size, by_plane=False)
    if not (map_sig or output_sig):
        return y, code, y
    planes = outputs if g.pool != "none" else units
    return y, code, nap_pack.forward(y) if planes is y else join_planes(planes[:, :, 0], K * P * Q, P * Q)


def _factor_code(factors: torch.Tensor, y: torch.Tensor, g: Geometry, map_size: Pair) -> torch.Tensor:
    """int64 [N, K, ceil(H1*W1/64)] from the kernel's bits, or, where there are none, from an un-pooled y."""
    if g.pool != "none":
        return join_windows(factors, map_size, by_plane=True)
    if factors is y:
        N, K, P, Q = y.shape
        planes = y.reshape(N * K, P * Q)
        return nap_pack.pack(planes, nan_is_on=g.negative_slope == 0).view(N, K, ceil_div(P * Q, 64))
    return factors[:, :, 0]


def _config(x: torch.Tensor, product: Product, kind: str, pool: str, rows: _Rows, adds: bool) -> Config:
    """The tiles of one call. Speed depends on the product's sizes, the rows' only up to a factor of two."""
    windows_of_bits = pool != "none" and (rows.unit_bits or rows.factor_bits)
    words = f"K{product.columns} C{product.depth} g{product.groups} taps{product.taps} M2^{product.rows.bit_length()}"
    epilogue = f"{pool}{' bits' if rows.packs else ''}{' of the map' if windows_of_bits else ''}"
    epilogue += " residual" if adds else ""

    def all_candidates() -> Sequence[Config]:
        return candidates(
            target_of(x.device),
            kind,
            x.element_size(),
            product,
            # a tile packs whole halves of words; four positions' bits and a residual take registers beside the values
            least_rows=(32 if pool == "none" else 128) if rows.packs else 1,
            most_sums=64 if windows_of_bits or adds else 128,
        )

    return choose("conv_relu_pool2d", x.device, x.dtype, f"{kind} {words} {epilogue}", all_candidates)


def _chunks(t: torch.Tensor, groups: int, reach: Pair) -> tuple[torch.Tensor, int]:
    """[N, C, H, W] -> [N, H, W, groups * channels] in 16-byte chunks (zeros fill the last), and the channels.

    A view where t is laid out so, with rows and columns within `reach` of 32-bit distances; else one copy.
    """
    unit = 16 // t.element_size()
    N, C, H, W = t.shape
    channels = ceil_div(C // groups, unit) * unit
    strides = [0 if t.shape[d] == 1 else t.stride(d) for d in (0, 2, 3)]
    dense = t.stride(1) == 1 and groups * channels == C and t.data_ptr() % 16 == 0
    near = max(reach[0] * strides[1], reach[1] * strides[2]) <= _FAR // 2
    if dense and near and all(stride % unit == 0 for stride in strides):
        return t.as_strided((N, H, W, C), (*strides, 1)), channels
    chunked = torch.empty((N, H, W, groups, channels), dtype=t.dtype, device=t.device)
    chunked[..., : C // groups] = t.reshape(N, groups, C // groups, H, W).permute(0, 3, 4, 1, 2)
    chunked[..., C // groups :] = 0
    return chunked.view(N, H, W, groups * channels), channels
