"""Markdown of the experiment ``odd-functions``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.effectively_linear.odd_functions_claims import TWO_LAYER, verdicts
from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS
from zbkernels.report import markdown_table, mean, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """Verdicts, errors by target and network, and the decomposition of random networks."""
    return "\n".join(
        [
            _heading(metrics),
            "## Claims\n",
            verdict_table(verdicts(metrics)),
            "## Errors\n",
            _errors(metrics, "error", "linear"),
            "Mean squared error over the target's mean square, mean over the seeds, on the points that were fitted. "
            "No paper number stands beside them: the part of the paper at hand gives none.\n",
            "## Errors on fresh points\n",
            _errors(metrics, "fresh", "linear_fresh"),
            "Four times as many points, symmetric too.\n",
            "## Two layers without biases, less the best linear map\n",
            _excess(metrics),
            "## Random networks\n",
            _decomposition(metrics),
        ]
    )


def _heading(metrics: dict[str, Any]) -> str:
    return (
        f"# odd-functions, preset {metrics['preset']}\n\n"
        f"- Inputs: {metrics['points']:,} normal vectors x and their negatives; targets scaled to a mean square of 1. "
        "Targets, sizes and training are ours.\n"
        f"- Training: L-BFGS on all points, float64, at most {metrics['iterations']:,} iterations; for two layers "
        f"without biases then Levenberg and Marquardt's method, at most {metrics['polish'][1]} steps from there and "
        f"from each of at most {metrics['polish'][0]} starts beside it; seeds "
        f"{', '.join(map(str, metrics['seeds']))}, which draw points and first weights.\n"
    )


def cases(metrics: dict[str, Any]) -> list[tuple[str, int]]:
    """(target, dimension) in the order of the run, each once."""
    return list(dict.fromkeys((fit["target"], fit["dimension"]) for fit in metrics["fits"]))


def of_case(metrics: dict[str, Any], target: str, dimension: int) -> list[dict[str, Any]]:
    """Its fits, one for each seed."""
    return [fit for fit in metrics["fits"] if (fit["target"], fit["dimension"]) == (target, dimension)]


def _case(target: str, dimension: int) -> str:
    return f"{ODD_TARGETS[target].title}, {dimension} dimensions"


def _errors(metrics: dict[str, Any], key: str, linear: str) -> str:
    rows = []
    for target, dimension in cases(metrics):
        fits = of_case(metrics, target, dimension)
        cells = [mean([fit["networks"][kind][key] for fit in fits]) for kind in metrics["kinds"]]
        rows.append(
            [_case(target, dimension), *(f"{v:.4f}" for v in (mean([f[linear] for f in fits]), *cells))]
        )
    return markdown_table(["target", "best linear map", *metrics["kinds"]], rows)


def _excess(metrics: dict[str, Any]) -> str:
    kinds = [kind for kind in TWO_LAYER if kind in metrics["kinds"]]
    header = [
        "target",
        "closed form",
        *kinds,
        *(f"even part, {kind}" for kind in kinds),
        "on x without -x, two-layer",
    ]
    rows = []
    for target, dimension in cases(metrics):
        fits = of_case(metrics, target, dimension)
        row = [_case(target, dimension), f"{max(abs(f['pair'] - f['linear']) for f in fits):.0e}"]
        row += [f"{max(f['networks'][kind]['error'] - f['linear'] for f in fits):.0e}" for kind in kinds]
        row += [f"{max(f['networks'][kind]['even'] for f in fits):.0e}" for kind in kinds]
        halves = [f["networks"]["two-layer"]["half"] - f["linear_half"] for f in fits if "two-layer" in kinds]
        rows.append([*row, f"{mean(halves):.3f}" if halves else "-"])
    return (
        markdown_table(header, rows)
        + "\nOf the target's mean square, the largest over the seeds (last column: the mean).\n"
    )


def _decomposition(metrics: dict[str, Any]) -> str:
    header = ["networks", "f less its two parts", "(f(x) - f(-x))/2 less the odd part"]
    rows = [
        [f"slope {row['alpha']:g}, {row['dtype']}", f"{row['apart']:.4f}", f"{row['odd']:.4f}"]
        for row in metrics["decomposition"]
    ]
    return (
        markdown_table(header, rows)
        + f"\n{metrics['random_networks']:,} networks a row (up to 39 inputs, 199 units, 4 outputs), computed by the "
        "fused linear_relu; the largest error, in units of the bound on rounding (D + H + 4) eps Σ abs(w2 w1 x).\n"
    )
