"""What the paper says of kernels during training (Figures 3, 5 to 7, 9, 11, 12, 14, 16) and of its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from zbkernels.experiments.exchangeability.kernel_drift_claims import (
    DEFAULT_EPSILON,
    GENERALLY,
    NEAR,
    ROUGHLY,
    named,
    too_narrow,
)
from zbkernels.experiments.exchangeability.measures import CENTRED, NON_ZERO, ZERO
from zbkernels.experiments.exchangeability.sweeps import ASCENT, BIASED
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean

Run = dict[str, Any]
SURELY = 0.99  # of pairs and angles, for a bound


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim and sweep."""
    found = []
    for sweep in metrics["sweeps"]:
        if sweep["variant"] == ASCENT:
            found.append(_ascent(metrics, sweep))
        elif sweep["variant"] == BIASED:
            found.append(_biased(metrics, sweep))
        elif sweep["figures"] and sweep["symbol"] == "epsilon":
            found += [_zero_sums(metrics, sweep), _moves(metrics, sweep), _looser(metrics, sweep)]
        elif sweep["figures"]:
            found += [_zero_sums(metrics, sweep), _stays(metrics, sweep)]
    return [*found, _centred(metrics), _bounded(metrics), _row_means(metrics)]


def runs_of(metrics: dict[str, Any], key: str) -> list[Run]:
    return [run for run in metrics["runs"] if run["sweep"] == key]


def last(run: Run) -> int | None:
    """The last look at which the network had a loss and a lower one than at the start; None: it never had."""
    start = run["looks"][0]["test_loss"]
    if run["diverged"] is not None or run["dead"] > GENERALLY:
        return None
    loss = run["looks"][-1]["test_loss"]
    return len(run["looks"]) - 1 if loss is not None and loss < start else None


def drifts(run: Run, kind: str, look: int) -> list[float | None]:
    """Δk of each layer; the whole network's is left out."""
    return run["looks"][look]["drift"][kind][:-1]


def times_the_start(run: Run, kind: str, look: int) -> Iterator[tuple[int, float]]:
    """(layer, Δk over the start's) of each layer that has a kernel.

    The start's is the layer's own, or the mean over the layers if that is more: a finite layer is away from its limit
    by chance, the one more and the other less.
    """
    start = drifts(run, kind, 0)
    defined = [value for value in start if value is not None]
    for layer, (value, own) in enumerate(zip(drifts(run, kind, look), start, strict=True)):
        if value is not None and own is not None:
            reference = max(own, mean(defined))
            yield layer, value / reference if reference else 0.0


def _count(runs: list[Run], kind: str, layers: range) -> tuple[int, int, float]:
    """Layers of trained networks whose Δk is above NEAR times the start's, of how many, and the most times it is."""
    found = [
        ratio
        for run in runs
        if (look := last(run)) is not None
        for layer, ratio in times_the_start(run, kind, look)
        if layer in layers
    ]
    return sum(ratio > NEAR for ratio in found), len(found), max(found, default=0.0)


def distances(runs: list[Run], *, start: bool = False) -> list[list[float]]:
    """Of each trained network its layers' root mean squared distances, of inputs with other sums than 0."""
    looks = [(run, look) for run in runs if (look := last(run)) is not None]
    return [
        [math.sqrt(value) for value in drifts(run, NON_ZERO, 0 if start else look) if value is not None]
        for run, look in looks
    ]


def _farthest(found: list[list[float]]) -> float:
    return max((distance for layers in found for distance in layers), default=0.0)


def _zero_sums(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"Inputs with sums of 0: kernels of trained layers stay the arc-cosine kernel: {named(metrics, sweep)}"
    runs, inner = runs_of(metrics, sweep["key"]), range(1, metrics["layers"] - 1)
    inside, inside_of, _ = _count(runs, ZERO, inner)
    all_moved, of, most = _count(runs, ZERO, range(metrics["layers"]))
    if not of:
        return Verdict(claim, NOT_TESTABLE, "no network was trained without diverging")
    return Verdict(
        claim,
        HOLDS if all_moved <= (1 - GENERALLY) * of else FAILS,
        f"{of - all_moved} of {of} layers have Δk of at most {NEAR:g} times the start's (the most {most:.2g} times); "
        f"of layers 2 and 3, which Proposition 6 speaks of, {inside_of - inside} of {inside_of}",
    )


def _moves(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = (
        "Inputs with other sums: a small epsilon makes kernels qualitatively different, a large one does not: "
        + named(metrics, sweep)
    )
    runs, end = runs_of(metrics, sweep["key"]), max(sweep["values"])
    small = distances([run for run in runs if run["value"] <= DEFAULT_EPSILON])
    large = [distance for layers in distances([r for r in runs if r["value"] == end]) for distance in layers]
    if not small or not large:
        return Verdict(claim, NOT_TESTABLE, "networks at one end were not trained, or diverged")
    if (at_start := _farthest(distances(runs, start=True))) > ROUGHLY:
        return Verdict(claim, NOT_TESTABLE, too_narrow(at_start))
    different = sum(any(distance > ROUGHLY for distance in layers) for layers in small)
    gone = sum(distance > ROUGHLY for distance in large)
    return Verdict(
        claim,
        HOLDS if different >= GENERALLY * len(small) and gone <= (1 - GENERALLY) * len(large) else FAILS,
        f"at epsilon up to {DEFAULT_EPSILON:g} {different} of {len(small)} networks have a layer whose kernel is more "
        f"than {ROUGHLY:g} from the arc-cosine kernel (root mean square, axis 0 to 1; at the start at most "
        f"{at_start:.2g}), the farthest {_farthest(small):.2g}; at {end:g} {gone} of {len(large)} layers, the farthest "
        f"{max(large):.2g}",
    )


def _stays(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = (
        f"Inputs with other sums: SGD's kernels roughly match the arc-cosine kernel: {named(metrics, sweep)}"
    )
    runs = runs_of(metrics, sweep["key"])
    found = [distance for layers in distances(runs) for distance in layers]
    if not found:
        return Verdict(claim, NOT_TESTABLE, "no network was trained without diverging")
    if (at_start := _farthest(distances(runs, start=True))) > ROUGHLY:
        return Verdict(claim, NOT_TESTABLE, too_narrow(at_start))
    gone = sum(distance > ROUGHLY for distance in found)
    return Verdict(
        claim,
        HOLDS if gone <= (1 - GENERALLY) * len(found) else FAILS,
        f"{len(found) - gone} of {len(found)} layers are within {ROUGHLY:g} of it (root mean square, axis 0 to 1; at "
        f"the start at most {at_start:.2g}), the farthest {max(found):.2g}",
    )


def _looser(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"Where the bounds (10) and (11) are looser the kernel is farther from equation 9: {named(metrics, sweep)}"
    ends = {}
    for run in runs_of(metrics, sweep["key"]):
        looks = [look for look in run.get("bounds", ()) if look]
        if looks and last(run) is not None:
            found = [layer for layer in looks[-1][NON_ZERO] if layer]
            bounds = [layer["row_mean_bound"] for layer in found]
            gaps = [layer["gap"] for layer in found]
            ends[run["value"]] = mean(bounds), mean(gaps)
    if len(ends) < 2:
        return Verdict(claim, NOT_TESTABLE, "networks at one end of the list were not trained, or diverged")
    small, large = ends[min(ends)], ends[max(ends)]
    return Verdict(
        claim,
        HOLDS if (small[0] > large[0]) == (small[1] > large[1]) else FAILS,
        f"in units of the kernel at angle 0, mean over layers, pairs and angles: bound by row means {small[0]:.3g} and "
        f"gap {small[1]:.3g} at epsilon = {min(ends):g}; {large[0]:.3g} and {large[1]:.3g} at {max(ends):g}",
    )


def _ascent(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"Gradient ascent keeps the kernel, too: {named(metrics, sweep)}"
    parts, kept, of = [], 0, 0
    for run in runs_of(metrics, sweep["key"]):
        looks = [i for i, look in enumerate(run["looks"]) if look["test_loss"] is not None]
        look = looks[-1]
        first, now = run["looks"][0]["test_loss"], run["looks"][look]["test_loss"]
        ratios = [ratio for _, ratio in times_the_start(run, ZERO, look)]
        of += len(ratios)
        kept += sum(ratio <= NEAR for ratio in ratios)
        parts.append(
            f"alpha = {run['value']:g}: loss {first:.3g} to {now:.3g} at iteration {run['looks'][look]['iteration']:,}"
            + ("" if run["diverged"] is None else f" (diverged at {run['diverged']:,})")
        )
    if not of:
        return Verdict(claim, NOT_TESTABLE, "no layer has a kernel")
    return Verdict(
        claim,
        HOLDS if kept >= GENERALLY * of else FAILS,
        f"inputs with sums of 0: {kept} of {of} layers have Δk of at most {NEAR:g} times the start's; "
        + "; ".join(parts),
    )


def _biased(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"With biases the kernel changes with epsilon, too (ours): {named(metrics, sweep)}"
    found = _moves(metrics, sweep)
    return Verdict(claim, found.verdict, found.measured)


def _centred(metrics: dict[str, Any]) -> Verdict:
    claim = "Proposition 6 with its Hypothesis 3: x and p centred, so that no coordinate dominates (ours)"
    runs = [run for run in metrics["runs"] if _of_paper(metrics, run)]
    gone, of, most = _count(runs, CENTRED, range(1, metrics["layers"] - 1))
    if not of:
        return Verdict(claim, NOT_TESTABLE, "no network was trained without diverging")
    return Verdict(
        claim,
        HOLDS if gone <= (1 - GENERALLY) * of else FAILS,
        f"{of - gone} of {of} layers 2 and 3 have Δk of at most {NEAR:g} times the start's (the most {most:.2g} times)",
    )


def _of_paper(metrics: dict[str, Any], run: Run) -> bool:
    return any(sweep["key"] == run["sweep"] and sweep["figures"] for sweep in metrics["sweeps"])


def _bounded(metrics: dict[str, Any]) -> Verdict:
    claim = "(10), twice, and (11), mended, bound the distance of the kernel from equation 9"
    held = [run["bounds_held"] for run in metrics["runs"] if run["bounds_held"]["held"] is not None]
    exists = [r["bounds_held"]["exists"] for r in metrics["runs"] if r["bounds_held"]["exists"] is not None]
    if not held:
        return Verdict(
            claim, NOT_TESTABLE, "E[W₁ W₂] is estimated as negative in all layers: there is no bound"
        )
    share = mean([found["held"] for found in held])
    return Verdict(
        claim,
        HOLDS if share >= SURELY else FAILS,
        f"at {100 * share:.1f} % of pairs and angles of inputs with other sums, over all measurements and layers; they "
        f"hold in the limit, and a layer of finite width is away from it by chance. In "
        f"{100 * (1 - mean(exists)):.0f} % of the layers E[W₁ W₂] is estimated as negative, and (10) is no number",
    )


def _row_means(metrics: dict[str, Any]) -> Verdict:
    claim = "The bound by row means holds in every network, whatever its width (ours)"
    held = [r["bounds_held"]["row_mean_held"] for r in metrics["runs"]]
    shares = [share for share in held if share is not None]
    if not shares:
        return Verdict(claim, NOT_TESTABLE, "no network without biases was trained")
    return Verdict(
        claim,
        HOLDS if min(shares) == 1 else FAILS,
        f"at {100 * min(shares):.4g} % of pairs and angles at least, in {len(shares)} networks over training",
    )
