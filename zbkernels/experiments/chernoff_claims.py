"""What section 6.1 of the thesis says, each claim with the rule by which it is judged; and how loose the bound is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from zbkernels.experiments.chernoff_bound import SIDES, probability, width_needed
from zbkernels.experiments.chernoff_spectrum import SIGNS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean, spread

DELTAS = (0.25, 0.5, 0.75)
DELTA = 0.5  # where one number is given
CHANCE = 0.05  # of failure, in the widths that are compared
ROUNDING = 1e-3  # relative: single units are drawn in float32, eigenvalues are rounded to five digits
STANDARD_ERRORS = 4.0
CONSTANT = 2.0  # "roughly constant": within this factor
CLOSE = 0.1  # relative error of predictions that counts as close

Case = dict[str, Any]


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    signs = [case for case in metrics["cases"] if case["readout"] == SIGNS]
    return [
        _norms(
            "(36): no unit's H_k is larger than B²‖X‖²/m",
            signs,
            "plain",
            lambda c: c["slope"] ** 2 * c["norm2"],
        ),
        _norms(
            "(37): nor is it larger than κ/m, once whitened by H∞", signs, "whitened", lambda c: c["kappa"]
        ),
        _expectation(signs),
        *(_bound(signs, side) for side in SIDES),
        _loose(signs),
        _smallest(signs),
        _logarithm(signs),
        _predictions(signs),
        _norm_over_d(signs),
        _parameters(signs),
        _normal_readout(metrics["cases"]),
        Verdict(
            "The bound on λ_min(H) is as powerful as that of Oymak and Soltanolkotabi",
            NOT_TESTABLE,
            "theirs is not stated in the thesis",
        ),
    ]


def name_of(case: Case) -> str:
    return f"{case['activation']}, {case['inputs']:,} {case['kind']}"


def short(case: Case) -> str:
    return f"{case['activation']} n = {case['inputs']:,}" + (
        " (0/1)" if case["kind"].startswith("zeros") else ""
    )


def deviations(row: dict[str, Any], side: str) -> list[float]:
    """The delta of each trial at a width."""
    return [1 - low for low in row["low"]] if side == "lower" else [high - 1 for high in row["high"]]


def quantile(values: list[float], share: float) -> float:
    """The smallest of the values that at least ``share`` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def width_measured(case: Case, delta: float, side: str) -> float | None:
    """The width from which on at most CHANCE of the trials are off by delta or more, between two widths by their logs.

    None where it is below the smallest width or beyond the largest.
    """
    points = [(row["width"], quantile(deviations(row, side), 1 - CHANCE)) for row in case["widths"]]
    for (width, before), (wider, after) in itertools.pairwise(points):
        if before > delta >= after:
            part = math.log(before / delta) / math.log(before / after)
            return width * (wider / width) ** part
    return None


def looseness(case: Case, delta: float, side: str, kappa: float | None = None) -> float | None:
    """The width that the bound asks for over the one measured."""
    found = width_measured(case, delta, side)
    asked = width_needed(case["inputs"], kappa or case["kappa"], delta, CHANCE, side)
    return None if found is None else asked / found


def _norms(claim: str, cases: list[Case], key: str, bound: Callable[[Case], float]) -> Verdict:
    shares = [case["single"][key] / bound(case) for case in cases]
    said = [f"{short(case)} {case['single'][key]:.1f} of {bound(case):.0f}" for case in cases]
    units = sum(case["single"]["units"] for case in cases)
    return Verdict(
        claim,
        HOLDS if max(shares) <= 1 + ROUNDING else FAILS,
        f"largest of {units:,} units, times m: {'; '.join(said)}",
    )


def _expectation(cases: list[Case]) -> Verdict:
    """The mean eigenvalue of the whitened H has the expectation 1, as all have that are of an H with the mean H∞."""
    gaps = []
    for case in cases:
        middles = case["widths"][0]["middle"]
        error = (spread(middles) or math.inf) / math.sqrt(len(middles))
        gaps.append((abs(mean(middles) - 1) / error, short(case)))
    worst = max(gaps)
    return Verdict(
        "E(H_k) = H∞/m, so that μ_min = μ_max = 1",
        HOLDS if worst[0] <= STANDARD_ERRORS else FAILS,
        f"mean eigenvalue at the smallest width, over the trials: at most {worst[0]:.1f} standard errors from 1 "
        f"({worst[1]})",
    )


def _bound(cases: list[Case], side: str) -> Verdict:
    worst, told, checked, seen = 0.0, 0, 0, 0
    for case in cases:
        for row in case["widths"]:
            for delta in DELTAS:
                off = deviations(row, side)
                share = sum(gap >= delta for gap in off) / len(off)
                bound = probability(case["inputs"], row["width"], case["kappa"], delta, side)
                checked, worst = checked + 1, max(worst, share - bound)
                told += bound < 1
                seen += bound < 1 and share > 0
    number, which = ("38", "smallest") if side == "lower" else ("39", "largest")
    return Verdict(
        f"({number}): the bound on the probability that the {which} eigenvalue is off by δ or more",
        HOLDS if worst <= 0 else FAILS,
        f"at none of {checked} widths and δ ({', '.join(f'{d:g}' for d in DELTAS)}) more trials were off than it says; "
        f"at {told} of them it is below 1, and there {'none' if not seen else f'at {seen} of them some'} of the trials "
        "were off"
        if worst <= 0
        else f"more trials were off than it says, by up to {100 * worst:.0f} %",
    )


def _loose(cases: list[Case]) -> Verdict:
    said, factors = [], []
    for case in cases:
        for side, sign in zip(SIDES, ("-", "+"), strict=True):
            factor, found = looseness(case, DELTA, side), width_measured(case, DELTA, side)
            if factor is None or found is None:
                continue
            factors.append(factor)
            asked = width_needed(case["inputs"], case["kappa"], DELTA, CHANCE, side)
            said.append(f"{short(case)} {sign}: {asked:,.0f} for {found:,.0f}, {factor:.0f} times")
    claim = "The bound asks for more than ten times the width that is needed (ours)"
    if not factors:
        return Verdict(claim, NOT_TESTABLE, f"no width was found at δ = {DELTA:g}")
    return Verdict(
        claim,
        HOLDS if min(factors) > 10 else FAILS,
        f"width for δ = {DELTA:g} in {100 * (1 - CHANCE):g} % of the trials, by (38) - and (39) +: {'; '.join(said)}",
    )


def _smallest(cases: list[Case]) -> Verdict:
    """λ_min(H) against low · λ_min(H∞), trial by trial."""
    ratios = [
        smallest / (low * case["smallest"])
        for case in cases
        for row in case["widths"]
        for smallest, low in zip(row["smallest"], row["low"], strict=True)
        if low > ROUNDING
    ]
    return Verdict(
        "(41, 42): so λ_min(H) ≥ (1 - δ) λ_min(H∞)",
        HOLDS if min(ratios) >= 1 - ROUNDING else FAILS,
        f"λ_min(H) is {min(ratios):.2f} to {max(ratios):.2f} times that, in {len(ratios):,} drawn layers",
    )


def _logarithm(cases: list[Case]) -> Verdict:
    claim = "m ≥ c log(n) B²‖X‖²/λ_min(H∞) is enough for some constant c, with high probability"
    constants, missing = [], 0
    for case in cases:
        found = width_measured(case, DELTA, "lower")
        if found is None:
            missing += 1
            continue
        constants.append((found / (math.log(case["inputs"]) * case["kappa"]), short(case)))
    if not constants:
        return Verdict(claim, NOT_TESTABLE, f"no width was found at δ = {DELTA:g}")
    low, high = min(constants), max(constants)
    asked = max(
        width_needed(case["inputs"], case["kappa"], DELTA, CHANCE, "lower")
        / (math.log(case["inputs"]) * case["kappa"])
        for case in cases
    )
    return Verdict(
        claim,
        HOLDS if high[0] <= asked and not missing else FAILS,
        f"for δ = {DELTA:g} in {100 * (1 - CHANCE):g} % of the trials c = {asked:.1f} is enough by (38); measured "
        f"{low[0]:.4f} ({low[1]}) to {high[0]:.4f} ({high[1]})",
    )


def _predictions(cases: list[Case]) -> Verdict:
    """At widths where the spectrum is within DELTA of 1 in nearly all trials: how far the predictions are off."""
    claim = "The same condition tells when predictions are close to the IEIN limit's"
    said, errors = [], []
    for case in cases:
        rows = [
            row
            for row in case["widths"]
            if all(quantile(deviations(row, side), 1 - CHANCE) <= DELTA for side in SIDES)
        ]
        if rows:
            errors.append(quantile(rows[0]["error"], 1 - CHANCE))
            said.append(f"{short(case)} at {rows[0]['width']:,}: {errors[-1]:.3f}")
    if not errors:
        return Verdict(claim, NOT_TESTABLE, f"no width has its eigenvalues within {DELTA:g} of 1")
    return Verdict(
        claim,
        HOLDS if max(errors) <= CLOSE else FAILS,
        f"‖u - u_IEIN‖/‖y‖ on test inputs, 95 % of trials, at the first width with all eigenvalues within {DELTA:g} "
        f"of 1: {'; '.join(said)} (close: within {CLOSE:g}). The condition is on the training inputs alone; of a test "
        "input it says something where it is added to them",
    )


def _first(cases: list[Case]) -> list[Case]:
    """Sets of growing size that are chosen alike."""
    return [case for case in cases if case["kind"].startswith("first")]


def _norm_over_d(cases: list[Case]) -> Verdict:
    claim = "‖X‖² scales as n/d (normalised images)"
    found = {case["inputs"]: case["norm2"] for case in cases}
    if len({case["inputs"] for case in _first(cases)}) < 2:
        return Verdict(claim, NOT_TESTABLE, "it takes sets of two sizes, chosen alike")
    features = cases[0]["features"]
    times = {case["inputs"]: case["norm2"] * features / case["inputs"] for case in _first(cases)}
    ratio = max(times.values()) / min(times.values())
    said = ", ".join(f"{value:.0f} times at n = {n:,}" for n, value in sorted(times.items()))
    linear = "it grows as n" if ratio <= CONSTANT else "it does not even grow as n"
    return Verdict(
        claim,
        HOLDS if ratio <= CONSTANT and max(times.values()) <= 10 else FAILS,
        f"{said}: {linear}, but images of pixels from 0 share one direction, which has {100 * _share(found):.0f} % of "
        "the sum of squares n",
    )


def _share(found: dict[int, float]) -> float:
    n = max(found)
    return found[n] / n


def _parameters(cases: list[Case]) -> Verdict:
    """c' = m d / n of the bound and as measured, over the sizes of sets chosen alike."""
    claim = "So the requirement is md ≥ c'n: parameters exceed training samples by a constant"
    said, growth = [], []
    for activation in sorted({case["activation"] for case in cases}):
        rows = [case for case in _first(cases) if case["activation"] == activation]
        pairs = [
            (case, width_needed(case["inputs"], case["kappa"], DELTA, CHANCE, "lower"), found)
            for case in rows
            if (found := width_measured(case, DELTA, "lower")) is not None
        ]
        if len(pairs) < 2:
            continue
        by_bound = [asked * case["features"] / case["inputs"] for case, asked, _ in pairs]
        measured = [found * case["features"] / case["inputs"] for case, _, found in pairs]
        growth.append(measured[-1] / measured[0])
        sizes = ", ".join(f"{case['inputs']:,}" for case, _, _ in pairs)
        said.append(
            f"{activation}, n = {sizes}: c' = {', '.join(f'{v:,.0f}' for v in by_bound)} by (38), "
            f"{', '.join(f'{v:,.0f}' for v in measured)} measured"
        )
    if not said:
        return Verdict(claim, NOT_TESTABLE, "it takes sets of two sizes, chosen alike")
    return Verdict(
        claim,
        HOLDS if max(growth) <= CONSTANT else FAILS,
        f"δ = {DELTA:g}: {'; '.join(said)} (judged as measured: not growing by more than {CONSTANT:g})",
    )


def _normal_readout(cases: list[Case]) -> Verdict:
    claim = "a ~ N(0, 1/m) would have the same effects as ±1/√m (Section 3)"
    said, factors = [], []
    for case in cases:
        if case["readout"] == SIGNS:
            continue
        other = next(
            c
            for c in cases
            if c["readout"] == SIGNS and all(c[k] == case[k] for k in ("kind", "inputs", "activation"))
        )
        widths = [width_measured(c, DELTA, "lower") for c in (other, case)]
        if widths[0] is not None and widths[1] is not None:
            factors.append(widths[1] / widths[0])
            said.append(f"{short(case)} {widths[1]:,.0f} for {widths[0]:,.0f}")
    if not factors:
        return Verdict(claim, NOT_TESTABLE, "no such networks were drawn in this run")
    same = max(factors) <= CONSTANT and min(factors) >= 1 / CONSTANT
    return Verdict(
        claim,
        HOLDS if same else FAILS,
        f"width for δ = {DELTA:g}: {'; '.join(said)}. H∞ is the same, but a² is not bounded, so (36) to (39) do not "
        "hold, and its variance of 2/m² adds to that of the layer",
    )
