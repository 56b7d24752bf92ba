"""``nap_hamming``: in how many units two activation patterns differ, for all pairs of two batches.

The Hamming distance of signatures is what coverage scores, pattern kernels and nearest-pattern searches are made of:
units minus distance is the agreement of two inputs (the kernel of "Neural Architecture Search without Training").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register, vmap_by_loop
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import near_power, rows_class
from zbkernels.ops.nap_unpack import check_signatures

SCHEMA = "nap_hamming(Tensor a, Tensor b) -> Tensor"

_ROWS = 64  # of a, in one tile of the reference
_WORDS = 31  # whose counts of 8 a byte holds
_INT32_MAX = 2**31 - 1


def check_pair(op: str, names: tuple[str, str], a: Any, b: Any) -> None:
    """What ops on two batches of signatures ask of them.

    Raises:
        TypeError: one is no dense int64 tensor.
        ValueError: one has not two dimensions, they differ in width or device, or a distance could pass int32.
    """
    for name, sig in zip(names, (a, b), strict=True):
        check_signatures(op, name, sig)
    both = " and ".join(names)
    words = a.shape[1]
    if words != b.shape[1]:
        raise ValueError(f"{op}: expected {both} of one width, got {list(a.shape)} and {list(b.shape)}")
    if a.device != b.device:
        raise ValueError(f"{op}: expected {both} on one device, got {a.device} and {b.device}")
    if isinstance(words, int) and 64 * words > _INT32_MAX:
        raise ValueError(
            f"{op}: expected rows of less than 2**31 bits (distances are int32), got {words} words"
        )


def check(a: Any, b: Any) -> None:
    check_pair("nap_hamming", ("a", "b"), a, b)


def tile_of_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int64 [n, W], [m, W] -> int32 [n, m]; the temporaries are of the result's size.

    Set bits are counted within each byte by shifts and masks, which the sign that an arithmetic shift brings in
    can't pass; bytes add up over the words, and are summed at the end.
    """
    n, m = a.shape[0], b.shape[0]
    total = torch.zeros((n, m), dtype=torch.int64, device=a.device)
    counts, x, shifted = torch.empty_like(total), torch.empty_like(total), torch.empty_like(total)
    for first in range(0, a.shape[1], _WORDS):
        columns = b[:, first : first + _WORDS].t().contiguous()  # [words, m]
        counts.zero_()
        for word, column in enumerate(columns, start=first):
            torch.bitwise_xor(a[:, word, None], column, out=x)
            torch.bitwise_right_shift(x, 1, out=shifted)
            x -= shifted.bitwise_and_(0x5555555555555555)
            torch.bitwise_right_shift(x, 2, out=shifted)
            x.bitwise_and_(0x3333333333333333).add_(shifted.bitwise_and_(0x3333333333333333))
            torch.bitwise_right_shift(x, 4, out=shifted)
            counts += x.add_(shifted).bitwise_and_(0x0F0F0F0F0F0F0F0F)
        torch.bitwise_right_shift(counts, 8, out=shifted)
        counts.bitwise_and_(0x00FF00FF00FF00FF).add_(shifted.bitwise_and_(0x00FF00FF00FF00FF))
        total += counts.mul_(0x0001000100010001).bitwise_right_shift_(48)
    return total.to(torch.int32)


def _tile(device: torch.device) -> int:
    """Distances computed at a time: a CPU thread's part of the temporaries stays in its cache, a GPU is filled."""
    return 2**15 * torch.get_num_threads() if device.type == "cpu" else 2**22


def all_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int64 [N, W], [M, W] -> int32 [N, M], a tile at a time."""
    out = a.new_empty((a.shape[0], b.shape[0]), dtype=torch.int32)
    columns = max(_tile(a.device) // max(min(_ROWS, a.shape[0]), 1), 1)
    for i in range(0, out.shape[0], _ROWS):
        for j in range(0, out.shape[1], columns):
            tile = tile_of_distances(a[i : i + _ROWS], b[j : j + columns])
            out[i : i + _ROWS, j : j + columns] = tile
    return out


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check(a, b)
    _backend.note_kernel("reference")
    return all_distances(a, b)


def fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check(a, b)
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.int32)


def vmap(info: Any, in_dims: tuple[Any, ...], a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
    if in_dims[1] is None:
        a = a.movedim(in_dims[0], 0)  # [B, N, W]
        return torch.ops.zb.nap_hamming(a.flatten(0, 1), b).unflatten(0, a.shape[:2]), 0
    if in_dims[0] is None:
        b = b.movedim(in_dims[1], 0)  # [B, M, W]
        return torch.ops.zb.nap_hamming(a, b.flatten(0, 1)).unflatten(1, b.shape[:2]), 1
    return vmap_by_loop("nap_hamming")(info, in_dims, a, b)


def pairs_of_signatures(device: str) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(label, a [N, W], b [M, W]): the kinds of memory and sizes at which kernels on two batches fail."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, shape, generator=g).to(device)

    for words in (1, 2, 3, 4, 31, 33):
        yield f"{words} words", draw(5, words), draw(7, words)
    yield "past a tile", draw(67, 2), draw(70, 2)
    yield "one query", draw(1, 2), draw(600, 2)
    yield "transposed", draw(3, 6).t(), draw(3, 9).t()
    yield "every other word", draw(4, 8)[:, ::2], draw(9, 8)[:, 1::2]
    yield "every other row", draw(8, 4)[::2], draw(10, 4)[1::2]
    yield "rows an odd number of words apart", draw(5, 7)[:, :4], draw(6, 5)[:, 1:]
    yield "expanded rows", draw(1, 3).expand(4, 3), draw(1, 3).expand(6, 3)
    yield "expanded words", draw(4, 1).expand(4, 4), draw(6, 1).expand(6, 4)
    yield "odd storage offset", draw(4 * 6 + 3)[3:].view(6, 4), draw(8 * 4 + 1)[1:].view(8, 4)
    full, low = torch.full((3, 2), -1), torch.tensor([[0, 0], [-(2**63), 2**63 - 1], [1, -2]])
    yield "all on, sign bits", full.to(device), low.to(device)
    yield (
        "all on and all off",
        full[:, :1].repeat(1, 33).to(device),
        torch.zeros((4, 33), dtype=full.dtype).to(device),
    )
    yield "few kinds of rows", draw(9, 1) & 1, draw(50, 1) & 3
    yield "identical rows", draw(1, 2).repeat(3, 1), draw(1, 2).repeat(40, 1)
    yield "no queries", draw(0, 2), draw(5, 2)
    yield "no words", draw(3, 0), draw(5, 0)


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    for label, a, b in pairs_of_signatures(device):
        yield Sample(label, (a, b))
    rows = torch.ones((3, 2), dtype=torch.int64, device=device)
    yield Sample("no rows in b", (rows, rows[:0]))


def nap_hamming(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Number of units in which each row of ``a`` differs from each row of ``b``.

    All bits of the words count, so padding bits must agree, as the zeros of :func:`nap_pack` do.

    Args:
        a: int64 [N, W] signatures, any strides.
        b: int64 [M, W], on the same device.

    Returns:
        int32 [N, M].

    Raises:
        TypeError: a or b is no dense int64 tensor.
        ValueError: one has not two dimensions, they differ in width or device, or a row has 2**31 bits or more.
    """
    check(a, b)
    kernel = _backend.choose_kernel(OP, a, b)
    return torch.ops.zb.nap_hamming(a, b) if kernel is None else kernel.run(a, b)


def shape_class(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"{rows_class(a.shape[0], 64 * a.shape[1])} M{near_power(b.shape[0])}"


TRITON = _backend.triton_kernel("nap_hamming", _backend.triton_function("nap_hamming", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "nap_hamming"),
    _backend.library_kernel("cuda", "nap_hamming"),
    TRITON,
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_hamming",
    SCHEMA,
    reference,
    samples,
    public=nap_hamming,
    normalise=checked(check),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_hamming", KERNELS, SCHEMA, fake),
    dtypes=(torch.int64,),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
