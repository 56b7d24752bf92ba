"""``nap_topk``: the k activation patterns of a database that are nearest to each query.

Distances of bit patterns tie nearly always, so the order of ties is part of the result: the lower row comes first,
whatever k, the batch, the device or the block size, and a smaller k gives a prefix of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register, vmap_by_loop
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import near_power, next_power, rows_class
from zbkernels.ops.nap_hamming import all_distances, check_pair, pairs_of_signatures
from zbkernels.ops.nap_unpack import check_int

SCHEMA = "nap_topk(Tensor q, Tensor db, SymInt k) -> (Tensor, Tensor)"

_KEYS = {"cpu": 2**18, "cuda": 2**22}  # of one piece: what a cache holds, and what fills a card


def check(q: Any, db: Any, k: Any) -> None:
    check_pair("nap_topk", ("q", "db"), q, db)
    check_int("nap_topk", "k", k)
    if k < 0 or k > db.shape[0]:
        raise ValueError(f"nap_topk: expected 0 <= k <= M = {db.shape[0]} rows of db, got {k}")
    M, words = db.shape
    if isinstance(M, int) and isinstance(words, int) and _bits(64 * words) + _bits(M - 1) > 63:
        raise ValueError(f"nap_topk: expected distance and row to fit in 63 bits, got db of {list(db.shape)}")


def _bits(largest: int) -> int:
    return max(largest, 0).bit_length()


def split_keys(keys: torch.Tensor, index_bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys distance << index_bits | row, back to distances int32 and rows int64."""
    return (keys >> index_bits).to(torch.int32), keys & ((1 << index_bits) - 1)


def nearest_in_blocks(
    q: torch.Tensor,
    db: torch.Tensor,
    k: int,
    distances: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k nearest rows, by pieces of the table of distances that a fixed memory holds (but for 5 k keys of a row).

    All keys distance << index_bits | row differ, so the k smallest are one certain set, and the row breaks ties.
    """
    N, M = q.shape[0], db.shape[0]
    index_bits = _bits(M - 1)
    out = torch.empty((N, k), dtype=torch.int64, device=q.device)
    if out.numel() == 0:
        return split_keys(out, index_bits)
    room = _KEYS["cpu" if q.device.type == "cpu" else "cuda"]
    rows = min(N, 64)
    columns = min(M, max(4 * k, room // rows))
    rows = min(N, max(1, room // columns))
    for i in range(0, N, rows):
        best = out.new_empty((min(rows, N - i), 0))
        for j in range(0, M, columns):
            keys = distances(q[i : i + rows], db[j : j + columns]).to(torch.int64)
            keys = (keys << index_bits) | torch.arange(j, j + keys.shape[1], device=q.device)
            keys = torch.cat([best, keys], 1)
            best = keys.topk(min(k, keys.shape[1]), 1, largest=False, sorted=False).values
        out[i : i + rows] = best.sort(1).values
    return split_keys(out, index_bits)


def reference(q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    check(q, db, k)
    _backend.note_kernel("reference")
    return nearest_in_blocks(q, db, k, all_distances)


def fake(q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    check(q, db, k)
    return q.new_empty((q.shape[0], k), dtype=torch.int32), q.new_empty((q.shape[0], k))


def vmap(info: Any, in_dims: tuple[Any, ...], q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[Any, Any]:
    if in_dims[1] is not None:
        return vmap_by_loop("nap_topk")(info, in_dims, q, db, k)
    q = q.movedim(in_dims[0], 0)  # [B, N, W]
    distances, rows = torch.ops.zb.nap_topk(q.flatten(0, 1), db, k)
    return (distances.unflatten(0, q.shape[:2]), rows.unflatten(0, q.shape[:2])), (0, 0)


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    for label, q, db in pairs_of_signatures(device):
        yield Sample(label, (q, db, min(3, db.shape[0])))
    g = torch.Generator().manual_seed(1)
    q = torch.randint(-(2**63), 2**63 - 1, (5, 2), generator=g).to(device)
    db = torch.randint(-(2**63), 2**63 - 1, (300, 2), generator=g).to(device)
    for k in (0, 1, 64, 128, 129, 300):
        yield Sample(f"k = {k} of 300", (q, db, k))
    yield Sample("only ties", (q, db[:1].expand(140, 2), 17))
    yield Sample("only ties, k = M", (q, db[:1].repeat(21, 1), 21))
    yield Sample("many ties", (q & 7, db & 3, 100))
    yield Sample(
        "nearest last", (q[:1], q[:1] ^ (2 ** torch.arange(62, -1, -1, device=device) - 1)[:, None], 9)
    )
    yield Sample("empty database", (q, db[:0], 0))


def nap_topk(q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k rows of ``db`` at the least Hamming distance from each row of ``q``.

    No N x M table is formed: the database streams past.

    Args:
        q: int64 [N, W] signatures, any strides.
        db: int64 [M, W], on the same device.
        k: neighbours, 0 <= k <= M.

    Returns:
        (distances int32 [N, k], rows of db int64 [N, k]), nearest first, of equal distances the lower row first.

    Raises:
        TypeError: q or db is no dense int64 tensor, or k no int.
        ValueError: one has not two dimensions, they differ in width or device, k is negative or more than M,
            a row has 2**31 bits or more, or distance and row together need more than 63 bits.
    """
    check(q, db, k)
    kernel = _backend.choose_kernel(OP, q, db, k)
    return torch.ops.zb.nap_topk(q, db, k) if kernel is None else kernel.run(q, db, k)


def shape_class(q: torch.Tensor, db: torch.Tensor, k: int) -> str:
    return f"{rows_class(q.shape[0], 64 * q.shape[1])} M{near_power(db.shape[0])} K{next_power(k)}"


TRITON = _backend.triton_kernel("nap_topk", _backend.triton_function("nap_topk", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "nap_topk"),
    _backend.library_kernel("cuda", "nap_topk"),
    TRITON,
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_topk",
    SCHEMA,
    reference,
    samples,
    public=nap_topk,
    normalise=checked(check),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_topk", KERNELS, SCHEMA, fake),
    dtypes=(torch.int64,),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
