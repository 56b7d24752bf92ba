"""Kernels of infinitely wide networks: the product of two batches and the recursion over layers in one pass.

zbkernels/infinite/kernels.py and dual_forms.py say what is computed and why the forms are written so. Sums run in
full float32 or float64, never in TF32: the angle between two inputs comes from 1 - cos², which needs all the digits.
No value depends on which input of a pair comes first, to the last bit (the compiler fuses nothing here).

Floor (bytes): x1, x2 and the result (or v) once. Floor (operations): N·M·d multiply-adds outside the tensor cores, half
of them where `gram_kernel` has a batch with itself, and for each pair and layer two divisions, a square root and an
arc tangent (ReLU).

Ladder
  1  tiles as of linear_act_kernel, values found in the registers of the sums; of a batch with itself the upper tiles,
     written twice; a product with vectors adds each tile's part to sums that its program alone has. Interpreted and
     compiled (bench/results/triton.md); not yet run on a card.
"""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"
# Nor does Triton know `in`.
# ruff: noqa: SIM109

import triton
import triton.language as tl

from zbkernels.triton.kernels.arc_tangent import arc_tangent, divide, root, small_sinh
from zbkernels.triton.kernels.groups import GOLDEN, mix
from zbkernels.triton.kernels.product import grouped, row_products

# The forms of zbkernels/infinite/dual_forms.py that a kernel is compiled for, by number.
FORMS = ("identity", "piecewise linear", "erf", "gelu", "sin", "cos", "sin+cos")
_FORM = {name: tl.constexpr(number) for number, name in enumerate(FORMS)}
IDENTITY, LINEAR, ERF = _FORM["identity"], _FORM["piecewise linear"], _FORM["erf"]
GELU, SIN, COS = _FORM["gelu"], _FORM["sin"], _FORM["cos"]
TWO_OVER_PI = tl.constexpr(0.63661977236758134308)


@triton.jit
def number(bits, T: tl.constexpr):
    """A float64 that came as the integer of its bits (a launch rounds floats to float32), as T."""
    return tl.full((), bits, tl.int64).to(tl.float64, bitcast=True).to(T)


@triton.jit
def layer_moments(variance, gain2, FORM: tl.constexpr):
    """What a form needs of one input: q, the variance going into it with the gain; the square root of q, or of 1 + t q
    where the form saturates; 1/(1 + t q) and t q/(1 + t q)."""
    q = gain2 * variance
    plus = tl.where(q < 0, 0.0, q)
    keep = tl.zeros_like(q)
    lose = keep
    if FORM == ERF or FORM == GELU:
        more = plus * 2 if FORM == ERF else plus
        saturated = 1 + more
        keep = divide(keep + 1, saturated)
        lose = divide(more, saturated)
        plus = saturated
    return q, root(plus), keep, lose


@triton.jit
def sine_squared(q11, q12, q22):
    """1 - q12² / (q11 q22), from two quotients: their product is exactly 1 for equal inputs."""
    none = (q11 <= 0) | (q22 <= 0)
    rest = 1 - divide(q12, tl.where(none, 1.0, q11)) * divide(q12, tl.where(none, 1.0, q22))
    return tl.where(none, 1.0, tl.where(rest < 0, 0.0, rest))


@triton.jit
def form_pair(
    q11, r1, keep1, lose1, q22, r2, keep2, lose2, q12, sin2, odd2, even2, one, both, FORM: tl.constexpr
):
    """E[s(u) s(v)] and E[s'(u) s'(v)] of a form; `one` and `both` are the second of the piecewise linear one where so
    many variances are 0."""
    if FORM == IDENTITY:
        none = (q11 + q22) * 0  # NaN where a variance is not finite
        value = q12 + none
        slope = 1 + none
    elif FORM == LINEAR:
        none = (q11 <= 0) | (q22 <= 0)
        norms = r1 * r2
        sine = root(sin2)
        rest = arc_tangent(divide(q12, tl.where(none, 1.0, norms)), sine)  # 90 degrees less the angle
        value = tl.where(none, q12 * 0, odd2 * q12 + even2 * (TWO_OVER_PI * (norms * sine + q12 * rest)))
        zero = tl.where((q11 <= 0) & (q22 <= 0), both, one)
        slope = tl.where(none, zero, odd2 + even2 * (TWO_OVER_PI * rest))
    elif FORM == ERF or FORM == GELU:
        norms = r1 * r2
        sine = root(keep1 * keep2 + (lose1 * keep2 + lose2 * keep1) + (lose1 * lose2) * sin2)  # never 0
        more = q12 * 2 if FORM == ERF else q12
        arc = TWO_OVER_PI * arc_tangent(divide(more, norms), sine)
        product = norms * sine
        if FORM == ERF:
            value = arc
            slope = divide(tl.zeros_like(arc) + 2 * TWO_OVER_PI, product)
        else:
            keep = keep1 + keep2
            N = tl.where(q11 < 0, 0.0, q11) * tl.where(q22 < 0, 0.0, q22) * sin2 + q12 * q12 * keep
            value = 0.25 * (q12 * (1 + arc) + TWO_OVER_PI * divide(N, product))
            inner = 2 * keep - 1 + divide(N, product * product)
            slope = 0.25 * (1 + arc + TWO_OVER_PI * divide(q12, product) * inner)
    else:
        m = (tl.where(q11 < 0, 0.0, q11) + tl.where(q22 < 0, 0.0, q22)) * 0.5
        value = tl.exp(q12 - m)
        slope = value
        if FORM == SIN or FORM == COS:
            minus = tl.exp(-q12 - m)
            even = (value + minus) * 0.5
            # Where the difference of two exponentials would cancel.
            small = tl.abs(q12) < 1
            odd = tl.where(small, tl.exp(-m) * small_sinh(tl.where(small, q12, 0.0)), (value - minus) * 0.5)
            value = odd if FORM == SIN else even
            slope = even if FORM == SIN else odd
    return value, slope


@triton.jit
def describe_rows_kernel(
    x,  # [N, I], any strides
    squares,  # [N]
    hashes,  # int64 [N]: alike for equal rows (-0 is 0)
    moments,  # [depth, 4, N]: those of layer_moments
    N,
    I,  # noqa: E741
    depth,
    x_n,
    x_i,
    w2,
    b2,
    first_w2,
    gain2,
    scale2,
    offset2,
    odd2,
    even2,
    FORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """The pass before the tiles: of each input its sum of squares, a hash, and its moments at every layer.

    A sum runs in one fixed order, so equal rows have equal bits.
    """
    T: tl.constexpr = x.dtype.element_ty
    BITS: tl.constexpr = tl.uint64 if x.dtype.element_ty == tl.float64 else tl.uint32
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = n < N
    sums = tl.zeros((BLOCK_N, BLOCK_I), T)
    mixed = tl.zeros((BLOCK_N, BLOCK_I), tl.uint64)
    for first in range(0, I, BLOCK_I):
        i = first + tl.arange(0, BLOCK_I).to(tl.int64)
        inside = live[:, None] & (i < I)[None, :]
        value = tl.load(x + (n * x_n)[:, None] + (i * x_i)[None, :], mask=inside, other=0.0)
        sums = tl.fma(value, value, sums)
        bits = tl.where(value == 0, 0.0, value).to(BITS, bitcast=True).to(tl.uint64)
        place = (i + 1).to(tl.uint64) * GOLDEN
        mixed += tl.where(inside, mix(bits + place[None, :]), 0)
    square = tl.sum(sums, axis=1)
    tl.store(squares + n, square, mask=live)
    tl.store(hashes + n, mix(tl.sum(mixed, axis=1)).to(tl.int64, bitcast=True), mask=live)
    variance = number(b2, T) + number(first_w2, T) * square
    plane = tl.full((), 1, tl.int64) * N
    at = moments + n
    for _ in range(depth):
        q, r, keep, lose = layer_moments(variance, number(gain2, T), FORM)
        tl.store(at, q, mask=live)
        tl.store(at + plane, r, mask=live)
        tl.store(at + 2 * plane, keep, mask=live)
        tl.store(at + 3 * plane, lose, mask=live)
        at += 4 * plane
        dual, _ = form_pair(
            q,
            r,
            keep,
            lose,
            q,
            r,
            keep,
            lose,
            q,
            tl.zeros_like(q),
            number(odd2, T),
            number(even2, T),
            q,
            q,
            FORM,
        )
        variance = number(b2, T) + number(w2, T) * (number(scale2, T) * dual + number(offset2, T))


@triton.jit
def load_moments(moments, rows, plane, live, FORM: tl.constexpr):
    """The moments of some inputs at one layer, those that the form takes; they lie `plane` apart."""
    q = tl.load(moments + rows, mask=live, other=0.0)
    r, keep, lose = q, q, q
    if FORM == LINEAR or FORM == ERF or FORM == GELU:
        r = tl.load(moments + plane + rows, mask=live, other=0.0)
    if FORM == ERF or FORM == GELU:
        keep = tl.load(moments + 2 * plane + rows, mask=live, other=0.0)
        lose = tl.load(moments + 3 * plane + rows, mask=live, other=0.0)
    return q, r, keep, lose


@triton.jit
def kernel_values(
    acc,  # [BLOCK_M, BLOCK_N]: the inner products
    m,
    o,
    M,
    O,  # noqa: E741
    I,  # noqa: E741
    squares1,
    squares2,
    hashes1,
    hashes2,
    moments1,
    moments2,
    depth,
    w2,
    b2,
    first_w2,
    gain2,
    scale2,
    offset2,
    slope2,
    odd2,
    even2,
    one,
    both,
    FORM: tl.constexpr,
    TANGENT: tl.constexpr,
    FIRST_ONLY: tl.constexpr,
):
    """NNGP or NTK of the pairs of rows m and o.

    The hash tells unequal rows apart but for a chance of 2^-64 a pair; a pair that it takes for equal must have the
    product that equal ones have, within what rounding can do. Equal rows have the angle 0 in every layer.
    """
    T: tl.constexpr = acc.dtype
    EPS: tl.constexpr = 2.220446049250313e-16 if acc.dtype == tl.float64 else 1.1920929e-7
    m_live = m < M
    o_live = o < O
    s1 = tl.load(squares1 + m, mask=m_live, other=0.0)[:, None]
    s2 = tl.load(squares2 + o, mask=o_live, other=0.0)[None, :]
    h1 = tl.load(hashes1 + m, mask=m_live, other=0)[:, None]
    h2 = tl.load(hashes2 + o, mask=o_live, other=0)[None, :]
    most = tl.full((), I, tl.int64).to(T) * (8 * EPS)
    equal = (h1 == h2) & (tl.abs(acc - s1) <= most * s1) & (tl.abs(acc - s2) <= most * s2)
    q12 = number(b2, T) + number(first_w2, T) * tl.where(equal, s1, acc)
    t = q12
    plane1 = tl.full((), 1, tl.int64) * M
    plane2 = tl.full((), 1, tl.int64) * O
    for _ in range(depth):
        q11, r1, keep1, lose1 = load_moments(moments1, m, plane1, m_live, FORM)
        q22, r2, keep2, lose2 = load_moments(moments2, o, plane2, o_live, FORM)
        moments1 += 4 * plane1
        moments2 += 4 * plane2
        q11 = q11[:, None]
        q22 = q22[None, :]
        inner = tl.where(equal, q11, number(gain2, T) * q12)
        sin2 = tl.where(equal, 0.0, sine_squared(q11, inner, q22))
        dual, slope = form_pair(
            q11,
            r1[:, None],
            keep1[:, None],
            lose1[:, None],
            q22,
            r2[None, :],
            keep2[None, :],
            lose2[None, :],
            inner,
            sin2,
            number(odd2, T),
            number(even2, T),
            number(one, T),
            number(both, T),
            FORM,
        )
        q12 = number(b2, T) + number(w2, T) * (number(scale2, T) * dual + number(offset2, T))
        if TANGENT:
            t = number(w2, T) * (number(slope2, T) * slope) * t
            if not FIRST_ONLY:
                t += q12
    return t if TANGENT else q12


@triton.jit
def gram_kernel(
    x1,  # [M, I], any strides
    x2,  # [O, I], any strides
    out,  # [M, O] contiguous
    M,
    O,  # noqa: E741
    I,  # noqa: E741
    x1_m,
    x1_i,
    x2_o,
    x2_i,
    squares1,
    squares2,
    hashes1,
    hashes2,
    moments1,
    moments2,
    depth,
    w2,
    b2,
    first_w2,
    gain2,
    scale2,
    offset2,
    slope2,
    odd2,
    even2,
    one,
    both,
    FORM: tl.constexpr,
    TANGENT: tl.constexpr,
    FIRST_ONLY: tl.constexpr,
    SYMMETRIC: tl.constexpr,  # x1 is x2: only tiles that reach the diagonal or lie above it are computed
    USE_DOT: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One tile of the matrix."""
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(O, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    if (not SYMMETRIC) or (tile_n + 1) * BLOCK_N > tile_m * BLOCK_M:
        acc = row_products(
            x1, x2, m, o, M, O, I, x1_m, x1_i, x2_o, x2_i, USE_DOT, CHUNKS, EVEN, WIDE, False, BLOCK_C
        )
        value = kernel_values(
            acc,
            m,
            o,
            M,
            O,
            I,
            squares1,
            squares2,
            hashes1,
            hashes2,
            moments1,
            moments2,
            depth,
            w2,
            b2,
            first_w2,
            gain2,
            scale2,
            offset2,
            slope2,
            odd2,
            even2,
            one,
            both,
            FORM,
            TANGENT,
            FIRST_ONLY,
        )
        live = (m < M)[:, None] & (o < O)[None, :]
        if SYMMETRIC:
            live &= m[:, None] <= o[None, :]
            mirrored = (o < O)[:, None] & (m < M)[None, :] & (o[:, None] > m[None, :])
            tl.store(out + o[:, None] * M + m[None, :], tl.trans(value), mask=mirrored)
        tl.store(out + m[:, None] * O + o[None, :], value, mask=live)


@triton.jit
def matvec_kernel(
    x1,  # [M, I], any strides
    x2,  # [O, I], any strides
    v,  # [O, columns], any strides
    sums,  # [parts, columns, M] contiguous: of each part of x2's rows
    M,
    O,  # noqa: E741
    I,  # noqa: E741
    columns,
    part_tiles,  # tiles of x2 in a part
    x1_m,
    x1_i,
    x2_o,
    x2_i,
    v_o,
    v_column,
    squares1,
    squares2,
    hashes1,
    hashes2,
    moments1,
    moments2,
    depth,
    w2,
    b2,
    first_w2,
    gain2,
    scale2,
    offset2,
    slope2,
    odd2,
    even2,
    one,
    both,
    FORM: tl.constexpr,
    TANGENT: tl.constexpr,
    FIRST_ONLY: tl.constexpr,
    USE_DOT: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """BLOCK_M rows of the matrix times v, for one part of the columns of the matrix."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = (tl.program_id(0) // tiles_m).to(tl.int64)
    m_live = m < M
    first = part * part_tiles
    last = tl.minimum(first + part_tiles, tl.cdiv(O, BLOCK_N))
    for tile in range(first, last):
        o = tl.full((), tile, tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        o_live = o < O
        acc = row_products(
            x1, x2, m, o, M, O, I, x1_m, x1_i, x2_o, x2_i, USE_DOT, CHUNKS, EVEN, WIDE, False, BLOCK_C
        )
        value = kernel_values(
            acc,
            m,
            o,
            M,
            O,
            I,
            squares1,
            squares2,
            hashes1,
            hashes2,
            moments1,
            moments2,
            depth,
            w2,
            b2,
            first_w2,
            gain2,
            scale2,
            offset2,
            slope2,
            odd2,
            even2,
            one,
            both,
            FORM,
            TANGENT,
            FIRST_ONLY,
        )
        value = tl.where(o_live[None, :], value, 0.0)
        at = sums + part * columns * M + m
        from_v = v + o * v_o
        for _ in range(columns):
            added = tl.sum(value * tl.load(from_v, mask=o_live, other=0.0)[None, :], axis=1)
            before = tl.load(at, mask=m_live & (tile > first), other=0.0)
            tl.store(at, before + added, mask=m_live)
            at += M
            from_v += v_column
        tl.debug_barrier()  # what one thread wrote another may read in the next turn
