"""``nap_group``: which inputs share an activation pattern.

Inputs of one pattern and one prediction are what the convexity results are about (Theorems 2 and 3 of "Scalar
Invariant Networks with Zero Bias"). Groups are of equal words, not of equal hashes, and are numbered in the order in
which they first appear, so that the result is one certain set of numbers on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register, vmap_by_loop
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import rows_class
from zbkernels.ops.nap_hash import GOLDEN, batches_of_signatures
from zbkernels.ops.nap_unpack import check_signatures

SCHEMA = "nap_group(Tensor sig) -> (Tensor, Tensor, Tensor)"

Groups = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def check(sig: Any) -> None:
    check_signatures("nap_group", "sig", sig)
    if sig.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "nap_group: expected a call outside of CUDA graph capture, got one within: the size of its result "
            "depends on the data, which a graph can't hold"
        )


def group_rows(sig: torch.Tensor) -> Groups:
    """By sorting: torch.unique tells the groups apart, the least row of each gives it its number."""
    N, W = sig.shape
    if N == 0 or W == 0:  # torch.unique takes no empty rows, which are all equal
        ids = sig.new_zeros(N)
        return ids, ids[:1].clone(), ids.new_full((min(N, 1),), N)
    _, inverse, counts = torch.unique(sig, dim=0, return_inverse=True, return_counts=True)
    rows = torch.arange(N, device=sig.device)
    first = torch.full_like(counts, N).scatter_reduce_(0, inverse, rows, "amin")
    first, order = first.sort()  # group by first appearance -> group by value
    number = torch.empty_like(order)
    number[order] = rows[: len(order)]
    return number[inverse], first, counts[order]


def reference(sig: torch.Tensor) -> Groups:
    check(sig)
    _backend.note_kernel("reference")
    return group_rows(sig)


def fake(sig: torch.Tensor) -> Groups:
    check(sig)
    groups = torch.library.get_ctx().new_dynamic_size()
    return sig.new_empty((sig.shape[0],)), sig.new_empty((groups,)), sig.new_empty((groups,))


def vmap(info: Any, in_dims: tuple[Any, ...], sig: torch.Tensor) -> tuple[Any, Any]:
    try:
        return vmap_by_loop("nap_group")(info, in_dims, sig)
    except RuntimeError as error:
        if "stack expects each tensor to be equal size" not in str(error):
            raise
        raise RuntimeError(
            "nap_group: expected batches of one number of groups under vmap (results are stacked), got several"
        ) from error


def rows_of_one_hash(words: int = 4) -> torch.Tensor:
    """int64 [words!, words]: distinct rows that ``nap_hash`` can't tell apart.

    Word i is hashed as w_i + (i + 1) golden and the words' hashes are summed: these are the rows for which the sums
    have the same terms in another order.
    """
    places = [(i + 1) * GOLDEN for i in range(words)]

    def orders(left: list[int]) -> Iterator[list[int]]:
        if not left:
            yield []
        for i, first in enumerate(left):
            for rest in orders(left[:i] + left[i + 1 :]):
                yield [first, *rest]

    def signed(bits: int) -> int:
        return (bits + 2**63) % 2**64 - 2**63

    rows = orders(list(range(1000, 1000 + words)))
    return torch.tensor(
        [[signed(term - place) for term, place in zip(row, places, strict=True)] for row in rows]
    )


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(1)
    # Of one group, as zeros are: what vmap makes of an empty batch.
    yield Sample("identical rows", (torch.full((40, 2), 7, device=device),))
    for label, sig in batches_of_signatures(device):
        yield Sample(label, (sig,))
    column = torch.tensor([100, 10, 100, 1, 1000, 1, 1000, 1], device=device)[:, None]
    yield Sample("numbered by first appearance", (column,))
    yield Sample("differ in the last word only", (torch.cat([column * 0 - 5, column], 1),))
    kinds = torch.randint(-(2**63), 2**63 - 1, (37, 9), generator=g)
    yield Sample("many rows of few kinds", (kinds[torch.randint(37, (5000,), generator=g)].to(device),))
    equal = rows_of_one_hash()
    twice = torch.cat([equal, equal.flip(0)])
    yield Sample("rows of one hash", (twice.to(device),))


def nap_group(sig: torch.Tensor) -> Groups:
    """Number the distinct rows in the order in which they first appear.

    Rows are grouped where all their words are equal; ``sig[first][ids]`` is ``sig`` again. The size of the result
    depends on the data, so it waits for the device on a GPU and can't be captured in a CUDA graph.

    Args:
        sig: int64 [N, W] signatures, any strides. All bits count, so padding bits must agree, as the zeros of
            :func:`nap_pack` do.

    Returns:
        (ids int64 [N], first int64 [G], counts int64 [G]): the group of each row; for each of the G groups the first
        row of it, ascending, and how many rows it has.

    Raises:
        TypeError: sig is no dense int64 tensor.
        ValueError: sig has not two dimensions.
        RuntimeError: the call is being captured in a CUDA graph, or batches under vmap differ in how many there are.
    """
    check(sig)
    kernel = _backend.choose_kernel(OP, sig, None)
    return torch.ops.zb.nap_group(sig) if kernel is None else kernel.run(sig)


def shape_class(sig: torch.Tensor) -> str:
    return rows_class(sig.shape[0], 64 * sig.shape[1])


TRITON = _backend.triton_kernel("nap_group", _backend.triton_function("nap_group", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "nap_group"),
    _backend.library_kernel("cuda", "nap_group"),
    TRITON,
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_group",
    SCHEMA,
    reference,
    samples,
    public=nap_group,
    normalise=checked(check),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_group", KERNELS, SCHEMA, fake),
    dtypes=(torch.int64,),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
