"""Activation and pooling, shared by the fused convolution and the kernels that pool a map, and their adjoint."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import narrow, widen


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """The value as the tensor's dtype would hold it, still in the accumulator's dtype."""
    return widen(narrow(value, dtype), value.dtype)


@triton.jit
def activate(pre, SLOPE: tl.constexpr, dtype: tl.constexpr):
    """ReLU (slope 0: NaN stays, -inf gives 0) or leaky ReLU, of rounded values; rounded to the tensor's dtype."""
    if SLOPE == 0.0:
        act = tl.where(pre <= 0, 0.0, pre)
    else:
        # tl.full keeps all digits of the slope; a float argument of a kernel would be a float32
        act = tl.where(pre > 0, pre, rounded(pre * tl.full((), SLOPE, pre.dtype), dtype))
    return act


@triton.jit
def max_step(best, winner, value, inside, position):
    """One more position of the window: the first of equal values stays, and the last NaN (as in torch)."""
    taken = inside & ((winner < 0) | (value > best) | (value != value))
    return tl.where(taken, value, best), tl.where(taken, position, winner)


@triton.jit
def max_code(best, winner, SLOPE: tl.constexpr):
    """int32: 0 where no gradient flows, else 1 + position (slope 0), or 1 + 2 * position + (winner <= 0 or NaN)."""
    negative = tl.where(best > 0, 0, 1)
    return tl.where(best <= 0, 0, 1 + winner) if SLOPE == 0.0 else 1 + 2 * winner + negative


@triton.jit
def window_part(start, size, extent, pad, COUNT_PAD: tl.constexpr):
    """How many positions of a window count in one direction, of a map of `extent` with `pad` on both sides."""
    stop = tl.minimum(start + size, extent + pad)  # a last window of ceil_mode may stick out of the padding
    return stop - start if COUNT_PAD else tl.minimum(stop, extent) - tl.maximum(start, 0)


@triton.jit
def divide(total, count):
    """total / count, rounded to nearest; `/` of float32 is an approximation on NVIDIA."""
    divisor = count.to(total.dtype)
    if total.dtype == tl.float32:
        quotient = tl.math.div_rn(total, tl.broadcast_to(divisor, total.shape))
    else:
        quotient = total / divisor
    return quotient


@triton.jit
def place(row, images, rows_per_image, units, width):
    """Row of the grid -> image (int64), y and x (int32) in a map of `units` positions, and whether there is one.

    Rows of an image may be padded (to whole words), so rows_per_image >= units.
    """
    n = row // rows_per_image
    position = row % rows_per_image
    live = (n < images) & (position < units)
    return n, (position // width).to(tl.int32), (position % width).to(tl.int32), live


@triton.jit
def pool_map_kernel(
    act,  # [N, K, H1, W1]: the activation map
    y,  # [N, K, P, Q]
    code,  # max: strides of y; else unused
    N,
    K,
    H1,
    W1,
    Q,
    pooled,  # P * Q
    act_n,
    act_k,
    act_h,
    act_w,
    y_n,
    y_k,
    y_p,
    y_q,
    kernel_h,
    kernel_w,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    POOL: tl.constexpr,
    COUNT_PAD: tl.constexpr,
    SLOPE: tl.constexpr,
    WANT_CODE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Max or average pooling of a map already activated; the same rules as in the fused kernel."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(K, BLOCK_N)
    row = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    n, p, q, row_live = place(row, N, pooled, pooled, Q)
    live = row_live[:, None] & (k < K)[None, :]
    top = p * stride_h - pad_h
    left = q * stride_w - pad_w
    plane = act + (n * act_n)[:, None] + (k * act_k)[None, :]

    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    best = tl.full((BLOCK_M, BLOCK_N), 0 if POOL == "avg" else float("-inf"), ACC)
    winner = tl.full((BLOCK_M, BLOCK_N), -1, tl.int32)
    for i in range(kernel_h):
        for j in range(kernel_w):
            h = top + i
            w = left + j
            inside = live & ((h >= 0) & (h < H1) & (w >= 0) & (w < W1))[:, None]
            offset = h.to(tl.int64) * act_h + w.to(tl.int64) * act_w
            value = widen(tl.load(plane + offset[:, None], mask=inside, other=0.0), ACC)
            if POOL == "max":
                best, winner = max_step(best, winner, value, inside, i * kernel_w + j)
            else:
                best += value
    if POOL == "avg":
        rows = window_part(top, kernel_h, H1, pad_h, COUNT_PAD)
        columns = window_part(left, kernel_w, W1, pad_w, COUNT_PAD)
        best = divide(best, (rows * columns)[:, None])
    target = (n * y_n + p.to(tl.int64) * y_p + q.to(tl.int64) * y_q)[:, None] + (k * y_k)[None, :]
    tl.store(y + target, narrow(best, y.dtype.element_ty), mask=live)
    if WANT_CODE:
        tl.store(code + target, max_code(best, winner, SLOPE).to(code.dtype.element_ty), mask=live)


@triton.jit
def expand_kernel(
    grad,  # [N, K, P, Q], any strides
    code,  # max: [N, K, P, Q], any strides; else int64 words [N, K, words], dense in the last
    grad_pre,  # [N, K, H1, W1]: the gradient of the un-pooled map before the activation
    N,
    K,
    H1,
    W1,
    P,
    Q,
    units,  # H1 * W1
    grad_n,
    grad_k,
    grad_p,
    grad_q,
    code_n,
    code_k,
    code_p,
    code_q,
    pre_n,
    pre_k,
    pre_h,
    pre_w,
    kernel_h,
    kernel_w,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    windows_h,  # the most windows that one row of the map lies in, ceil(kernel_h / stride_h)
    windows_w,
    POOL: tl.constexpr,
    COUNT_PAD: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The pool's adjoint and the activation's factor. Each position looks at the windows it lies in, in row-major
    order, so that the sum has one order and needs no atomics."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(K, BLOCK_N)
    row = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    n, h, w, row_live = place(row, N, units, units, W1)
    live = row_live[:, None] & (k < K)[None, :]

    DTYPE: tl.constexpr = grad_pre.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if grad_pre.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    scaled = tl.zeros((BLOCK_M, BLOCK_N), tl.int1)  # whether the factor is the slope, not 1
    image = grad + (n * grad_n)[:, None] + (k * grad_k)[None, :]
    codes = code + (n * code_n)[:, None] + (k * code_k)[None, :]
    for a in range(windows_h):
        for b in range(windows_w):
            p = (h + pad_h) // stride_h - (windows_h - 1 - a)
            q = (w + pad_w) // stride_w - (windows_w - 1 - b)
            top = p * stride_h - pad_h
            left = q * stride_w - pad_w
            covered = (p >= 0) & (p < P) & (h - top < kernel_h) & (q >= 0) & (q < Q) & (w - left < kernel_w)
            inside = live & covered[:, None]
            offset = p.to(tl.int64) * grad_p + q.to(tl.int64) * grad_q
            g = widen(tl.load(image + offset[:, None], mask=inside, other=0.0), ACC)
            if POOL == "max":
                offset = p.to(tl.int64) * code_p + q.to(tl.int64) * code_q
                number = tl.load(codes + offset[:, None], mask=inside, other=0).to(tl.int32)
                position = ((h - top) * kernel_w + (w - left))[:, None]
                if SLOPE == 0.0:
                    won = number == 1 + position
                else:
                    won = (number > 0) & ((number - 1) // 2 == position)
                    scaled = scaled | (won & ((number - 1) % 2 == 1))
                total += tl.where(won, g, 0.0)
            elif POOL == "avg":
                rows = window_part(top, kernel_h, H1, pad_h, COUNT_PAD)
                columns = window_part(left, kernel_w, W1, pad_w, COUNT_PAD)
                count = tl.where(covered, rows * columns, 1)
                total += divide(g, count[:, None])
            else:
                total += g
    if POOL != "max":
        unit = h.to(tl.int64) * W1 + w
        word = tl.load(codes + (unit // 64)[:, None], mask=live, other=0)
        scaled = ((word >> (unit % 64)[:, None]) & 1) == 0
    total = rounded(total, DTYPE)  # what the pool's own backward would return
    if SLOPE == 0.0:
        if POOL != "max":
            total = tl.where(scaled, 0.0, total)  # not multiplied: 0 also where the gradient is infinite
    else:
        total = tl.where(scaled, total * tl.full((), SLOPE, ACC), total)
    target = (n * pre_n + h.to(tl.int64) * pre_h + w.to(tl.int64) * pre_w)[:, None] + (k * pre_k)[None, :]
    tl.store(grad_pre + target, narrow(total, DTYPE), mask=live)
