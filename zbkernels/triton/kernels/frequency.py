"""How often each unit is on, over the rows of a batch of signatures.

The floor is one read of the words. Adding each of a word's 64 bits to a counter of its own would take about 2 cycles
of an SM a word, five times the time of the read on an H100. So rows first go four at a time through full adders, bit by
bit, into planes of weight 1, 2 and 4 (6 three-input operations for 4 rows), and only the fours are spread: bits that
lie 8 apart are added as the bytes of one word, 8 such words for all 64 bits. That is about 15 operations of 32 bits a
word, a quarter of a cycle. A byte holds 255 fours, which bounds the rows of one program.

Each program writes its counts, and the host adds them up: no atomics, though sums of integers would allow them, so that
nothing has to be set to zero first.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def, assignment"

import triton
import triton.language as tl

BYTES = tl.constexpr(0x0101010101010101)  # the lowest bit of each byte


@triton.jit
def add_bits(plane, x, y):
    """A full adder for each bit: the new plane of sums, and the carries."""
    either = x ^ y
    return plane ^ either, (x & y) | (plane & either)


@triton.jit
def load_rows(columns, row, last, sig_row, live, PAIRS: tl.constexpr):
    """Words of some rows, [BLOCK_ROWS, BLOCK_WORDS]; 0 beyond the last row."""
    start = row * sig_row
    if PAIRS:
        start = tl.multiple_of(start, 2)
    return tl.load(columns[None, :] + start[:, None], mask=(row < last)[:, None] & live[None, :], other=0)


@triton.jit
def frequency_kernel(
    sig,  # int64 [N, words], any strides
    counts,  # int32 [parts, words, 64] contiguous
    N,
    words,
    part_rows,  # of one program: at most 4 * 255 * BLOCK_ROWS
    sig_row,
    sig_word,
    PAIRS: tl.constexpr,  # rows are of an even number of words and lie an even number apart
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """How often each unit of BLOCK_WORDS words is on in one part of the rows."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(words, BLOCK_WORDS)
    part = program // blocks
    word = (program % blocks) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    live = (word // 2 < words // 2) if PAIRS else (word < words)  # by pairs: a load of 16 bytes has one mask
    first = part * part_rows
    last = tl.minimum(first + part_rows, N)
    columns = sig + word * sig_word
    ones = tl.zeros((BLOCK_ROWS, BLOCK_WORDS), tl.int64)
    twos = ones
    lanes = (ones, ones, ones, ones, ones, ones, ones, ones)  # byte b of lane s counts fours of bit 8b + s
    for start in range(first, last, 4 * BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        a = load_rows(columns, row, last, sig_row, live, PAIRS)
        b = load_rows(columns, row + BLOCK_ROWS, last, sig_row, live, PAIRS)
        c = load_rows(columns, row + 2 * BLOCK_ROWS, last, sig_row, live, PAIRS)
        d = load_rows(columns, row + 3 * BLOCK_ROWS, last, sig_row, live, PAIRS)
        ones, first_twos = add_bits(ones, a, b)
        ones, other_twos = add_bits(ones, c, d)
        twos, fours = add_bits(twos, first_twos, other_twos)
        more = ()
        for s in tl.static_range(8):
            more = more + (lanes[s] + ((fours >> s) & BYTES),)  # noqa: RUF005 - Triton knows no star
        lanes = more
    eighths = 8 * tl.arange(0, 8).to(tl.int64)[None, None, :]
    out = counts + ((part * words + word) * 64)[:, None] + 8 * tl.arange(0, 8)[None, :]
    for s in tl.static_range(8):
        total = 4 * ((lanes[s][:, :, None] >> eighths) & 255)
        total += 2 * ((twos[:, :, None] >> (eighths + s)) & 1) + ((ones[:, :, None] >> (eighths + s)) & 1)
        found = tl.sum(total.to(tl.int32), axis=0)  # [BLOCK_WORDS, 8]
        tl.store(out + s, found, mask=(word < words)[:, None])
