"""What is said of the dynamics, taken apart: each statement with the rule by which it is judged."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

EXACT = 1e-9  # relative: two solutions of one equation by one solver, at a relative tolerance of 1e-10 a step
SOLVED = (
    1e-6  # relative: solutions by two solvers, or by one and in closed form; errors add up over the steps
)
ROUNDING = 1e-11  # relative: thousands of steps of float64
VISIBLE = 1e-3  # of the final output: an even part that counts as being there
NEAR = 0.05  # of the final output: how near to the linear network counts as "approximately"
ORDER = 0.1  # how far an exponent may be from the one that is expected
FLOOR = 0.05  # relative: how well the floor is told beforehand

Metrics = dict[str, Any]
Row = dict[str, Any]


def verdicts(metrics: Metrics) -> list[Verdict]:
    return [
        _flow(metrics),
        _descent(metrics),
        _symmetry(metrics),
        _logistic(metrics),
        _reduced(metrics),
        _unbalanced(metrics),
        _decoupled(metrics),
        _fades(metrics),
        _small_balanced(metrics),
        _small_as_drawn(metrics),
        _floor(metrics),
        _width(metrics),
        _on_points(metrics),
        _first_order(metrics),
    ]


def exponent(points: list[tuple[float, float]]) -> float:
    """The power of the first that fits the second best, by least squares of the logarithms."""
    x, y = ([math.log(point[k]) for point in points] for k in (0, 1))
    a, b = mean(x), mean(y)
    return sum((u - a) * (v - b) for u, v in zip(x, y, strict=True)) / sum((u - a) ** 2 for u in x)


def average(rows: list[Row], key: str, by: str, **fixed: Any) -> list[tuple[float, float]]:
    """(value of ``by``, mean of ``key``) over the rows with the fixed values, by rising ``by``."""
    chosen = [row for row in rows if all(row[name] == value for name, value in fixed.items())]
    values = sorted({row[by] for row in chosen})
    return [(value, mean([row[key] for row in chosen if row[by] == value])) for value in values]


def _missing(claim: str) -> Verdict:
    return Verdict(claim, NOT_TESTABLE, "this part was not run")


def _rank_one(metrics: Metrics) -> list[Row]:
    return [{**row, "name": setting["name"]} for setting in metrics["rank_one"] for row in setting["rows"]]


def _flow(metrics: Metrics) -> Verdict:
    claim = (
        "Theorem 7: from W1 = W2ᵀ rᵀ, with parts of W2 of equal norm, gradient flow on symmetric data and an odd "
        "target is that of the linear network V = √c W, its time c times as fast"
    )
    if metrics["rank_one"] is None:
        return _missing(claim)
    rows = _rank_one(metrics)
    weights, loss = (max(row[key] for row in rows) for key in ("weights", "loss"))
    return Verdict(
        claim,
        HOLDS if max(weights, loss) <= EXACT else FAILS,
        f"{len(rows)} runs, slopes 0 to 1, {len(metrics['rank_one'])} settings: at most over time, weights apart by "
        f"{weights:.1e} of their norm, losses by {loss:.1e}; even part at most {max(row['even'] for row in rows):.1e}",
    )


def _descent(metrics: Metrics) -> Verdict:
    claim = "Step by step, too: gradient descent with step h is the linear network's with step c h (ours)"
    if metrics["rank_one"] is None:
        return _missing(claim)
    most = max(row["descent"] for row in _rank_one(metrics))
    return Verdict(
        claim, HOLDS if most <= ROUNDING else FAILS, f"weights apart by at most {most:.1e} of their norm"
    )


def _symmetry(metrics: Metrics) -> Verdict:
    claim = "This takes the symmetry p(x) = p(-x): on points without their negatives it is lost (ours)"
    if metrics["one_sided"] is None:
        return _missing(claim)
    by_slope = average(metrics["one_sided"], "weights", "alpha")
    broken = [far for slope, far in by_slope if slope < 1]
    return Verdict(
        claim,
        HOLDS if min(broken) > NEAR else FAILS,
        "weights apart, of their norm, at most over time, mean of the seeds: "
        + ", ".join(f"slope {slope:g} {far:.2g}" for slope, far in by_slope),
    )


def _logistic(metrics: Metrics) -> Verdict:
    claim = (
        "Whitened inputs, r along the target: a = ‖V2‖² obeys a' = 2c a (size - a), a logistic, and r stays: an "
        "analytical time course outside the lazy regime"
    )
    if metrics["rank_one"] is None:
        return _missing(claim)
    rows = [row for row in _rank_one(metrics) if row["name"] == "whitened"]
    weights, loss = (max(row[key] for row in rows) for key in ("reduced_weights", "reduced_loss"))
    return Verdict(
        claim,
        HOLDS if max(weights, loss) <= SOLVED else FAILS,
        f"all weights, from a = {metrics['start']:g} of its end, within {weights:.1e} of the formula, losses within "
        f"{loss:.1e}",
    )


def _reduced(metrics: Metrics) -> Verdict:
    claim = "Any r and covariance: a' = 2c (g·r) a, r' = c (g - (g·r) r), g = E[y x] - a E[x xᵀ] r"
    if metrics["rank_one"] is None:
        return _missing(claim)
    rows = [row for row in _rank_one(metrics) if row["name"] != "whitened"]
    weights, loss = (max(row[key] for row in rows) for key in ("reduced_weights", "reduced_loss"))
    return Verdict(
        claim,
        HOLDS if max(weights, loss) <= SOLVED else FAILS,
        f"‖r‖ of 1/2, 1 and 2 at the start: all weights within {weights:.1e} of these equations, losses {loss:.1e}",
    )


def _unbalanced(metrics: Metrics) -> Verdict:
    claim = "With parts of W2 of unequal norm an even part in abs(r·x) appears: s (‖W2+‖² - ‖W2-‖²) abs(r·x)"
    if metrics["unbalanced"] is None:
        return _missing(claim)
    rows = [row for row in metrics["unbalanced"]["rows"] if row["alpha"] < 1 and row["share"] != 0.5]
    least, off = min(row["even"] for row in rows), max(row["even_from_said"] for row in rows)
    largest = average(rows, "even", "share", alpha=0.0)
    return Verdict(
        claim,
        HOLDS if least > VISIBLE and off <= SOLVED else FAILS,
        "slope 0, at most over time, of the final output: "
        + ", ".join(f"share {share:g} of the positive part {even:.3f}" for share, even in largest)
        + f"; it is this multiple of abs(r·x) to {off:.1e}, with norms from two equations",
    )


def _decoupled(metrics: Metrics) -> Verdict:
    claim = "With ReLU the two parts do not see each other: a logistic each, of half the size (ours)"
    if metrics["unbalanced"] is None:
        return _missing(claim)
    rows = [row for row in metrics["unbalanced"]["rows"] if row["decoupled"] is not None]
    parts, formula = (max(row[key] for row in rows) for key in ("parts", "decoupled"))
    return Verdict(
        claim,
        HOLDS if max(parts, formula) <= SOLVED else FAILS,
        f"norms of the trained weights within {parts:.1e} of the two equations, these within {formula:.1e} of the "
        "logistics",
    )


def _fades(metrics: Metrics) -> Verdict:
    claim = "Where both parts are there the even part fades again, the slower the larger the slope (ours)"
    if metrics["unbalanced"] is None:
        return _missing(claim)
    rows = [row for row in metrics["unbalanced"]["rows"] if row["alpha"] < 1 and 0.5 < row["share"] < 1]
    left = average([{**row, "left": row["even_end"] / row["even"]} for row in rows], "left", "alpha")
    rising = all(one[1] < other[1] for one, other in pairwise(left))
    return Verdict(
        claim,
        HOLDS if rising and left[-1][1] < 1 else FAILS,
        "left at the end, of the largest: "
        + ", ".join(f"slope {slope:g} {share:.1e}" for slope, share in left),
    )


def _small_balanced(metrics: Metrics) -> Verdict:
    claim = (
        "Small random starts come close to the linear network, the closer the smaller: where the growing parts are "
        "balanced, in proportion to the scale"
    )
    if metrics["scales"] is None:
        return _missing(claim)
    said, powers, last = [], [], []
    for alpha in _slopes(metrics):
        line = average(metrics["scales"], "outputs", "scale", start="balanced", alpha=alpha)
        powers.append(exponent([point for point in line if point[0] <= 0.03] or line))
        last.append(line[0][1])
        said.append(f"slope {alpha:g} {_line(line)} (exponent {powers[-1]:.2f})")
    return Verdict(
        claim,
        HOLDS if max(last) <= NEAR and all(abs(power - 1) <= ORDER for power in powers) else FAILS,
        f"outputs apart, of the final output, at most over time, by scale: {'; '.join(said)}",
    )


def _small_as_drawn(metrics: Metrics) -> Verdict:
    claim = "The same of weights as they are drawn, at one width: the distance goes to 0 with the scale"
    if metrics["scales"] is None:
        return _missing(claim)
    said, ratios = [], []
    for alpha in _slopes(metrics):
        line = average(metrics["scales"], "outputs", "scale", start="as drawn", alpha=alpha)
        ratios.append(line[0][1] / line[1][1])
        end = average(metrics["scales"], "outputs_end", "scale", start="as drawn", alpha=alpha)
        said.append(f"slope {alpha:g} {_line(line)} (at the end of training {end[0][1]:.1e})")
    return Verdict(
        claim,
        HOLDS if max(ratios) < 0.5 else FAILS,
        f"width {metrics['plan']['width']}, by scale: {'; '.join(said)}: "
        + (
            "it stops at a floor, which the imbalance of the draw makes"
            if min(ratios) > 0.9
            else "not at a floor at every slope"
        ),
    )


def _floor(metrics: Metrics) -> Verdict:
    claim = "The floor can be told from the draw: from the ratio of the parts that grow, by the two equations (ours)"
    if metrics["scales"] is None:
        return _missing(claim)
    rows = [
        row
        for row in [*metrics["scales"], *metrics["widths"]]
        if row["start"] == "as drawn" and row["scale"] == metrics["plan"]["scales"][-1]
    ]
    off = max(abs(row["outputs"] / row["floor"] - 1) for row in rows)
    return Verdict(
        claim,
        HOLDS if off <= FLOOR else FAILS,
        f"{len(rows)} draws at the smallest scale, distances {min(r['outputs'] for r in rows):.4f} to "
        f"{max(r['outputs'] for r in rows):.4f}: within {100 * off:.2f} % of it",
    )


def _width(metrics: Metrics) -> Verdict:
    claim = "The floor falls as 1/√width, so that wide networks from small weights are close (ours)"
    if metrics["widths"] is None:
        return _missing(claim)
    said, falls = [], []
    for alpha in _slopes(metrics):
        rows = [{**row, "square": row["outputs"] ** 2} for row in metrics["widths"]]
        line = [(width, square**0.5) for width, square in average(rows, "square", "width", alpha=alpha)]
        falls.append(exponent(line))
        said.append(f"slope {alpha:g} {_line(line)} (exponent {falls[-1]:.2f})")
    logs = [math.log(width) for width in metrics["plan"]["widths"]]
    draws = len(metrics["seeds"]) * metrics["plan"]["draws"]
    # three standard errors; a root mean square of n normal numbers has the relative error 1/√(2n)
    loose = 3 / math.sqrt(2 * draws * sum((u - mean(logs)) ** 2 for u in logs))
    verdict = HOLDS if all(abs(power + 0.5) <= loose for power in falls) else FAILS
    return Verdict(
        claim,
        verdict if loose < 0.5 else NOT_TESTABLE,  # so few draws could not tell a fall from none
        f"root mean square of {draws} draws, by width: {'; '.join(said)} (counts within three standard errors, "
        f"{loose:.2f}, of -0.5)",
    )


def _on_points(metrics: Metrics) -> Verdict:
    claim = (
        "On points, by gradient descent, with a covariance and a target that is not linear, the same (ours)"
    )
    if metrics["on_points"] is None:
        return _missing(claim)
    said, good = [], []
    for alpha in _slopes(metrics):
        drawn, balanced = (
            average(metrics["on_points"], "outputs", "scale", start=start, alpha=alpha)
            for start in ("as drawn", "balanced")
        )
        good.append(balanced[0][1] < 0.1 * drawn[0][1] and balanced[0][1] < 0.1 * balanced[-1][1])
        said.append(f"slope {alpha:g} balanced {_line(balanced)}, as drawn {drawn[0][1]:.3f} at the smallest")
    return Verdict(claim, HOLDS if all(good) else FAILS, "; ".join(said))


def _first_order(metrics: Metrics) -> Verdict:
    claim = "As the step goes to 0 gradient descent converges to the flow, at first order"
    if metrics["step_size"] is None:
        return _missing(claim)
    rows, said, powers = metrics["step_size"], [], []
    for name in dict.fromkeys(row["setting"] for row in rows):
        for alpha in sorted({row["alpha"] for row in rows}):
            line = average(rows, "from_flow", "step", setting=name, alpha=alpha)
            powers.append(exponent(line[:2]))
            if alpha == 0:
                said.append(
                    f"{name}: {line[-1][1]:.2g} at step {line[-1][0]:g} to {line[0][1]:.2g} at {line[0][0]:g}"
                )
    return Verdict(
        claim,
        HOLDS if all(abs(power - 1) <= ORDER for power in powers) else FAILS,
        f"weights from the flow's, of their norm, at most over time, slope 0, {'; '.join(said)}; exponents of the two "
        f"smallest steps {min(powers):.3f} to {max(powers):.3f}, all slopes",
    )


def _slopes(metrics: Metrics) -> list[float]:
    return sorted({row["alpha"] for row in metrics["scales"]})


def _line(points: list[tuple[float, float]]) -> str:
    return ", ".join(f"{x:g}: {y:.2g}" for x, y in points)
