"""Markdown of the experiment ``ergodic``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.exchangeability.ergodic_claims import (
    EQUAL,
    MIXED,
    NARROW,
    PLACE_NAMES,
    PLACES,
    points,
    slope,
    verdicts,
)
from zbkernels.report import markdown_table, verdict_table

_TITLES = {
    EQUAL: "equal hidden widths",
    NARROW: "a narrow second layer",
    MIXED: "initial weights of two scales",
}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run."""
    return "\n".join(
        [
            _heading(metrics),
            "## Claims\n",
            verdict_table(verdicts(metrics)),
            "## Spread over the networks\n",
            _values(metrics, "spread", percent=True),
            "Standard deviation of one network's average over its units, relative to the ensemble's, in %; the last "
            "column is the exponent of the width.\n",
            "## Dependence of units\n",
            _values(metrics, "effect", percent=False),
            "n Var K / Var P: 1 where the units of a network are uncorrelated, n where they are equal.\n",
            "## Spread of the normalised kernel\n",
            _values(metrics, "cosine", percent=True),
            "Standard deviation of the normalised kernel, which is between 0 and 1, in hundredths.\n",
        ]
    )


def _heading(metrics: dict[str, Any]) -> str:
    data, side = metrics["data"], round(metrics["pixels"] ** 0.5)
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    rates = ", ".join(f"{name} {rate:g}" for name, rate in metrics["rates"].items())
    return (
        f"# ergodic, preset {metrics['preset']}\n\n"
        f"- {data['title']}, shrunk to {side}×{side} pixels.{note}\n"
        f"- Autoencoders of three layers, {side**2}-n-n-{side**2}, without biases, ReLU after every layer, He's normal "
        f"weights, batches of {metrics['batch']}, the same for all networks; step sizes {rates}; Keras' forms. "
        f"Ensembles of {metrics['networks']}. The paper assumes Hypothesis 7 and gives no number.\n"
        f"- P_j = relu(W_j·x) relu(W_j·y) of {metrics['pairs']} pairs of unit vectors: in the first layer images; in "
        f"the second vectors fixed beforehand at an angle of {metrics['angle']:g}, of zero sum, or x of one sign. K is "
        "the average over the units of one network.\n"
    )


def _values(metrics: dict[str, Any], key: str, *, percent: bool) -> str:
    widths = sorted({found["width"] for case in metrics["cases"] for found in case["widths"]})
    header = ["networks", "input", "steps", *(f"n = {width}" for width in widths)]
    header += [] if key == "effect" else ["exponent"]
    rows = []
    for place_in_list, case in enumerate(metrics["cases"]):
        for place in PLACES:
            for stop in metrics["stops"]:
                if stop == 0 and case["kind"] == EQUAL and place_in_list:
                    continue  # the same networks as the first rule's
                values = dict(points(case, place, stop, key))
                if not values:
                    continue
                cells = [
                    f"{(100 if percent else 1) * values[w]:{'.1f' if percent else '.2f'}}"
                    if w in values
                    else "-"
                    for w in widths
                ]
                name = _TITLES[case["kind"]] + (f", {case['rule']}" if stop else "")
                cells += [] if key == "effect" else [f"{slope(list(values.items())):.2f}"]
                rows.append([name, PLACE_NAMES[place], str(stop), *cells])
    return markdown_table(header, rows)
