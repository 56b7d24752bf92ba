"""Markdown of the experiment ``chernoff``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.chernoff_bound import SIDES, width_needed
from zbkernels.experiments.chernoff_claims import (
    CHANCE,
    DELTAS,
    deviations,
    looseness,
    name_of,
    quantile,
    verdicts,
    width_measured,
)
from zbkernels.experiments.chernoff_spectrum import NORMAL
from zbkernels.report import markdown_table, mean, verdict_table

_READOUT = {NORMAL: ", read-out N(0, 1/m)"}


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, what the bound rests on, widths asked for and needed, spectra."""
    parts = [
        _heading(metrics),
        "## Claims\n",
        verdict_table(verdicts(metrics)),
        "## What the bound rests on\n",
        _ground(metrics),
        f"## Width for δ, failing in {100 * CHANCE:g} % of the trials\n",
        _widths(metrics),
    ]
    for case in metrics["cases"]:
        parts += [f"## {label(case)}\n", _spectrum(case)]
    return "\n".join(parts)


def label(case: dict[str, Any]) -> str:
    return name_of(case) + _READOUT.get(case["readout"], "")


def _heading(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    seeds = ", ".join(map(str, metrics["seeds"]))
    return (
        f"# chernoff, preset {metrics['preset']}\n\n"
        f"- {data['title']}; inputs of norm 1.{note} Zeros and ones are the training set of Section 8 (half of each "
        "class), first images those of all classes in their order; tested on the next as many.\n"
        f"- First layers drawn anew for each trial (seeds {seeds}); a trial's layer grows from width to width. The "
        "thesis has no numbers here: the bound is its formula, with κ of these inputs.\n"
    )


def _ground(metrics: dict[str, Any]) -> str:
    header = [
        "inputs",
        "‖X‖²",
        "λ_min(H∞)",
        "B",
        "κ (40)",
        "units",
        "m‖H_k‖ seen",
        "whitened, seen",
        "κ over it",
    ]
    rows = []
    for case in metrics["cases"]:
        if case["readout"] == NORMAL:
            continue
        single = case["single"]
        rows.append(
            [
                label(case),
                f"{case['norm2']:.2f}",
                f"{case['smallest']:.5f}",
                f"{case['slope']:.4f}",
                f"{case['kappa']:,.0f}",
                f"{single['units']:,}",
                f"{single['plain']:.1f}",
                f"{single['whitened']:.1f}",
                f"{case['kappa'] / single['whitened']:.1f}",
            ]
        )
    return markdown_table(header, rows)


def _widths(metrics: dict[str, Any]) -> str:
    header = [
        "δ, side",
        "bound (κ)",
        "measured",
        "bound / measured",
        "by what is seen of single units / measured",
    ]
    rows = []
    for case in metrics["cases"]:
        for side in SIDES:
            for delta in DELTAS:
                found = width_measured(case, delta, side)
                bounded = case["readout"] != NORMAL
                asked = width_needed(case["inputs"], case["kappa"], delta, CHANCE, side)
                factor = looseness(case, delta, side)
                seen = looseness(case, delta, side, case["single"]["whitened"])
                rows.append(
                    [
                        f"{label(case)}: {delta:g}, {side}",
                        f"{asked:,.0f}" if bounded else "none",
                        "-" if found is None else f"{found:,.0f}",
                        f"{factor:,.0f}" if factor is not None and bounded else "-",
                        f"{seen:,.1f}" if seen is not None and bounded else "-",
                    ]
                )
    note = (
        "\nBetween two widths the measured one is interpolated. The last column is the bound with the largest whitened "
        "unit seen in place of κ: what is left is the looseness of the inequality itself (and of not having seen the "
        "largest). A dash: beyond the widths drawn, or no bound.\n"
    )
    return markdown_table(header, rows) + note


def _spectrum(case: dict[str, Any]) -> str:
    header = ["width", "trials", "smallest eigenvalue", "5 %", "largest", "95 %", "predictions off", "95 %"]
    rows = []
    for row in case["widths"]:
        rows.append(
            [
                f"{row['width']:,}",
                str(len(row["low"])),
                f"{mean(row['low']):.4f}",
                f"{1 - quantile(deviations(row, 'lower'), 1 - CHANCE):.4f}",
                f"{mean(row['high']):.4f}",
                f"{1 + quantile(deviations(row, 'upper'), 1 - CHANCE):.4f}",
                f"{mean(row['error']):.4f}",
                f"{quantile(row['error'], 1 - CHANCE):.4f}",
            ]
        )
    return (
        markdown_table(header, rows)
        + "\nMeans over the trials, and what 95 % of them do not go beyond. Predictions: ‖u - u_IEIN‖/‖y‖ on test "
        "inputs.\n"
    )
