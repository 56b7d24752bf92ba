"""What the paper says of Figures 4, 8, 10, 13 and 15, each claim with the rule by which it is judged.

The paper's words are "a sharp change" and "roughly match", of figures. The rules are taken from these words and from
the figures' axes, not from the numbers of any run:

**Sharp.** Figure 4 has epsilon on a logarithmic axis and Δk and (E^n)² from 0 to 1 on a linear one. The width of a step
is commonly that of its rise from 10 to 90 %. The narrowest step that the update allows is that of gradients which all
have one size g: g/(g + epsilon) rises so in log₁₀ 81 = 1.9 decades. Three decades are the least whole number in which a
list of one value a decade always shows 80 % of such a step, wherever it falls between the values (90 % at least; two
decades: 73 %). A change that is spread evenly over the decades that the lists resolve, 1e-10 to 1, has 30 % there.

**Roughly match** is said of points beside a curve on an axis from 0 to 1, in panels of one layer each: the root mean
squared distance, pairs and angles together, is a tenth of the axis at most. Kernels that nobody would call the same are
farther: max(cos t, 0) is 0.13 away from the arc-cosine kernel, and the best constant 0.37. A multiple of the distance
at the start, which goes to 0 as layers get wider, would ask more of wide layers than the word does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zbkernels.experiments.exchangeability.measures import NON_ZERO
from zbkernels.experiments.exchangeability.sweeps import ASCENT, PLAIN, TORCH_FORM
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, Verdict, mean, spread

SHARP_DECADES = 3.0  # a change is sharp where most of it lies within so many decades of epsilon
MOST = 0.8  # of the change, from 0 to 1 as Figure 4 shows it
GENERALLY = 0.9  # of the networks
NEAR = 2.0  # times the start's drift, which a finite layer has too
ROUGHLY = 0.1  # root mean squared distance of kernels that "roughly match", on an axis from 0 to 1
SAME_MEANS = 1.25  # times the start's
VISIBLE = 1.2  # with one seed, which has no spread: times as large
DEFAULT_EPSILON = 1e-7  # of Keras; torch's is 1e-8

Run = dict[str, Any]
Quantity = Callable[[Run], float | None]


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim and sweep."""
    found = []
    for sweep in sweeps(metrics, "epsilon"):
        found += [
            _sharp(metrics, sweep, "Δk", drift),
            _sharp(metrics, sweep, "(E^n)²", row_mean),
            _small_means(metrics, sweep),
        ]
    for sweep in sweeps(metrics, "alpha"):
        found += [
            _smaller(metrics, sweep, "(E^n)²", row_mean),
            _smaller(metrics, sweep, "Δk", drift),
            _stable(metrics, sweep),
        ]
    return [*found, _forms(metrics)]


def sweeps(metrics: dict[str, Any], symbol: str, variant: str = PLAIN) -> list[dict[str, Any]]:
    return [s for s in metrics["sweeps"] if s["symbol"] == symbol and s["variant"] == variant]


def runs_of(metrics: dict[str, Any], key: str) -> list[Run]:
    return [run for run in metrics["runs"] if run["sweep"] == key]


def state(run: Run) -> str:
    """ "stable"; "diverged": the loss is no number; "dead": the outputs are 0 throughout; "unstable": no lower loss."""
    first, last = run["loss"]
    if run["diverged"] is not None or last is None:
        return "diverged"
    if run["dead"] > GENERALLY:
        return "dead"
    return "stable" if last < first else "unstable"


def drift(run: Run, layer: int | None = None, *, kind: str = NON_ZERO, look: int = -1) -> float | None:
    """Δk of a layer, or the mean over the layers; None where a kernel is not defined."""
    values = run["drift"][kind][look][:-1]
    return _mean(values) if layer is None else run["drift"][kind][look][layer]


def row_mean(run: Run, layer: int | None = None, *, look: int = -1) -> float | None:
    """(E^n)² of a layer, or the mean over the layers."""
    values = run["row_means"][look]
    return _mean(values) if layer is None else values[layer]


def by_value(runs: Sequence[Run], quantity: Quantity) -> dict[float, list[float]]:
    """Value -> the quantity of each seed that has it; in the order of the list, without those that have none."""
    found: dict[float, list[float]] = {}
    for run in runs:
        number = quantity(run)
        if state(run) != "diverged" and number is not None:
            found.setdefault(run["value"], []).append(number)
    return {value: found[value] for value in sorted(found)}


def normalised(values: Sequence[float]) -> list[float]:
    """To [0, 1], the least to 0 and the greatest to 1, as Figure 4 shows them; all 0 where they are equal."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def named(metrics: dict[str, Any], sweep: dict[str, Any]) -> str:
    """ "MNIST, Adam, step 0.001 (Figures 15, 16)"."""
    short = {"cifar-10": "CIFAR-10", "mnist": "MNIST", "digits": "digits"}[sweep["data"]]
    if sweep["data"] == "cifar-10" and "CIFAR" not in metrics["data"]["cifar-10"]["title"]:
        short = "the composite for CIFAR-10"
    many = "Figures" if "," in sweep["figures"] else "Figure"
    figures = f" ({many} {sweep['figures']})" if sweep["figures"] else ""
    return f"{short}, {sweep['title']}{figures}"


def _sharp(
    metrics: dict[str, Any], sweep: dict[str, Any], what: str, quantity: Callable[..., Any]
) -> Verdict:
    claim = f"As epsilon decreases there is a sharp change in {what}: {named(metrics, sweep)}"
    runs = runs_of(metrics, sweep["key"])
    found = by_value(runs, quantity)
    if len(found) < 3:
        return Verdict(
            claim, NOT_TESTABLE, f"{len(found)} values of epsilon have a network that did not diverge"
        )
    values = list(found)
    low, high = found[values[0]], found[values[-1]]
    ratio = mean(low) / mean(high)
    if len(low) > 1 and len(high) > 1:
        noise = 2 * max(spread(low) or 0.0, spread(high) or 0.0)
        visible = mean(low) - mean(high) > noise
    else:
        visible = ratio > VISIBLE
    numbers = normalised([mean(found[value]) for value in values])
    places = [math.log10(value) for value in values]
    share, (start, end) = _steepest(places, numbers)
    sharp = HOLDS if visible and share >= MOST else FAILS
    if visible and share < MOST <= _steepest(_without_gaps(places), numbers)[0]:
        sharp = NOT_TESTABLE  # too much of the change lies in a gap of the list
    layers = []
    for layer in range(metrics["layers"]):
        of_layer = by_value(runs, partial(quantity, layer=layer))
        ends = [of_layer.get(value) for value in (values[0], values[-1])]
        layers.append(f"{mean(ends[0]) / mean(ends[1]):.2g}" if ends[0] and ends[1] else "none")
    return Verdict(
        claim,
        sharp,
        f"mean over the layers {mean(high):.2e} at epsilon = {values[-1]:g}, {ratio:.2g} times that at {values[0]:g} "
        f"(layers 1 to {metrics['layers']}: {', '.join(layers)} times); at most {100 * share:.0f} % of the "
        f"change within {SHARP_DECADES:g} decades, from {values[start]:g} to {values[end]:g} "
        f"(sharp: {100 * MOST:.0f} %)",
    )


def _steepest(places: list[float], numbers: list[float]) -> tuple[float, tuple[int, int]]:
    """The largest fall of ``numbers`` within SHARP_DECADES, and from which value to which; places in decades."""
    best = (0.0, (0, 0))
    for i, j in itertools.combinations(range(len(places)), 2):
        if places[j] - places[i] <= SHARP_DECADES + 1e-9:
            best = max(best, (numbers[i] - numbers[j], (i, j)))
    return best


def _without_gaps(places: list[float]) -> list[float]:
    """With neighbours that are more than SHARP_DECADES apart put together: there a change may be as sharp as can be."""
    steps = [b - a for a, b in itertools.pairwise(places)]
    return list(
        itertools.accumulate([0.0, *(step if step <= SHARP_DECADES + 1e-9 else 0.0 for step in steps)])
    )


def _small_means(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"Where (E^n)² stays small the kernel stays the arc-cosine one: {named(metrics, sweep)}"
    small, kept, moved_up = 0, 0, 0
    for run in runs_of(metrics, sweep["key"]):
        for layer in range(metrics["layers"]):
            now, before = row_mean(run, layer), row_mean(run, layer, look=0)
            k_now, k_before = drift(run, layer), drift(run, layer, look=0)
            if now is None or k_now is None or before is None or k_before is None:
                continue
            if now <= SAME_MEANS * before:
                small += 1
                kept += k_now <= NEAR * k_before
            else:
                moved_up += k_now > NEAR * k_before
    if not small:
        return Verdict(claim, NOT_TESTABLE, "no layer has kept its (E^n)²")
    return Verdict(
        claim,
        HOLDS if kept >= GENERALLY * small else FAILS,
        f"of {small} layers whose (E^n)² is at most {SAME_MEANS} times the start's, {kept} have Δk of at most "
        f"{NEAR:g} times the start's; of the others {moved_up} have more",
    )


def _adam_of(metrics: dict[str, Any], data: str) -> list[Run]:
    """Adam's stable networks at a small epsilon on the same images."""
    keys = [s["key"] for s in sweeps(metrics, "epsilon") if s["rule"] == "adam" and s["data"] == data]
    small = [r for r in metrics["runs"] if r["sweep"] in keys and r["value"] <= DEFAULT_EPSILON]
    return [run for run in small if state(run) == "stable"]


def _smaller(
    metrics: dict[str, Any], sweep: dict[str, Any], what: str, quantity: Callable[..., Any]
) -> Verdict:
    claim = f"SGD generally ends with a smaller {what} than Adam: {named(metrics, sweep)}"
    stable = [run for run in runs_of(metrics, sweep["key"]) if state(run) == "stable"]
    ours = [n for n in map(quantity, stable) if n is not None]
    adam = [n for n in map(quantity, _adam_of(metrics, sweep["data"])) if n is not None]
    if not ours or not adam:
        return Verdict(claim, NOT_TESTABLE, "networks of one of the two were not trained, or none is stable")
    less = sum(number < mean(adam) for number in ours)
    return Verdict(
        claim,
        HOLDS if less >= GENERALLY * len(ours) else FAILS,
        f"{less} of {len(ours)} stable networks (mean over the layers: {min(ours):.2e} to {max(ours):.2e}) are below "
        f"Adam's mean at epsilon up to {DEFAULT_EPSILON:g}, {mean(adam):.2e}",
    )


def _stable(metrics: dict[str, Any], sweep: dict[str, Any]) -> Verdict:
    claim = f"No step size of SGD takes the kernel away without unstable training: {named(metrics, sweep)}"
    far, at_start, without = [], [], 0
    for run in runs_of(metrics, sweep["key"]):
        if state(run) == "stable":
            layers = range(metrics["layers"])
            trained = [(drift(run, i), i + 1) for i in layers]
            distances = [(math.sqrt(gap), layer, run["value"]) for gap, layer in trained if gap is not None]
            untrained = [drift(run, i, look=0) for i in layers]
            at_start += [math.sqrt(gap) for gap in untrained if gap is not None]
            without += len(layers) > len(distances)
            far += [max(distances)] if distances else []
    if not far or not at_start:
        return Verdict(claim, NOT_TESTABLE, "no stable network has a kernel")
    if max(at_start) > ROUGHLY:
        return Verdict(claim, NOT_TESTABLE, too_narrow(max(at_start)))
    gone = sum(distance > ROUGHLY for distance, _, _ in far)
    worst, layer, value = max(far)
    return Verdict(
        claim,
        FAILS if gone else HOLDS,
        f"of {len(far)} stable networks {gone} have a layer whose kernel is more than {ROUGHLY:g} from the arc-cosine "
        f"kernel (root mean square, axis 0 to 1; at the start at most {max(at_start):.2g}); the farthest {worst:.2g}, "
        f"layer {layer} at alpha = {value:g}"
        + (f"; {without} have a layer without a kernel" if without else ""),
    )


def too_narrow(distance: float) -> str:
    """Why networks cannot be judged by ``ROUGHLY``."""
    return f"so narrow a layer is {distance:.2g} from its limit by chance, before training: more than {ROUGHLY:g}"


def _forms(metrics: dict[str, Any]) -> Verdict:
    claim = "Adam's epsilon stands elsewhere in Keras than in torch, and it shows where epsilon is near √v only (ours)"
    rows = []
    for theirs in sweeps(metrics, "epsilon", TORCH_FORM):
        ours = next((s for s in sweeps(metrics, "epsilon") if s["key"] + "-torch" == theirs["key"]), None)
        for run in runs_of(metrics, theirs["key"]):
            for twin in runs_of(metrics, ours["key"]) if ours else []:
                if (twin["seed"], twin["value"]) == (run["seed"], run["value"]):
                    a, b = twin["loss"][1], run["loss"][1]
                    if a is not None and b is not None:
                        rows.append((run["value"], a, b, drift(twin), drift(run)))
    if len(rows) < 2:
        return Verdict(claim, NOT_TESTABLE, "the same epsilon was not trained in both forms")
    apart = {value: abs(a / b - 1) for value, a, b, _, _ in rows}
    tiny = [gap for value, gap in apart.items() if value <= DEFAULT_EPSILON]
    large = [gap for value, gap in apart.items() if value > DEFAULT_EPSILON]
    text = "; ".join(
        f"{value:g}: loss {a:.3g} and {b:.3g}"
        + (f", Δk {x:.2e} and {y:.2e}" if x is not None and y is not None else "")
        for value, a, b, x, y in sorted(rows)
    )
    if not tiny or not large:
        return Verdict(claim, NOT_TESTABLE, "small or large values of epsilon are missing in one form")
    return Verdict(claim, HOLDS if max(tiny) < max(large) else FAILS, f"Keras and torch at epsilon = {text}")


def of_ascent(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return sweeps(metrics, "alpha", ASCENT)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return mean(numbers) if len(numbers) == len(values) else None
