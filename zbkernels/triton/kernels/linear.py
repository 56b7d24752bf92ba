"""Matrix product, rounding, activation and sign bits of one tile of outputs."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import narrow, operand, pack_columns, widen
from zbkernels.triton.kernels.pool import activate, rounded


@triton.jit
def linear_act_kernel(
    x,  # [M, I], any strides
    weight,  # [O, I], any strides
    y,  # [M, O] contiguous
    words,  # WANT_BITS: int32 view of the signature, [M, halves] contiguous
    M,
    O,  # noqa: E741 - the letter of the op's documentation
    I,  # noqa: E741
    halves,
    x_m,
    x_i,
    weight_o,
    weight_i,
    SLOPE: tl.constexpr,
    WANT_BITS: tl.constexpr,
    USE_DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """y = act(x @ weight.T), BLOCK_M rows times BLOCK_N outputs (a multiple of 64 with WANT_BITS).

    Without USE_DOT (float64, which tl.dot lacks on some targets) the sum is one multiply-add after another.
    """
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(O, BLOCK_N)
    first = (program % blocks) * BLOCK_N
    m = (program // blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = first + tl.arange(0, BLOCK_N)
    m_live = m < M
    o_live = o < O
    DTYPE: tl.constexpr = y.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    if USE_DOT:
        for start in range(0, I, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            i_live = i < I
            i = i.to(tl.int64)
            a = tl.load(
                x + (m * x_m)[:, None] + (i * x_i)[None, :],
                mask=m_live[:, None] & i_live[None, :],
                other=0.0,
            )
            b = tl.load(
                weight + (o * weight_o)[None, :] + (i * weight_i)[:, None],
                mask=o_live[None, :] & i_live[:, None],
                other=0.0,
            )
            acc = tl.dot(operand(a), operand(b), acc, input_precision="ieee")  # the default is TF32
    else:
        for start in range(I):
            i = tl.full((), start, tl.int64)
            a = widen(tl.load(x + m * x_m + i * x_i, mask=m_live, other=0.0), ACC)
            b = widen(tl.load(weight + o * weight_o + i * weight_i, mask=o_live, other=0.0), ACC)
            a = tl.broadcast_to(a[:, None], (BLOCK_M, BLOCK_N))
            b = tl.broadcast_to(b[None, :], (BLOCK_M, BLOCK_N))
            acc = tl.fma(a, b, acc)
    value = activate(rounded(acc, DTYPE), SLOPE, DTYPE)
    live = m_live[:, None] & o_live[None, :]
    tl.store(y + m[:, None] * O + o[None, :], narrow(value, DTYPE), mask=live)
    if WANT_BITS:
        packed = pack_columns((live & (value > 0)).to(tl.int32))
        half = first // 32 + tl.arange(0, BLOCK_N // 32)
        kept = m_live[:, None] & (half < halves)[None, :]
        tl.store(words + m[:, None] * halves + half[None, :], packed, mask=kept)
