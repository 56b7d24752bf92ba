"""Of which degree d an operation's results are homogeneous in the input's scalar: y(s) = s^d · y(1).

The scalars are powers of four. Multiplying by one is exact in binary floating point, and so are then all sums, products
and square roots of what is homogeneous: in a network without biases the two sides agree bit for bit, however much
cancels. A real break therefore shows where scalars such as 0.1 would leave it below the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

_ALWAYS = (-2, -1, 1, 2)  # exponents of four: a degree is not to be fitted to one scalar alone
_FARTHEST = 40  # 4^40 is 1e24: beyond, values of degree 2 leave float32's range, and of 12 float64's
_ROOM = 2.0**20  # how far from the ends of a dtype's range values are compared


def powers_of_four(scalars: Sequence[float]) -> list[float]:
    """The powers of four nearest to the scalars, and 1/16, 1/4, 4 and 16; those nearest to 1 first."""
    exponents = {max(-_FARTHEST, min(_FARTHEST, round(math.log(s, 4)))) for s in scalars} | set(_ALWAYS)
    return [4.0**k for k in sorted(exponents - {0}, key=lambda k: (abs(k), k))]


def power(s: float, degree: float) -> float:
    try:
        return s**degree
    except OverflowError:
        return math.inf


def relative_deviation(y: torch.Tensor, base: torch.Tensor, factor: float) -> float:
    """max |y - factor·base| / max |factor·base|; inf where NaN, infinities or the shapes are not the same."""
    if y.shape != base.shape:
        return math.inf
    if not (y.is_floating_point() or y.is_complex()):
        return 0.0 if torch.equal(y, base) else math.inf
    if not y.numel():
        return 0.0
    y, expected = _wide(y), _wide(base) * factor
    finite = expected.isfinite()
    if not bool(finite.all()):
        rest = ~finite
        same = (y[rest] == expected[rest]) | (y[rest].isnan() & expected[rest].isnan())
        if not bool(same.all()):
            return math.inf
        y, expected = y[finite], expected[finite]
        if not y.numel():
            return 0.0
    worst, scale = float((y - expected).abs().max()), float(expected.abs().max())
    if math.isnan(worst):
        return math.inf
    return worst / scale if scale else (0.0 if worst == 0 else math.inf)


@dataclass
class Degree:
    """The degree of one result, found from one scalar and held against the others.

    Attributes:
        known: the degree; None before the first scalar and after a break.
        zero: the result is 0 everywhere (or infinite, as masks are), which is of every degree.
        between: it was broken by a scalar that is no power of four, having a degree at these.
        broken: some scalar gives no multiple of the result, or one of another power.
        deviation: the largest relative difference from what was expected, and ``at`` which scalar; only of a break.
    """

    base: torch.Tensor
    known: float | None = None
    zero: bool = False
    broken: bool = False
    deviation: float = 0.0
    at: float = 1.0
    between: bool = False
    _peak: tuple[int, float] = field(default=(0, 0.0))

    def __post_init__(self) -> None:
        values = self.base
        if not (values.is_floating_point() or values.is_complex()):
            self.known = 0.0  # integers and booleans: the same, or not
            return
        size = _wide(values).abs().nan_to_num(0.0, 0.0, 0.0).flatten()
        place = int(size.argmax()) if size.numel() else 0
        self._peak = (place, float(size[place]) if size.numel() else 0.0)
        self.zero = self._peak[1] == 0 and not bool(values.isnan().any())

    def compare(self, y: torch.Tensor, s: float, coarsest: torch.dtype, expected: float) -> None:
        """Hold the result at scalar s against the base.

        Args:
            coarsest: the least precise dtype that the run has met so far, whose rounding is allowed for.
            expected: the degree from which a break's deviation is measured: that of what went in.
        """
        if y.shape != self.base.shape:
            self._break(math.inf, s)
            return
        if self.known is None and not self.broken and self._peak[1]:
            self.known = self._fit(y, s)
            if self.known is None:
                self.broken = True
        if self.broken:
            self._break(relative_deviation(y, self.base, power(s, expected)), s)
            return
        found = self.deviation_at(y, s, coarsest)
        info, size = torch.finfo(coarsest), self._size(s)
        if found is not None and found > info.eps**0.75 + (8 * info.tiny / size if size else 0.0):
            self._break(relative_deviation(y, self.base, power(s, expected)), s)

    def deviation_at(self, y: torch.Tensor, s: float, coarsest: torch.dtype) -> float | None:
        """How far y is from s^d times the base; None where it has no degree, or its values leave the dtype's range."""
        if self.broken:
            return None
        info, size = torch.finfo(coarsest), self._size(s)
        room = _ROOM if info.tiny < 1e-30 else 1.0  # float16 has none to give away
        if size and not info.tiny * room < size < info.max / room:
            return None
        return relative_deviation(y, self.base, power(s, self.known or 0.0))

    def break_between(self, deviation: float, s: float) -> None:
        """What has a degree at powers of four has none at ``s``."""
        self.between = True
        self._break(deviation, s)

    def _size(self, s: float) -> float:
        return self._peak[1] * power(s, self.known or 0.0)

    def _break(self, deviation: float, s: float) -> None:
        self.broken, self.known = True, None
        if deviation >= self.deviation:
            self.deviation, self.at = deviation, s

    def _fit(self, y: torch.Tensor, s: float) -> float | None:
        place, peak = self._peak
        ratio = abs(float(_wide(y).flatten()[place])) / peak
        if not 0 < ratio < math.inf:
            return None
        degree = math.log(ratio) / math.log(s)
        nearest = round(degree * 12) / 12  # roots and their products; else what was measured
        return nearest if abs(degree - nearest) < 1e-6 else degree


def _wide(t: torch.Tensor) -> torch.Tensor:
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj()).double()
    return t.double() if t.device.type != "mps" else t.float()
