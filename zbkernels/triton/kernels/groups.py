"""The hash of each row of signature words, and which rows in an order begin another group.

The floor of the hash is one read of the words. Two products of 64 bits, three shifts and as many xors a word make some
30 operations of 32 bits, at 64 a cycle of an SM 17 bytes a cycle, beside the 14.5 bytes that an H100's memory gives it:
both limits are near each other. Comparing neighbours reads each row twice, in no order.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.ops.nap_hash import GOLDEN as _GOLDEN
from zbkernels.ops.nap_hash import MIX

GOLDEN = tl.constexpr(_GOLDEN)
MIX_FIRST, MIX_SECOND = tl.constexpr(MIX[0]), tl.constexpr(MIX[1])


@triton.jit
def mix(x):
    """The bijection of 64 bits that nap_hash is made of (zbkernels/ops/nap_hash.py); x is uint64."""
    x = (x ^ (x >> 30)) * MIX_FIRST
    x = (x ^ (x >> 27)) * MIX_SECOND
    return x ^ (x >> 31)


@triton.jit
def load_words(sig, start, left, row_live, sig_word, PAIRS: tl.constexpr, BLOCK_W: tl.constexpr):
    """[BLOCK_N, BLOCK_W] words from `start` on, and which of them there are (`left` in a row); 0 elsewhere.

    With PAIRS a row's words are even in number and lie next to each other, rows an even number of words apart: a load
    of 16 bytes has one mask.
    """
    word = tl.arange(0, BLOCK_W)
    word_live = (word // 2 < left // 2) if PAIRS else (word < left)
    live = row_live[:, None] & word_live[None, :]
    columns = sig + word.to(tl.int64) * sig_word
    return tl.load(columns[None, :] + start[:, None], mask=live, other=0), live


@triton.jit
def hash_kernel(
    sig,  # int64 [N, words], any strides
    out,  # int64 [N, 2] contiguous
    N,
    words,
    sig_row,
    sig_word,
    PAIRS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """zbkernels.nap_hash of BLOCK_N rows."""
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_live = n < N
    a = tl.zeros((BLOCK_N,), tl.uint64)
    b = tl.zeros((BLOCK_N,), tl.uint64)
    for first in range(0, words, BLOCK_W):
        column = tl.full((), first, tl.int64)
        start = n * sig_row + column * sig_word
        if PAIRS:  # said here: of a function's argument Triton does not keep it
            start = tl.multiple_of(start, 2)
        value, live = load_words(sig, start, words - first, row_live, sig_word, PAIRS, BLOCK_W)
        place = (column + 1 + tl.arange(0, BLOCK_W)).to(tl.uint64) * GOLDEN
        mixed = tl.where(live, mix(value.to(tl.uint64, bitcast=True) + place[None, :]), 0)
        a += tl.sum(mixed, axis=1)
        b += tl.sum((mixed & 0xFFFFFFFF) * (mixed >> 32), axis=1)
    a += tl.full((), words, tl.int64).to(tl.uint64)
    b = mix(b + GOLDEN + a)
    a = mix(a + b)
    both = tl.join(a.to(tl.int64, bitcast=True), b.to(tl.int64, bitcast=True))  # [BLOCK_N, 2]
    tl.store(out + (2 * n)[:, None] + tl.arange(0, 2)[None, :], both, mask=row_live[:, None])


@triton.jit
def begins_kernel(
    sig,  # int64 [N, words], any strides
    order,  # int64 [N]: rows of sig
    hashes,  # int64 [N]: of these rows, ascending
    begins,  # uint8 [N]
    N,
    words,
    sig_row,
    sig_word,
    PAIRS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """How a row compares to the one before: 0 it is equal, 1 its hash differs (or it is the first), 2 its words do."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = i < N
    follows = live & (i > 0)
    alike = follows & (
        tl.load(hashes + i, mask=live, other=0) == tl.load(hashes + i - 1, mask=follows, other=0)
    )
    row = tl.load(order + i, mask=live, other=0) * sig_row
    before = tl.load(order + i - 1, mask=follows, other=0) * sig_row
    differ = tl.zeros((BLOCK_N,), tl.int64)
    for first in range(0, words, BLOCK_W):
        column = tl.full((), first, tl.int64) * sig_word
        x_start = row + column
        y_start = before + column
        if PAIRS:
            x_start = tl.multiple_of(x_start, 2)
            y_start = tl.multiple_of(y_start, 2)
        x, _ = load_words(sig, x_start, words - first, alike, sig_word, PAIRS, BLOCK_W)
        y, _ = load_words(sig, y_start, words - first, alike, sig_word, PAIRS, BLOCK_W)
        differ += tl.sum((x != y).to(tl.int64), axis=1)
    tl.store(begins + i, tl.where(alike, tl.where(differ > 0, 2, 0), 1).to(tl.uint8), mask=live)
