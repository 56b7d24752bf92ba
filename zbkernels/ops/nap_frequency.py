"""``nap_frequency``: how often each unit is on over a batch of activation patterns.

Which units are nearly always on or off is what a dominant pattern is mined from, and what dead units show up in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import rows_class
from zbkernels.ops.nap_pack import words_for
from zbkernels.ops.nap_unpack import check_int, check_signatures

SCHEMA = "nap_frequency(Tensor sig, SymInt F) -> Tensor"

_BYTES = 0x0101010101010101  # the lowest bit of each byte
_GROUP = 255  # rows whose counts a byte holds
_PIECE = 2**18  # words that the reference counts at a time: its temporaries are of that size
_WORDS = 1024  # of a row in one piece


def check(sig: Any, F: Any) -> None:
    check_signatures("nap_frequency", "sig", sig)
    check_int("nap_frequency", "F", F)
    bits = 64 * sig.shape[1]
    if F < 0 or bits < F:
        raise ValueError(
            f"nap_frequency: expected 0 <= F <= {bits}, the bits of sig {list(sig.shape)}, got {F}"
        )


def count_bits(sig: torch.Tensor) -> torch.Tensor:
    """int64 [N, W] -> int64 [W, 64]: how often each bit is set; the temporaries are of sig's size.

    Bits that lie 8 apart are added up as the bytes of one word, over 255 rows at a time.
    """
    N, W = sig.shape
    groups = torch.nn.functional.pad(sig, (0, 0, 0, -N % _GROUP)).view(-1, _GROUP, W)
    eighths = torch.arange(0, 64, 8, device=sig.device)
    counts = sig.new_empty((W, 8, 8))  # [W, byte, bit of a byte]
    for bit in range(8):
        lanes = ((groups >> bit) & _BYTES).sum(1)  # [groups, W]
        counts[:, :, bit] = ((lanes.unsqueeze(-1) >> eighths) & 255).sum(0)
    return counts.flatten(1)


def reference(sig: torch.Tensor, F: int) -> torch.Tensor:
    check(sig, F)
    _backend.note_kernel("reference")
    words = words_for(F)
    counts = sig.new_zeros((words, 64))
    rows = max(_PIECE // max(min(words, _WORDS), 1) // _GROUP, 1) * _GROUP
    for w in range(0, words, _WORDS):
        columns = sig[:, w : min(w + _WORDS, words)]
        for n in range(0, sig.shape[0], rows):
            counts[w : w + _WORDS] += count_bits(columns[n : n + rows])
    return counts.flatten()[:F]


def fake(sig: torch.Tensor, F: int) -> torch.Tensor:
    check(sig, F)
    return sig.new_empty((F,))


def vmap(info: Any, in_dims: tuple[Any, ...], sig: torch.Tensor, F: int) -> tuple[torch.Tensor, int]:
    sig = sig.movedim(in_dims[0], 1)  # [N, B, W]
    _, B, W = sig.shape
    counts = torch.ops.zb.nap_frequency(sig.flatten(1), B * W * 64)  # a batch is words side by side
    return counts.view(B, W * 64)[:, :F], 0


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, shape, generator=g).to(device)

    for units in (1, 63, 64, 65, 128, 129, 1000):
        yield Sample(f"{units} units", (draw(5, words_for(units)), units))
    yield Sample("fewer units than words", (draw(6, 4), 70))
    yield Sample("255 rows", (draw(255, 1), 64))
    yield Sample("256 rows", (draw(256, 2), 128))
    yield Sample("more rows than a byte counts", (draw(1300, 1), 64))
    yield Sample("all on", (torch.full((1025, 2), -1, device=device), 100))
    yield Sample("sign bit", (torch.full((3, 1), -(2**63), device=device), 64))
    yield Sample("transposed", (draw(3, 6).t(), 180))
    yield Sample("every other word", (draw(9, 6)[:, ::2], 192))
    yield Sample("every other row", (draw(9, 2)[::2], 128))
    yield Sample("rows an odd number of words apart", (draw(9, 5)[:, :4], 256))
    yield Sample("expanded rows", (draw(1, 2).expand(700, 2), 128))
    yield Sample("expanded words", (draw(9, 1).expand(9, 3), 192))
    yield Sample("odd storage offset", (draw(4 * 6 + 1)[1:].view(6, 4), 256))
    yield Sample("no rows", (draw(0, 2), 70))
    yield Sample("no units", (draw(3, 2), 0))
    yield Sample("no words", (draw(3, 0), 0))


def nap_frequency(sig: torch.Tensor, F: int) -> torch.Tensor:
    """In how many rows of ``sig`` each of the first F units is on.

    Args:
        sig: int64 [N, W] signatures, any strides; bits from F on are ignored.
        F: units (for ``units="winner"`` signatures: bits) of a signature, at most 64 W.

    Returns:
        int64 [F].

    Raises:
        TypeError: sig is no dense int64 tensor, or F no int.
        ValueError: sig has not two dimensions, or F is negative or more than 64 W.
    """
    check(sig, F)
    kernel = _backend.choose_kernel(OP, sig, None, F)
    return torch.ops.zb.nap_frequency(sig, F) if kernel is None else kernel.run(sig, F)


def shape_class(sig: torch.Tensor, F: int) -> str:
    return rows_class(sig.shape[0], F)


TRITON = _backend.triton_kernel("nap_frequency", _backend.triton_function("nap_frequency", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "nap_frequency"),
    _backend.library_kernel("cuda", "nap_frequency"),
    TRITON,
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_frequency",
    SCHEMA,
    reference,
    samples,
    public=nap_frequency,
    normalise=checked(check),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_frequency", KERNELS, SCHEMA, fake),
    dtypes=(torch.int64,),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
