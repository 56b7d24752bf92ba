"""Cases from shapes in words, as the tables print them: ``128x64x32x32 -> 128, 3x3 pad 1, max 2``."""

from __future__ import annotations

import re

from zbkernels.benchmarking.cases import Case, ConvCase, LinearCase, NapCase, PatternCase

_CONV = re.compile(
    r"(?P<n>\d+)x(?P<c>\d+)x(?P<h>\d+)x(?P<w>\d+) -> (?P<k>\d+), (?P<kernel>\d+)x(?P=kernel)"
    r"(?: stride (?P<stride>\d+))?(?: pad (?P<padding>\d+))?(?: groups (?P<groups>\d+))?"
    r"(?P<residual>, plus a residual)?(?:, (?:no pool|(?P<pool>max|avg) (?P<pool_kernel>\d+)"
    r"(?: stride (?P<pool_stride>\d+))?(?: pad (?P<pool_padding>\d+))?))?"
)
_LINEAR = re.compile(r"(?P<n>\d+)x(?P<fan_in>\d+) -> (?P<fan_out>\d+)")
_NAP = re.compile(r"(?P<n>\d+)x(?P<f>\d+)")
_GROUPS = re.compile(r"(?P<n>\d+)x(?P<f>\d+) of (?P<m>\d+) kinds")
_PATTERNS = re.compile(r"(?P<n>\d+) of (?P<m>\d+)x(?P<f>\d+)(?:, k (?P<k>\d+))?")


def cases_of(text: str, dtype: str) -> list[Case]:
    """Every mode of the shape in words: forward, train and nap; or the ops on patterns that it describes.

    Raises:
        ValueError: it is not in the form of one of the suites.
    """
    text = " ".join(text.split())
    if match := _NAP.fullmatch(text):
        n, f = map(int, match.groups())
        packing: list[Case] = [NapCase(text, n, f, dtype, mode) for mode in ("pack", "unpack")]
        return [*packing, *(PatternCase(text, n, 0, f, mode) for mode in ("frequency", "hash"))]
    if match := _GROUPS.fullmatch(text):
        n, f, m = map(int, match.groups())
        return [PatternCase(text, n, m, f, "group")]
    if match := _PATTERNS.fullmatch(text):
        n, m, f, k = (int(number or 0) for number in match.groups())
        return [PatternCase(text, n, m, f, "topk", k) if k else PatternCase(text, n, m, f, "hamming")]
    modes = ("forward", "train", "nap")
    if match := _LINEAR.fullmatch(text):
        n, fan_in, fan_out = map(int, match.groups())
        return [LinearCase(text, n, fan_in, fan_out, dtype, mode) for mode in modes]
    if match := _CONV.fullmatch(text):
        given = {name: value for name, value in match.groupdict().items() if value is not None}
        pool, residual = given.pop("pool", "none"), given.pop("residual", None) is not None
        sizes = {name: int(value) for name, value in given.items()}
        sizes.setdefault("pool_stride", sizes.get("pool_kernel", 1))
        return [
            ConvCase(text, **sizes, pool=pool, residual=residual, dtype=dtype, mode=mode)  # type: ignore[arg-type]
            for mode in modes
            if not (residual and mode == "nap")
        ]
    raise ValueError(
        "expected a shape such as '128x64x32x32 -> 128, 3x3 pad 1, max 2', '512x784 -> 256', '4096x16384', "
        "'1000 of 200000x1024, k 5' or '1000000x512 of 50000 kinds', "
        f"got {text!r}"
    )
