"""Signature words: packing, unpacking and moving bits, and the rounding that every kernel shares.

A word of 64 units is handled as two int32 halves, the low one first, as a little-endian GPU keeps it in memory: the
host passes an int32 view of the int64 tensor. A half is a sum of 32 lanes in 32-bit registers (an int64 sum needs
three times the shuffles), and no word has to be put together.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

# The interpreter keeps a bfloat16 as its raw 16 bits: its casts cut instead of rounding, lose denormals, and its dot
# multiplies the raw bits. `widen` and `narrow` then go by the bits themselves; on a device they are plain casts.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def widen(value, dtype: tl.constexpr):
    """A loaded value in the accumulator's dtype; exact."""
    if INTERPRETED and value.dtype == tl.bfloat16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        value = bits.to(tl.float32, bitcast=True)
    return value.to(dtype)


@triton.jit
def narrow(value, dtype: tl.constexpr):
    """An accumulator rounded to the tensor's dtype, to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # adding to the bits of a NaN could carry it into a number
        rounded = tl.where(value == value, rounded, (bits >> 16) | 0x40)
        result = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        result = value.to(dtype)
    return result


@triton.jit
def comparable(value):
    """Comparisons of bfloat16 are made in float32; every other dtype compares as it is."""
    return widen(value, tl.float32) if value.dtype == tl.bfloat16 else value


@triton.jit
def operand(value):
    """A loaded value as tl.dot takes it: as it is, so that the tensor cores of its own dtype multiply it."""
    return widen(value, tl.float32) if INTERPRETED else value


@triton.jit
def pack_columns(bits):
    """int32 [M, 32 * G] of 0 and 1 -> int32 [M, G], bit j of a word from column 32 * g + j."""
    M: tl.constexpr = bits.shape[0]
    G: tl.constexpr = bits.shape[1] // 32
    lanes = tl.reshape(bits, (M, G, 32))
    return tl.sum(lanes << tl.arange(0, 32)[None, None, :], axis=2)


@triton.jit
def pack_rows(bits):
    """int32 [32 * G, N] of 0 and 1 -> int32 [G, N], bit j of a word from row 32 * g + j."""
    G: tl.constexpr = bits.shape[0] // 32
    N: tl.constexpr = bits.shape[1]
    lanes = tl.reshape(bits, (G, 32, N))
    return tl.sum(lanes << tl.arange(0, 32)[None, :, None], axis=1)


@triton.jit
def pack_kernel(
    x,  # [rows, D0, D1, D2], any strides; D0 * D1 * D2 = units, later dims 1 where `DIMS` is less
    words,  # int32 view of the signature, [rows, halves] contiguous
    rows,
    units,
    halves,
    D1,
    D2,
    x_row,
    x_0,
    x_1,
    x_2,
    DIMS: tl.constexpr,
    NAN_IS_ON: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_HALVES: tl.constexpr,
):
    """Bit j of half h of a row is x > 0 of unit 32 * h + j, units in row-major order of the dims; padding bits 0."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(halves, BLOCK_HALVES)
    row = (program // blocks) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    first = (program % blocks) * BLOCK_HALVES
    unit = first * 32 + tl.arange(0, BLOCK_HALVES * 32)
    if DIMS == 1:
        column = unit * x_0
    elif DIMS == 2:
        column = (unit // D1) * x_0 + (unit % D1) * x_1
    else:
        column = (unit // D2 // D1) * x_0 + (unit // D2 % D1) * x_1 + (unit % D2) * x_2
    live = (row < rows)[:, None] & (unit < units)[None, :]
    value = comparable(tl.load(x + row[:, None] * x_row + column[None, :], mask=live, other=0))
    on = value > 0
    if NAN_IS_ON:
        on = on | (value != value)
    packed = pack_columns((on & live).to(tl.int32))  # [BLOCK_ROWS, BLOCK_HALVES]
    half = first + tl.arange(0, BLOCK_HALVES)
    kept = (row < rows)[:, None] & (half < halves)[None, :]
    tl.store(words + row[:, None] * halves + half[None, :], packed, mask=kept)


@triton.jit
def unpack_kernel(
    words,  # int64 [rows, words], any strides
    out,  # uint8 [rows, units] contiguous: 0 or 1
    rows,
    units,
    words_row,
    words_column,
    BLOCK: tl.constexpr,
):
    """out[row, u] = bit u % 64 of word u // 64."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(units, BLOCK * 64)
    row = program // blocks
    word = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(words + row * words_row + word * words_column, mask=word * 64 < units, other=0)
    lane = tl.arange(0, 64)
    bit = (value[:, None] >> lane[None, :].to(tl.int64)) & 1  # [BLOCK, 64]
    unit = word[:, None] * 64 + lane[None, :]
    tl.store(out + row * units + unit, bit.to(tl.uint8), mask=unit < units)


@triton.jit
def planes_to_signature_kernel(
    planes,  # int32 view of words per plane, [rows, planes, plane_halves] contiguous
    words,  # int32 view of the signature, [rows, halves] contiguous
    rows,
    units,  # planes * plane_units
    halves,
    plane_units,
    plane_halves,
    planes_row,  # planes * plane_halves
    BLOCK: tl.constexpr,
):
    """Joins planes that end within a word: bit u of a row is bit u % plane_units of plane u // plane_units."""
    program = tl.program_id(0).to(tl.int64)
    half = program * BLOCK + tl.arange(0, BLOCK)  # over all rows
    row = half // halves
    lane = tl.arange(0, 32)
    unit = (half % halves)[:, None] * 32 + lane[None, :]
    live = (row < rows)[:, None] & (unit < units)
    position = unit % plane_units
    source = row[:, None] * planes_row + (unit // plane_units) * plane_halves + position // 32
    value = tl.load(planes + source, mask=live, other=0)
    bit = (value >> (position % 32).to(tl.int32)) & 1
    tl.store(words + half, tl.sum(bit << lane[None, :], axis=1), mask=row < rows)


@triton.jit
def windows_to_map_kernel(
    sections,  # int32 halves [rows, planes, 4 positions, section_halves]: bits by 2×2 window
    words,  # int32 view of the map's bits, [rows, halves] contiguous
    rows,
    units,  # planes * plane_units
    halves,
    plane_units,  # of a map of width W1
    W1,
    grid_w,  # windows in a row
    section_halves,
    planes,
    BLOCK: tl.constexpr,
):
    """Bit (h, w) of a map's plane is that of position (h % 2, w % 2) in window (h // 2, w // 2)."""
    half = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # over all rows
    row = half // halves
    lane = tl.arange(0, 32)
    unit = (half % halves)[:, None] * 32 + lane[None, :]
    live = (row < rows)[:, None] & (unit < units)
    h = unit % plane_units // W1
    w = unit % plane_units % W1
    window = h // 2 * grid_w + w // 2
    section = (row[:, None] * planes + unit // plane_units) * 4 + h % 2 * 2 + w % 2
    value = tl.load(sections + section * section_halves + window // 32, mask=live, other=0)
    bit = (value >> (window % 32).to(tl.int32)) & 1
    tl.store(words + half, tl.sum(bit << lane[None, :], axis=1), mask=row < rows)


@triton.jit
def winner_kernel(
    y,  # [N, K, P, Q], any strides: the pooled values
    code,  # the same strides: 0, or 1 + position of the winner
    words,  # int32 view of the signature, [N, halves] contiguous
    N,
    P,
    Q,
    bits_total,  # K * P * Q * BITS
    halves,
    y_n,
    y_k,
    y_p,
    y_q,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Codes of BITS bits, the lowest first, one after another across word borders; a winner that is NaN counts as 0."""
    program = tl.program_id(0).to(tl.int64)
    half = program * BLOCK + tl.arange(0, BLOCK)  # over all images
    n = half // halves
    lane = tl.arange(0, 32)
    place = (half % halves)[:, None] * 32 + lane[None, :]
    live = (n < N)[:, None] & (place < bits_total)
    unit = place // BITS
    q = unit % Q
    p = unit // Q % P
    k = unit // Q // P
    source = n[:, None] * y_n + k * y_k + p * y_p + q * y_q
    value = comparable(tl.load(y + source, mask=live, other=0.0))
    number = tl.load(code + source, mask=live, other=0).to(tl.int32)
    number = tl.where(value > 0, number, 0)
    bit = (number >> (place % BITS).to(tl.int32)) & 1
    tl.store(words + half, tl.sum(bit << lane[None, :], axis=1), mask=n < N)
