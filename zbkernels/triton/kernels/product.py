"""What the tiled matrix products share: the order of tiles on the grid, and one step of the sum."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from zbkernels.triton.kernels.bits import operand


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
