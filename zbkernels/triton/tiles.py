"""Tile sizes for the matrix products (convolution, linear layer): few candidates, the likely best first."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from zbkernels.triton.config import Config
from zbkernels.triton.launch import ceil_div, power_of_two
from zbkernels.triton.target import Target


class Tile(NamedTuple):
    """rows × columns of results, bytes of either operand's row in one step, warps, stages of the pipeline."""

    rows: int
    columns: int
    bytes: int
    warps: int
    stages: int


# An accumulator of 128 floats a thread leaves registers for addresses and no spill (bench/results/triton.md).
# With wgmma a tile has at least 32 rows for each warp, with mma.sync at least 64: then a thread holds whole
# pool windows.
TILES = {
    "wgmma": (
        Tile(128, 128, 128, 4, 3),
        Tile(256, 128, 128, 8, 3),
        Tile(256, 64, 128, 8, 3),
        Tile(128, 128, 128, 8, 3),
        Tile(128, 64, 128, 4, 4),
        Tile(128, 32, 128, 4, 4),
        Tile(128, 16, 128, 4, 4),
    ),
    "mma": (
        Tile(128, 128, 64, 4, 4),
        Tile(128, 64, 64, 4, 4),
        Tile(64, 64, 64, 4, 4),
        Tile(128, 32, 64, 4, 4),
        Tile(64, 32, 64, 4, 4),
        Tile(64, 16, 64, 2, 4),
    ),
    "tcgen05": (
        Tile(128, 128, 128, 4, 3),
        Tile(256, 128, 128, 8, 3),
        Tile(128, 128, 128, 8, 3),
        Tile(128, 64, 128, 4, 4),
    ),
    "mfma": (
        Tile(128, 128, 64, 4, 2),
        Tile(128, 64, 64, 4, 2),
        Tile(64, 64, 64, 4, 2),
        Tile(64, 32, 64, 4, 2),
        Tile(64, 16, 64, 4, 2),
    ),
    # full float32 on NVIDIA: 16 results or more for a thread, so that it holds 4 × 4 neighbours
    "fma": (
        Tile(128, 128, 64, 8, 3),
        Tile(128, 64, 64, 8, 3),
        Tile(64, 64, 64, 4, 3),
        Tile(64, 32, 64, 4, 3),
        Tile(64, 16, 64, 2, 3),
    ),
}
# Without windows to keep together smaller tiles do as well; those of 16 rows are for a batch of few inputs.
FEW_ROWS = {
    "wgmma": (Tile(64, 128, 128, 4, 4), Tile(64, 64, 128, 4, 4), Tile(16, 64, 128, 4, 4)),
    "mma": (Tile(16, 64, 128, 4, 4),),
    "tcgen05": (Tile(16, 64, 128, 4, 4),),
    "mfma": (Tile(16, 64, 128, 4, 2),),
    "fma": (Tile(16, 64, 64, 2, 3),),
}
_MOST = 4  # candidates of one shape


class Product(NamedTuple):
    """A matrix product of rows × columns results in each of `groups`, summed over `taps` × `depth`."""

    rows: int
    columns: int
    depth: int
    taps: int = 1
    groups: int = 1


def product_kind(target: Target, dtype: torch.dtype, tf32: bool) -> str:
    """The row of TILES: what multiplies."""
    if dtype == torch.float32 and not tf32 and not target.amd:
        return "fma"
    return target.product


@functools.lru_cache(1024)  # asked at each call of an op
def candidates(
    target: Target,
    kind: str,
    itemsize: int,
    product: Product,
    *,
    least_rows: int = 1,
    least_columns: int = 16,
    most_sums: int = 128,
    few_rows: bool = False,
) -> tuple[Config, ...]:
    """At most four configurations (constants BLOCK_M, BLOCK_N, BLOCK_C), by the time that a simple model
    gives them.

    few_rows: whether tiles of FEW_ROWS are among them.
    most_sums: accumulators of a thread; what a kernel does with them afterwards takes registers too.
    The model: the busiest processor makes ceil(tiles / processors) tiles, each at the rate of its arithmetic
    or of its loads from L2, whichever is slower. Few tiles to fill the card thus mean smaller ones.
    """
    found: dict[Config, float] = {}
    for tile in TILES[kind] + (FEW_ROWS.get(kind, ()) if few_rows else ()):
        if tile.rows < least_rows or tile.columns < least_columns:
            continue
        fitted = _fit(tile, kind, itemsize, product, least_columns)
        if _sums(fitted) > most_sums:
            continue
        if _shared_bytes(fitted, itemsize) <= target.shared_limit:
            found.setdefault(fitted, _cost(fitted, target, kind, itemsize, product))
    return tuple(sorted(found, key=lambda config: found[config])[:_MOST])


def _fit(tile: Tile, kind: str, itemsize: int, product: Product, least_columns: int) -> Config:
    """The tile with no more columns than there are, and steps of the depth that costs least in all."""
    least = 64 if kind == "tcgen05" else least_columns  # there they may be rows, of the transposed product
    columns = min(tile.columns, power_of_two(product.columns, least, 128))
    deepest = max(tile.bytes // itemsize, 16)
    depths = [depth for depth in (deepest, deepest // 2, deepest // 4) if depth >= 16]
    depth = min(depths, key=lambda d: (ceil_div(product.depth, d) * (d + _STEP), -d))
    constants = {"BLOCK_M": tile.rows, "BLOCK_N": columns, "BLOCK_C": depth}
    return Config(constants, tile.warps, tile.stages)


def _sums(config: Config) -> int:
    """Accumulators of a thread (on AMD, whose warps are twice as wide, twice those)."""
    return config.constants["BLOCK_M"] * config.constants["BLOCK_N"] // (32 * config.num_warps)


def _shared_bytes(config: Config, itemsize: int) -> int:
    c = config.constants
    return config.num_stages * (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_C"] * itemsize


def _cost(config: Config, target: Target, kind: str, itemsize: int, product: Product) -> float:
    """Cycles, roughly."""
    c = config.constants
    m, n, depth = c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_C"]
    tiles = ceil_div(product.rows, m) * product.groups * ceil_div(product.columns, n)
    steps = product.taps * ceil_div(product.depth, depth)
    arithmetic = m * n * depth * itemsize / _RATE[kind]
    loads = (m + n) * depth * itemsize / _L2_BYTES
    return ceil_div(tiles, target.processors) * (steps * max(arithmetic, loads) + _START)


# Bytes of operands multiplied in a cycle of one processor (half precision: 2 a multiply-add), what L2 gives
# it in a cycle, and the cycles before and after a tile's sum. Only their ratios matter, and only to the order
# of candidates.
_RATE = {"mma": 2048, "wgmma": 4096, "tcgen05": 8192, "mfma": 2048, "fma": 512}
_L2_BYTES = 32
_STEP = 8  # what a step costs beyond its products, in units of depth
_START = 1500
