"""dual_gram in Triton: the product of two batches and the recursion over layers in one pass."""

from __future__ import annotations

import torch

from zbkernels.ops._dual_options import same_tensor
from zbkernels.triton import dual_kernel
from zbkernels.triton.launch import ceil_div, start


def can_run(
    x1: torch.Tensor,
    x2: torch.Tensor,
    kernel: str = "nngp",
    activation: str = "relu",
    depth: int = 1,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    train: str = "all",
) -> str | None:
    """None if `forward` can run on these arguments, else the reason."""
    return dual_kernel.cannot_compute("dual_gram", x1, x2, activation)


def forward(
    x1: torch.Tensor,
    x2: torch.Tensor,
    kernel: str,
    activation: str,
    depth: int,
    w_std: float,
    b_std: float,
    train: str,
) -> torch.Tensor:
    """[N, M]: zbkernels.dual_gram of x1 [N, d] and x2 [M, d], float32 or float64, any strides."""
    from zbkernels.triton.kernels import dual

    (N, features), M = x1.shape, x2.shape[0]
    out = x1.new_empty(N, M)
    if out.numel() == 0:
        return out
    net = dual_kernel.network(kernel, activation, depth, w_std, b_std, train, features)
    symmetric = same_tensor(x1, x2)
    rows1 = dual_kernel.describe_rows(x1, net)
    rows2 = rows1 if symmetric else dual_kernel.describe_rows(x2, net)
    config = dual_kernel.tile_config("dual_gram", x1, x2, net)
    block = config.constants
    start(
        dual.gram_kernel,
        ceil_div(N, block["BLOCK_M"]) * ceil_div(M, block["BLOCK_N"]),
        x1,
        x2,
        out,
        N,
        M,
        features,
        *dual_kernel.strides(x1, x2),
        *(each for pair in zip(rows1, rows2, strict=True) for each in pair),
        depth,
        *net.bits(),
        **dual_kernel.network_constants(net),
        SYMMETRIC=symmetric,
        **dual_kernel.product_constants(x1, x2, block["BLOCK_C"]),
        **block,
        GROUP_M=8,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out
