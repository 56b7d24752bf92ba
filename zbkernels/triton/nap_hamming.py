"""nap_hamming in Triton: distances of all pairs, a tile of rows times rows at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype


def can_run(a: torch.Tensor, b: torch.Tensor) -> str | None:
    """None if `forward` can run on a and b, else the reason."""
    return cannot_run("nap_hamming", a, b) or wrong_dtype("nap_hamming", a, (torch.int64,))


def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int32 [N, M]: in how many bits row n of a differs from row m of b.

    a: int64 [N, W], b: int64 [M, W], any strides.
    """
    from zbkernels.triton.kernels import hamming

    (N, W), M = a.shape, b.shape[0]
    out = torch.empty((N, M), dtype=torch.int32, device=a.device)
    if out.numel() == 0:
        return out
    shape_class = f"N{power_of_two(N, 1, 64)} M2^{(M - 1).bit_length()} W2^{max(W - 1, 0).bit_length()}"
    config = choose("nap_hamming", a.device, a.dtype, shape_class, lambda: candidates(N, M))
    start(
        hamming.hamming_kernel,
        ceil_div(N, config.constants["BLOCK_N"]) * ceil_div(M, config.constants["BLOCK_M"]),
        a,
        b,
        out,
        N,
        M,
        W,
        *a.stride(),
        *b.stride(),
        PAIRS=in_pairs(a, b),
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def candidates(N: int, M: int) -> Sequence[Config]:
    """The default first: 16 distances a thread, as many rows of a as a register file holds the words of."""
    n = power_of_two(N, 1, 32)
    found = [Config({"BLOCK_N": n, "BLOCK_M": power_of_two(M, 16, min(2048 // n, 512))})]
    if N > 32 and M > 32:
        found += [
            Config({"BLOCK_N": 64, "BLOCK_M": 64}),
            Config({"BLOCK_N": 64, "BLOCK_M": 64}, num_warps=8),
        ]
    return found


def in_pairs(*operands: torch.Tensor) -> bool:
    """Whether the words of int64 [rows, W] tensors lie so that they can be read two at a time."""
    return all(t.shape[1] % 2 == 0 and t.stride(0) % 2 == 0 and t.stride(1) == 1 for t in operands)
