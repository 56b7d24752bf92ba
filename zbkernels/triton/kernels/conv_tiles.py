"""conv → act → pool as one matrix product: BLOCK_M positions of the un-pooled map × BLOCK_N output channels.

Floor (bytes): x, weight and y once (+ code, bits); an x that is not channels_last in whole 16-byte chunks is
also copied once. Floor (operations): N·K·H1·W1·Cg·R·S multiply-adds at the tensor cores' rate, for full
float32 at the ordinary one.

The sum runs over (tap, block of channels). Neighbouring channels are neighbours in memory (x is NHWC inside,
weights are [K, R, S, C/groups]), so that both operands come in 16-byte loads, straight to shared memory and
`num_stages` deep.

Positions are numbered so that one thread holds all four of a 2×2 window, whatever the unit that multiplies:
  "spread"    mma.sync and wgmma: a thread has rows i, i + 8 and i + BLOCK_M/2 (with at most BLOCK_M/32 warps
              down the tile), so that bit 3 of a row's number is the position's column and its highest bit the
              position's row;
  "adjacent"  ordinary multiply-adds: a thread has 4 × 4 results, so the four positions are neighbouring rows;
  "columns"   tcgen05 and mfma: a thread has neighbouring columns of one row, so the product is made
              transposed and the four positions are neighbouring columns.
Activation and pool then happen in a thread's own registers: no shuffle, no shared memory.

Ladder
  1  kernels/conv.py: the product anew for each position of a window, gathered by pointers, 64 × 64. Kept as
     the general kernel.
  2  this one. Interpreted and compiled (bench/results/triton.md); not yet run on a card.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import narrow, pack_rows, widen
from zbkernels.triton.kernels.pool import activate, divide, max_code, max_step, place, rounded
from zbkernels.triton.kernels.product import grouped, multiply


@triton.jit
def position_of_row(BLOCK_M: tl.constexpr, ORDER: tl.constexpr):
    """Rows of a tile -> window within the tile, and the position's row and column in the 2×2 window."""
    i = tl.arange(0, BLOCK_M)
    if ORDER == "spread":
        window = i % 8 + 8 * ((i // 16) % (BLOCK_M // 32))
        down = i // (BLOCK_M // 2)
        right = (i // 8) % 2
    else:
        window = i // 4
        down = (i // 2) % 2
        right = i % 2
    return window, down, right


@triton.jit
def one_position(part, ORDER: tl.constexpr):
    """The part of an accumulator that holds one position of each window -> [windows, channels]."""
    if ORDER == "columns":
        rows = tl.trans(part)
    elif ORDER == "adjacent":
        rows = part
    else:
        rows = tl.reshape(part, (part.shape[0] * part.shape[1], part.shape[2]))
    return rows


@triton.jit
def positions(acc, ORDER: tl.constexpr):
    """The accumulator -> four tensors [windows, channels], the window's positions in row-major order."""
    A: tl.constexpr = acc.shape[0]
    B: tl.constexpr = acc.shape[1]
    if ORDER == "spread":
        four = tl.permute(tl.reshape(acc, (2, A // 32, 2, 8, B)), (1, 3, 4, 0, 2))
    elif ORDER == "adjacent":
        four = tl.permute(tl.reshape(acc, (A // 4, 2, 2, B)), (0, 3, 1, 2))
    else:
        four = tl.reshape(acc, (A, B // 4, 2, 2))
    left, right = tl.split(four)
    v0, v2 = tl.split(left)
    v1, v3 = tl.split(right)
    return one_position(v0, ORDER), one_position(v1, ORDER), one_position(v2, ORDER), one_position(v3, ORDER)


@triton.jit
def largest(v0, v1, v2, v3):
    """The largest of four, NaN where one is NaN."""
    NAN: tl.constexpr = tl.PropagateNan.ALL
    return tl.maximum(tl.maximum(v0, v1, NAN), tl.maximum(v2, v3, NAN), NAN)


@triton.jit
def store_bits(target, on, tile_m, k, k_live, N, K, rows_per_image, SECTIONS: tl.constexpr, section):
    """Packs bits [windows, channels] along the windows: int32 halves [N, K, SECTIONS, halves] of one
    section."""
    HALVES: tl.constexpr = on.shape[0] // 32
    per_image = rows_per_image // 32
    half = tile_m * HALVES + tl.arange(0, HALVES)
    image = half // per_image
    slot = (image.to(tl.int64)[:, None] * K + k[None, :]) * SECTIONS + section
    slot = slot * per_image + (half % per_image)[:, None]
    tl.store(target + slot, pack_rows(on.to(tl.int32)), mask=(image < N)[:, None] & k_live[None, :])


@triton.jit
def store_four(target, o0, o1, o2, o3, has_1, has_2, live, tile_m, k, k_live, N, K, rows_per_image):
    """`store_bits` for the four positions of each window, those outside the map off."""
    store_bits(target, live & o0, tile_m, k, k_live, N, K, rows_per_image, 4, 0)
    store_bits(target, live & o1 & has_1, tile_m, k, k_live, N, K, rows_per_image, 4, 1)
    store_bits(target, live & o2 & has_2, tile_m, k, k_live, N, K, rows_per_image, 4, 2)
    store_bits(target, live & o3 & has_1 & has_2, tile_m, k, k_live, N, K, rows_per_image, 4, 3)


@triton.jit
def passes(act, SLOPE: tl.constexpr):
    """Where the gradient passes the activation unscaled: above 0, and at slope 0 also where it is NaN."""
    return (act > 0) | (act != act) if SLOPE == 0.0 else act > 0


@triton.jit
def conv_tiles_kernel(
    x,  # [N, H, W, groups * group_in], the channels dense; every pixel's begin at a multiple of 16 bytes
    weight,  # [K, R, S, group_in] contiguous
    residual,  # ADDS (without a pool): shape and strides of y
    y,  # [N, K, P, Q], the positions of a plane at equal distances
    code,  # WANT_CODE: position codes, strides of y
    output_bits,  # OUTPUT_BITS (with a pool): int32 halves [N, K, halves] of the grid of windows, bit = y > 0
    unit_bits,  # UNIT_BITS: int32 halves [N, K, 4 positions (1 without a pool), halves], bit = unit > 0
    factor_bits,  # FACTOR_BITS: the same, bit = the activation's gradient factor is 1
    N,
    H,
    W,
    K,
    H1,
    W1,
    P,
    Q,
    grid_w,  # windows in a row of the grid: Q, or ceil(W1 / 2) where every position's bit is wanted
    windows,  # windows of one image's grid
    rows_per_image,  # the same, rounded up: to 64 where bits are packed
    group_in,  # channels of x in a group, a multiple of 16 bytes
    group_out,  # K / groups
    S,
    filter_size,  # R * S * group_in
    steps,  # R * S * ceil(group_in / BLOCK_C)
    x_n,
    x_h,
    x_w,
    y_n,
    y_k,
    y_q,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    POOL: tl.constexpr,  # "max" and "avg" of 2×2 windows side by side, or "none"
    SLOPE: tl.constexpr,
    ADDS: tl.constexpr,
    WANT_CODE: tl.constexpr,
    OUTPUT_BITS: tl.constexpr,
    UNIT_BITS: tl.constexpr,
    FACTOR_BITS: tl.constexpr,
    EDGE: tl.constexpr,  # whether windows of the grid may reach over the map's far edges
    WHOLE: tl.constexpr,  # whether y has each window of the grid
    EVEN: tl.constexpr,  # whether BLOCK_C divides group_in
    TF32: tl.constexpr,
    ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Distances within one image, one filter and the numbers of windows are 32-bit; images are 64 bits
    apart."""
    WINDOW: tl.constexpr = 1 if POOL == "none" else 4
    ROWS: tl.constexpr = BLOCK_M // WINDOW
    UNIT: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth  # elements in 16 bytes
    DTYPE: tl.constexpr = y.dtype.element_ty

    group_tiles = tl.cdiv(group_out, BLOCK_N)
    tiles_m = tl.cdiv(N * rows_per_image, ROWS)
    tile_m, tile_n = grouped(tl.program_id(0), tiles_m, (K // group_out) * group_tiles, GROUP_M)
    group = tile_n // group_tiles
    in_group = (tile_n % group_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)

    if WINDOW == 4:
        window, down, right = position_of_row(BLOCK_M, ORDER)
        n, p, q, live = place(tile_m * ROWS + window, N, rows_per_image, windows, grid_w)
        p = 2 * p + down
        q = 2 * q + right
    else:
        n, p, q, live = place(tile_m * ROWS + tl.arange(0, BLOCK_M), N, rows_per_image, windows, grid_w)
    h0 = p * stride_h - pad_h
    w0 = q * stride_w - pad_w
    pixels = x + n.to(tl.int64) * x_n + (h0 * x_h + w0 * x_w + group * group_in)
    pixels = tl.multiple_of(pixels, 16)
    h0 = tl.where(live, h0, -(2**30))  # a row of no position sees no pixel at any tap
    # columns past the group's end compute some other channel, which nobody stores
    filters = weight + (group * group_out + in_group % group_out) * filter_size
    filters = tl.multiple_of(filters, 16)

    lanes = tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_N, BLOCK_M) if ORDER == "columns" else (BLOCK_M, BLOCK_N), tl.float32)
    r = 0
    s = 0
    c = 0
    for _ in range(steps):
        # one unsigned comparison for both borders
        h_seen = (h0 + r * dilation_h).to(tl.uint32) < H
        w_seen = (w0 + s * dilation_w).to(tl.uint32) < W
        seen = (h_seen & w_seen)[:, None]
        tap = tl.multiple_of(r * dilation_h * x_h + s * dilation_w * x_w + c, UNIT)
        a_at = pixels[:, None] + (tap + lanes)[None, :]
        b_at = filters[None, :] + (tl.multiple_of((r * S + s) * group_in + c, UNIT) + lanes)[:, None]
        if EVEN:
            a = tl.load(a_at, mask=seen, other=0.0)
            b = tl.load(b_at)
        else:
            inside = c + lanes < group_in
            a_live = tl.max_constancy(seen & inside[None, :], [1, UNIT])
            a = tl.load(a_at, mask=a_live, other=0.0)
            b = tl.load(b_at, mask=tl.max_constancy(inside[:, None], [UNIT, 1]), other=0.0)
        acc = multiply(a, b, acc, ORDER == "columns", TF32)
        c += BLOCK_C
        last_c = c >= group_in
        c = tl.where(last_c, 0, c)
        s = tl.where(last_c, s + 1, s)
        last_s = s == S
        s = tl.where(last_s, 0, s)
        r = tl.where(last_s, r + 1, r)

    k = group * group_out + in_group
    k_live = in_group < group_out
    n, p, q, live = place(tile_m * ROWS + tl.arange(0, ROWS), N, rows_per_image, windows, grid_w)
    bit_live = live[:, None] & k_live[None, :]
    if WHOLE:
        kept = live
        # told in this way, the compiler sees that rows are neighbours in an NCHW plane
        plane = (tile_m * ROWS + tl.arange(0, ROWS)) % rows_per_image
    else:
        kept = live & (p < P) & (q < Q)
        plane = p * Q + q
    kept = kept[:, None] & k_live[None, :]
    target = (n.to(tl.int64) * y_n + plane * y_q)[:, None] + (k * y_k)[None, :]
    if WINDOW == 1:
        best = rounded(tl.trans(acc) if ORDER == "columns" else acc, DTYPE)
        if ADDS:
            best = rounded(best + widen(tl.load(residual + target, mask=kept, other=0.0), tl.float32), DTYPE)
        best = activate(best, SLOPE, DTYPE)
        if UNIT_BITS:
            store_bits(unit_bits, bit_live & (best > 0), tile_m, k, k_live, N, K, rows_per_image, 1, 0)
        if FACTOR_BITS:
            on = bit_live & passes(best, SLOPE)
            store_bits(factor_bits, on, tile_m, k, k_live, N, K, rows_per_image, 1, 0)
    else:
        v0, v1, v2, v3 = positions(acc, ORDER)
        has_1 = (2 * q + 1 < W1)[:, None] if EDGE else True
        has_2 = (2 * p + 1 < H1)[:, None] if EDGE else True
        has_3 = has_1 & has_2
        if POOL == "max" and not (WANT_CODE or UNIT_BITS):
            # rounding and activation keep the order, so that one of each, after the maximum, is enough
            if EDGE:
                v1 = tl.where(has_1, v1, float("-inf"))
                v2 = tl.where(has_2, v2, float("-inf"))
                v3 = tl.where(has_3, v3, float("-inf"))
            best = activate(rounded(largest(v0, v1, v2, v3), DTYPE), SLOPE, DTYPE)
        else:
            v0 = activate(rounded(v0, DTYPE), SLOPE, DTYPE)
            v1 = activate(rounded(v1, DTYPE), SLOPE, DTYPE)
            v2 = activate(rounded(v2, DTYPE), SLOPE, DTYPE)
            v3 = activate(rounded(v3, DTYPE), SLOPE, DTYPE)
            if POOL == "max":
                best, winner = max_step(v0, tl.zeros(v0.shape, tl.int32), v1, has_1, 1)
                best, winner = max_step(best, winner, v2, has_2, 2)
                best, winner = max_step(best, winner, v3, has_3, 3)
                if WANT_CODE:
                    tl.store(
                        code + target, max_code(best, winner, SLOPE).to(code.dtype.element_ty), mask=kept
                    )
            else:
                total = v0 + tl.where(has_1, v1, 0.0) + tl.where(has_2, v2, 0.0) + tl.where(has_3, v3, 0.0)
                count = tl.minimum(H1 - 2 * p, 2) * tl.minimum(W1 - 2 * q, 2)
                best = rounded(divide(total, tl.maximum(count, 1)[:, None]), DTYPE)
            if UNIT_BITS:
                o0, o1, o2, o3 = v0 > 0, v1 > 0, v2 > 0, v3 > 0
                store_four(
                    unit_bits, o0, o1, o2, o3, has_1, has_2, bit_live, tile_m, k, k_live, N, K, rows_per_image
                )
            if FACTOR_BITS:
                o0, o1, o2, o3 = passes(v0, SLOPE), passes(v1, SLOPE), passes(v2, SLOPE), passes(v3, SLOPE)
                store_four(
                    factor_bits,
                    o0,
                    o1,
                    o2,
                    o3,
                    has_1,
                    has_2,
                    bit_live,
                    tile_m,
                    k,
                    k_live,
                    N,
                    K,
                    rows_per_image,
                )
        if OUTPUT_BITS:
            store_bits(output_bits, kept & (best > 0), tile_m, k, k_live, N, K, rows_per_image, 1, 0)
    tl.store(y + target, narrow(best, DTYPE), mask=kept)
