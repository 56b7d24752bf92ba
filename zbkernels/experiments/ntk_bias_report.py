"""Markdown of the experiment ``ntk-bias``, from the metrics alone."""

from __future__ import annotations

from typing import Any

from zbkernels.experiments.ntk_bias_claims import betas_of, curve_gap, hidden, verdicts
from zbkernels.report import markdown_table, mean, spread, verdict_table


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then for each depth limits, networks, training and predictions."""
    parts = [_heading(metrics), "## Claims\n", verdict_table(verdicts(metrics))]
    for found in metrics["depths"]:
        parts += [
            f"## {hidden(found).capitalize()}\n",
            _distances(metrics, found),
            _networks(metrics, found),
            _dynamics(found),
            _predictions(metrics, found),
        ]
    return "\n".join(parts)


def _heading(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    return (
        f"# ntk-bias, preset {metrics['preset']}\n\n"
        f"- {data['title']}; pixels in [0, 1] with a mean square of {data['mean_square']:.3f}.{note}\n"
        "- Networks as in equation 20: ReLU, N(0, 1) weights over √fan-in, N(0, 1) biases times β; β = 0 is the "
        "zero-bias network. The paper gives no number here.\n"
        f"- Finite networks: kernels at {metrics['inputs']} images, of which half are trained on "
        f"(±{metrics['target']:g} for odd and even), {metrics['steps']} steps of gradient descent with "
        f"step length 1/λ_max; seeds {', '.join(map(str, metrics['seeds']))}.\n"
    )


def _distances(metrics: dict[str, Any], found: dict[str, Any]) -> str:
    header = [
        "limits, β",
        "‖K_β - K_0‖/‖K_0‖",
        "over β²",
        "from the best multiple of K_0",
        "without constants",
    ]
    rows = [
        [
            f"{row['beta']:g}",
            f"{row['plain']:.4g}",
            f"{row['plain'] / row['beta'] ** 2:.2f}",
            f"{row['scaled']:.4f}",
            f"{row['centred']:.4f}",
        ]
        for row in found["distances"]
    ]
    black = found["witnesses"][-1]
    return (
        markdown_table(header, rows)
        + f"\nBetween {metrics['compared']} images. Of the zero image and another, with one hidden layer: "
        f"{black['black_with']:.4f} at β = {black['beta']:g}, {black['black_without']:.4f} at β = 0.\n"
    )


def _networks(metrics: dict[str, Any], found: dict[str, Any]) -> str:
    header = [
        "networks",
        "from own limit",
        "from K_0",
        "moved by training",
        "then from own limit",
        "then from K_0",
    ]
    header.append("loss, of its start (%)")
    rows = []
    for beta in betas_of(found):
        for width in sorted({net["width"] for net in found["networks"]}):
            nets = [net for net in found["networks"] if (net["beta"], net["width"]) == (beta, width)]
            cells = [_with_spread([net[key] for net in nets]) for key in _KEYS]
            left = mean([100 * net["losses"][1] / net["losses"][0] for net in nets])
            rows.append([f"β = {beta:g}, width {width:,}", *cells, f"{left:.2g}"])
    return (
        markdown_table(header, rows)
        + "\nRelative Frobenius distances, mean and standard deviation over the seeds.\n"
    )


_KEYS = ("to_own", "to_zero", "moved", "after_to_own", "after_to_zero")


def _with_spread(values: list[float]) -> str:
    deviation = spread(values)
    return f"{mean(values):.3g}" + ("" if deviation is None else f" ± {deviation:.1g}")


def _dynamics(found: dict[str, Any]) -> str:
    header = ["training of the limit, β", "to half the loss", "to a tenth", "from β = 0, at most (%)"]
    header += ["own rate: to half", "to a tenth", "from β = 0, at most (%)"]
    rows = []
    for beta in found["dynamics"]["betas"]:
        cells = []
        for unit in ("same", "own"):
            curves = found["dynamics"][unit]
            cells += [f"{curves[key][f'{beta:g}']:,.1f}" for key in ("half", "tenth")]
            cells.append(f"{100 * curve_gap(curves, beta):.1f}" if beta else "-")
        rows.append([f"{beta:g}", *cells])
    note = (
        "\nTime of gradient flow on the mean squared error (one-hot, mean taken off) from an output of 0. Own rate: in "
        "units of 1/λ_max(K/N), in which a learning rate is bounded.\n"
    )
    return markdown_table(header, rows) + note


def _predictions(metrics: dict[str, Any], found: dict[str, Any]) -> str:
    header = ["test accuracy (%) at scalar", *(f"{scalar:g}" for scalar in metrics["contrasts"])]
    header += ["same class as β = 0 (%)", "outputs apart (%)"]
    rows = []
    for row in found["regressions"]:
        accuracies = [f"{at['accuracy']:.2f}" for at in row["contrast"]]
        last = [f"{row['agree']:.2f}", f"{100 * row['apart']:.1f}"] if row["beta"] else ["-", "-"]
        rows.append([f"β = {row['beta']:g}", *accuracies, *last])
    return (
        markdown_table(header, rows)
        + "\nKernel regression with the limits; the last two columns at scalar 1.\n"
    )
