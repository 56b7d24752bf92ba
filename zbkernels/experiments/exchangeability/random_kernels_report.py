"""Markdown of the experiment ``random-kernels``, from the metrics alone."""

from __future__ import annotations

import math
from typing import Any

from zbkernels.experiments.exchangeability.random_kernels_claims import exponent, slope, verdicts
from zbkernels.experiments.exchangeability.random_layers import DENSITIES, LAYERS
from zbkernels.report import markdown_table, mean, verdict_table

_KINDS = ("images", "p, non-zero sums", "x, zero sums", "p, zero sums", "x, centred", "p, centred")


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, Figure 2, Procedure 1, Hypothesis 3, inputs, errata."""
    return "\n".join(
        [
            _heading(metrics),
            "## Claims\n",
            verdict_table(verdicts(metrics)),
            "## Figure 2\n",
            _curves(metrics),
            _sizes(metrics),
            "## Procedure 1\n",
            _angles(metrics),
            "## Hypothesis 3\n",
            _hypothesis3(metrics),
            "## Kernels at Procedure 1's inputs\n",
            _inputs(metrics),
            "## Errata\n",
            errata(metrics),
        ]
    )


def _heading(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    absent = f" Not there: {', '.join(metrics['absent'])}." if metrics["absent"] else ""
    return (
        f"# random-kernels, preset {metrics['preset']}\n\n"
        f"- Images: {data['title']}; Hypothesis 3 also of {', '.join(x['title'] for x in metrics['sets'][1:])}."
        f"{note}{absent}\n"
        f"- Layers of independent weights without biases, one for each seed ({len(metrics['seeds'])}); angles: "
        f"{len(metrics['angles'])} from 0 to π. The paper gives Figure 2 as a picture: points on the curve of "
        "equation 4, normalised; it names no deviation.\n"
    )


def _curves(metrics: dict[str, Any]) -> str:
    at = metrics["angles"]
    places = [round(part * (len(at) - 1) / 6) for part in range(7)]
    header = ["normalised kernel at θ, mean over seeds"]
    header += [f"{at[i]:.2f}" for i in places]
    want = [(math.sin(at[i]) + (math.pi - at[i]) * math.cos(at[i])) / math.pi for i in places]
    rows = [["paper: arc-cosine kernel", *(f"{value:.4f}" for value in want)]]
    for layer in metrics["layers"]:
        found = [mean([curve[i] for curve in layer["curves"]]) for i in places]
        title = DENSITIES[layer["density"]].title
        rows.append([f"{title}: ours", *(f"{value:.4f}" for value in found)])
        rows.append(["difference", *(f"{v - w:+.4f}" for v, w in zip(found, want, strict=True))])
    shown = metrics["layers"][0]["shown"]
    return markdown_table(header, rows) + f"\n{shown:,} inputs and units, x and y by the QR construction.\n"


def _sizes(metrics: dict[str, Any]) -> str:
    header = ["deviation, inputs and units", *(f"{size:,}" for size in metrics["sizes"]), "exponent"]
    rows = [
        [
            DENSITIES[layer["density"]].title,
            *(f"{row['rms']:.4f}" for row in layer["sizes"]),
            f"{exponent(layer):.2f}",
        ]
        for layer in metrics["layers"]
    ]
    return markdown_table(header, rows) + "\nRoot mean square over seeds and angles.\n"


def _angles(metrics: dict[str, Any]) -> str:
    rows = []
    for found in metrics["procedures"]:
        cells = [f"{row['mean']:.3f} ({row['least']:.3f} to {row['most']:.3f})" for row in found["at"]]
        longest = max(found["at"], key=lambda row: abs(row["length"] - 1))["length"]
        total = max(row["sum"] for row in found["at"])
        rows.append(
            [found["procedure"], *cells, f"{longest:.2f}", f"{total:.0e}" if total < 1e-9 else f"{total:.1f}"]
        )
    asked = [f"θ = {row['angle']:g}" for row in metrics["procedures"][0]["at"]]
    header = ["angle got", *asked, "‖y‖/‖x‖, farthest from 1", "‖y‖⁻¹ Σ y_i, largest"]
    counts = [
        [
            each["title"],
            f"{each['zeros']['coordinates']:,}",
            f"{each['zeros']['images']:,}",
            f"{each['zeros']['least']:,}",
            f"{each['zeros']['median']:,}",
            f"{each['zeros']['without']:,}",
            f"{each['zeros']['few']:,}",
        ]
        for each in metrics["sets"]
    ]
    columns = [
        "coordinates of 0",
        "of",
        "images",
        "least",
        "median",
        "images without",
        "images with fewer than √m",
    ]
    return (
        markdown_table(header, rows)
        + f"\nMean (least to most) over {metrics['turned']:,} images.\n\n"
        + markdown_table(columns, counts)
        + "\nThe last two coordinates are not counted: p is 0 there. With fewer than √m the mended form projects.\n"
    )


def _hypothesis3(metrics: dict[str, Any]) -> str:
    parts = []
    for each in metrics["sets"]:
        found = each["hypothesis3"]
        header = [f"{each['title']}: m", *(f"{row['coordinates']:,}" for row in found), "exponent of m"]
        rows = [
            [kind, *(f"{row[kind]['median']:.3f}" for row in found), f"{slope(found, kind):.2f}"]
            for kind in _KINDS
        ]
        parts.append(markdown_table(header, rows))
    return "\n".join(parts) + (
        "\nMedian over images of m^(1/4) ‖x‖_∞/‖x‖, the images zoomed bilinearly; the hypothesis: it goes to 0.\n"
    )


def _inputs(metrics: dict[str, Any]) -> str:
    names = [row["inputs"] for row in metrics["layers"][0]["inputs"]]
    rows = []
    for layer in metrics["layers"]:
        cells = [
            f"{row['largest_off']:.3f}"
            + ("" if row["error_there"] is None else f" ± {row['error_there']:.3f}")
            for row in layer["inputs"]
        ]
        rows.append([DENSITIES[layer["density"]].title, *cells])
    return (
        markdown_table(["largest deviation of the mean kernel", *names], rows)
        + f"\nMean over {len(metrics['seeds'])} × {LAYERS} layers of {metrics['units']:,} units and "
        f"{metrics['looked_at']} images, and the standard error of that over the seeds where it deviates most.\n"
    )


def errata(metrics: dict[str, Any]) -> str:
    """A table of the formulas that do not hold as printed, each with its witness."""
    lines = ["| where | printed | right | witness |", "| --- | --- | --- | --- |"]
    for row in metrics["errata"]:
        numbers = "; ".join(f"{name}: {_number(value)}" for name, value in row["witness"].items())
        cells = [row["place"], row["printed"], row["right"], numbers]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "none (root of a negative number)" if value is None else f"{value:.4g}"
