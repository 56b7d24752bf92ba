"""What the paper says of random kernels and of its inputs, taken apart: each with the rule by which it is judged."""

from __future__ import annotations

import math
from typing import Any

from zbkernels.experiments.exchangeability.random_layers import DENSITIES, NORMAL
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

AS_NORMAL = (
    1.5  # times the normal layers' deviation, up to which another density's is no more than that of drawing
)
FALLING = -0.2  # exponent of the size, from which on a deviation counts as going to 0; the theory has -1/2
HEAVY = 5.0  # times the normal layers' deviation, above which a layer has another kernel
ROUNDING = 1e-9  # radians, relative lengths and sums; all is computed in float64
OFF = 0.01  # of the normalised kernel, which is in [0, 1], above which inputs move it, if it is 3 standard errors

Metrics = dict[str, Any]


def verdicts(metrics: Metrics) -> list[Verdict]:
    return [
        _densities(metrics, named=True),
        _densities(metrics, named=False),
        _falls(metrics),
        _no_third_moment(metrics),
        _no_variance(metrics),
        _angle(metrics, "printed, non-zero sums"),
        _angle(metrics, "printed, zero sums"),
        _sums(metrics),
        _mended(metrics),
        _some_p(metrics),
        _hypothesis3(metrics, "images", "Hypothesis 3 is easily satisfied: by images as they are"),
        _hypothesis3(
            metrics, "x, zero sums", "Hypothesis 3 holds of the inputs that the lettered steps make"
        ),
        _hypothesis3(metrics, "x, centred", "Hypothesis 3 holds of images less their mean (ours)"),
        _moved(
            metrics, "zero sums, mended", "Proposition 6 before training, at Procedure 1's inputs of sum 0"
        ),
        _moved(metrics, "zero sums, centred", "The same at inputs less their mean (ours)"),
        _moved(metrics, "non-zero sums", "The same at inputs without the lettered steps"),
    ]


def exponent(layer: dict[str, Any]) -> float:
    """The power of the size that fits the deviations of all seeds best, by least squares of the logarithms."""
    points = [(math.log(row["size"]), math.log(rms)) for row in layer["sizes"] for rms in row["rms_by_seed"]]
    a, b = mean([u for u, _ in points]), mean([v for _, v in points])
    return sum((u - a) * (v - b) for u, v in points) / sum((u - a) ** 2 for u, _ in points)


def at_shown(layer: dict[str, Any]) -> dict[str, Any]:
    """The row of the size whose curves are drawn: Figure 2's 1,000, where it is among the sizes."""
    return next(row for row in layer["sizes"] if row["size"] == layer["shown"])


def slope(found: list[dict[str, Any]], kind: str) -> float:
    """The power of m with which the median of m^(1/4) max|x_i|/|x| goes, over the resolutions of a data set."""
    points = [(math.log(row["coordinates"]), math.log(row[kind]["median"])) for row in found]
    a, b = mean([u for u, _ in points]), mean([v for _, v in points])
    return sum((u - a) * (v - b) for u, v in points) / sum((u - a) ** 2 for u, _ in points)


def _layers(metrics: Metrics, **wanted: bool) -> list[dict[str, Any]]:
    return [
        layer
        for layer in metrics["layers"]
        if all(getattr(DENSITIES[layer["density"]], key) is value for key, value in wanted.items())
    ]


def _normal(metrics: Metrics) -> float | None:
    """The deviation of normal layers at the size that is drawn; None where they were not asked for."""
    return next((at_shown(x)["rms"] for x in metrics["layers"] if x["density"] == NORMAL), None)


def _named(layer: dict[str, Any]) -> str:
    return DENSITIES[layer["density"]].title


def _without(claim: str) -> Verdict:
    return Verdict(
        claim, NOT_TESTABLE, "these densities, or the normal one to compare with, were not asked for"
    )


def _densities(metrics: Metrics, *, named: bool) -> Verdict:
    what = "the densities that the text names" if named else "β = 0.5, 1, 4, 8 (ours)"
    claim = f"Figure 2: a layer's normalised kernel is the arc-cosine kernel, for {what}"
    layers, normal = _layers(metrics, named=named, third_moment=True), _normal(metrics)
    if not layers or normal is None:
        return _without(claim)
    ratios = [at_shown(layer)["rms"] / normal for layer in layers]
    said = ", ".join(
        f"{_named(x)} {at_shown(x)['rms']:.4f} (mean over seeds at most {at_shown(x)['mean_off']:.4f} off)"
        for x in layers
    )
    return Verdict(
        claim,
        HOLDS if max(ratios) <= AS_NORMAL else FAILS,
        f"root mean square deviation, {layers[0]['shown']:,} inputs and units: {said}",
    )


def _falls(metrics: Metrics) -> Verdict:
    claim = "The deviation goes to 0 as inputs and units grow"
    layers = _layers(metrics, third_moment=True)
    if not layers:
        return _without(claim)
    powers = [exponent(layer) for layer in layers]
    said = ", ".join(f"{_named(x)} {e:.2f}" for x, e in zip(layers, powers, strict=True))
    return Verdict(claim, HOLDS if max(powers) <= FALLING else FAILS, f"exponent of the size: {said}")


def _no_third_moment(metrics: Metrics) -> Verdict:
    claim = "Where the third absolute moment is infinite but the variance is not, it goes to 0 too (ours)"
    layers = _layers(metrics, third_moment=False, variance=True)
    if not layers:
        return _without(claim)
    powers = [exponent(layer) for layer in layers]
    said = "; ".join(_sizes(layer) for layer in layers)
    return Verdict(claim, HOLDS if max(powers) <= FALLING else FAILS, said)


def _no_variance(metrics: Metrics) -> Verdict:
    claim = "Where the variance is infinite, the kernel is another one, whatever the size (ours)"
    layers, normal = _layers(metrics, third_moment=False, variance=False), _normal(metrics)
    if not layers or normal is None:
        return _without(claim)
    other = all(at_shown(x)["rms"] > HEAVY * normal and exponent(x) > FALLING for x in layers)
    return Verdict(claim, HOLDS if other else FAILS, "; ".join(_sizes(layer) for layer in layers))


def _sizes(layer: dict[str, Any]) -> str:
    rows = layer["sizes"]
    return (
        f"{_named(layer)}: {rows[0]['rms']:.3f} at {rows[0]['size']:,}, {rows[-1]['rms']:.3f} at "
        f"{rows[-1]['size']:,} (exponent {exponent(layer):.2f})"
    )


def _procedure(metrics: Metrics, name: str) -> list[dict[str, float]]:
    return next(x["at"] for x in metrics["procedures"] if x["procedure"] == name)


def _angle(metrics: Metrics, name: str) -> Verdict:
    rows = _procedure(metrics, name)
    off = max(row["off"] for row in rows)
    row = next((row for row in rows if row["angle"] == 0.3), rows[0])
    said = f"θ = {row['angle']:g} becomes {row['mean']:.3f} ({row['least']:.3f} to {row['most']:.3f})"
    if off > ROUNDING:
        formula = max(row["off_formula"] for row in rows)
        said += (
            f", and y is {row['length']:.2f} times as long as x; over all angles up to {off:.2f} off. What "
            f"atan2(sin θ ‖p‖, cos θ ‖x‖) says is met to {formula:.0e}"
        )
    else:
        said += f"; over all angles at most {off:.0e} off"
    return Verdict(
        f"Procedure 1: the desired angle is obtained ({name})", HOLDS if off <= ROUNDING else FAILS, said
    )


def _sums(metrics: Metrics) -> Verdict:
    most = {
        name: max(row["sum"] for row in _procedure(metrics, name))
        for name in ("printed, zero sums", "mended, zero sums", "centred")
    }
    said = ", ".join(f"{name} {value:.0e}" for name, value in most.items())
    return Verdict(
        "The lettered steps make the coordinates of x and y sum to 0",
        HOLDS if max(most.values()) <= ROUNDING else FAILS,
        f"largest sum over the length: {said}",
    )


def _mended(metrics: Metrics) -> Verdict:
    rows = [r for name in ("mended, zero sums", "centred") for r in _procedure(metrics, name)]
    worst = {key: max(row[key] for row in rows) for key in ("off", "length_off", "sum")}
    return Verdict(
        "p made as long as x after the lettered steps: angle, length and sum are right (ours)",
        HOLDS if max(worst.values()) <= ROUNDING else FAILS,
        f"{metrics['turned']:,} images, at most: angle {worst['off']:.0e} off, length {worst['length_off']:.0e}, "
        f"sum {worst['sum']:.0e}",
    )


def _some_p(metrics: Metrics) -> Verdict:
    said, without = [], 0
    for each in metrics["sets"]:
        zeros = each["zeros"]
        without += zeros["without"]
        said.append(
            f"{each['title']}: {zeros['without']:,} of {zeros['images']:,} images without a coordinate of 0, "
            f"{zeros['few']:,} with fewer than √m"
        )
    if metrics["absent"]:
        said.append(f"not there: {', '.join(metrics['absent'])}")
    return Verdict(
        "Every x has a p (step 2 fills p where x is 0)", FAILS if without else HOLDS, "; ".join(said)
    )


def _hypothesis3(metrics: Metrics, kind: str, claim: str) -> Verdict:
    said, slopes = [], []
    for each in metrics["sets"]:
        rows = each["hypothesis3"]
        slopes.append(slope(rows, kind))
        said.append(
            f"{each['title']} {rows[0][kind]['median']:.2f} at m = {rows[0]['coordinates']:,}, "
            f"{rows[-1][kind]['median']:.2f} at {rows[-1]['coordinates']:,} (exponent {slopes[-1]:.2f})"
        )
    return Verdict(
        claim,
        HOLDS if max(slopes) < 0 else FAILS,
        f"median of m^(1/4) ‖x‖_∞/‖x‖ over resolutions: {'; '.join(said)}",
    )


def _moved(metrics: Metrics, inputs: str, claim: str) -> Verdict:
    said, moved = [], False
    for layer in _layers(metrics, third_moment=True):
        row = next(row for row in layer["inputs"] if row["inputs"] == inputs)
        error = row["error_there"]
        moved |= row["largest_off"] > OFF and (error is None or row["largest_off"] > 3 * error)
        said.append(
            f"{_named(layer)} {row['largest_off']:.3f}" + ("" if error is None else f" ± {error:.3f}")
        )
    if not said:
        return _without(claim)
    return Verdict(
        claim,
        FAILS if moved else HOLDS,
        f"largest deviation of the mean normalised kernel from the arc-cosine kernel: {', '.join(said)}",
    )
