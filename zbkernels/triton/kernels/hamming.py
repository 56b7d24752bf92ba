"""Hamming distances between tiles of signature rows, and the rows that are nearest.

What sets the floor: population counts run at a quarter of the rate of logic (16 lanes a cycle of an SM of compute
capability 8.0 and 9.0, logic at 64). A plain distance needs two counts a word of 64 units, one for each half. Here the
halves of a word's difference and a running bit plane go through a full adder first (a carry-save adder, as in
Harley and Seal's population count): the sum stays in the plane, and only the carries, worth two units each, are
counted. That is one count a word, beside two xors, the adder's two three-input operations and an addition. So N x M
distances of W words take at least N * M * W / 16 cycles of an SM by the counter, 5/64 by the logic unit: on 132 SMs
at 1.7 GHz about 1.8e14 units a second. From memory come (N + M) * W words and, for `hamming_kernel`, N * M int32 go
back, which is the floor where rows are of one or two words. Tensor cores could multiply bits as int8; expanding the
words costs about what it saves at these tile sizes, and Triton has no product of single bits.

Rows are loaded 16 bytes at a time, two words, where they lie so.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def popcount(value):
    """Set bits of each int32. LLVM knows this sequence: it becomes one popc (NVIDIA) or v_bcnt (AMD)."""
    x = value.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def add_differences(plane, carries, x, y):
    """One word of rows x [BN] and y [BM] more: the units that differ, in `plane` and, two at a time, in `carries`."""
    different = x[:, None] ^ y[None, :]
    low = different.to(tl.int32)
    high = (different >> 32).to(tl.int32)
    carries += popcount((low & high) | (plane & (low ^ high)))
    return plane ^ low ^ high, carries


@triton.jit
def distances(
    a,
    b,
    n,  # int64 [BN]: numbers of rows of a
    m,  # int64 [BM]
    n_live,
    m_live,
    words,
    a_row,
    a_word,
    b_row,
    b_word,
    PAIRS: tl.constexpr,
):
    """int32 [BN, BM]: in how many units row n of a and row m of b differ.

    With PAIRS a row's words are even in number and lie next to each other, and rows lie an even number of words apart:
    two words are loaded at a time, by 16 bytes where the tensor itself starts at such a boundary.
    """
    BN: tl.constexpr = n.shape[0]
    BM: tl.constexpr = m.shape[0]
    a_start = n * a_row
    b_start = m * b_row
    plane = tl.zeros((BN, BM), tl.int32)
    carries = tl.zeros((BN, BM), tl.int32)
    if PAIRS:
        pair = tl.arange(0, 2)[None, :]
        a_pairs = a + tl.multiple_of(a_start, 2)[:, None] + pair
        b_pairs = b + tl.multiple_of(b_start, 2)[:, None] + pair
        for word in range(0, words, 2):
            x0, x1 = tl.split(tl.load(a_pairs + word, mask=n_live[:, None], other=0))
            y0, y1 = tl.split(tl.load(b_pairs + word, mask=m_live[:, None], other=0))
            plane, carries = add_differences(plane, carries, x0, y0)
            plane, carries = add_differences(plane, carries, x1, y1)
    else:
        for number in range(words):
            word = tl.full((), number, tl.int64)
            x = tl.load(a + a_start + word * a_word, mask=n_live, other=0)
            y = tl.load(b + b_start + word * b_word, mask=m_live, other=0)
            plane, carries = add_differences(plane, carries, x, y)
    return 2 * carries + popcount(plane)


@triton.jit
def hamming_kernel(
    a,  # int64 [N, words], any strides
    b,  # int64 [M, words], any strides
    out,  # int32 [N, M] contiguous
    N,
    M,
    words,
    a_row,
    a_word,
    b_row,
    b_word,
    PAIRS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One tile of distances. Programs that follow one another share the rows of b."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK_N)
    n = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    n_live = n < N
    m_live = m < M
    found = distances(a, b, n, m, n_live, m_live, words, a_row, a_word, b_row, b_word, PAIRS)
    tl.store(out + (n * M)[:, None] + m[None, :], found, mask=n_live[:, None] & m_live[None, :])


@triton.jit
def insert(best, key, NONE: tl.constexpr):
    """The BLOCK_K smallest keys of each row among best [BN, BLOCK_K] and key [BN, BM]; all keys of a row differ.

    Most tiles hold no key that is smaller than a row's largest best one, and cost one minimum. Otherwise one key
    a row moves in at a time: in a random order a row sees k * ln(M / k) such keys in all.
    """
    worst = tl.max(best, axis=1)
    nearest = tl.min(key, axis=1)
    while tl.max((nearest < worst).to(tl.int32), axis=0) > 0:
        moves = (nearest < worst)[:, None]
        best = tl.where(moves & (best == worst[:, None]), nearest[:, None], best)
        key = tl.where(moves & (key == nearest[:, None]), NONE, key)
        worst = tl.max(best, axis=1)
        nearest = tl.min(key, axis=1)
    return best


@triton.jit
def nearest_kernel(
    q,  # int64 [N, words], any strides
    db,  # int64 [M, words], any strides
    keys,  # int64 [N, splits, BLOCK_K] contiguous: distance << index_bits | row of db, in no order
    N,
    M,
    words,
    splits,
    split_rows,  # a multiple of BLOCK_M
    split_bits,  # of a row's number within a split
    index_bits,
    q_row,
    q_word,
    db_row,
    db_word,
    WIDE: tl.constexpr,  # a distance and a number within a split need more than 31 bits
    PAIRS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The BLOCK_K nearest rows within one split of the database, for each of BLOCK_N queries.

    A key is distance << split_bits | number within the split: smaller is nearer and, among equals, the lower row.
    No distance has all bits set (the largest is a multiple of 64), so the highest keys are free to mean nothing.
    """
    KEY: tl.constexpr = tl.int64 if WIDE else tl.int32
    NONE: tl.constexpr = 2**63 - 1 if WIDE else 2**31 - 1
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BLOCK_N)
    n = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = program // blocks
    first = split * split_rows
    rows = tl.minimum(M - first, split_rows)
    n_live = n < N
    slot = tl.arange(0, BLOCK_K)
    best = tl.broadcast_to((NONE - slot.to(KEY))[None, :], (BLOCK_N, BLOCK_K))
    for start in range(0, rows, BLOCK_M):
        number = start + tl.arange(0, BLOCK_M)
        m_live = number < rows
        found = distances(
            q, db, n, first + number, n_live, m_live, words, q_row, q_word, db_row, db_word, PAIRS
        )
        key = (found.to(KEY) << split_bits) | number.to(KEY)[None, :]
        best = insert(best, tl.where(n_live[:, None] & m_live[None, :], key, NONE), NONE)
    distance = best >> split_bits
    number = best - (distance << split_bits)
    key = (distance.to(tl.int64) << index_bits) | (first + number)
    key = tl.where(best > NONE - BLOCK_K, 2**63 - 1, key)
    place = ((n * splits + split) * BLOCK_K)[:, None] + slot[None, :]
    tl.store(keys + place, key, mask=n_live[:, None])
