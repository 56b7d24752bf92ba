"""nap_group in Triton: rows are sorted by a hash, neighbours compared word by word, and torch numbers the groups."""

from __future__ import annotations

import torch

from zbkernels.triton import nap_hash
from zbkernels.triton.config import choose
from zbkernels.triton.launch import cannot_run, ceil_div, start, wrong_dtype
from zbkernels.triton.nap_hamming import in_pairs

Groups = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def can_run(sig: torch.Tensor) -> str | None:
    """None if `forward` can run on sig, else the reason."""
    return cannot_run("nap_group", sig) or wrong_dtype("nap_group", sig, (torch.int64,))


def forward(sig: torch.Tensor) -> Groups:
    """(ids [N], first [G], counts [G]): groups of equal rows, numbered by first appearance.

    sig: int64 [N, W], any strides. Waits for the device, as the size of the result depends on the data. Where rows of
    one hash differ, which takes rows that were made to, all rows are sorted by their words instead.
    """
    from zbkernels.ops.nap_group import group_rows

    if sig.numel() == 0:
        return group_rows(sig)
    hashes = nap_hash.forward(sig)[:, 0].contiguous()
    hashes, order = hashes.sort(stable=True)  # equal rows stay in their order
    begins = compare_neighbours(sig, order, hashes)
    if bool((begins == 2).any()):
        return group_rows(sig)
    starts = begins.nonzero()[:, 0]  # of each group, in the order of hashes
    first, by_first = order[starts].sort()
    number = torch.empty_like(by_first)
    number[by_first] = torch.arange(len(by_first), device=sig.device)
    ids = torch.empty_like(begins, dtype=torch.int64)
    ids[order] = number[begins.cumsum(0) - 1]
    counts = torch.diff(starts, append=starts.new_full((1,), len(order)))
    return ids, first, counts[by_first]


def compare_neighbours(sig: torch.Tensor, order: torch.Tensor, hashes: torch.Tensor) -> torch.Tensor:
    """uint8 [N]: 0 where row order[i] equals row order[i - 1], 1 where its hash differs, 2 where only its words do."""
    from zbkernels.triton.kernels import groups

    N, W = sig.shape
    begins = torch.empty(N, dtype=torch.uint8, device=sig.device)
    config = choose(
        "nap_group", sig.device, sig.dtype, nap_hash.rows_class(N, W), lambda: nap_hash.candidates(W)
    )
    start(
        groups.begins_kernel,
        ceil_div(N, config.constants["BLOCK_N"]),
        sig,
        order,
        hashes,
        begins,
        N,
        W,
        *sig.stride(),
        PAIRS=in_pairs(sig),
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return begins
