"""What Section 4.2 says of averages over units and over ensembles, and the rules by which it is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from zbkernels.experiments.exchangeability.ergodic_measures import IMAGES, POSITIVE, ZERO_SUM
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

# Equal hidden widths; a second layer of a fixed few units; networks whose initial weights have one of two scales.
EQUAL, NARROW, MIXED = "equal", "narrow", "mixed"
PLACES = (IMAGES, ZERO_SUM, POSITIVE)
PLACE_NAMES = {
    IMAGES: "first layer, images",
    ZERO_SUM: "second layer, zero sum",
    POSITIVE: "second layer, one sign",
}
RATE = -0.5  # of independent units
NEAR = 0.12  # to the rate: about two standard errors of a slope over four doublings with 128 networks
STILL = -0.25  # half the rate: a slope above it, by SURELY of its standard errors, is no fall
SURELY = 2.0
STANDARD_ERRORS = 2.0  # root of the mean squared gap of a single unit

Found = dict[str, Any]


def verdicts(metrics: Found) -> list[Verdict]:
    return [
        _at_the_start(metrics),
        _hypothesis(metrics, ZERO_SUM, "Hypothesis 7 after training, inner layer, vectors of zero sum"),
        _hypothesis(metrics, POSITIVE, "Hypothesis 7 after training, inner layer, vectors of one sign"),
        _hypothesis(metrics, IMAGES, "Hypothesis 7 after training, first layer, images"),
        _covariance(metrics),
        _single(metrics),
        _mixed(metrics),
        _normalised(metrics),
        _narrow(metrics),
    ]


def cases_of(metrics: Found, kind: str) -> list[Found]:
    return [case for case in metrics["cases"] if case["kind"] == kind]


def points(case: Found, place: str, stop: int, key: str) -> list[tuple[int, float]]:
    """(width, value) after ``stop`` steps."""
    return [
        (found["width"], row[place][key])
        for found in case["widths"]
        for row in found["rows"]
        if row["step"] == stop and place in row
    ]


def slope(pairs: Sequence[tuple[int, float]]) -> float:
    """The exponent b of value ~ width^b: least squares between logarithms."""
    parts = _parts_of_slope([width for width, _ in pairs])
    return sum(part * math.log(value) for part, (_, value) in zip(parts, pairs, strict=True))


def slope_error(pairs: Sequence[tuple[int, float]], errors: Sequence[tuple[int, float]]) -> float:
    """The standard error of :func:`slope`, of independent values with these standard errors."""
    parts = _parts_of_slope([width for width, _ in pairs])
    relative = [error / value for (_, value), (_, error) in zip(pairs, errors, strict=True)]
    return math.hypot(*(part * one for part, one in zip(parts, relative, strict=True)))


def _parts_of_slope(widths: Sequence[int]) -> list[float]:
    """What the logarithm of each width's value adds to the slope."""
    logs = [math.log(width) for width in widths]
    gaps = [log - mean(logs) for log in logs]
    return [gap / sum(g * g for g in gaps) for gap in gaps]


def _slopes(cases: list[Found], stop: int, key: str = "spread") -> dict[tuple[str, str], float]:
    return {
        (case["rule"], place): slope(points(case, place, stop, key))
        for case in cases
        for place in PLACES
        if points(case, place, stop, key)
    }


def _range(values: Sequence[float], form: str = "{:.2f}") -> str:
    low, high = (form.format(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _widths(case: Found) -> str:
    return f"{case['widths'][0]['width']} to {case['widths'][-1]['width']:,}"


def _at_the_start(metrics: Found) -> Verdict:
    first = cases_of(metrics, EQUAL)[0]
    slopes = _slopes([first], 0)
    said = ", ".join(f"{PLACE_NAMES[place]} n^{value:.2f}" for (_, place), value in slopes.items())
    return Verdict(
        "Before training, with IID weights, one network's average tends to the ensemble's as n^(-1/2)",
        HOLDS if all(abs(value - RATE) <= NEAR for value in slopes.values()) else FAILS,
        f"relative spread over {metrics['networks']} networks, widths {_widths(first)}: {said}",
    )


def _hypothesis(metrics: Found, place: str, claim: str) -> Verdict:
    cases, stop = cases_of(metrics, EQUAL), metrics["stops"][-1]
    slopes, errors, said = [], [], []
    for case in cases:
        curve, off = (points(case, place, stop, key) for key in ("spread", "spread_of_spread"))
        slopes += [slope(curve), slope(curve[-2:])]
        errors += [slope_error(curve, off), slope_error(curve[-2:], off[-2:])]
        said.append(
            f"{case['rule']} n^({slopes[-2]:.2f} ± {errors[-2]:.2f}), at the last doubling "
            f"n^({slopes[-1]:.2f} ± {errors[-1]:.2f}), {100 * curve[-1][1]:.0f} % left"
        )
    # Widths end somewhere: a fall that ends there by chance alone tells neither way.
    still = any(one - SURELY * error > STILL for one, error in zip(slopes, errors, strict=True))
    return Verdict(
        claim,
        HOLDS if max(slopes) <= STILL else FAILS if still else NOT_TESTABLE,
        f"spread after {stop} steps, widths {_widths(cases[0])}: {'; '.join(said)} (holds: every exponent at most "
        f"{STILL:g}, of independent units it is {RATE:g}; does not: one above by {SURELY:g} standard errors)",
    )


def _covariance(metrics: Found) -> Verdict:
    cases, stop = cases_of(metrics, EQUAL), metrics["stops"][-1]
    effects: dict[int, list[float]] = {}
    for case in cases:
        for place in PLACES:
            for width, value in points(case, place, stop, "effect"):
                effects.setdefault(width, []).append(value)
    least, most = min(effects), max(effects)
    near = all(abs(value - 1) <= 0.5 for value in effects[most])
    return Verdict(
        "Training makes units of one network depend on each other, less so the wider it is (ours)",
        HOLDS if near and min(effects[least]) < 1 - NEAR else FAILS,
        "n Var K / Var P, 1 where units are uncorrelated: "
        + "; ".join(f"n = {width} {_range(values)}" for width, values in sorted(effects.items()))
        + ". Below 1 units make up for each other, and one network's average is better than that of n independent ones",
    )


def _single(metrics: Found) -> Verdict:
    values = [
        row[place]["single"]
        for case in metrics["cases"]
        for found in case["widths"]
        for row in found["rows"]
        for place in PLACES
        if place in row
    ]
    return Verdict(
        "One fixed unit's average over the ensemble is that of all units: they are equal in law",
        HOLDS if mean(values) ** 0.5 <= STANDARD_ERRORS else FAILS,
        f"gap in standard errors, root mean square over {len(values)} layers, widths and times: "
        f"{mean(values) ** 0.5:.2f} (all start from the same weights of that unit, so this is nearly one draw)",
    )


def _mixed(metrics: Found) -> Verdict:
    (case,) = cases_of(metrics, MIXED)
    low, high = (scale**2 for scale in metrics["mixed_scales"])
    plateau = (high - low) / (high + low)
    said, left = [], []
    for stop in (0, metrics["stops"][-1]):
        own = [slope(points(case, place, stop, "spread")) for place in PLACES]
        last = [points(case, place, stop, "spread")[-1][1] for place in PLACES]
        left += last
        said.append(
            f"after {stop} steps n^({_range(own)}), {_range([100 * v for v in last], '{:.0f}')} % left"
        )
    return Verdict(
        "Exchangeability alone is not enough (Section 4.2): weights that share a random factor A keep a spread (ours)",
        HOLDS if min(left) >= plateau / 2 else FAILS,
        f"initial weights times {metrics['mixed_scales'][0]:g} or {metrics['mixed_scales'][1]:g}, exchangeable but no "
        f"longer IID; at the start the limit's spread is {100 * plateau:.0f} %: {'; '.join(said)}",
    )


def _normalised(metrics: Found) -> Verdict:
    (mixed,) = cases_of(metrics, MIXED)
    slopes = {place: slope(points(mixed, place, 0, "cosine")) for place in PLACES}
    last = [points(mixed, place, 0, "cosine")[-1][1] for place in PLACES]
    return Verdict(
        "The normalised kernel, which the figures show, does not see such a factor: it may tend to the ensemble's "
        "where Hypothesis 7 fails (ours)",
        HOLDS if all(abs(value - RATE) <= NEAR for value in slopes.values()) else FAILS,
        f"the same networks before training: spread of the normalised kernel falls as "
        f"n^({_range(list(slopes.values()))}), {_range(last, '{:.3f}')} left",
    )


def _narrow(metrics: Found) -> Verdict:
    stop, said, effects = metrics["stops"][-1], [], []
    claim = (
        "A narrow next layer ties units together: the average of one network is worth fewer of them (ours)"
    )
    cases = cases_of(metrics, NARROW)
    if not cases:
        return Verdict(claim, NOT_TESTABLE, "no network with a narrow layer was trained in this run")
    for case in cases:
        effect = points(case, IMAGES, stop, "effect")
        width, largest = max(effect, key=lambda point: point[1])
        effects.append(largest)
        spreads = points(case, IMAGES, stop, "spread")
        said.append(
            f"{case['rule']} n Var K / Var P up to {largest:.1f} (n = {width}), {effect[-1][1]:.1f} at the largest; "
            f"spread falls as n^{slope(spreads):.2f}, {100 * spreads[-1][1]:.0f} % left"
        )
    return Verdict(
        claim,
        HOLDS if max(effects) >= 2 else FAILS,
        f"{metrics['narrow_width']} units after the first layer, {metrics['narrow_pace']:g} times the step size, "
        f"widths {_widths(cases[0])}: {'; '.join(said)}",
    )
