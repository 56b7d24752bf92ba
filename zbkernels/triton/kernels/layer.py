"""The kernel of one finite ReLU layer over angles: the sums of a part of a pair's units.

Floor (bytes): u and v once. Floor (operations): four multiply-adds and a maximum for each unit and angle, which pass
the bytes of float32 from about 5 angles on.

Ladder
  1  a program keeps its units in registers and takes some angles at a time over them; sums of the parts are added by
     torch, in float64. Interpreted and compiled (bench/results/triton.md); not yet run on a card.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def relu(x):
    """NaN stays."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def layer_sums_kernel(
    u,  # [P, n], any strides, as v
    v,
    bias,  # [n]; u where there is none
    turns,  # [P or 1, angles, 2] contiguous: cosine and sine, of the sums' type
    sums,  # [P, parts, 1 + 2 * angles] contiguous: of a², and of a r and r² at each angle
    n,
    angles,
    parts,
    u_row,
    u_unit,
    v_row,
    v_unit,
    bias_unit,
    turns_row,  # 0 where all pairs have the same angles
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,  # sums in float64
    BLOCK_A: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The sums of BLOCK_N units of one pair, over all angles."""
    T = tl.float64 if WIDE else tl.float32
    program = tl.program_id(0).to(tl.int64)
    pair, part = program // parts, program % parts
    unit = part * BLOCK_N + tl.arange(0, BLOCK_N)
    live = unit < n  # what is not is 0, and adds nothing
    x = tl.load(u + pair * u_row + unit * u_unit, mask=live, other=0).to(T)
    p = tl.load(v + pair * v_row + unit * v_unit, mask=live, other=0).to(T)
    b = tl.zeros_like(x)
    if HAS_BIAS:
        b = tl.load(bias + unit * bias_unit, mask=live, other=0).to(T)
    a = relu(x + b)
    own = sums + program * (1 + 2 * angles)
    tl.store(own, tl.sum(a * a, axis=0))
    shape: tl.constexpr = (BLOCK_A, BLOCK_N)
    x, p = tl.broadcast_to(x[None, :], shape), tl.broadcast_to(p[None, :], shape)
    a, b = tl.broadcast_to(a[None, :], shape), tl.broadcast_to(b[None, :], shape)
    for first in range(0, angles, BLOCK_A):
        k = first + tl.arange(0, BLOCK_A)
        turn = turns + pair * turns_row + 2 * k
        c = tl.broadcast_to(tl.load(turn, mask=k < angles, other=0)[:, None], shape)
        s = tl.broadcast_to(tl.load(turn + 1, mask=k < angles, other=0)[:, None], shape)
        r = relu(tl.fma(c, x, tl.fma(s, p, b)))
        tl.store(own + 1 + 2 * k, tl.sum(a * r, axis=1), mask=k < angles)
        tl.store(own + 2 + 2 * k, tl.sum(r * r, axis=1), mask=k < angles)
