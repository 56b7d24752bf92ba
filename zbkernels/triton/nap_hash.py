"""nap_hash in Triton: 128 bits of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.nap_hamming import in_pairs


def can_run(sig: torch.Tensor) -> str | None:
    """None if `forward` can run on sig, else the reason."""
    return cannot_run("nap_hash", sig) or wrong_dtype("nap_hash", sig, (torch.int64,))


def forward(sig: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], as zbkernels.nap_hash defines it.

    sig: int64 [N, W], any strides.
    """
    from zbkernels.triton.kernels import groups

    N, W = sig.shape
    out = torch.empty((N, 2), dtype=torch.int64, device=sig.device)
    if N == 0:
        return out
    config = choose("nap_hash", sig.device, sig.dtype, rows_class(N, W), lambda: candidates(W))
    start(
        groups.hash_kernel,
        ceil_div(N, config.constants["BLOCK_N"]),
        sig,
        out,
        N,
        W,
        *sig.stride(),
        PAIRS=in_pairs(sig),
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def rows_class(N: int, W: int) -> str:
    """What the speed of kernels that read each row once depends on."""
    return f"N2^{(N - 1).bit_length()} W2^{max(W - 1, 0).bit_length()}"


def candidates(W: int) -> Sequence[Config]:
    """Tiles of 512 words, four a thread, or of twice as many; the default first."""
    words = power_of_two(W, 2, 64)
    return [
        Config({"BLOCK_N": 512 // words, "BLOCK_W": words}),
        Config({"BLOCK_N": 1024 // words, "BLOCK_W": words}),
    ]
