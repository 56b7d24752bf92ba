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

from zbkernels.triton.kernels.bits import narrow, pack_columns
from zbkernels.triton.kernels.pool import activate, rounded
from zbkernels.triton.kernels.product import grouped, row_products


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
    """y = act(x @ weight.T), BLOCK_M rows times BLOCK_N outputs (a multiple of 64 with WANT_BITS)."""
    DTYPE: tl.constexpr = y.dtype.element_ty
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(O, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_live = m < M
    o_live = o < O
    acc = row_products(
        x, weight, m, o, M, O, I, x_m, x_i, weight_o, weight_i, USE_DOT, CHUNKS, EVEN, WIDE, TF32, BLOCK_C
    )
    value = activate(rounded(acc, DTYPE), SLOPE, DTYPE)
    live = m_live[:, None] & o_live[None, :]
    if WANT_BITS:
        packed = pack_columns((live & (value > 0)).to(tl.int32))
        half = tile_n * (BLOCK_N // 32) + tl.arange(0, BLOCK_N // 32)
        kept = m_live[:, None] & (half < halves)[None, :]
        tl.store(words + m[:, None] * halves + half[None, :], packed, mask=kept)
    tl.store(y + m[:, None] * O + o[None, :], narrow(value, DTYPE), mask=live)
