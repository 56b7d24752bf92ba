"""The paper's claims about images between two of one pattern, each with the rule by which it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, judge, mean, spread

SAME_ACCURACY = 2.0  # percentage points within which an accuracy that was aimed at counts as reached
_NOT_TRAINED = "networks of this kind were not trained in this run"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim. Accuracies need the paper's data; the theorem holds on any."""
    without, with_bias = checks_of(metrics, WITHOUT_BIAS), checks_of(metrics, WITH_BIAS)
    found = [*_accuracies(metrics), _found(metrics), _theorem(without), _shown(metrics), _stricter(metrics)]
    return [*found, _only_without(with_bias), _cone(without, with_bias)]


def checks_of(metrics: dict[str, Any], variant: str, **wanted: str) -> list[dict[str, Any]]:
    """All looks at pairs of one kind of network, of every image set, seed and split, that are as ``wanted``."""
    return [
        check
        for part in metrics["sets"]
        for unit in part["units"]
        if unit["variant"] == variant
        for check in unit["checks"]
        if all(check[key] == value for key, value in wanted.items())
    ]


def total(checks: list[dict[str, Any]], key: str) -> int:
    return sum(check[key] for check in checks)


def _accuracies(metrics: dict[str, Any]) -> Iterator[Verdict]:
    for place, (paper_set, title) in enumerate((("mnist", "MNIST"), ("cifar-10", "CIFAR-10"))):
        paper = metrics["paper"][paper_set]
        claim = f"A network of 30 neurons has {paper:g} % on {title}"
        parts = [part for part in metrics["sets"] if part["data"]["as_in_paper"]]
        part = next((part for part in parts if part["data"]["name"] == paper_set), None)
        values = [] if part is None else _test_accuracies(part, WITHOUT_BIAS)
        if not values:
            instead = [other["data"]["title"] for other in metrics["sets"][place : place + 1]]
            why = f"{title} was not read in this run" + "".join(f"; in its place: {name}" for name in instead)
            yield Verdict(claim, NOT_TESTABLE, why)
            continue
        gap = mean(values) - paper
        measured = (
            f"{mean(values):.2f} %, {gap:+.2f} (same within {SAME_ACCURACY:g}); trained as long as it takes"
        )
        yield Verdict(claim, judge(gap, SAME_ACCURACY, spread(values)), measured)


def _found(metrics: dict[str, Any]) -> Verdict:
    claim = "At this accuracy many pairs with equal prediction and pattern are easily found"
    units = [unit for part in metrics["sets"] for unit in part["units"] if unit["variant"] == WITHOUT_BIAS]
    if not units:
        return Verdict(claim, NOT_TESTABLE, _NOT_TRAINED)
    least = min(min(split["pairs"] for split in unit["splits"].values()) for unit in units)
    parts = []
    for part in metrics["sets"]:
        for split in ("train", "test"):
            counts = [u["splits"][split]["pairs"] for u in part["units"] if u["variant"] == WITHOUT_BIAS]
            images = part["data"][f"{split}_images"]
            parts.append(f"{range_of(counts)} among {images:,} {split} images of {part['data']['name']}")
    return Verdict(claim, HOLDS if least >= 10 else FAILS, "; ".join(parts))


def _theorem(checks: list[dict[str, Any]]) -> Verdict:
    claim = "Every interpolation between such a pair has the pair's prediction and pattern (Theorem 2, Appendix A)"
    checks = [c for c in checks if c["kind"] == "same pattern" and c["combination"] == "convex"]
    if not total(checks, "pairs"):
        return Verdict(claim, NOT_TESTABLE, _NOT_TRAINED if not checks else "no such pair was found")
    pairs, points = total(checks, "pairs"), sum(c["pairs"] * c["points"] for c in checks)
    looked = f"{points:,} interpolations of {pairs:,} pairs"
    return Verdict(claim, _up_to_rounding(checks), f"{looked}: {_broken(checks)}")


def _up_to_rounding(checks: list[dict[str, Any]]) -> str:
    """A break counts where it is there in float64 too, or where there are more than were looked at again."""
    counts = [c["in_float64"]["pairs_broken"] or c["in_float64"]["pairs"] < c["pairs_broken"] for c in checks]
    return FAILS if any(counts) else HOLDS


def _broken(checks: list[dict[str, Any]]) -> str:
    """In words: that all are equal, or how many are not and what becomes of them in float64."""
    broken = total(checks, "pairs_broken")
    if not broken:
        return "all equal"
    again = [check["in_float64"] for check in checks]
    unequal, still = total(again, "unequal"), total(again, "pairs_broken")
    bits = max(check["most_bits"] for check in checks)
    return (
        f"{total(checks, 'points_broken'):,} of {count(broken, 'pair')} differ, "
        f"{total(checks, 'points_predicted_otherwise'):,} in the prediction, at most {count(bits, 'unit')} at a time; "
        f"of {count(total(again, 'pairs'), 'pair')} looked at again in float64 {unequal:,} have two patterns or "
        f"predictions, and of the others {still:,} break"
        + ("" if _up_to_rounding(checks) == FAILS else ": values beside 0, flipped by float32's rounding")
    )


def _shown(metrics: dict[str, Any]) -> Verdict:
    claim = "There are such pairs among the rightly and among the wrongly predicted (Figures 7 and 8)"
    units = [unit for part in metrics["sets"] for unit in part["units"] if unit["variant"] == WITHOUT_BIAS]
    if not units:
        return Verdict(claim, NOT_TESTABLE, _NOT_TRAINED)
    right, wrong = ([unit["splits"]["test"][kind] for unit in units] for kind in ("right", "wrong"))
    measured = (
        f"of pairs of test images, by network: {range_of(right)} are both right, {range_of(wrong)} both wrong"
    )
    return Verdict(claim, HOLDS if min(right) and min(wrong) else FAILS, measured)


def _stricter(metrics: dict[str, Any]) -> Verdict:
    claim = "Sharing the pattern is a more stringent condition than sharing the prediction (Appendix D)"
    units = [unit for part in metrics["sets"] for unit in part["units"]]
    shares = [100 * s["pairs"] / s["same_prediction"] for unit in units for s in unit["splits"].values()]
    measured = (
        f"of the pairs with equal prediction {min(shares):.2g} to {max(shares):.2g} % share the pattern too"
    )
    return Verdict(claim, HOLDS if max(shares) < 50 else FAILS, measured)


def _only_without(checks: list[dict[str, Any]]) -> Verdict:
    claim = "Such guarantees hardly exist on networks with biases (Section 3)"
    same = [c for c in checks if c["kind"] == "same pattern" and c["combination"] == "convex"]
    if not total(same, "pairs"):
        return Verdict(claim, NOT_TESTABLE, _NOT_TRAINED if not same else "no such pair was found")
    points = sum(check["pairs"] * check["points"] for check in same)
    measured = (
        f"with bias, {points:,} interpolations of {total(same, 'pairs'):,} pairs with equal prediction and pattern: "
        f"{_broken(same)}. The inputs of one pattern are a convex set with biases too, and the network is affine on it"
    )
    return Verdict(claim, HOLDS if _up_to_rounding(same) == FAILS else FAILS, measured)


def _cone(without: list[dict[str, Any]], with_bias: list[dict[str, Any]]) -> Verdict:
    """Not a sentence of the paper's: what zero biases do add (Lemma 1 and Theorem 2 together)."""
    claim = "Without bias, and not with, darker interpolations keep prediction and pattern too (Lemma 1 with Theorem 2)"
    cones = [
        [c for c in checks if c["kind"] == "same pattern" and c["combination"] == "conic"]
        for checks in (without, with_bias)
    ]
    if not all(total(cone, "pairs") for cone in cones):
        return Verdict(claim, NOT_TESTABLE, _NOT_TRAINED)
    one, other = cones
    measured = (
        f"at contrasts 1 to 1/256, without: {_broken(one)}; with: {total(other, 'pairs_broken'):,} of "
        f"{total(other, 'pairs'):,} pairs break, {total(other, 'prediction_broken'):,} in the prediction"
    )
    holds = _up_to_rounding(one) == HOLDS and _up_to_rounding(other) == FAILS
    return Verdict(claim, HOLDS if holds else FAILS, measured)


def _test_accuracies(part: dict[str, Any], variant: str) -> list[float]:
    return [unit["splits"]["test"]["accuracy"] for unit in part["units"] if unit["variant"] == variant]


def count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def range_of(numbers: list[int]) -> str:
    """``3`` or ``3 to 7``."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
