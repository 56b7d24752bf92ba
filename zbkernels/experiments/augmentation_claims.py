"""The paper's three sentences on training with multiplied images, each with the rule by which it is judged."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.table1_claims import invariance, pooled_spread
from zbkernels.experiments.units import WITH_BIAS, WITHOUT_BIAS
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, Verdict, judge, mean

POOR = 0.5  # of the zero-bias networks' accuracy: at most this share counts as performing poorly
COMPARABLE = 2.0  # percentage points within which two accuracies count as comparable
EXTREME = (0.001, 0.0001)
_POORLY = "With bias, networks trained on augmented images still perform poorly at 0.001 and 0.0001"
_MERELY = "From 0.25 to 0.01 they are merely comparable to networks without bias"
_EFFICIENT = (
    "Networks without bias are more data efficient: trained on plain images, they do as well at every scalar as "
    "networks with bias trained on augmented ones, and better at some"
)


def verdicts(part: dict[str, Any]) -> list[Verdict]:
    """Verdicts on the networks of one image set. The paper gives these sentences without numbers."""
    augmented = part["augmented"]
    data = augmented["data"]
    with_bias, without = accuracies(augmented, WITH_BIAS), accuracies(augmented, WITHOUT_BIAS)
    why = "" if data["as_in_paper"] else f"the data are {data['title']}"
    if not (with_bias and without):
        why = "networks of one kind were not trained in this run"
    zero_bias = [unit for unit in augmented["units"] if unit["variant"] == WITHOUT_BIAS]
    found = [_poorly(with_bias, without, why), _merely(with_bias, without, why)]
    found.append(_efficient(with_bias, part["plain"], why))
    return [*found, invariance(zero_bias)] if zero_bias else found


def accuracies(metrics: dict[str, Any], variant: str) -> dict[float, list[float]]:
    """Scalar -> accuracy (%) of each network of that kind; {} where there is none."""
    units = [unit for unit in metrics["units"] if unit["variant"] == variant]
    if not units:
        return {}
    return {s: [unit["sweep"][i]["accuracy"] for unit in units] for i, s in enumerate(metrics["scalars"])}


def _poorly(with_bias: dict[float, list[float]], without: dict[float, list[float]], why: str) -> Verdict:
    if why:
        return Verdict(_POORLY, NOT_TESTABLE, why)
    poor = [mean(with_bias[s]) <= POOR * mean(without[s]) for s in EXTREME]
    measured = "; ".join(
        f"at {s:g} {_range(with_bias[s])} % with, {_range(without[s])} % without" for s in EXTREME
    )
    return Verdict(_POORLY, HOLDS if all(poor) else FAILS, f"{measured} (poor: at most half of that)")


def _merely(with_bias: dict[float, list[float]], without: dict[float, list[float]], why: str) -> Verdict:
    if why:
        return Verdict(_MERELY, NOT_TESTABLE, why)
    gaps, judged = {}, {}
    for scalar in with_bias:
        if 0.01 <= scalar <= 0.25:
            gaps[scalar] = mean(with_bias[scalar]) - mean(without[scalar])
            judged[scalar] = judge(
                gaps[scalar], COMPARABLE, pooled_spread(with_bias[scalar], without[scalar])
            )
    lowest, highest = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    apart = [f"{s:g} ({gaps[s]:+.2f})" for s, verdict in judged.items() if verdict == FAILS]
    measured = (
        f"with minus without: {gaps[lowest]:+.2f} at {lowest:g} to {gaps[highest]:+.2f} at {highest:g} "
        f"(comparable within {COMPARABLE:g}" + (f"; not so at {', '.join(apart)})" if apart else ")")
    )
    worst = next((v for v in (FAILS, WITHIN_SPREAD) if v in judged.values()), HOLDS)
    return Verdict(_MERELY, worst, measured)


def _efficient(with_bias: dict[float, list[float]], plain: dict[str, Any] | None, why: str) -> Verdict:
    zero_bias = accuracies(plain, WITHOUT_BIAS) if plain is not None else {}
    if why or not zero_bias:
        reason = (
            why or "networks trained on plain images are not at hand (a finished run of Table 1's row beside)"
        )
        return Verdict(_EFFICIENT, NOT_TESTABLE, reason)
    gaps = {s: mean(zero_bias[s]) - mean(with_bias[s]) for s in with_bias}
    least, most = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    holds = gaps[least] >= -1 and gaps[most] > 1
    measured = (
        f"plain without bias minus augmented with bias: {gaps[least]:+.2f} at {least:g} to {gaps[most]:+.2f} at "
        f"{most:g} (as well: not more than 1 below; better: more than 1 above); as many images and steps"
    )
    return Verdict(_EFFICIENT, HOLDS if holds else FAILS, measured)


def _range(values: list[float]) -> str:
    """``88.41``, or the mean with the seeds' extremes."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
