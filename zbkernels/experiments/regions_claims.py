"""What is said of the number of activation patterns, each claim with the rule by which it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, judge, mean, spread

ORIGIN, OFF = "through the origin", "off the origin"
SLOPE = 0.2  # how far an exponent may be from the one that is claimed
ALIKE = 1.5  # factor within which two counts are alike
FEW = 2.0  # times neurons^d / d! that still count as few
TIGHT = 0.25  # times neurons^d / d! that the counts must reach

Count = Callable[[dict[str, Any]], float]


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim, biased networks first."""
    biased = [unit for unit in metrics["untrained"] if unit["variant"] == "with-bias"]
    zero = [unit for unit in metrics["untrained"] if unit["variant"] == "without-bias"]
    trained = metrics["trained"]
    return [
        _or_missing(_LINEAR, biased, lambda: _linear(biased)),
        _or_missing(_DEPTH, biased, lambda: _depth(biased)),
        _or_missing(_FEW, biased, lambda: _few(biased)),
        _or_missing(_TRAINED, trained, lambda: _during_training(trained)),
        _or_missing(_RAY, zero, lambda: _ray(metrics)),
        _or_missing(
            _CONES, zero, lambda: _cones(zero + [u for u in trained if u["variant"] == "without-bias"])
        ),
        _or_missing(_CIRCLE, zero, lambda: _circle(zero)),
        _or_missing(_ELSEWHERE, zero and biased, lambda: _elsewhere(zero, biased)),
    ]


_LINEAR = (
    "Untrained, with bias: patterns along a line grow linearly in the neurons (Hanin & Rolnick, ICML 2019)"
)
_DEPTH = "Untrained, with bias: counts depend on the number of neurons, not the depth (Hanin & Rolnick, both)"
_FEW = (
    "Untrained, with bias: patterns in a plane are few, about neurons² / 2, far below exponential, "
    "and the bound is tight "
    "(Hanin & Rolnick, NeurIPS 2019)"
)
_TRAINED = "This holds throughout training (Hanin & Rolnick, NeurIPS 2019), here without biases too"
_RAY = (
    "A zero-bias network has one pattern in each direction, so two along a line through the origin, "
    "where a biased one has "
    "many (Section 5.2, Figure 6)"
)
_CONES = "The regions of a zero-bias network are cones (Section 3, Figure 2)"
_CIRCLE = "So in a plane through the origin it has as many as along a circle: neurons¹, not neurons² (ours)"
_ELSEWHERE = (
    "Off the origin, zero-bias networks have as many patterns as biased ones, in lines and planes (ours)"
)


def on_line(kind: str) -> Count:
    return lambda unit: unit["counts"]["lines"][kind]["mean"]


def in_plane(kind: str) -> Count:
    return lambda unit: mean(unit["counts"]["planes"][kind])


def sizes(units: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({unit["neurons"] for unit in units})


def depths(units: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({unit["depth"] for unit in units})


def average(units: Sequence[dict[str, Any]], count: Count, **where: Any) -> float:
    """The mean of a count over the networks that have the given facts."""
    chosen = [unit for unit in units if all(unit[key] == value for key, value in where.items())]
    return mean([count(unit) for unit in chosen])


def slope(units: Sequence[dict[str, Any]], count: Count) -> float:
    """The exponent a of count ~ neurons^a, by least squares in logarithms over the sizes."""
    xs = [math.log(size) for size in sizes(units)]
    ys = [math.log(average(units, count, neurons=size)) for size in sizes(units)]
    middle = mean(xs)
    return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def _or_missing(claim: str, units: Any, judged: Callable[[], Verdict]) -> Verdict:
    if not units:
        return Verdict(claim, NOT_TESTABLE, "networks of one kind were not counted in this run")
    return judged()


def _linear(units: list[dict[str, Any]]) -> Verdict:
    kinds = ("through images", "random", ORIGIN)
    slopes = {kind: slope(units, on_line(kind)) for kind in kinds}
    ratios = [on_line(kind)(unit) / unit["neurons"] for kind in kinds for unit in units]
    said = ", ".join(f"{value:.2f} ({kind})" for kind, value in slopes.items())
    holds = all(abs(value - 1) <= SLOPE for value in slopes.values())
    return Verdict(
        _LINEAR,
        HOLDS if holds else FAILS,
        f"exponents {said}; {min(ratios):.2f} to {max(ratios):.2f} patterns a neuron",
    )


def _depth(units: list[dict[str, Any]]) -> Verdict:
    """The means of the fewest and of the most: alike, else within two standard deviations of the seeds, else not."""
    if len(depths(units)) < 2:
        return Verdict(_DEPTH, NOT_TESTABLE, "one depth only")
    judged, said = [], []
    for name, count in (("lines", on_line("through images")), ("planes", in_plane(ORIGIN))):
        worst = (0.0, 0)
        for size in sizes(units):
            counts = [
                [count(unit) for unit in units if unit["neurons"] == size and unit["depth"] == depth]
                for depth in depths(units)
            ]
            least, most = min(counts, key=mean), max(counts, key=mean)
            ratio, deviations = mean(most) / mean(least), (spread(least), spread(most))
            pooled = None if None in deviations else math.hypot(*deviations) / math.sqrt(2)  # type: ignore[arg-type]
            judged.append(HOLDS if ratio <= ALIKE else judge(mean(most) - mean(least), 0, pooled))
            worst = max(worst, (ratio, size))
        said.append(f"{name}: largest ratio between depths {worst[0]:.2f}, at {worst[1]} neurons")
    verdict = next((worst for worst in (FAILS, WITHIN_SPREAD) if worst in judged), HOLDS)
    return Verdict(_DEPTH, verdict, f"{'; '.join(said)} (alike up to {ALIKE:g})")


def _few(units: list[dict[str, Any]]) -> Verdict:
    ratios = [in_plane(kind)(unit) / (unit["neurons"] ** 2 / 2) for kind in (ORIGIN, OFF) for unit in units]
    exponents = [slope(units, in_plane(kind)) for kind in (ORIGIN, OFF)]
    most = max(unit["neurons"] for unit in units)
    largest = max(max(unit["counts"]["planes"][ORIGIN]) for unit in units if unit["neurons"] == most)
    holds = max(ratios) <= FEW and min(ratios) >= TIGHT and all(abs(e - 2) <= 2 * SLOPE for e in exponents)
    return Verdict(
        _FEW,
        HOLDS if holds else FAILS,
        f"{min(ratios):.2f} to {max(ratios):.2f} times neurons² / 2, exponents {exponents[0]:.2f} through and "
        f"{exponents[1]:.2f} off the origin; at most {largest:,} patterns with {most} neurons, which "
        f"2^{most} could have",
    )


def _during_training(units: list[dict[str, Any]]) -> Verdict:
    worst, ratios = (1.0, ""), []
    for unit in units:
        plane = in_plane(ORIGIN if unit["variant"] == "with-bias" else OFF)
        counts = [plane(seen) for seen in unit["watched"]]
        ratios += [count / (unit["neurons"] ** 2 / 2) for count in counts]
        for seen, count in zip(unit["watched"], counts, strict=True):
            change = max(count / counts[0], counts[0] / count)
            where = (
                f"{unit['depth']} hidden layers {unit['variant'].replace('-', ' ')}, epoch {seen['epoch']}"
            )
            worst = max(worst, (change, where))
    holds = max(ratios) <= FEW and min(ratios) >= TIGHT
    return Verdict(
        _TRAINED,
        HOLDS if holds else FAILS,
        f"{min(ratios):.2f} to {max(ratios):.2f} times neurons² / 2 in all (off the origin where there "
        f"is no bias); farthest "
        f"from the untrained count by a factor {worst[0]:.2f} ({worst[1] or 'nowhere'})",
    )


def _ray(metrics: dict[str, Any]) -> Verdict:
    seen = [(unit["variant"], unit["counts"]) for unit in metrics["untrained"]]
    seen += [
        (unit["variant"], watched["counts"]) for unit in metrics["trained"] for watched in unit["watched"]
    ]
    zero, biased = (
        [counts["lines"][ORIGIN] for variant, counts in seen if variant == wanted]
        for wanted in ("without-bias", "with-bias")
    )
    most = max(line["most"] for line in zero)
    measured = f"without bias at most {most} on {sum(line['counted'] for line in zero):,} lines"
    if biased:
        least, highest = min(line["least"] for line in biased), max(line["most"] for line in biased)
        measured += (
            f"; with bias {least} to {highest}, {mean([line['mean'] for line in biased]):.0f} on average"
        )
    return Verdict(_RAY, HOLDS if most <= 2 else FAILS, measured)


def _cones(units: list[dict[str, Any]]) -> Verdict:
    """The regions of a window are those of one a thousand times smaller, and those met around the origin."""
    planes = [seen["counts"]["planes"] for unit in units for seen in unit.get("watched", [unit])]
    compared = [
        (whole, around, small)
        for plane in planes
        for whole, around, small in zip(plane[ORIGIN], plane["swept"], plane["shrunk"], strict=True)
    ]
    differing = sum(len(set(counts)) > 1 for counts in compared)
    return Verdict(
        _CONES,
        FAILS if differing else HOLDS,
        f"in {len(compared):,} planes through the origin, trained and not, {differing or 'none'} had "
        f"another count of regions "
        "in a window a thousand times smaller, or around the origin",
    )


def _circle(units: list[dict[str, Any]]) -> Verdict:
    exponent = slope(units, in_plane(ORIGIN))
    ratios = [in_plane(ORIGIN)(unit) / (2 * unit["neurons"]) for unit in units]
    single = [in_plane(ORIGIN)(unit) / (2 * unit["neurons"]) for unit in units if unit["depth"] == 1]
    exact = (
        f"; exactly twice the neurons with one hidden layer in {sum(r == 1 for r in single)} of {len(single)}"
        if single
        else ""
    )
    return Verdict(
        _CIRCLE,
        HOLDS if abs(exponent - 1) <= SLOPE else FAILS,
        f"exponent {exponent:.2f}; {min(ratios):.2f} to {max(ratios):.2f} times 2·neurons{exact}",
    )


def _elsewhere(zero: list[dict[str, Any]], biased: list[dict[str, Any]]) -> Verdict:
    ratios = []
    for name, count in (("line", on_line("through images")), ("plane", in_plane(OFF))):
        for size in sizes(zero):
            ratio = average(zero, count, neurons=size) / average(biased, count, neurons=size)
            ratios.append((ratio, f"{name}, {size} neurons"))
    low, high = min(ratios), max(ratios)
    holds = high[0] <= ALIKE and low[0] >= 1 / ALIKE
    return Verdict(
        _ELSEWHERE,
        HOLDS if holds else FAILS,
        f"{low[0]:.2f} ({low[1]}) to {high[0]:.2f} ({high[1]}) times the biased count (alike within a "
        f"factor {ALIKE:g})",
    )
