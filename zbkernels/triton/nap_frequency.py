"""nap_frequency in Triton: how often each unit is on, the rows split over programs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.nap_hamming import in_pairs
from zbkernels.triton.target import target_of

_PROGRAMS_A_PROCESSOR = 4
_FOURS = 255  # rows go four at a time, and a program counts fours in bytes


def can_run(sig: torch.Tensor, F: int) -> str | None:
    """None if `forward` can run on sig, else the reason."""
    return cannot_run("nap_frequency", sig) or wrong_dtype("nap_frequency", sig, (torch.int64,))


def forward(sig: torch.Tensor, F: int) -> torch.Tensor:
    """int64 [F]: in how many rows each of the first F units is on.

    sig: int64 [N, W], any strides, F <= 64 * W.
    """
    from zbkernels.triton.kernels import frequency

    sig = sig[:, : ceil_div(F, 64)]
    N, W = sig.shape
    if sig.numel() == 0:
        return torch.zeros(F, dtype=torch.int64, device=sig.device)
    shape_class = f"N2^{(N - 1).bit_length()} W2^{(W - 1).bit_length()}"
    config = choose("nap_frequency", sig.device, sig.dtype, shape_class, lambda: candidates(W))
    step = 4 * config.constants["BLOCK_ROWS"]
    blocks = ceil_div(W, config.constants["BLOCK_WORDS"])
    # Enough parts for several programs a processor, and none of more rows than the bytes can count.
    wanted = ceil_div(_PROGRAMS_A_PROCESSOR * target_of(sig.device).processors, blocks)
    part_rows = step * min(max(ceil_div(N, wanted * step), 1), _FOURS)
    parts = ceil_div(N, part_rows)
    counts = torch.empty((parts, W * 64), dtype=torch.int32, device=sig.device)
    start(
        frequency.frequency_kernel,
        parts * blocks,
        sig,
        counts,
        N,
        W,
        part_rows,
        *sig.stride(),
        PAIRS=in_pairs(sig),
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return counts.sum(0)[:F].contiguous()


def candidates(W: int) -> Sequence[Config]:
    """Tiles of 256 words, two a thread: 16 bytes at a load and 20 words of counters; the default first."""
    words = power_of_two(W, 1, 64)
    return [
        Config({"BLOCK_ROWS": 256 // words, "BLOCK_WORDS": words}),
        Config({"BLOCK_ROWS": 512 // words, "BLOCK_WORDS": words}, num_warps=8),
    ]
