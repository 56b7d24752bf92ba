"""Markdown of the experiment ``dual-activations``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.dual_activations_claims import apart, dual_gap, in_errors, near_pairs, verdicts
from zbkernels.report import markdown_table, verdict_table

_SHOWN = (-1.0, -0.5, 0.0, 0.5, 1.0)  # cosines in the table; every grid has them or the nearest is taken


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, values of f and g, the stand-ins, the witnesses."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for figure, of in (("4", "f"), ("5", "g")):
        parts += [f"## Figure {figure}: {of}\n", _values(metrics, of)]
    if near_pairs(metrics):
        parts += ["## Sigmoid and tanh by erf (64, 65)\n", _stand_ins(metrics)]
    return "\n".join([*parts, "## Formulas with an offset (57, 62)\n", _witnesses(metrics)])


def _heading(metrics: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, metrics["seeds"]))
    return (
        f"# dual-activations, preset {metrics['preset']}\n\n"
        "- The thesis' figures are curves without numbers, and its text names one of them: there is nothing to "
        "subtract ours from. Ours are held to a double integral in float64 and to drawn pairs, which share no code "
        "with them.\n"
        f"- {len(metrics['cosines'])} cosines from -1 to 1; {metrics['draws']:,} drawn pairs at each of "
        f"{len(metrics['drawn_at'])} of them, for each seed ({seeds}).\n"
    )


def _values(metrics: dict[str, Any], of: str) -> str:
    cosines = metrics["cosines"]
    places = [min(range(len(cosines)), key=lambda i: abs(cosines[i] - c)) for c in _SHOWN]
    header = [f"{of} at cosine", *(f"{cosines[i]:g}" for i in places)]
    header += ["from the integral, at most", "from drawn means, at most (standard errors)"]
    rows = []
    for found in metrics["curves"]:
        drawn = max(in_errors(row) for row in found["drawn"] if row["of"] == of)
        values = [f"{found[of][i]:.4f}" for i in places]
        rows.append([found["name"], *values, f"{apart(found, of):.0e}", f"{drawn:.2f}"])
    return (
        markdown_table(header, rows)
        + "\nDistances from the integral are relative to the curve's largest value.\n"
    )


def _stand_ins(metrics: dict[str, Any]) -> str:
    header = ["at most apart", "the function", "g", "f", "g (%)", "f (%)"]
    rows = []
    for one, other in near_pairs(metrics):
        gaps = [dual_gap(one, other, of) for of in "gf"]
        shares = [100 * gap / max(map(abs, one[of])) for gap, of in zip(gaps, "gf", strict=True)]
        numbers = [
            f"{one['function_apart']:.4f}",
            *(f"{gap:.4f}" for gap in gaps),
            *(f"{s:.2f}" for s in shares),
        ]
        rows.append([f"{one['name']} and {other['name']}", *numbers])
    return markdown_table(header, rows) + "\nPercentages are of the largest value of f or g.\n"


def _witnesses(metrics: dict[str, Any]) -> str:
    header = ["equation", "a", "gain", "b", "c", "printed", "ours", "printed - ours", "integral", "drawn"]
    rows = []
    for number, of in (("57", "g"), ("62", "f")):
        for row in metrics[f"equation_{number}"]:
            mean, error = row["drawn"]
            rows.append(
                [
                    f"{number}: {of} of a·{row['name']}(gain·x) + b",
                    *(f"{row[key]:g}" for key in ("scale", "gain", "offset", "cosine")),
                    *(
                        f"{value:.4f}"
                        for value in (row["printed"], row["ours"], row["printed"] - row["ours"])
                    ),
                    f"{row['by_integral']:.4f}",
                    f"{mean:.4f} ± {error:.4f}",
                ]
            )
    return markdown_table(header, rows)
