"""What the paper says of Figure 6, each claim with the rule by which it is judged.

The preprint contradicts itself on Dir 2: its text says that both kinds fit it, the caption of Figure 6d that both fail
to; the workshop version has "can fit" in both places. Both wordings are judged.
"""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.direction_points import BOTH
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

DIR1, DIR2 = "Dir 1", "Dir 2"
EXACT = 1e-9  # relative, of float64

_DIR1_ZERO = "Dir 1: zero-bias networks fail to fit it (Figure 6c; Figure 3c of the workshop version)"
_DIR1_NORMAL = "Dir 1: normal networks can fit it (Figure 6c; 3c)"
_DIR2_FIT = "Dir 2: both kinds can fit it (the text of both versions; Figure 3d of the workshop version)"
_DIR2_FAIL = "Dir 2: both kinds fail to fit it (caption of Figure 6d in the preprint)"
_ONE_REGION = "Dir 1 and Dir 2 stay within unbounded regions of the zero-bias network (Figure 6a; 3a)"
_MANY = "Dir 1 and Dir 2 traverse several convex regions of the network with biases (Figure 6b; 3b)"
_LINEAR = "Along a direction a zero-bias network is a linear function from the origin (Section 5.2)"
_PIECEWISE = "Along a direction a normal network is piecewise linear, and bends (Section 5.2)"
_CONES = (
    "The regions of a zero-bias network are unbounded cones from the origin; with biases there are bounded ones "
    "(Figures 2 and 6)"
)
_GRID = "The polygons are the regions: a grid sees the same patterns at the same places (ours)"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim."""
    zero, biased = (
        [network for network in metrics["networks"] if network["variant"] == variant]
        for variant in ("without-bias", "with-bias")
    )
    return [
        _dir1_zero(metrics, zero) if zero else _missing(_DIR1_ZERO),
        _dir1_normal(metrics, biased) if biased else _missing(_DIR1_NORMAL),
        _dir2(_DIR2_FIT, metrics, HOLDS, FAILS) if zero and biased else _missing(_DIR2_FIT),
        _dir2(_DIR2_FAIL, metrics, FAILS, HOLDS) if zero and biased else _missing(_DIR2_FAIL),
        _one_region(zero) if zero else _missing(_ONE_REGION),
        _many(biased) if biased else _missing(_MANY),
        _linear(zero) if zero else _missing(_LINEAR),
        _piecewise(biased) if biased else _missing(_PIECEWISE),
        _cones(zero, biased) if zero and biased else _missing(_CONES),
        _grid(zero + biased),
    ]


def along(networks: list[dict[str, Any]], direction: str) -> list[dict[str, Any]]:
    """What was found along a direction, of the networks that have learnt it."""
    return [network["along"][direction] for network in networks if direction in network["along"]]


def fits(networks: list[dict[str, Any]], direction: str) -> tuple[int, int]:
    """Networks that fit every point of the direction, and how many have learnt it."""
    found = along(networks, direction)
    return sum(entry["fitted"] == entry["points"] for entry in found), len(found)


def _count(number: int) -> str:
    return f"{number:,}" if number else "none"


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _networks(found: list[dict[str, Any]]) -> str:
    return f"{len(found)} network{'s' if len(found) > 1 else ''}"


def _missing(claim: str) -> Verdict:
    return Verdict(claim, NOT_TESTABLE, "networks of one kind were not trained in this run")


def _dir1_zero(metrics: dict[str, Any], zero: list[dict[str, Any]]) -> Verdict:
    fit, tried = fits(zero, DIR1)
    found, random = along(zero, DIR1), metrics["random"]["without-bias"]
    return Verdict(
        _DIR1_ZERO,
        FAILS if fit or random[DIR1]["fit"] else HOLDS,
        f"{_count(fit)} of {tried} trained networks fit it, the best has {max(e['fitted'] for e in found)} of "
        f"{found[0]['points']} points; {_count(random[DIR1]['fit'])} of {metrics['random']['tried']:,} with random "
        f"weights, of which {random[DIR2]['fit']:,} fit Dir 2. No weights can: f(t·d) = t·f(d), so the logit has one "
        "sign on the whole ray",
    )


def _dir1_normal(metrics: dict[str, Any], biased: list[dict[str, Any]]) -> Verdict:
    fit, tried = fits(biased, DIR1)
    return Verdict(
        _DIR1_NORMAL,
        HOLDS if fit else FAILS,
        f"{fit} of {tried} trained networks fit all {along(biased, DIR1)[0]['points']} points; and "
        f"{_count(metrics['random']['with-bias'][DIR1]['fit'])} of {metrics['random']['tried']:,} with random weights",
    )


def _dir2(claim: str, metrics: dict[str, Any], if_both: str, if_neither: str) -> Verdict:
    counts = {
        variant: fits([n for n in metrics["networks"] if n["variant"] == variant], DIR2)
        for variant in ("with-bias", "without-bias")
    }
    fitted = [fit > 0 for fit, _ in counts.values()]
    said = ", ".join(
        f"{variant.replace('-', ' ')} {fit} of {tried} trained networks fit it"
        for variant, (fit, tried) in counts.items()
    )
    verdict = if_both if all(fitted) else if_neither if not any(fitted) else FAILS
    slip = "; an erratum: the text beside it and the workshop version's caption say the opposite"
    return Verdict(claim, verdict, said + (slip if claim == _DIR2_FAIL and verdict == FAILS else ""))


def _one_region(zero: list[dict[str, Any]]) -> Verdict:
    found = along(zero, DIR1) + along(zero, DIR2)
    most = max(entry["pieces"] for entry in found)
    return Verdict(
        _ONE_REGION,
        HOLDS if most == 1 else FAILS,
        f"each of {len(found)} rays to infinity meets {'one region' if most == 1 else f'up to {most} regions'}",
    )


def _many(biased: list[dict[str, Any]]) -> Verdict:
    counts = {
        direction: [entry["pieces"] for entry in along(biased, direction)] for direction in (DIR1, DIR2)
    }
    said = ", ".join(f"{_range(c)} by {direction}" for direction, c in counts.items())
    return Verdict(
        _MANY,
        HOLDS if min(map(min, counts.values())) > 1 else FAILS,
        f"regions met on the way to infinity: {said}",
    )


def _linear(zero: list[dict[str, Any]]) -> Verdict:
    found = along(zero, DIR1) + along(zero, DIR2)
    sides = max(entry["pieces_of_line"] for entry in found)
    constant = max(entry["constant"] for entry in found)
    computed = [entry["homogeneity"] for entry in found]
    powers, others, bound = (max(c[key] for c in computed) for key in ("powers_of_two", "others", "bound"))
    rounding = all(c["powers_of_two"] == 0 and c["others"] <= c["bound"] for c in computed)
    return Verdict(
        _LINEAR,
        HOLDS if sides <= 2 and constant == 0 and rounding else FAILS,
        f"at most {sides} pieces on a whole line, one on each side of the origin, the largest constant part "
        f"{constant:g}; computed in float32, f(t·d) / t is off f(d) by {powers:.2g} for powers of two, where nothing "
        f"rounds, and by up to {others:.2g} for other t (rounding can make {bound:.2g}, of the sizes that are summed)",
    )


def _piecewise(biased: list[dict[str, Any]]) -> Verdict:
    found = along(biased, DIR1) + along(biased, DIR2)
    bends, differ = [entry["bends"] for entry in found], max(entry["differ"] for entry in found)
    breakpoints = sum(entry["pieces"] - 1 for entry in found)
    return Verdict(
        _PIECEWISE,
        HOLDS if min(bends) > 0 and differ <= EXACT else FAILS,
        f"{_range(bends)} bends on a ray ({sum(bends):,} at {breakpoints:,} breakpoints in all); between "
        f"them the linear pieces are the network within {differ:.1g} (float64)",
    )


def _cones(zero: list[dict[str, Any]], biased: list[dict[str, Any]]) -> Verdict:
    of_zero, of_biased = (
        [network["regions"] for network in networks if network["task"] == BOTH] for networks in (zero, biased)
    )
    regions, reach, bounded = (
        sum(found[key] for found in of_zero) for key in ("all", "reach_origin", "bounded")
    )
    holds = not bounded and reach == regions and all(found["bounded"] for found in of_biased)
    shares = [found["bounded"] / found["all"] for found in of_biased]
    return Verdict(
        _CONES,
        HOLDS if holds else FAILS,
        f"without bias {regions:,} regions in {_networks(of_zero)}, {reach:,} reach the origin and "
        f"{_count(bounded)} bounded; with bias {sum(f['all'] for f in of_biased):,} in "
        f"{_networks(of_biased)}, "
        f"{sum(f['bounded'] for f in of_biased):,} bounded ({_range([round(100 * share) for share in shares])} %)",
    )


def _grid(networks: list[dict[str, Any]]) -> Verdict:
    checked = [network["regions"] for network in networks if network["task"] == BOTH]
    points, border, differ, seen, centres = (
        sum(found["grid"][key] for found in checked)
        for key in ("points", "on_border", "differ", "seen", "centres_differ")
    )
    counts = all(found["grid"]["patterns"] == found["window"] for found in checked)
    return Verdict(
        _GRID,
        HOLDS if not differ and not centres and counts else FAILS,
        f"{points:,} points, {_count(differ)} with another pattern than its polygon ({border} on a border); they see "
        f"{seen:,} of {sum(found['window'] for found in checked):,} regions in the windows, and the middles of the "
        f"others have their patterns{'' if counts else '; the number of patterns differs'}",
    )
