"""The Markdown of the ``spectra`` experiment, from the metrics alone: the thesis' table, then growing n."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.preprocessing import WHITENING
from zbkernels.experiments.spectra_claims import (
    PAPER,
    TITLES,
    lower_bound,
    over_ratio,
    rows_of,
    verdicts,
    whole,
)
from zbkernels.report import markdown_table, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, the thesis' table beside ours, and each image set by n."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    parts += ["## The thesis' table\n", _thesis_table(metrics)]
    for found in metrics["sets"]:
        parts += [f"## {found['title']}\n", _facts(found), _by_size(found)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    lines = [
        f"# spectra, preset {metrics['preset']}\n",
        "- H∞ = f(XXᵀ), f(c) = c(π - acos c)/(2π): a hidden layer of ReLU whose weights train; rows of X have norm 1.",
        "- Each preprocessing is done to the n images of its row. Whitened: the mean of each image is subtracted, then "
        "coordinates along the right singular vectors of the n images are divided by their root mean square; "
        "directions without any variance are left out.",
        "- λ_min is the Rayleigh quotient in float64 of a vector found by Lanczos on the inverse of a float32 matrix "
        "and refined in float64: an upper bound. *Residual* is ‖H∞v - λv‖: an eigenvalue lies within it. *At least* is "
        "the float32 factor's least eigenvalue less the factor's error, a norm estimated by power iteration: no "
        "smaller eigenvalue was overlooked.",
        "- *float32* is the least eigenvalue of H∞ computed and factored in float32, from float64 rows.",
        "- *Images in the eigenvector* is 1/Σv⁴: 2 for a vector on two images alone. *Nearest two* is the least "
        "eigenvalue of the nearest two images alone, an upper bound of λ_min.",
    ]
    stand_ins = [found for found in metrics["sets"] if found["name"] != found["in_place_of"]]
    for found in stand_ins:
        lines.append(
            f"- {found['title']} stands where {TITLES[found['in_place_of']]} is absent, under its own name: its "
            f"numbers are compared with none of the thesis'."
        )
    if metrics["absent"]:
        lines.append(f"- Not in the data folder, so left out: {', '.join(metrics['absent'])}.")
    return "\n".join(lines) + "\n"


def _thesis_table(metrics: dict[str, Any]) -> str:
    header = ["", "‖X‖²: thesis", "ours", "difference (%)", "λ_min(H∞): thesis", "ours", "difference (%)"]
    header += ["residual", "at least", "float32"]
    rows = []
    for name, (_, printed) in PAPER.items():
        for how, (norm, least) in printed.items():
            cells = [f"{TITLES[name]} / {how}", f"{norm:g}"]
            row = whole(metrics["sets"], name, how)
            if row is None:
                cells += ["not run", "", f"{least:.5f}", "not run", "", "", "", ""]
            else:
                ours = row["least"]["value"]
                cells += [f"{row['squared_norm']:.6g}", f"{100 * (row['squared_norm'] / norm - 1):+.4f}"]
                cells += [f"{least:.5f}", f"{ours:.7f}", f"{100 * (ours / least - 1):+.2f}"]
                cells += [f"{row['least']['residual']:.1g}", f"{lower_bound(row):.7f}"]
                cells += [f"{row['least']['float32']:.7f}"]
            rows.append(cells)
    whole_sets = " and ".join(f"{images:,} images of {TITLES[name]}" for name, (images, _) in PAPER.items())
    return markdown_table(header, rows) + f"\nAll {whole_sets}; the thesis calculated in float32.\n"


def _facts(found: dict[str, Any]) -> str:
    note = f" Note on the data: {found['note']}." if found["note"] else ""
    whitened = rows_of(found, WHITENING)
    spans = f"; whitened, the largest set spans {whitened[-1]['directions']:,} directions" if whitened else ""
    return f"The first n of {found['images']:,} training images of d = {found['features']:,} values{spans}.{note}\n"


def _by_size(found: dict[str, Any]) -> str:
    header = ["preprocessing", "n", "‖X‖²", "‖X‖² in n/d", "λ_min(H∞)", "residual", "at least", "float32"]
    header += ["images in the eigenvector", "nearest two", "‖X‖²/λ_min"]
    rows = []
    for row in found["rows"]:
        least = row["least"]
        shifted = "" if least["shift"] == 0 else f" (factor of H∞ + {least['shift']:g})"
        condition = row["squared_norm"] / least["value"] if least["value"] > 0 else float("inf")
        rows.append(
            [
                row["how"],
                f"{row['n']:,}",
                f"{row['squared_norm']:.6g}",
                f"{over_ratio(found, row):.3g}",
                f"{least['value']:.7f}",
                f"{least['residual']:.1g}",
                f"{lower_bound(row):.7f}",
                f"{least['float32']:.7f}{shifted}",
                f"{least['participation']:.3g}",
                f"{row['nearest']['bound']:.5f}",
                f"{condition:.3g}",
            ]
        )
    return markdown_table(header, rows)
