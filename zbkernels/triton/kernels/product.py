"""What the tiled matrix products share: the order of tiles on the grid, and one step of the sum."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import operand, widen


@triton.jit
def grouped(program, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Number of a program -> tile of rows, tile of columns.

    Programs that run at the same time cover bands of GROUP_M tiles of rows, all columns of one band before
    the next, so that both operands are found in L2.
    """
    band = program // (GROUP_M * tiles_n)
    in_band = program % (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)
    return band * GROUP_M + in_band % height, in_band // height


@triton.jit
def multiply(a, b, acc, TRANSPOSED: tl.constexpr, TF32: tl.constexpr):
    """acc + a @ b, or of the transposed accumulator; float32 in full unless TF32 (tl.dot's own default is
    TF32)."""
    PRECISION: tl.constexpr = "tf32" if TF32 else "ieee"
    if TRANSPOSED:
        acc = tl.dot(tl.trans(operand(b)), tl.trans(operand(a)), acc, input_precision=PRECISION)
    else:
        acc = tl.dot(operand(a), operand(b), acc, input_precision=PRECISION)
    return acc


@triton.jit
def row_products(
    x,  # [M, I], any strides
    weight,  # [O, I], any strides
    m,  # int64 [BLOCK_M]: rows of x
    o,  # int64 [BLOCK_N]: rows of weight
    M,
    O,  # noqa: E741 - the letter of linear_relu's documentation
    I,  # noqa: E741
    x_m,
    x_i,
    weight_o,
    weight_i,
    USE_DOT: tl.constexpr,
    CHUNKS: tl.constexpr,  # rows of x and weight begin at multiples of 16 bytes and are whole 16 bytes long
    EVEN: tl.constexpr,  # whether BLOCK_C divides I
    WIDE: tl.constexpr,  # whether distances along I need 64 bits
    TF32: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Rows m of x times rows o of weight, [BLOCK_M, BLOCK_N]; 0 where there is no row.

    Without USE_DOT (float64, which tl.dot lacks on some targets) the sum is one multiply-add after another.
    """
    BLOCK_M: tl.constexpr = m.shape[0]
    BLOCK_N: tl.constexpr = o.shape[0]
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    UNIT: tl.constexpr = (
        128 // x.dtype.element_ty.primitive_bitwidth if CHUNKS else 1
    )  # elements loaded as one
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
    return acc
