"""The Markdown of the ``ldnet-error`` experiment, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.ldnet_error_claims import (
    DOWNSCALED,
    IN_PIXELS,
    LINEARIZED,
    NAMES,
    NORMAL,
    average,
    errors,
    verdicts,
)
from zbkernels.report import markdown_table, verdict_table

SHOWN = {
    NORMAL: "plain",
    LINEARIZED: "linearised",
    DOWNSCALED: "downscaled",
    IN_PIXELS: "downscaled, in pixels",
}
FIGURES = (  # number, activation, kinds
    ("Figure 1", "erf:2", (NORMAL, LINEARIZED)),
    ("Figure 2", "relu", (NORMAL, LINEARIZED)),
    ("Figure 3", "relu", (NORMAL, DOWNSCALED, LINEARIZED, IN_PIXELS)),
)


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then the numbers of each figure."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for title, activation, kinds in FIGURES:
        found = _errors(metrics, activation, kinds)
        if found:
            parts += [f"## {title}: {NAMES[activation]}\n", found]
    parts += ["## The infinite network\n", _infinite(metrics)]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    seeds = sorted({unit["seed"] for unit in metrics["units"]})
    trained = ", ".join(f"{width:,}" for width in metrics["trained"])
    missing = [f"{width:,}" for width in metrics["widths"] if width not in metrics["trained"]]
    lines = [
        f"# ldnet-error, preset {metrics['preset']}\n",
        f"- Data: {metrics['data']['title']}; the first {metrics['per_class']} zeros and {metrics['per_class']} ones "
        f"of the training file train, the next {metrics['per_class']} of each test; {metrics['pixels']} values, unit "
        "norm; targets 0 and 1 times the scale.",
        f"- Networks: one hidden layer of m units, of which the first weights train (equations 1 to 3); "
        f"{metrics['steps']:,} full-batch steps of {metrics['lr']} on ½‖y - u‖² (equation 4), float32; "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}, each with the same initial weights for "
        "every kind of network.",
        f"- Downscaled: a difference network trained on {metrics['epsilon']:g} times the targets (equations 45 to 48). "
        "Linearised (equation 44): descent in closed form, by its kernel, in float64; and step by step in float32.",
        "- Error: ‖u - u_IEIN‖/‖y‖ over the test inputs; u_IEIN by the limit's kernel (equations 8 and 21) in float64.",
        "- The thesis gives no axes, no widths and no number of networks: those are ours.",
        "- Inputs are given in an orthonormal basis of the training inputs' span and of what the test inputs add to "
        "it. Gradients stay in the span and normal weights are normal in any basis, so this is exact, and the columns "
        "that train are as many as training inputs. Rounding alone is not the same: see the rows in pixels.",
    ]
    if missing:
        lines.append(
            f"- **Not the whole of it:** networks of widths {trained} are trained; at {', '.join(missing)} there are "
            "linearised ones alone, which need no training. `zb run ldnet-error --preset paper` trains all."
        )
    return "\n".join(lines) + "\n"


def _errors(metrics: dict[str, Any], activation: str, kinds: tuple[str, ...]) -> str:
    scales = metrics["scales"]
    rows = []
    for kind in kinds:
        found = errors(metrics, activation, kind)
        for width in sorted({width for width, _ in found}):
            cells = [average(found[width, scale]) if (width, scale) in found else None for scale in scales]
            seeds = max(len(found[width, scale]) for scale in scales if (width, scale) in found)
            numbers = ["" if value is None else f"{value:.4g}" for value in cells]
            rows.append([f"{SHOWN[kind]}, m = {width:,}", *numbers, str(seeds)])
    if not rows:
        return ""
    header = ["error at target scale", *(f"{scale:g}" for scale in scales), "seeds"]
    return markdown_table(header, rows)


def _infinite(metrics: dict[str, Any]) -> str:
    header = ["activation", "‖u_IEIN‖/‖y‖", f"after {metrics['steps']:,} steps, from there"]
    header += ["least eigenvalue of H∞", "largest"]
    rows = [
        [NAMES[activation]]
        + [f"{found[key]:.4g}" for key in ("size", "unfinished", "least_eigenvalue", "largest_eigenvalue")]
        for activation, found in metrics["infinite"].items()
    ]
    return markdown_table(header, rows)
