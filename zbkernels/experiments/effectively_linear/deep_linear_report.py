"""Markdown of the experiment ``deep-linear``, from the metrics alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zbkernels.experiments.effectively_linear.deep_linear_claims import (
    broken_rows,
    digit_rows,
    layer_word,
    learned,
    verdicts,
    waits,
)
from zbkernels.report import markdown_table, mean, spread, verdict_table

Found = dict[str, Any]


def table(metrics: dict[str, Any]) -> str:
    """The whole report of a run: verdicts, then networks, stages, broken symmetry and digits."""
    depths = metrics["depths"]
    return "\n".join(
        [
            _heading(metrics),
            "## Claims\n",
            verdict_table(verdicts(metrics)),
            "## Rank, alignment, balance\n",
            _networks(depths),
            "## Stages\n",
            _stages(depths),
            "## The symmetry broken\n",
            _broken(depths),
            "## Digit against digit\n",
            _digits(depths),
        ]
    )


def _heading(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    note = f" Note on the data: {data['note']}." if data["note"] else ""
    return (
        f"# deep-linear, preset {metrics['preset']}\n\n"
        "- Full-batch gradient flow in float64 on ½E(y - f)², no biases; every hidden layer of the same "
        "width; Gaussian "
        "weights, each layer scaled to the same norm ‖W(0)‖.\n"
        "- Made-up inputs: 8 features (6 for the mirrored halves), exactly white, each x with its -x. The "
        "paper's text was "
        "not at hand, so no number of it stands beside ours.\n"
        f"- Digits: {data['title']}.{note}\n"
        f"- Seeds {', '.join(map(str, metrics['seeds']))}; mean and standard deviation over them.\n"
    )


def _pm(values: Sequence[float], digits: int = 3) -> str:
    if not values:
        return "-"
    deviation = spread(values)
    return f"{mean(values):.{digits}f}" + ("" if deviation is None else f" ± {deviation:.1g}")


def _networks(depths: list[Found]) -> str:
    header = ["", "learned", "rank-one part, by layer", "rank-two part", "alignment", "‖W_l‖", "time to 90 %"]
    header += ["second half-space later by (%)", "least odd part on the way"]
    rows = []
    for found in depths:
        for net in found["nets"]:
            for kind in ("linear", "relu"):
                part = net[kind]
                here = list(range(len(part["loss"]))) if kind == "linear" else learned(net)

                def by_layer(key: str, part: Found = part, here: list[int] = here) -> str:
                    values = [part[key][i] for i in here]
                    return ", ".join(f"{mean(column):.3f}" for column in zip(*values, strict=True)) or "-"

                late = [100 * w for w in waits(net) if w is not None] if kind == "relu" else []
                times = [t for t in part["nine_tenths"] if t is not None]
                rows.append(
                    [
                        f"{layer_word(found['depth'])}, width {net['width']}, ‖W(0)‖ = {net['norm']:.3g}, "
                        f"{'ReLU' if kind == 'relu' else 'linear'}",
                        f"{len(here)} of {len(part['loss'])}",
                        by_layer("rank1"),
                        by_layer("rank2"),
                        by_layer("alignment"),
                        by_layer("norms"),
                        _pm(times, 1),
                        _pm(late, 1),
                        _pm(part["least_odd"], 2),
                    ]
                )
    return (
        markdown_table(header, rows)
        + "\nRank, alignment and norms of the networks that learned both half-spaces (below 5 % of the loss "
        "at the start) in the "
        "time given; a part is of the layer's ‖W‖². Least odd part: while the loss is between 0.9 and 0.1 of "
        "its start.\n"
    )


def _stages(depths: list[Found]) -> str:
    header = [
        "",
        "modes",
        "times at which each is half learned",
        "of the next by then (%)",
        "loss at the end",
    ]
    rows = []
    for found in depths:
        part = found["stages"]
        for kind in ("linear", "relu"):
            columns = zip(*part[kind]["times"], strict=True)
            times = [[t for t in column if t is not None] for column in columns]
            ahead = [[100 * v for v in c if v is not None] for c in zip(*part[kind]["next"], strict=True)]
            rows.append(
                [
                    f"{layer_word(found['depth'])}, {'ReLU' if kind == 'relu' else 'linear'}",
                    ", ".join(f"{s:g}" for s in part["modes"]),
                    ", ".join(
                        _pm(t, 1) + ("" if len(t) == len(part[kind]["times"]) else f" ({len(t)})")
                        for t in times
                    ),
                    ", ".join(_pm(v, 2) for v in ahead),
                    _pm(part[kind]["loss"]),
                ]
            )
    return (
        markdown_table(header, rows)
        + "\nIn brackets: the seeds that learned the mode in the time given, where not all did.\n"
    )


def _broken(depths: list[Found]) -> str:
    header = [
        "",
        "amount",
        "not linear (%)",
        "loss",
        "best linear map's",
        "rank-one part of W_1",
        "rank-two part",
        "alignment",
    ]
    rows = []
    for found in depths:
        for kind in ("target", "inputs"):
            for amount, nets in broken_rows(found, kind):
                rows.append(
                    [
                        f"{layer_word(found['depth'])}, {kind}",
                        f"{amount:g}",
                        _pm([100 * net["bent"] for net in nets]),
                        _pm([net["loss"] for net in nets], 4),
                        f"{mean([net['best_linear'] for net in nets]):.4f}",
                        _pm([net["rank1"][0] for net in nets]),
                        _pm([net["rank2"][0] for net in nets]),
                        ", ".join(
                            _pm(list(c), 2) for c in zip(*(net["alignment"] for net in nets), strict=True)
                        ),
                    ]
                )
    return (
        markdown_table(header, rows)
        + "\nReLU networks. Target: y = x_1 + amount |x_2|. Inputs: x has (1 + amount)/2 of the weight of "
        "the pair x, -x, and "
        "y = x_1 + (x_2³ - 3 x_2)/4. Linear networks are the same at every amount, as both leave E[x xᵀ] and "
        "E[y xᵀ] as they are.\n"
    )


def _digits(depths: list[Found]) -> str:
    header = ["", "weight of x less that of -x", "not linear (%)", "odd part", "loss", "best linear map's"]
    header += ["rank-one part of W_1", "alignment", "test accuracy (%)", "of the best linear map"]
    rows = []
    for found in depths:
        for part in found["digits"]:
            for kind in ("linear", "relu"):
                for amount in part["amounts"] if kind == "relu" else part["amounts"][:1]:
                    nets = digit_rows(part, kind, amount)
                    rows.append(
                        [
                            f"{layer_word(found['depth'])}, {part['pair'][0]} / {part['pair'][1]}, "
                            f"{'ReLU' if kind == 'relu' else 'linear'}",
                            f"{amount:g}" if kind == "relu" else "any",
                            _pm([100 * max(net["bent"], 0.0) for net in nets], 2),
                            _pm([net["odd"] for net in nets]),
                            _pm([net["loss"] for net in nets]),
                            f"{mean([net['best_linear'] for net in nets]):.3f}",
                            _pm([net["rank1"][0] for net in nets]),
                            ", ".join(
                                _pm(list(c), 2) for c in zip(*(net["alignment"] for net in nets), strict=True)
                            ),
                            _pm([net["accuracy"] for net in nets], 2),
                            f"{part['best_accuracy']:.2f}",
                        ]
                    )
    images = depths[0]["digits"][0]["images"]
    return (
        markdown_table(header, rows)
        + f"\n{images} training images of each digit, ±1, each with its negative; 0 weighs both alike, 1 is "
        f"the images alone. "
        "Losses are of that of f = 0; the linear networks' are the same at any weight. All networks are "
        "stopped at the same point of the solver's clock.\n"
    )
