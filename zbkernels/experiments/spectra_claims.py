"""What Section 9.3 of the thesis says, each claim with the rule by which it is judged; then what we add to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from zbkernels.experiments.preprocessing import NORMALIZATION, WHITENING
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

Row = dict[str, Any]

# Of the whole training set: images, and by preprocessing (‖X‖², λ_min), as printed.
PAPER: dict[str, tuple[int, dict[str, tuple[float, float]]]] = {
    "mnist": (
        60_000,
        {
            "normalization": (24454.8, 0.01515),
            "zero-mean": (18488.5, 0.01574),
            "whitening": (314.871, 0.02003),
        },
    ),
    "cifar-10": (
        50_000,
        {
            "normalization": (40885.2, 0.00647),
            "zero-mean": (8154.87, 0.01311),
            "whitening": (33.7366, 0.09878),
        },
    ),
}
TITLES = {"mnist": "MNIST", "cifar-10": "CIFAR-10"}
WHITENED_WITHIN = {"mnist": 4.1, "cifar-10": 2.1}  # "314.871/4.1 < n/d", "33.7366/2.1 < n/d"
NORM_DIGITS, LEAST_DIGITS = 1e-4, 1e-3  # relative: of six and four printed digits, the last may be off
WITNESSES = 1_000  # images that have most of the eigenvector
SLIGHT = 0.01  # relative
CONSTANT = 2.0  # factor that "roughly constant" may cover while n grows tenfold or more
POWER = 0.1  # by which the exponent of n may differ from 1
CLOSE = 5.0  # times n/d
DRAMATIC = 10.0  # times
FEW = 10.0  # images

_NONE = "the run has no rows of the thesis' data sets"
_CONSTANT = "λ_min(H∞) is roughly constant (of [8], for random points; here the first n images)"
_POWER = "‖X‖² scales roughly as n/d (of [8]): it grows as n"
_SIZE = "‖X‖² scales roughly as n/d (of [8]): it is within a small factor of n/d"
_WHITENED = "With whitening ‖X‖² comes close to the bound for random points: {name}, ‖X‖²/{factor} < n/d"
_EFFECT = "Preprocessing can have a dramatic effect on how well the data are conditioned"
_FLOAT32 = "Calculated in float32, the results have at most slight rounding errors"
_PAIRS = "The least eigenvalue belongs to a few images that lie close together, not to the whole set (ours)"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim. Judged on the thesis' own data sets; a stand-in's numbers are in the tables only."""
    sets = [found for found in metrics["sets"] if found["name"] in PAPER]
    found = [_printed(sets, name, how) for name, (_, rows) in PAPER.items() for how in rows]
    found += [
        _each(sets, _CONSTANT, _constant),
        _each(sets, _POWER, _power),
        _each(sets, _SIZE, _size),
        *(_whitened(sets, name) for name in PAPER),
        _each(sets, _EFFECT, _effect),
        _each(sets, _FLOAT32, _float32),
        _each(sets, _PAIRS, _pairs),
    ]
    return found


def rows_of(found: dict[str, Any], how: str) -> list[Row]:
    """By growing n."""
    return [row for row in found["rows"] if row["how"] == how]


def whole(sets: list[dict[str, Any]], name: str, how: str) -> Row | None:
    """The row of all the images that the thesis took; None where the run has none."""
    for found in sets:
        for row in rows_of(found, how):
            if found["name"] == name and row["n"] == PAPER[name][0]:
                return row
    return None


def lower_bound(row: Row) -> float:
    """Of λ_min: the float32 factor's least eigenvalue, less what that factor has wrong (a norm, estimated)."""
    least = row["least"]
    return (least["float32"] + least["shift"]) * (1 - least["rounding"]) - least["shift"]


def over_ratio(found: dict[str, Any], row: Row) -> float:
    """‖X‖² in units of n/d."""
    return row["squared_norm"] * found["features"] / row["n"]


def _exponent(rows: list[Row], value: Callable[[Row], float]) -> float:
    """Of n, between the smallest and the largest set."""
    return math.log(value(rows[-1]) / value(rows[0])) / math.log(rows[-1]["n"] / rows[0]["n"])


def _least(row: Row) -> float:
    return float(row["least"]["value"])


def _printed(sets: list[dict[str, Any]], name: str, how: str) -> Verdict:
    norm, least = PAPER[name][1][how]
    claim = f"{TITLES[name]}, {how}: ‖X‖² = {norm:g}, λ_min(H∞) = {least:.5f}"
    row = whole(sets, name, how)
    if row is None:
        return Verdict(claim, NOT_TESTABLE, f"the run has no such row of all {PAPER[name][0]:,} images")
    off = abs(row["squared_norm"] / norm - 1), abs(_least(row) / least - 1)
    good = off[0] <= NORM_DIGITS and off[1] <= LEAST_DIGITS
    measured = f"{row['squared_norm']:.6g} ({off[0]:.1g} off) and {_least(row):.6f} ({off[1]:.1g} off)"
    checks = next(found for found in sets if found["name"] == name)["checks"]
    if _least(row) < least * (1 - LEAST_DIGITS):
        measured += f"; {WITNESSES:,} of the images alone have {checks['few'][how]:.6f}, no larger set more"
    rounding = checks["largest"][how] * 2**-24
    measured += f"; 2⁻²⁴ λ_max(H∞), an eigenvalue's rounding in float32, is {rounding:.5f}"
    if how == WHITENING:
        norms = " and ".join(f"{value:.6g}" for value in checks["squared_norms"])
        measured += (
            f"; where float32's rounding stands for the directions without variance, ‖X‖² is {norms} as the "
            "images are in one order or the reverse"
        )
    return Verdict(claim, HOLDS if good else FAILS, measured)


Judged = tuple[bool, str]


def _each(
    sets: list[dict[str, Any]], claim: str, judged: Callable[[dict[str, Any]], Judged | None]
) -> Verdict:
    found = [(TITLES[each["name"]], result) for each in sets if (result := judged(each)) is not None]
    if not found:
        return Verdict(claim, NOT_TESTABLE, _NONE if not sets else "the run lacks a kind that it takes")
    good = all(result[0] for _, result in found)
    return Verdict(
        claim, HOLDS if good else FAILS, "; ".join(f"{title}: {said}" for title, (_, said) in found)
    )


def _kinds(found: dict[str, Any]) -> dict[str, list[Row]]:
    """Preprocessing -> rows, where n grows tenfold or more."""
    hows = dict.fromkeys(row["how"] for row in found["rows"])
    by_how = {how: rows_of(found, how) for how in hows}
    return {how: rows for how, rows in by_how.items() if rows[-1]["n"] >= 10 * rows[0]["n"]}


def _grown(rows: list[Row]) -> str:
    return f"n = {rows[0]['n']:,} to {rows[-1]['n']:,}"


def _constant(found: dict[str, Any]) -> Judged | None:
    kinds = _kinds(found)
    if not kinds:
        return None
    factors = {
        how: max(map(_least, rows)) / max(min(map(_least, rows)), 1e-300) for how, rows in kinds.items()
    }
    said = ", ".join(
        f"{how} {_least(rows[0]):.4f} to {_least(rows[-1]):.4f} (as n to the {_exponent(rows, _least):.2f})"
        for how, rows in kinds.items()
    )
    return max(factors.values()) <= CONSTANT, f"{_grown(next(iter(kinds.values())))}: {said}"


def _power(found: dict[str, Any]) -> Judged | None:
    powers = {how: _exponent(rows, lambda row: row["squared_norm"]) for how, rows in _kinds(found).items()}
    if not powers:
        return None
    said = ", ".join(f"{how} as n to the {power:.2f}" for how, power in powers.items())
    return all(abs(power - 1) <= POWER for power in powers.values()), said


def _size(found: dict[str, Any]) -> Judged | None:
    largest = max(row["n"] for row in found["rows"])
    ratios = {row["how"]: over_ratio(found, row) for row in found["rows"] if row["n"] == largest}
    said = ", ".join(f"{how} {ratio:.3g} times n/d" for how, ratio in ratios.items())
    return max(ratios.values()) <= CLOSE, f"n = {largest:,}: {said}"


def _whitened(sets: list[dict[str, Any]], name: str) -> Verdict:
    factor = WHITENED_WITHIN[name]
    claim = _WHITENED.format(name=TITLES[name], factor=factor)
    row = whole(sets, name, WHITENING)
    if row is None:
        return Verdict(claim, NOT_TESTABLE, f"the run has no such row of all {PAPER[name][0]:,} images")
    ratio = next(over_ratio(found, row) for found in sets if found["name"] == name)
    return Verdict(claim, HOLDS if ratio < factor else FAILS, f"‖X‖² is {ratio:.4g} times n/d")


def _effect(found: dict[str, Any]) -> Judged | None:
    pair = [rows_of(found, how)[-1:] for how in (NORMALIZATION, WHITENING)]
    if not all(pair):
        return None
    ratios = [row["squared_norm"] / max(_least(row), 1e-300) for (row,) in pair]
    said = f"‖X‖²/λ_min {ratios[0]:.3g} normalised, {ratios[1]:.3g} whitened, at n = {pair[0][0]['n']:,}"
    return ratios[0] / ratios[1] >= DRAMATIC, said


def _float32(found: dict[str, Any]) -> Judged | None:
    """By the printed λ_min; ‖X‖² of the whitened rows hangs on what is done with directions without variance."""
    offs = [
        abs(least / _least(row) - 1)
        for how, (_, least) in PAPER[found["name"]][1].items()
        if (row := whole([found], found["name"], how)) is not None
    ]
    if not offs:
        return None
    own = max(
        abs(row["least"]["float32"] / _least(row) - 1) for row in found["rows"] if not row["least"]["shift"]
    )
    said = f"the printed λ_min are at most {100 * max(offs):.2g} % from ours"
    return max(
        offs
    ) <= SLIGHT, f"{said}; those of our own float32 H∞, by a Cholesky factor, {100 * own:.2g} %"


def _pairs(found: dict[str, Any]) -> Judged | None:
    largest = max(row["n"] for row in found["rows"])
    rows = [row for row in found["rows"] if row["n"] == largest]
    said = ", ".join(
        f"{row['how']} {row['least']['participation']:.3g} images (the nearest two alone give "
        f"{row['nearest']['bound']:.4f})"
        for row in rows
    )
    few = all(row["least"]["participation"] <= FEW for row in rows)
    return few, f"at n = {largest:,} the eigenvector is spread over {said}"
