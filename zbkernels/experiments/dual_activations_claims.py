"""What sections 4.2 and 9 of the thesis say of f and g, each claim with the rule by which it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict

SAME = 1e-10  # two computations in float64, relative to the curve's largest value
CHANCE = (
    0.01  # of taking right means for wrong: the bound on standard errors follows from it and their number
)
LINE = 0.005  # of a curve's largest value: the width of a drawn line, "indistinguishable in plots"
VERY_WELL = 0.05  # of the largest value: "very well approximated"
SLOPE = 1e-8  # of a difference quotient, relative to the largest f
APPROXIMATE = 0.1  # of the largest f or g
TYPICALLY = 0.75  # of the activations
AROUND_1 = 10.0  # a magnitude between 1/10 and 10

NEAR = {"sigmoid": "sigmoid_erf", "tanh": "tanh_erf"}  # equations 64 and 65

Metrics = dict[str, Any]


def _f_relu(c: np.ndarray) -> np.ndarray:
    return c / 2 * (1 - np.arccos(c) / np.pi)


def _g_relu(c: np.ndarray) -> np.ndarray:
    return (np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))) / (2 * np.pi)


def _root(c: np.ndarray, gain: float = 2.0) -> np.ndarray:
    return ((1 + 1 / (2 * gain**2)) ** 2 - c * c) ** -0.5


# equation -> (curve, "f" or "g", the formula as printed); 62 and 63 at a = 1, gain 2, b = 0
PRINTED: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "58": ("relu", "f", _f_relu),
    "59": ("relu", "g", _g_relu),
    "60": ("sin+cos", "f", lambda c: c * np.exp(c - 1)),
    "61": ("sin+cos", "g", lambda c: np.exp(c - 1)),
    "62": ("erf:2", "f", lambda c: 2 / np.pi * c * _root(c)),
    "63": ("erf:2", "g", lambda c: 2 / np.pi * np.arctan(c * _root(c))),
}


def verdicts(metrics: Metrics) -> list[Verdict]:
    return [
        _numerical(metrics),
        _drawn(metrics),
        _equation_50(metrics),
        _closed_forms(metrics),
        _offset_of_f(metrics),
        _offset_of_g(metrics),
        _functions_near(metrics),
        _duals_near(metrics),
        _around_1(metrics),
    ]


def curve(metrics: Metrics, name: str) -> dict[str, Any] | None:
    return next((found for found in metrics["curves"] if found["name"] == name), None)


def largest(found: dict[str, Any], of: str) -> float:
    """The largest |f| or |g| of a curve."""
    return max(map(abs, found["by_integral"][of]))


def apart(found: dict[str, Any], of: str) -> float:
    """Ours from the integral, at most, relative to the largest value."""
    pairs = zip(found[of], found["by_integral"][of], strict=True)
    return max(abs(a - b) for a, b in pairs) / largest(found, of)


def in_errors(row: dict[str, Any]) -> float:
    """How many standard errors ours is from the drawn mean; 0 where a constant was drawn and ours is it to rounding."""
    gap = abs(row["ours"] - row["mean"])
    rounding = SAME * max(1.0, abs(row["ours"]))
    return 0.0 if gap <= rounding else gap / row["error"] if row["error"] else math.inf


def allowed(count: int) -> float:
    """The standard errors that the farthest of ``count`` right means stays within, but for CHANCE."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - CHANCE / (2 * count))


def _numerical(metrics: Metrics) -> Verdict:
    worst = max((apart(found, of), found["name"], of) for found in metrics["curves"] for of in "fg")
    return Verdict(
        "Figures 4, 5: f and g of every activation, and of their scalings, can be computed numerically",
        HOLDS if worst[0] <= SAME else FAILS,
        f"{len(metrics['curves'])} activations at {len(metrics['cosines'])} cosines, ours against a double integral "
        f"in float64: at most {worst[0]:.1e} of the largest value ({worst[2]} of {worst[1]})",
    )


def _drawn(metrics: Metrics) -> Verdict:
    rows = [(in_errors(row), found["name"]) for found in metrics["curves"] for row in found["drawn"]]
    worst, bound = max(rows), allowed(len(rows))
    share = sum(gap <= 1 for gap, _ in rows) / len(rows)
    return Verdict(
        "Figures 4, 5: f and g are the expectations (51), as drawn pairs give them (ours)",
        HOLDS if worst[0] <= bound else FAILS,
        f"{len(rows)} means of {metrics['draws']:,} pairs: at most {worst[0]:.2f} standard errors apart ({worst[1]}; "
        f"right values stay within {bound:.2f} in 99 of 100 runs), {100 * share:.0f} % within one",
    )


def _equation_50(metrics: Metrics) -> Verdict:
    worst = max((found["slope_apart"] / largest(found, "f"), found["name"]) for found in metrics["curves"])
    return Verdict(
        "(50, 55): f(c) = c g'(c), where g' belongs to the derivative of the activation",
        HOLDS if worst[0] <= SLOPE else FAILS,
        f"difference quotients of the integral for g, at cosines up to 0.95: at most {worst[0]:.1e} of the largest f "
        f"apart ({worst[1]})",
    )


def _closed_forms(metrics: Metrics) -> Verdict:
    claim = "(58) to (63) cannot be told from their numerical values in plots (62 and 63 without an offset)"
    c = np.array(metrics["cosines"])
    gaps = {
        number: float(np.abs(printed(c) - np.array(found["by_integral"][of])).max()) / largest(found, of)
        for number, (name, of, printed) in PRINTED.items()
        if (found := curve(metrics, name)) is not None
    }
    if len(gaps) < len(PRINTED):
        return Verdict(claim, NOT_TESTABLE, "some of relu, sin+cos and erf:2 were not computed in this run")
    said = ", ".join(f"{number} {gap:.0e}" for number, gap in gaps.items())
    return Verdict(
        claim, HOLDS if max(gaps.values()) <= LINE else FAILS, f"of the largest value, at most: {said}"
    )


def _offset_of_f(metrics: Metrics) -> Verdict:
    rows = metrics["equation_62"]
    said = [
        f"a = {row['scale']:g}, gain = {row['gain']:g}, b = {row['offset']:g}, c = {row['cosine']:g}: printed "
        f"{row['printed']:.4f}, integral {row['by_integral']:.4f}, ours {row['ours']:.4f}"
        for row in rows
    ]
    return Verdict(
        "(62): f of a·erf(gain·x) + b has the term b²",
        _printed_holds(rows),
        "; ".join(said) + "; an offset has no derivative",
    )


def _offset_of_g(metrics: Metrics) -> Verdict:
    rows = metrics["equation_57"]
    said = [
        f"{row['scale']:g}·{row['name']} + {row['offset']:g} (mean {row['mean']:+.3f}), c = {row['cosine']:g}: printed "
        f"{row['printed']:.4f}, integral {row['by_integral']:.4f}, ours {row['ours']:.4f}"
        for row in rows
    ]
    return Verdict(
        "(57): an offset b adds b² + 2b·√g(0)",
        _printed_holds(rows),
        "; ".join(said)
        + "; the term is 2b times the mean of the activation, and √g(0) is that mean without its sign",
    )


def _printed_holds(rows: list[dict[str, Any]]) -> str:
    return HOLDS if all(abs(row["printed"] - row["by_integral"]) <= SAME for row in rows) else FAILS


def near_pairs(metrics: Metrics) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(sigmoid, its stand-in) and (tanh, its stand-in), those that were computed."""
    pairs = [(curve(metrics, one), curve(metrics, other)) for one, other in NEAR.items()]
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def _functions_near(metrics: Metrics) -> Verdict:
    claim = "(64, 65): sigmoid and tanh are very well approximated by erf"
    pairs = near_pairs(metrics)
    if len(pairs) < len(NEAR):
        return Verdict(claim, NOT_TESTABLE, "not all of the four were computed in this run")
    said = [f"{one['name']} {one['function_apart']:.4f}" for one, _ in pairs]  # both grow up to 1
    holds = all(one["function_apart"] <= VERY_WELL for one, _ in pairs)
    return Verdict(
        claim,
        HOLDS if holds else FAILS,
        f"on the line at most: {', '.join(said)} (very well: within {VERY_WELL:g} of the largest value, 1)",
    )


def _duals_near(metrics: Metrics) -> Verdict:
    claim = "So the closed forms of erf are approximate ones for f and g of sigmoid and tanh (Section 9.2)"
    pairs = near_pairs(metrics)
    if len(pairs) < len(NEAR):
        return Verdict(claim, NOT_TESTABLE, "not all of the four were computed in this run")
    gaps = {
        f"{of} of {one['name']}": dual_gap(one, other, of) / largest(one, of)
        for one, other in pairs
        for of in "gf"
    }
    said = ", ".join(f"{name} {100 * gap:.2f} %" for name, gap in gaps.items())
    return Verdict(
        claim,
        HOLDS if max(gaps.values()) <= APPROXIMATE else FAILS,
        f"of the largest value, at most: {said} (approximate: within {100 * APPROXIMATE:g} %)",
    )


def dual_gap(one: dict[str, Any], other: dict[str, Any], of: str) -> float:
    """The largest distance of two curves' f or g."""
    return max(abs(a - b) for a, b in zip(one[of], other[of], strict=True))


def _around_1(metrics: Metrics) -> Verdict:
    sizes = {found["name"]: largest(found, "g") for found in metrics["curves"]}
    low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    around = sum(1 / AROUND_1 <= size <= AROUND_1 for size in sizes.values())
    return Verdict(
        "g typically has magnitude around 1, so that the output at initialisation is not negligible (Section 4.2.2)",
        HOLDS if around >= TYPICALLY * len(sizes) else FAILS,
        f"largest values from {sizes[low]:.3f} ({low}) to {sizes[high]:.3f} ({high}), {around} of {len(sizes)} within "
        f"a factor of {AROUND_1:g} of 1 (typically: three quarters)",
    )
