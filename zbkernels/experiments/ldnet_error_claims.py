"""What the thesis says of Figures 1, 2 and 3, each claim with the rule by which it is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

NORMAL, LINEARIZED, DOWNSCALED = "normal", "linearized", "downscaled"
IN_PIXELS = "downscaled, in pixels"  # DOWNSCALED once more, without the change of basis: for its rounding
NAMES = {"erf:2": "erf(2x)", "relu": "ReLU"}
STEPS = 10_000  # of the thesis
GENERALLY = 0.9  # of the networks
SAME = 1e-3  # relative, of errors that are the same but for rounding
NEAR = 0.15  # relative, of errors that a figure cannot tell apart
CLEAR = 2.0  # times as large

Errors = dict[tuple[int, float], dict[int, float]]  # (width, scale) -> seed -> error

_NEARER = "Linearised difference networks are generally nearer to the IEIN limit than plain ones"
_SCALE = "The linearised network does not depend on the scale of the targets, but for rounding"
_LOW = "At low target scales the initial output makes the plain network's error, which does not depend on the scale"
_ONE = "Even at scale 1 the initial output causes the bulk of the plain network's error"
_HIGH = "At large target scales non-linearity causes most of the plain network's error"
_LESS = "ReLU suffers less from non-linearity than erf(2x)"
_BOUNDED = "Plain erf networks never put out more than O(√m), and so cannot fit large targets"
_CORNER = "Downscaled targets: rounding spoils large networks at low target scales (Figure 3)"
_OTHERWISE = (
    "Otherwise, downscaled targets come very close to the linearised network of equation 44 (Figure 3)"
)
_ENOUGH = "10,000 steps of 0.01 are enough for convergence (Section 8)"
_WIDTH = "The linearised network's error falls as 1/√m (ours)"


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim."""
    found = [_nearer(metrics, activation, number) for activation, number in (("erf:2", 1), ("relu", 2))]
    found += [
        _scale(metrics),
        _low(metrics),
        _one(metrics),
        _high(metrics),
        _less(metrics),
        _bounded(metrics),
        _corner(metrics),
        _otherwise(metrics),
        _enough(metrics),
        _falls(metrics),
    ]
    return found


def of(metrics: dict[str, Any], activation: str | None, kind: str) -> list[dict[str, Any]]:
    """The units of a kind, and of an activation where one is named."""
    return [u for u in metrics["units"] if u["kind"] == kind and activation in (None, u["activation"])]


def errors(metrics: dict[str, Any], activation: str, kind: str, key: str = "error") -> Errors:
    """(width, scale) -> seed -> the error; without those that ran away."""
    found: Errors = {}
    for unit in of(metrics, activation, kind):
        for scale, value in zip(unit["scales"], unit[key], strict=True):
            if value is not None:
                found.setdefault((unit["width"], scale), {})[unit["seed"]] = value
    return found


def average(by_seed: dict[int, float]) -> float:
    return mean(list(by_seed.values()))


def _same_seeds(ours: dict[int, float], reference: dict[int, float]) -> float:
    """The mean of ``reference`` over the seeds that ``ours`` has: the same initial weights."""
    return average({seed: reference[seed] for seed in ours})


def _both(key: tuple[int, float], ours: Errors, reference: Errors) -> bool:
    """Whether there are networks of ours, and the reference of each."""
    return key in ours and ours[key].keys() <= reference.get(key, {}).keys()


def _missing(claim: str) -> Verdict:
    return Verdict(claim, NOT_TESTABLE, "networks that it speaks of were not trained in this run")


def _scales(metrics: dict[str, Any]) -> tuple[float, float]:
    return min(metrics["scales"]), max(metrics["scales"])


def _power(scale: float) -> str:
    return f"1e{round(math.log10(scale))}" if scale != 1 else "1"


def _pairs(metrics: dict[str, Any], activation: str, other: str) -> Iterator[tuple[int, float, float, float]]:
    """(width, scale, error of ``other``, error of the linearised network) of the same initial weights."""
    linear = errors(metrics, activation, LINEARIZED)
    for (width, scale), by_seed in errors(metrics, activation, other).items():
        for seed, value in by_seed.items():
            if seed in linear.get((width, scale), {}):
                yield width, scale, value, linear[width, scale][seed]


def _nearer(metrics: dict[str, Any], activation: str, number: int) -> Verdict:
    claim = f"{_NEARER} (Figure {number}, {NAMES[activation]})"
    pairs = list(_pairs(metrics, activation, NORMAL))
    if not pairs:
        return _missing(claim)
    nearer = [pair for pair in pairs if pair[3] < pair[2]]
    worst = min(pairs, key=lambda pair: pair[2] / pair[3])
    return Verdict(
        claim,
        HOLDS if len(nearer) >= GENERALLY * len(pairs) else FAILS,
        f"nearer in {len(nearer)} of {len(pairs)} networks; the plain one's error is at least "
        f"{worst[2] / worst[3]:.2f} times the linearised one's (width {worst[0]:,}, scale {_power(worst[1])})",
    )


def _scale(metrics: dict[str, Any]) -> Verdict:
    units = of(metrics, None, LINEARIZED)
    if not units:
        return _missing(_SCALE)
    apart = max(
        abs(value - unit["error"][0]) / unit["error"][0]
        if value is not None and unit["error"][0]
        else math.inf
        for unit in units
        for value in unit["stepped"]
    )
    return Verdict(
        _SCALE,
        HOLDS if apart <= SAME else FAILS,
        f"trained step by step in float32, on its parameters' coordinates along the features, its error at any of the "
        f"{len(metrics['scales'])} scales is within {apart:.1e} (relative) of the closed form's"
        if apart < math.inf
        else "trained step by step in float32, some run away",
    )


def _low(metrics: dict[str, Any]) -> Verdict:
    units = of(metrics, None, NORMAL)
    low = [scale for scale in metrics["scales"] if scale < 1]
    shares, drifts = [], []
    for unit in units:
        at = [i for i, scale in enumerate(unit["scales"]) if scale in low and unit["error"][i] is not None]
        shares += [unit["initial"][i] / unit["error"][i] for i in at if unit["scales"][i] == low[0]]
    for activation in NAMES:
        found = errors(metrics, activation, NORMAL)
        for width in metrics["trained"]:
            sizes = [average(found[width, scale]) * scale for scale in low if (width, scale) in found]
            if len(sizes) > 1:
                drifts.append(max(sizes) / min(sizes) - 1)
    if not shares or not drifts:
        return _missing(_LOW)
    good = max(drifts) <= 0.1 and min(shares) >= 0.5 and max(shares) <= 2
    return Verdict(
        _LOW,
        HOLDS if good else FAILS,
        f"at scales below 1 error times scale changes by at most {100 * max(drifts):.1f} %; at {_power(low[0])} what "
        f"equation 16 says the initial output leaves is {min(shares):.2f} to {max(shares):.2f} times the error",
    )


def _one(metrics: dict[str, Any]) -> Verdict:
    shares: dict[str, list[float]] = {}
    for unit in of(metrics, None, NORMAL):
        for scale, error, initial in zip(unit["scales"], unit["error"], unit["initial"], strict=True):
            if scale == 1 and error:
                shares.setdefault(unit["activation"], []).append(initial**2 / error**2)
    if not shares:
        return _missing(_ONE)
    said = "; ".join(
        f"{NAMES[activation]} {mean(found):.2f} (from {min(found):.2f} to {max(found):.2f})"
        for activation, found in shares.items()
    )
    return Verdict(
        _ONE,
        HOLDS if all(mean(found) >= 0.5 for found in shares.values()) else FAILS,
        f"square of the initial output's part over that of the error: {said}; the two are not orthogonal, so that "
        "shares above 1 occur",
    )


def _high(metrics: dict[str, Any]) -> Verdict:
    top = _scales(metrics)[1]
    shares: dict[str, list[float]] = {}
    for activation in NAMES:
        for _, scale, plain, linear in _pairs(metrics, activation, NORMAL):
            if scale == top:
                shares.setdefault(activation, []).append(1 - linear**2 / plain**2)
    if not shares:
        return _missing(_HIGH)
    initial = max(
        u["initial"][u["scales"].index(top)] for u in of(metrics, None, NORMAL) if top in u["scales"]
    )
    said = ", ".join(
        f"{NAMES[activation]} {min(found):.2f} to {max(found):.2f}" for activation, found in shares.items()
    )
    return Verdict(
        _HIGH,
        HOLDS if all(min(found) >= 0.5 for found in shares.values()) else FAILS,
        f"at scale {_power(top)} the square of the error that the linearised network has not, over the whole: {said}; "
        f"the initial output's part is at most {initial:.1e}",
    )


def _less(metrics: dict[str, Any]) -> Verdict:
    high = [scale for scale in metrics["scales"] if scale > 1]
    both = [errors(metrics, activation, NORMAL) for activation in ("relu", "erf:2")]
    cells = [
        (width, scale, *(average(found[width, scale]) for found in both))
        for width in metrics["trained"]
        for scale in high
        if all((width, scale) in found for found in both)
    ]
    if not cells:
        return _missing(_LESS)
    less = [cell for cell in cells if cell[2] < cell[3]]
    width, scale, relu, erf = max(cells, key=lambda cell: cell[2] / cell[3])
    return Verdict(
        _LESS,
        HOLDS if len(less) == len(cells) else FAILS,
        f"smaller error in {len(less)} of {len(cells)} pairs of width and scale above 1; nearest at width {width:,}, "
        f"scale {_power(scale)}: {relu:.3f} against {erf:.3f}",
    )


def _bounded(metrics: dict[str, Any]) -> Verdict:
    units, top = of(metrics, "erf:2", NORMAL), _scales(metrics)[1]
    if not units:
        return _missing(_BOUNDED)
    largest = max(unit["largest"] / unit["width"] ** 0.5 for unit in units)
    fits = [
        (unit["width"], fit)
        for unit in units
        for scale, fit in zip(unit["scales"], unit["fit"], strict=True)
        if scale == top and fit is not None
    ]
    unfit = [fit for width, fit in fits if width**0.5 < top]
    if not unfit:
        return _missing(_BOUNDED)
    return Verdict(
        _BOUNDED,
        HOLDS if largest <= 1 + 1e-5 and all(fit > 0.05 for fit in unfit) else FAILS,
        f"largest output {largest:.4f} √m; of targets of {_power(top)} training leaves {min(unfit):.3f} to "
        f"{max(unfit):.3f} (relative)",
    )


def _corner(metrics: dict[str, Any]) -> Verdict:
    down, linear = errors(metrics, "relu", DOWNSCALED), errors(metrics, "relu", LINEARIZED)
    low = _scales(metrics)[0]
    at = [width for width in metrics["trained"] if _both((width, low), down, linear)]
    if not at:
        return _missing(_CORNER)
    ratios = {
        width: average(down[width, low]) / _same_seeds(down[width, low], linear[width, low]) for width in at
    }
    exact = errors(metrics, "relu", DOWNSCALED, "exact")
    said = ", ".join(
        f"{width:,}: {average(down[width, low]):.2f} ({ratios[width]:.0f} times)" for width in at
    )
    pixels = errors(metrics, "relu", IN_PIXELS)
    more = "".join(
        f"; width {width:,} trained in pixels {average(found):.2f}"
        for (width, scale), found in pixels.items()
        if scale == low
    )
    return Verdict(
        _CORNER,
        HOLDS if ratios[max(at)] >= CLEAR else FAILS,
        f"error at scale {_power(low)} by width, and against the linearised network's: {said}{more}. At the "
        f"largest, evaluating the same weights in float64 leaves {average(exact[max(at), low]):.2f}",
    )


def _otherwise(metrics: dict[str, Any]) -> Verdict:
    down, linear = errors(metrics, "relu", DOWNSCALED), errors(metrics, "relu", LINEARIZED)
    apart = errors(metrics, "relu", DOWNSCALED, "apart")
    cells = [
        (abs(average(found) / _same_seeds(found, linear[key]) - 1), *key)
        for key, found in down.items()
        if key[1] >= 1 and _both(key, down, linear)
    ]
    if not cells:
        return _missing(_OTHERWISE)
    worst, width, scale = max(cells)
    per_scale = ", ".join(
        f"{_power(scale)}: {max(average(found) for key, found in apart.items() if key[1] == scale):.3f}"
        for scale in metrics["scales"]
        if any(key[1] == scale for key in apart)
    )
    return Verdict(
        _OTHERWISE,
        HOLDS if worst <= NEAR else FAILS,
        f"at scales from 1 on the error is within {100 * worst:.0f} % of the linearised network's (width {width:,}, "
        f"scale {_power(scale)}; counts as close within {100 * NEAR:.0f} %). Farthest from its predictions, relative "
        f"to the targets, by scale: {per_scale}",
    )


def _enough(metrics: dict[str, Any]) -> Verdict:
    if metrics["steps"] != STEPS:
        return Verdict(_ENOUGH, NOT_TESTABLE, f"this run makes {metrics['steps']:,} steps")
    parts, good = [], True
    for activation, limit in metrics["infinite"].items():
        linear = errors(metrics, activation, LINEARIZED)
        least = min((average(found), key) for key, found in linear.items()) if linear else None
        if least is None:
            return _missing(_ENOUGH)
        good = good and limit["unfinished"] <= least[0] / CLEAR
        parts.append(
            f"{NAMES[activation]}: after them the infinite network itself is still {limit['unfinished']:.1e} from "
            f"where it ends; the smallest error in the figure is {least[0]:.4f} (width {least[1][0]:,})"
        )
    return Verdict(_ENOUGH, HOLDS if good else FAILS, "; ".join(parts))


def _falls(metrics: dict[str, Any]) -> Verdict:
    slopes = {}
    for activation in metrics["infinite"]:
        linear = errors(metrics, activation, LINEARIZED)
        scale = metrics["scales"][0]
        points = [
            (math.log(width), math.log(average(linear[width, scale])))
            for width in metrics["widths"]
            if (width, scale) in linear
        ]
        if len(points) < 2:
            return _missing(_WIDTH)
        x, y = mean([p[0] for p in points]), mean([p[1] for p in points])
        slopes[activation] = sum((p[0] - x) * (p[1] - y) for p in points) / sum(
            (p[0] - x) ** 2 for p in points
        )
    said = ", ".join(f"{NAMES[activation]} {slope:.2f}" for activation, slope in slopes.items())
    return Verdict(
        _WIDTH,
        HOLDS if all(abs(slope + 0.5) <= 0.1 for slope in slopes.values()) else FAILS,
        f"exponent of m over widths {metrics['widths'][0]:,} to {metrics['widths'][-1]:,}: {said} (counts within "
        "0.1 of -0.5); what training has not finished is a floor that no width removes",
    )
