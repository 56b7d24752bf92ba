"""Matrix product, rounding, activation and sign bits of one tile of outputs.

Floor (bytes): x, weight and y once (+ 1 bit a result). Floor (operations): rows·out·in multiply-adds, on
tensor cores for half precision and, where torch allows it, TF32; in float32 (float64) otherwise.

Ladder
  1  64 × 64 tiles, masks and 64-bit distances at every element.
  2  tiles up to 256 × 128, 16-byte loads straight to shared memory, bands of tiles for L2; the bits of a word
     are put together from four threads' registers. Interpreted and compiled (bench/results/triton.md); not yet
     run on a card.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import narrow, pack_columns, widen
from zbkernels.triton.kernels.pool import activate, rounded
from zbkernels.triton.kernels.product import grouped, multiply


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
    CHUNKS: tl.constexpr,  # rows of x and weight begin at multiples of 16 bytes and are whole 16 bytes long
    EVEN: tl.constexpr,  # whether BLOCK_C divides I
    WIDE: tl.constexpr,  # whether distances along I need 64 bits
    TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """y = act(x @ weight.T), BLOCK_M rows times BLOCK_N outputs (a multiple of 64 with WANT_BITS).

    Without USE_DOT (float64, which tl.dot lacks on some targets) the sum is one multiply-add after another.
    """
    DTYPE: tl.constexpr = y.dtype.element_ty
    ACC: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    UNIT: tl.constexpr = (
        128 // x.dtype.element_ty.primitive_bitwidth if CHUNKS else 1
    )  # elements loaded as one
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(O, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_live = m < M
    o_live = o < O
    rows = x + m * x_m
    filters = weight + o * weight_o
    if CHUNKS:
        rows = tl.multiple_of(rows, 16)
        filters = tl.multiple_of(filters, 16)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    if USE_DOT:
        lanes = tl.arange(0, BLOCK_C)
        for start in range(0, I, BLOCK_C):
            i = start + lanes
            at = i.to(tl.int64) if WIDE else i
            a_at = rows[:, None] + (at * x_i)[None, :]
            b_at = filters[None, :] + (at * weight_i)[:, None]
            if EVEN:
                a = tl.load(a_at, mask=m_live[:, None], other=0.0)
                b = tl.load(b_at, mask=o_live[None, :], other=0.0)
            else:
                a_live = tl.max_constancy(m_live[:, None] & (i < I)[None, :], [1, UNIT])
                b_live = tl.max_constancy(o_live[None, :] & (i < I)[:, None], [UNIT, 1])
                a = tl.load(a_at, mask=a_live, other=0.0)
                b = tl.load(b_at, mask=b_live, other=0.0)
            acc = multiply(a, b, acc, False, TF32)
    else:
        for start in range(I):
            at = tl.full((), start, tl.int64)
            a = widen(tl.load(rows + at * x_i, mask=m_live, other=0.0), ACC)
            b = widen(tl.load(filters + at * weight_i, mask=o_live, other=0.0), ACC)
            a = tl.broadcast_to(a[:, None], (BLOCK_M, BLOCK_N))
            b = tl.broadcast_to(b[None, :], (BLOCK_M, BLOCK_N))
            acc = tl.fma(a, b, acc)
    value = activate(rounded(acc, DTYPE), SLOPE, DTYPE)
    live = m_live[:, None] & o_live[None, :]
    if WANT_BITS:
        packed = pack_columns((live & (value > 0)).to(tl.int32))
        half = tile_n * (BLOCK_N // 32) + tl.arange(0, BLOCK_N // 32)
        kept = m_live[:, None] & (half < halves)[None, :]
        tl.store(words + m[:, None] * halves + half[None, :], packed, mask=kept)
    tl.store(y + m[:, None] * O + o[None, :], narrow(value, DTYPE), mask=live)
