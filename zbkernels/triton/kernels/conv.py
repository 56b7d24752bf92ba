"""The fused kernel: convolution, rounding, activation, pool, position code and sign bits of one tile of outputs."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import narrow, operand, pack_rows, widen
from zbkernels.triton.kernels.pool import (
    activate,
    divide,
    max_code,
    max_step,
    place,
    rounded,
    window_part,
)


@triton.jit
def conv_act_pool_kernel(
    x,  # [N, C, H, W], any strides
    weight,  # [K, C/groups, R, S], any strides
    residual,  # ADDS: [N, K, H1, W1], any strides
    y,  # [N, K, P, Q]
    code,  # WANT_CODE and max: strides of y
    unit_planes,  # UNIT_BITS: int32 halves [N, K, halves], bit = y > 0
    factor_planes,  # FACTOR_BITS (pool none): int32 halves [N, K, halves], bit = gradient factor is 1
    N,
    H,
    W,
    K,
    H1,
    W1,
    Q,
    pooled,  # P * Q
    rows_per_image,  # pooled, rounded up to 64 where bits are packed
    group_in,  # C / groups
    group_out,  # K / groups
    R,
    S,
    x_n,
    x_c,
    x_h,
    x_w,
    weight_k,
    weight_c,
    weight_r,
    weight_s,
    residual_n,
    residual_k,
    residual_h,
    residual_w,
    y_n,
    y_k,
    y_p,
    y_q,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    kernel_h,  # of the pool; 1, and stride 1 and padding 0, without one
    kernel_w,
    pool_stride_h,
    pool_stride_w,
    pool_pad_h,
    pool_pad_w,
    POOL: tl.constexpr,
    COUNT_PAD: tl.constexpr,
    SLOPE: tl.constexpr,
    ADDS: tl.constexpr,
    WANT_CODE: tl.constexpr,
    UNIT_BITS: tl.constexpr,
    FACTOR_BITS: tl.constexpr,
    USE_DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """A tile of BLOCK_M pooled outputs (over all images) times BLOCK_N output channels.

    The convolution is computed anew for each position of the pool's window, [BLOCK_M, BLOCK_N] at a time, and only
    the best value (or the sum) and the winner stay, so that the un-pooled map exists nowhere.

    Bits are packed along the rows: with UNIT_BITS or FACTOR_BITS, BLOCK_M and rows_per_image are multiples of 64.

    USE_DOT: the tile's channels lie in one group, and the sum over (R, S, C/groups) goes through tl.dot in blocks of
    BLOCK_E. Otherwise they may span groups, and the sum is one multiply-add after another: for depthwise and other
    thin groups, and for float64, which tl.dot lacks on some targets.
    """
    program = tl.program_id(0).to(tl.int64)
    if USE_DOT:
        group_blocks = tl.cdiv(group_out, BLOCK_N)
        blocks = (K // group_out) * group_blocks
        column_block = program % blocks
        group = column_block // group_blocks
        in_group = (column_block % group_blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = group * group_out + in_group
        k_live = in_group < group_out
    else:
        blocks = tl.cdiv(K, BLOCK_N)
        k = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
        k_live = k < K
        group = k // group_out
    row = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    n, p, q, row_live = place(row, N, rows_per_image, pooled, Q)
    top = p * pool_stride_h - pool_pad_h
    left = q * pool_stride_w - pool_pad_w
    channels = x + group * group_in * x_c  # a pointer with USE_DOT, else [BLOCK_N] of them
    filters = weight + k * weight_k  # [BLOCK_N]

    DTYPE: tl.constexpr = y.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    extent = group_in * R * S
    best = tl.full((BLOCK_M, BLOCK_N), 0 if POOL == "avg" else float("-inf"), ACC)
    winner = tl.full((BLOCK_M, BLOCK_N), -1, tl.int32)
    for i in range(kernel_h):
        for j in range(kernel_w):
            oh = top + i  # in the un-pooled map
            ow = left + j
            inside = row_live & (oh >= 0) & (oh < H1) & (ow >= 0) & (ow < W1)
            h0 = oh * stride_h - pad_h
            w0 = ow * stride_w - pad_w
            acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
            if USE_DOT:
                corner = n * x_n + h0.to(tl.int64) * x_h + w0.to(tl.int64) * x_w  # may lie before the image
                for start in range(0, extent, BLOCK_E):
                    e = start + tl.arange(0, BLOCK_E)  # (r, s, c), c fastest
                    c = e % group_in
                    r = e // group_in // S
                    s = e // group_in % S
                    dh = r * dilation_h
                    dw = s * dilation_w
                    e_live = e < extent
                    h = h0[:, None] + dh[None, :]
                    w = w0[:, None] + dw[None, :]
                    seen = inside[:, None] & e_live[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < W)
                    taps = c.to(tl.int64) * x_c + dh.to(tl.int64) * x_h + dw.to(tl.int64) * x_w
                    a = tl.load(channels + corner[:, None] + taps[None, :], mask=seen, other=0.0)
                    taps = c.to(tl.int64) * weight_c + r.to(tl.int64) * weight_r + s.to(tl.int64) * weight_s
                    b_live = e_live[:, None] & k_live[None, :]
                    b = tl.load(filters[None, :] + taps[:, None], mask=b_live, other=0.0)
                    acc = tl.dot(operand(a), operand(b), acc, input_precision="ieee")  # the default is TF32
            else:
                filter_row = filters
                for r in range(R):
                    tap = filter_row
                    for s in range(S):
                        h = h0 + r * dilation_h
                        w = w0 + s * dilation_w
                        seen = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
                        a_live = seen[:, None] & k_live[None, :]
                        pixel = n * x_n + h.to(tl.int64) * x_h + w.to(tl.int64) * x_w
                        a_at = channels[None, :] + pixel[:, None]
                        b_at = tap
                        for _ in range(group_in):
                            a = widen(tl.load(a_at, mask=a_live, other=0.0), ACC)
                            b = widen(tl.load(b_at, mask=k_live, other=0.0), ACC)
                            acc = tl.fma(a, tl.broadcast_to(b[None, :], (BLOCK_M, BLOCK_N)), acc)
                            a_at += x_c
                            b_at += weight_c
                        tap += weight_s
                    filter_row += weight_r
            value = rounded(acc, DTYPE)
            if ADDS:
                at = n * residual_n + oh.to(tl.int64) * residual_h + ow.to(tl.int64) * residual_w
                added = residual + at[:, None] + (k * residual_k)[None, :]
                more = tl.load(added, mask=inside[:, None] & k_live[None, :], other=0.0)
                value = rounded(value + widen(more, ACC), DTYPE)
            value = activate(value, SLOPE, DTYPE)
            if POOL == "max":
                best, winner = max_step(best, winner, value, inside[:, None], i * kernel_w + j)
            elif POOL == "avg":
                best += tl.where(inside[:, None], value, 0.0)
            else:
                best = value
    if POOL == "avg":
        rows = window_part(top, kernel_h, H1, pool_pad_h, COUNT_PAD)
        columns = window_part(left, kernel_w, W1, pool_pad_w, COUNT_PAD)
        best = rounded(divide(best, (rows * columns)[:, None]), DTYPE)

    live = row_live[:, None] & k_live[None, :]
    target = (n * y_n + p.to(tl.int64) * y_p + q.to(tl.int64) * y_q)[:, None] + (k * y_k)[None, :]
    tl.store(y + target, narrow(best, DTYPE), mask=live)
    if WANT_CODE:
        tl.store(code + target, max_code(best, winner, SLOPE).to(code.dtype.element_ty), mask=live)
    if UNIT_BITS or FACTOR_BITS:
        # 32 rows are one half of a word, all of one image
        halves = rows_per_image // 32
        half_row = (program // blocks) * (BLOCK_M // 32) + tl.arange(0, BLOCK_M // 32)
        image = half_row // halves
        half = half_row % halves
        halves_live = (image < N)[:, None] & k_live[None, :]
        slot = (image[:, None] * K + k[None, :]) * halves + half[:, None]
        if UNIT_BITS:
            tl.store(unit_planes + slot, pack_rows((live & (best > 0)).to(tl.int32)), mask=halves_live)
        if FACTOR_BITS:
            on = (best > 0) | (best != best) if SLOPE == 0.0 else best > 0
            tl.store(factor_planes + slot, pack_rows((live & on).to(tl.int32)), mask=halves_live)
