"""dual_matvec in Triton: the kernel matrix times vectors, a tile of the matrix at a time, which is never stored."""

from __future__ import annotations

import torch

from zbkernels.triton import dual_kernel
from zbkernels.triton.launch import ceil_div, start
from zbkernels.triton.target import target_of

_BLOCKS_OF_A_PROCESSOR = 4


def can_run(
    x1: torch.Tensor,
    x2: torch.Tensor,
    columns: int,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> str | None:
    """None if `forward` can run on these arguments (of v its width), else the reason."""
    return dual_kernel.cannot_compute("dual_matvec", x1, x2, activation)


def forward(
    x1: torch.Tensor,
    x2: torch.Tensor,
    v: torch.Tensor,
    kernel: str,
    activation: str,
    depth: int,
    w_std: float,
    b_std: float,
    train: str,
) -> torch.Tensor:
    """[N, p]: zbkernels.dual_matvec of x1 [N, d], x2 [M, d] and v [M, p], float32 or float64, any strides.

    Where x1 has too few rows to fill the device, the rows of x2 are dealt out in parts; the sums of the parts are
    added in their order, so results repeat bit by bit.
    """
    from zbkernels.triton.kernels import dual

    (N, features), (M, columns) = x1.shape, v.shape
    if N * columns == 0 or M == 0:
        return x1.new_zeros(N, columns)
    net = dual_kernel.network(kernel, activation, depth, w_std, b_std, train, features)
    rows1 = dual_kernel.describe_rows(x1, net)
    rows2 = rows1 if x1 is x2 else dual_kernel.describe_rows(x2, net)
    config = dual_kernel.tile_config("dual_matvec", x1, x2, net)
    block = config.constants
    high, wide = ceil_div(N, block["BLOCK_M"]), ceil_div(M, block["BLOCK_N"])
    wanted = ceil_div(_BLOCKS_OF_A_PROCESSOR * target_of(x1.device).processors, high)
    part_tiles = ceil_div(wide, min(wanted, wide))
    parts = ceil_div(wide, part_tiles)
    sums = x1.new_empty(parts, columns, N)
    start(
        dual.matvec_kernel,
        high * parts,
        x1,
        x2,
        v,
        sums,
        N,
        M,
        features,
        columns,
        part_tiles,
        *dual_kernel.strides(x1, x2),
        *v.stride(),
        *(each for pair in zip(rows1, rows2, strict=True) for each in pair),
        depth,
        *net.bits(),
        **dual_kernel.network_constants(net),
        **dual_kernel.product_constants(x1, x2, block["BLOCK_C"]),
        **block,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return (sums.sum(0) if parts > 1 else sums[0]).mT.contiguous()
