"""Functions that Triton lacks, or has only in an approximation: arc tangent, sinh, exact division and root."""

# Annotations of a jitted function are Triton's own, so mypy is asked for none here.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

EIGHTH = tl.constexpr(0.41421356237309504880)  # tan(pi/8)
HALF_PI = tl.constexpr(1.57079632679489661923)
QUARTER_PI = tl.constexpr(0.78539816339744830962)


@triton.jit
def divide(a, b):
    """a / b, rounded once: the operator's own is an approximation in float32."""
    if a.dtype == tl.float64:
        return a / b
    return tl.div_rn(a, b)


@triton.jit
def root(x):
    """The square root, rounded once."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    return tl.sqrt_rn(x)


@triton.jit
def small_arc_tangent(w):
    """Of |w| <= tan(pi/8): a polynomial through the Chebyshev nodes of (arctan(w)/w - 1)/w² in w², whose error is
    2.4e-9 in float32 and 2e-19 in float64."""
    s = w * w
    if w.dtype == tl.float64:
        p = s * 0.0162857568552210283 - 0.0345705619814277469
        p = s * p + 0.0455159322062654917
        p = s * p - 0.0523045427065024452
        p = s * p + 0.0587892899783477513
        p = s * p - 0.0666642488573825533
        p = s * p + 0.076922963750321424
        p = s * p - 0.0909090875350087684
        p = s * p + 0.111111111051554466
        p = s * p - 0.142857142856598276
        p = s * p + 0.199999999999998045
        p = s * p - 0.333333333333333332
    else:
        p = s * -0.0645192820812174876 + 0.10743731490791083
        p = s * p - 0.142639555979846392
        p = s * p + 0.199995404836489634
        p = s * p - 0.333333317611685199
    return w + w * (s * p)


@triton.jit
def arc_tangent(y, x):
    """atan2(y, x) for x >= 0, not both 0; NaN where one is NaN."""
    high = tl.abs(y)
    steep = high > x
    z = divide(tl.where(steep, x, high), tl.where(steep, high, x))  # within [0, 1]
    far = z > EIGHTH
    angle = small_arc_tangent(tl.where(far, divide(z - 1, z + 1), z))
    angle = tl.where(far, QUARTER_PI + angle, angle)
    angle = tl.where(steep, HALF_PI - angle, angle)
    return tl.where(y < 0, -angle, angle)


@triton.jit
def small_sinh(x):
    """Of |x| < 1, by its series, of which what is left out is below an eighth of eps."""
    s = x * x
    p = s * (1.0 / 6227020800.0) + 1.0 / 39916800.0
    if x.dtype == tl.float64:
        q = s * (1.0 / 355687428096000.0) + 1.0 / 1307674368000.0
        p = (s * s) * q + p
    p = s * p + 1.0 / 362880.0
    p = s * p + 1.0 / 5040.0
    p = s * p + 1.0 / 120.0
    p = s * p + 1.0 / 6.0
    return x + x * (s * p)
