"""Markdown of the experiment ``linear-dynamics``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.effectively_linear.linear_dynamics_claims import average, verdicts
from zbkernels.report import markdown_table, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """Verdicts, then each part that was run."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    if metrics["rank_one"] is not None:
        parts += ["## Balanced starts of rank one\n", _rank_one(metrics)]
    if metrics["unbalanced"] is not None:
        parts += ["## Unbalanced starts of rank one\n", _unbalanced(metrics)]
    if metrics["scales"] is not None:
        parts += ["## Small random starts\n", _random(metrics)]
    if metrics["step_size"] is not None:
        parts += ["## Gradient descent and the flow\n", _steps(metrics)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    plan = metrics["plan"]
    return (
        f"# linear-dynamics, preset {metrics['preset']}\n\n"
        f"- {plan['dimension']} inputs, {plan['width']} hidden units, {plan['count']} points and their negatives, so "
        "that p(x) = p(-x) holds exactly; odd targets of mean square 1 that are not linear. Sizes and targets are "
        "ours.\n"
        f"- Float64; flows by scipy's DOP853 on all weights; seeds {', '.join(map(str, metrics['seeds']))}. The part "
        "of the paper at hand gives no numbers.\n"
    )


def _rank_one(metrics: dict[str, Any]) -> str:
    header = ["setting, slope", "weights from linear", "losses", "descent", "weights from reduced", "losses"]
    keys = ("weights", "loss", "descent", "reduced_weights", "reduced_loss")
    rows = []
    for setting in metrics["rank_one"]:
        for alpha in sorted({row["alpha"] for row in setting["rows"]}):
            chosen = [row for row in setting["rows"] if row["alpha"] == alpha]
            cells = [f"{max(row[key] for row in chosen):.1e}" for key in keys]
            rows.append([f"{setting['title']}, {alpha:g}", *cells])
    sided = ", ".join(
        f"{far:.2g} ({slope:g})" for slope, far in average(metrics["one_sided"], "weights", "alpha")
    )
    return (
        markdown_table(header, rows)
        + "\nThe largest over time and seeds; weights relative to their norm. Reduced: the logistic for whitened "
        f"inputs, else the equations for a and r. On points without negatives, weights from linear (slope): {sided}.\n"
    )


def _unbalanced(metrics: dict[str, Any]) -> str:
    header = ["slope", "share of the positive part", "even part, largest", "at the end", "from the formula"]
    header += ["norms from two equations", "outputs from linear, largest"]
    rows = metrics["unbalanced"]["rows"]
    lines = []
    for alpha, share in dict.fromkeys((row["alpha"], row["share"]) for row in rows):
        chosen = [row for row in rows if (row["alpha"], row["share"]) == (alpha, share)]
        keys = ("even", "even_end", "even_from_said", "parts", "from_linear")
        lines.append(
            [f"{alpha:g}", f"{share:g}", *(f"{max(row[key] for row in chosen):.2g}" for key in keys)]
        )
    return (
        markdown_table(header, lines)
        + "\nWhitened inputs, r along the target. Root mean squares of outputs, of the final output's; the largest "
        "over the seeds. A share of 1: no unit has a negative weight, and half of the inputs is never fitted.\n"
    )


def _random(metrics: dict[str, Any]) -> str:
    header = [
        "start, slope",
        "width",
        "scale",
        "outputs apart",
        "at the end",
        "even part",
        "weights apart",
        "floor",
    ]
    keys = ("outputs", "outputs_end", "even", "weights", "floor")
    rows = []
    for source in ("scales", "widths"):
        found = metrics[source]
        cases = dict.fromkeys((row["start"], row["alpha"], row["width"], row["scale"]) for row in found)
        for start, alpha, width, scale in sorted(
            cases, key=lambda case: (case[0], case[1], case[2], -case[3])
        ):
            fixed = {"start": start, "alpha": alpha, "width": width}
            cells = [dict(average(found, key, "scale", **fixed))[scale] for key in keys]
            rows.append([f"{start}, {alpha:g}", f"{width}", f"{scale:g}", *(f"{cell:.2g}" for cell in cells)])
    on_points = [
        [
            f"{start}, {alpha:g}",
            *(
                f"{far:.2g}"
                for _, far in average(metrics["on_points"], "outputs", "scale", start=start, alpha=alpha)
            ),
        ]
        for start, alpha in dict.fromkeys((row["start"], row["alpha"]) for row in metrics["on_points"])
    ]
    scales = sorted({row["scale"] for row in metrics["on_points"]})
    return (
        markdown_table(header, rows)
        + "\nIn expectation over normal inputs; of the final output, the largest over time but for the second; means "
        "over the seeds. Floor: what the imbalance of the draw leaves at any smaller scale.\n\n"
        + markdown_table(["on points, by scale", *(f"{scale:g}" for scale in scales)], on_points)
    )


def _steps(metrics: dict[str, Any]) -> str:
    found = metrics["step_size"]
    steps = sorted({row["step"] for row in found}, reverse=True)
    rows = []
    for name, alpha in dict.fromkeys((row["setting"], row["alpha"]) for row in found):
        far = dict(average(found, "from_flow", "step", setting=name, alpha=alpha))
        linear = max(row["from_linear"] for row in found if (row["setting"], row["alpha"]) == (name, alpha))
        rows.append([f"{name}, {alpha:g}", *(f"{far[step]:.2g}" for step in steps), f"{linear:.0e}"])
    return (
        markdown_table(["setting, slope", *(f"step {step:g}" for step in steps), "from linear descent"], rows)
        + "\nWeights from those of the flow (closed form or reduced equations), of their norm, the largest over "
        "time, means over the seeds. Steps in time of the linear network, units of 1/‖E[y x]‖.\n"
    )
