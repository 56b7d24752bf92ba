"""The paper's claims about Table 1 and Figure 5, each with the rule by which it is judged."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, judge, mean, spread

SAME_ACCURACY = 1.0  # percentage points within which two accuracies count as the same
SAME_LOSS = 0.05  # relative gap within which two loss curves count as "almost identical"
NEAR_TIE = 1e-4  # relative gap of the two best logits below which float32 rounding may flip a prediction
PAPER_VARIANCE = 0.5


def kinds_of(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of the table; runs from before rows had others hold the two kinds."""
    two = [
        {"name": WITH_BIAS, "label": "with bias", "bias": True, "beside": WITHOUT_BIAS},
        {"name": WITHOUT_BIAS, "label": "without bias", "bias": False, "beside": WITHOUT_BIAS},
    ]
    trained = {unit["variant"] for unit in metrics["units"]}
    return [kind for kind in metrics.get("kinds", two) if kind["name"] in trained]


def pairs_of(metrics: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each kind with bias beside the one without that it is set against: (what the pair is called, the metrics as if
    there were no other kinds). A run of one kind is one pair of which half is missing."""
    kinds = kinds_of(metrics)
    labels = {kind["name"]: kind["label"] for kind in kinds}
    pairs = [(kind["name"], kind["beside"]) for kind in kinds if kind["bias"]]
    seen = {name for pair in pairs for name in pair}
    pairs += [("", kind["name"]) for kind in kinds if kind["name"] not in seen]
    found = []
    for pair in pairs:
        as_two = dict(zip(pair, (WITH_BIAS, WITHOUT_BIAS), strict=True))
        units = [
            {**unit, "variant": as_two[unit["variant"]]}
            for unit in metrics["units"]
            if unit["variant"] in as_two
        ]
        paper = {as_two[name]: metrics["paper"].get(name) for name in pair}
        title = ", beside ".join(labels[name] for name in pair if name in labels)
        found.append((title, {**metrics, "units": units, "paper": paper}))
    return found


def verdicts(metrics: dict[str, Any]) -> list[Verdict]:
    """One verdict per claim. Claims about numbers need the paper's data and settings, the others those or the stand-in
    that is named for them; the theorems hold on any.

    Args:
        metrics: of networks of at most two kinds, "with-bias" and "without-bias" (see :func:`pairs_of`).
    """
    with_bias = [unit for unit in metrics["units"] if unit["variant"] == "with-bias"]
    without = [unit for unit in metrics["units"] if unit["variant"] == "without-bias"]
    both = with_bias and without
    data = metrics["data"]
    why = numbers = "" if data["as_in_paper"] else f"the data are {data['title']}"
    if why and judged_on(metrics):
        less = [what for what in metrics["reduced"] if not what.endswith("images")]  # the title has those
        why, numbers = "", "; ".join([why, *less])
    missing = "networks of one kind were not trained in this run"
    found = [
        _number("with bias", with_bias, metrics, numbers),
        _number("without bias", without, metrics, numbers),
        invariance(without) if without else Verdict(_INVARIANCE, NOT_TESTABLE, missing),
        _decline(with_bias, metrics, why or ("" if with_bias else missing)),
        _curve(with_bias, metrics, numbers or ("" if with_bias else missing)),
        _similar(with_bias, without, why or ("" if both else missing)),
        _variance(with_bias + without, metrics, why),
        _losses(with_bias, without, why or ("" if both else missing)),
        _zero_image(with_bias, without) if both else Verdict(_ZERO_IMAGE, NOT_TESTABLE, missing),
    ]
    where = judged_on(metrics)
    if not where:
        return found
    return [v if v.verdict == NOT_TESTABLE else replace(v, claim=f"{v.claim} ({where})") for v in found]


def judged_on(metrics: dict[str, Any]) -> str:
    """What claims that name no number are judged on in place of the paper's data and settings; "" where that is not
    done."""
    data = metrics["data"]
    if data["as_in_paper"]:
        return ""
    if data.get("stand_in_for"):
        return f"here on {data['stand_in']}, not on {data['stand_in_for']}"
    return f"here with {'; '.join(metrics['reduced'])}" if data.get("judged_reduced") else ""


_INVARIANCE = "Without bias, the predictions are the same at every scalar"
_ZERO_IMAGE = "On the zero image, only the network without bias gives every class the same probability"


def _number(label: str, units: list[dict[str, Any]], metrics: dict[str, Any], why: str) -> Verdict:
    values_of_paper = metrics["paper"].get(label.replace(" ", "-"))
    if values_of_paper is None:
        return Verdict(f"Accuracy at scalar 1, {label}", NOT_TESTABLE, "the paper gives no number")
    paper = values_of_paper[0]
    claim = f"Accuracy at scalar 1, {label}: {paper:.2f} %"
    if why or not units:
        return Verdict(claim, NOT_TESTABLE, why or "not trained in this run")
    values = [unit["sweep"][0]["accuracy"] for unit in units]
    gap = mean(values) - paper
    verdict = judge(gap, SAME_ACCURACY, spread(values))
    return Verdict(
        claim, verdict, f"{mean(values):.2f} %, {gap:+.2f} (counts as the same within {SAME_ACCURACY:g})"
    )


def invariance(units: list[dict[str, Any]]) -> Verdict:
    rows = [row for unit in units for row in unit["sweep"]]
    changed = sum(row["changed"] for row in rows)
    where = f"over {len(rows) // len(units)} scalars and {len(units)} network{'s' if len(units) > 1 else ''}"
    if not changed:
        return Verdict(_INVARIANCE, HOLDS, f"no prediction changed {where}")
    margin = max(row["largest_changed_margin"] for row in rows if row["changed"])
    most = max(row["changed"] for row in rows)
    measured = (
        f"{changed} prediction{'s' if changed > 1 else ''} changed {where}, at most {most} at a time; relative gap of "
        f"the two best logits there at most {margin:.1e}"
    )
    if margin <= NEAR_TIE:
        return Verdict(_INVARIANCE, HOLDS, f"{measured}: near-ties, flipped by float32 rounding")
    return Verdict(_INVARIANCE, FAILS, f"{measured}: more than rounding explains")


def _decline(units: list[dict[str, Any]], metrics: dict[str, Any], why: str) -> Verdict:
    claim = "With bias, accuracy declines as the contrast falls"
    if why:
        return Verdict(claim, NOT_TESTABLE, why)
    curve = [mean([unit["sweep"][i]["accuracy"] for unit in units]) for i in range(len(metrics["scalars"]))]
    rise = max(after - before for before, after in pairwise(curve))
    measured = f"{curve[0]:.2f} % falls to {curve[-1]:.2f} %, largest rise on the way {max(rise, 0):.2f}"
    return Verdict(claim, HOLDS if curve[-1] < curve[0] / 2 and rise <= SAME_ACCURACY else FAILS, measured)


def _curve(units: list[dict[str, Any]], metrics: dict[str, Any], why: str) -> Verdict:
    claim = "With bias, the accuracy at each of the ten smaller scalars is the paper's"
    if why or not metrics["paper"].get("with-bias"):
        return Verdict(claim, NOT_TESTABLE, why or "the paper gives no numbers")
    ours = [[unit["sweep"][i]["accuracy"] for unit in units] for i in range(len(metrics["scalars"]))]
    gaps = [mean(values) - paper for values, paper in zip(ours, metrics["paper"]["with-bias"], strict=True)]
    smaller = range(1, len(gaps))
    judged = [judge(gaps[i], SAME_ACCURACY, spread(ours[i])) for i in smaller]
    verdict = next((worst for worst in (FAILS, WITHIN_SPREAD) if worst in judged), HOLDS)
    farthest = max(smaller, key=lambda i: abs(gaps[i]))
    measured = (
        f"{judged.count(HOLDS)} of 10 within {SAME_ACCURACY:g}, {judged.count(WITHIN_SPREAD)} more within the spread; "
        f"farthest at {metrics['scalars'][farthest]:g}: {gaps[farthest]:+.2f}"
    )
    return Verdict(claim, verdict, measured)


def _similar(with_bias: list[dict[str, Any]], without: list[dict[str, Any]], why: str) -> Verdict:
    claim = "At scalar 1, networks with and without bias have similar accuracies"
    if why:
        return Verdict(claim, NOT_TESTABLE, why)
    one = [unit["sweep"][0]["accuracy"] for unit in with_bias]
    other = [unit["sweep"][0]["accuracy"] for unit in without]
    gap = mean(other) - mean(one)
    verdict = judge(gap, SAME_ACCURACY, pooled_spread(one, other))
    return Verdict(claim, verdict, f"{mean(one):.2f} % with, {mean(other):.2f} % without: {gap:+.2f}")


def _variance(units: list[dict[str, Any]], metrics: dict[str, Any], why: str) -> Verdict:
    claim = f"All variances over the repetitions are below {PAPER_VARIANCE}"
    variances: dict[tuple[str, float], float] = {}
    for variant in ("with-bias", "without-bias"):
        chosen = [unit for unit in units if unit["variant"] == variant]
        for index, scalar in enumerate(metrics["scalars"]):
            deviation = spread([unit["sweep"][index]["accuracy"] for unit in chosen]) if chosen else None
            if deviation is not None:
                variances[variant, scalar] = deviation**2
    if why or not variances:
        return Verdict(claim, NOT_TESTABLE, why or "it takes at least two seeds")
    above = [key for key, value in variances.items() if value >= PAPER_VARIANCE]
    variant, scalar = max(variances, key=lambda key: variances[key])
    measured = (
        f"{len(above)} of {len(variances)} are not; the largest is {variances[variant, scalar]:.2f} "
        f"({variant.replace('-', ' ')}, scalar {scalar:g})"
    )
    return Verdict(claim, FAILS if above else HOLDS, measured)


def _losses(with_bias: list[dict[str, Any]], without: list[dict[str, Any]], why: str) -> Verdict:
    claim = "Loss curves with and without bias are almost identical (Figure 5)"
    if why:
        return Verdict(claim, NOT_TESTABLE, why)
    largest, noise_explains = 0.0, True
    for key in ("train_loss", "test_loss"):
        for index in range(len(with_bias[0]["epochs"])):
            one = [unit["epochs"][index][key] for unit in with_bias]
            other = [unit["epochs"][index][key] for unit in without]
            gap = abs(mean(one) - mean(other))
            largest = max(largest, gap / mean(one))
            pooled = pooled_spread(one, other)
            noise_explains &= gap <= SAME_LOSS * mean(one) or (pooled is not None and gap <= 2 * pooled)
    verdict = HOLDS if largest <= SAME_LOSS else WITHIN_SPREAD if noise_explains else FAILS
    return Verdict(
        claim,
        verdict,
        f"largest gap at an epoch {100 * largest:.1f} % (almost identical up to {100 * SAME_LOSS:g} %)",
    )


def _zero_image(with_bias: list[dict[str, Any]], without: list[dict[str, Any]]) -> Verdict:
    uniform = [max(abs(p - 1 / len(unit["zero_image"])) for p in unit["zero_image"]) for unit in without]
    preferred = [max(unit["zero_image"]) for unit in with_bias]
    classes = len(with_bias[0]["zero_image"])
    measured = (
        f"without: at most {max(uniform):.1e} from 1/{classes}; with: likeliest class {min(preferred):.3f} to "
        f"{max(preferred):.3f}"
    )
    holds = max(uniform) < 1e-6 and min(preferred) > 1 / classes + 1e-3
    return Verdict(_ZERO_IMAGE, HOLDS if holds else FAILS, measured)


def pooled_spread(one: list[float], other: list[float]) -> float | None:
    """Standard deviation of the difference of two means' underlying values, from both samples."""
    a, b = spread(one), spread(other)
    return None if a is None or b is None else math.sqrt((a * a + b * b) / 2)
