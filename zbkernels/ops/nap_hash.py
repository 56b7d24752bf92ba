"""``nap_hash``: 128 bits for each activation pattern, the same on every device and machine.

What patterns are looked up, partitioned and merged by. Equal patterns have equal hashes; unequal ones are told apart
by comparing words (:func:`zbkernels.nap_group` does), since no hash of fixed size can promise that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import Op, Sample, checked, register
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import rows_class
from zbkernels.ops.nap_unpack import check_signatures

SCHEMA = "nap_hash(Tensor sig) -> Tensor"

# The increment and the mixer of SplitMix64 (Steele, Lea, Flood 2014; the mixer's constants are Stafford's "Mix13").
GOLDEN = 0x9E3779B97F4A7C15
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_LOW = 2**32 - 1
_PIECE = 2**17  # words that the reference mixes at a time: its temporaries are of that size


def check(sig: Any) -> None:
    check_signatures("nap_hash", "sig", sig)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(x: torch.Tensor, places: int) -> torch.Tensor:
    """x >> places of the 64 bits without their sign."""
    return (x >> places) & (2 ** (64 - places) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 64 bits after which each bit depends on every one before."""
    x = (x ^ _shifted(x, 30)) * _signed(MIX[0])
    x = (x ^ _shifted(x, 27)) * _signed(MIX[1])
    return x ^ _shifted(x, 31)


def hash_rows(sig: torch.Tensor) -> torch.Tensor:
    """int64 [N, W] -> int64 [N, 2]; the temporaries are of sig's size. All sums and products are modulo 2**64."""
    W = sig.shape[1]
    places = torch.arange(1, W + 1, device=sig.device) * _signed(GOLDEN)
    s = _mix(sig + places)  # [N, W]
    a = s.sum(1) + W  # [N]
    b = ((s & _LOW) * _shifted(s, 32)).sum(1) + _signed(GOLDEN)
    b = _mix(b + a)
    return torch.stack([_mix(a + b), b], 1)


def reference(sig: torch.Tensor) -> torch.Tensor:
    check(sig)
    _backend.note_kernel("reference")
    N, W = sig.shape
    out = sig.new_empty((N, 2))
    rows = max(_PIECE // max(W, 1), 1)
    for n in range(0, N, rows):
        out[n : n + rows] = hash_rows(sig[n : n + rows])
    return out


def fake(sig: torch.Tensor) -> torch.Tensor:
    check(sig)
    return sig.new_empty((sig.shape[0], 2))


def vmap(info: Any, in_dims: tuple[Any, ...], sig: torch.Tensor) -> tuple[torch.Tensor, int]:
    sig = sig.movedim(in_dims[0], 0)  # [B, N, W]
    return torch.ops.zb.nap_hash(sig.flatten(0, 1)).unflatten(0, sig.shape[:2]), 0


def batches_of_signatures(device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """(label, sig [N, W]): the kinds of memory and sizes at which kernels on one batch fail."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, shape, generator=g).to(device)

    for words in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33):
        yield f"{words} words", draw(19, words)
    yield "one row", draw(1, 3)
    yield "more rows than a block", draw(1300, 2)
    yield "one wide row", draw(1, 700)
    yield "transposed", draw(3, 26).t()
    yield "every other word", draw(9, 18)[:, ::2]
    yield "every other row", draw(18, 2)[::2]
    yield "rows an odd number of words apart", draw(19, 5)[:, :4]
    yield "expanded rows", draw(1, 9).expand(20, 9)
    yield "expanded words", draw(20, 1).expand(20, 9)
    yield "odd storage offset", draw(9 * 8 + 1)[1:].view(9, 8)
    yield "all off", torch.zeros((9, 3), dtype=torch.int64, device=device)
    yield "all on", torch.full((9, 3), -1, device=device)
    yield "sign bits", torch.tensor([[-(2**63), 0], [0, -(2**63)], [2**63 - 1, -1]], device=device)
    yield "few kinds of rows", draw(50, 2) & 1
    yield "no rows", draw(0, 2)
    yield "no words", draw(3, 0)


def samples(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Iterator[Sample]:
    for label, sig in batches_of_signatures(device):
        yield Sample(label, (sig,))


def nap_hash(sig: torch.Tensor) -> torch.Tensor:
    """A 128-bit hash of each row, the same on every device and machine and in every version of the package.

    With ``mix`` the output function of SplitMix64 and ``golden`` its increment 0x9E3779B97F4A7C15, modulo 2**64::

        s_i = mix(w_i + (i + 1) golden)        for word i = 0 .. W - 1
        a   = W + sum s_i
        b   = golden + sum (s_i mod 2**32) (s_i div 2**32)
        b   = mix(b + a);  a = mix(a + b)      hash = (a, b)

    Two rows of one width that differ in a single word never share a hash (mix and the last line are bijections), rows
    that differ in more do so with a probability near 2**-128 unless they were made to: it is no cryptographic hash.

    Args:
        sig: int64 [N, W] signatures, any strides. All bits count, so padding bits must agree, as the zeros of
            :func:`nap_pack` do.

    Returns:
        int64 [N, 2]; each of the two columns is a good 64-bit hash.

    Raises:
        TypeError: sig is no dense int64 tensor.
        ValueError: sig has not two dimensions.
    """
    check(sig)
    kernel = _backend.choose_kernel(OP, sig, None)
    return torch.ops.zb.nap_hash(sig) if kernel is None else kernel.run(sig)


def shape_class(sig: torch.Tensor) -> str:
    return rows_class(sig.shape[0], 64 * sig.shape[1])


TRITON = _backend.triton_kernel("nap_hash", _backend.triton_function("nap_hash", "forward"))
KERNELS = (
    _backend.library_kernel("cpu", "nap_hash"),
    _backend.library_kernel("cuda", "nap_hash"),
    TRITON,
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_hash",
    SCHEMA,
    reference,
    samples,
    public=nap_hash,
    normalise=checked(check),
    kernels=KERNELS,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_hash", KERNELS, SCHEMA, fake),
    dtypes=(torch.int64,),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
