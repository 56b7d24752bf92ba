"""nap_topk in Triton: the database streams past, and only the best rows of each query are kept.

Up to _REGISTERS_K neighbours stay in registers: one pass over the database, split over programs so that few queries
fill a card too; each split leaves its best rows, and torch sorts these short lists. For more neighbours blocks of
distances go through memory, a bounded piece at a time, and torch merges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zbkernels.triton import nap_hamming
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.target import target_of

_REGISTERS_K = 128
_NARROW_BITS = (
    16  # of a distance: up to here keys are of 32 bits and a split has at least 2**15 rows to itself
)
_QUERIES = 8192  # of one launch: bounds the splits' lists
_PROGRAMS_A_PROCESSOR = 4
_LEAST_TILES = 8  # of one split, so that most of its tiles improve nothing


def can_run(q: torch.Tensor, db: torch.Tensor, k: int) -> str | None:
    """None if `forward` can run on these arguments, else the reason."""
    return cannot_run("nap_topk", q, db) or wrong_dtype("nap_topk", q, (torch.int64,))


def forward(q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k nearest rows of db for each row of q: distances int32 [N, k], ascending, and rows int64 [N, k].

    q: int64 [N, W], db: int64 [M, W], any strides, k <= M. Of equal distances the lower row comes first.
    """
    from zbkernels.ops.nap_topk import nearest_in_blocks, split_keys

    if k > _REGISTERS_K:
        return nearest_in_blocks(q, db, k, nap_hamming.forward)
    index_bits = max(db.shape[0] - 1, 0).bit_length()
    keys = torch.empty((q.shape[0], k), dtype=torch.int64, device=q.device)
    if keys.numel() > 0:
        for queries, nearest in zip(q.split(_QUERIES), keys.split(_QUERIES), strict=True):
            lists = _best_of_splits(queries, db, k, index_bits)  # [queries, splits * BLOCK_K]
            nearest.copy_(lists.sort(dim=1).values[:, :k])
    return split_keys(keys, index_bits)


def _best_of_splits(q: torch.Tensor, db: torch.Tensor, k: int, index_bits: int) -> torch.Tensor:
    """For each query the BLOCK_K nearest rows of each split, as keys: distance << index_bits | row."""
    from zbkernels.triton.kernels import hamming

    (N, W), M = q.shape, db.shape[0]
    distance_bits = max((64 * W).bit_length(), 1)
    wide = distance_bits > _NARROW_BITS
    block_k = power_of_two(k, 1, _REGISTERS_K)
    shape_class = f"N{power_of_two(N, 1, 16)} M2^{index_bits} W2^{max(W - 1, 0).bit_length()} K{block_k}"
    config = choose("nap_topk", q.device, q.dtype, shape_class, lambda: candidates(N, wide))
    block_m = config.constants["BLOCK_M"]
    query_blocks = ceil_div(N, config.constants["BLOCK_N"])
    wanted = ceil_div(_PROGRAMS_A_PROCESSOR * target_of(q.device).processors, query_blocks)
    split_rows = block_m * max(ceil_div(M, wanted * block_m), _LEAST_TILES)
    split_rows = min(split_rows, 2**32 if wide else 2 ** (31 - distance_bits))
    splits = ceil_div(M, split_rows)
    keys = torch.empty((N, splits * block_k), dtype=torch.int64, device=q.device)
    start(
        hamming.nearest_kernel,
        query_blocks * splits,
        q,
        db,
        keys,
        N,
        M,
        W,
        splits,
        split_rows,
        (split_rows - 1).bit_length(),
        index_bits,
        *q.stride(),
        *db.stride(),
        WIDE=wide,
        PAIRS=nap_hamming.in_pairs(q, db),
        BLOCK_K=block_k,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return keys


def candidates(N: int, wide: bool) -> Sequence[Config]:
    """Tiles of 2048 distances, 16 a thread, or half of it where keys are of 64 bits; the default first."""
    if wide:
        n = power_of_two(N, 1, 8)
        return [Config({"BLOCK_N": n, "BLOCK_M": min(1024 // n, 256)})]
    n = power_of_two(N, 1, 16)
    found = [Config({"BLOCK_N": n, "BLOCK_M": min(2048 // n, 512)})]
    if n == 16:
        found.append(Config({"BLOCK_N": 32, "BLOCK_M": 64}))
    return found
