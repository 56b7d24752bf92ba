"""The figure of the ``zero-image`` experiment, from the metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.zero_image_claims import of
from zbkernels.experiments.zero_image_trainings import TRAININGS
from zbkernels.report import mean

COLOURS = {"with-bias": "#c2571a", "without-bias": "#1f6f8b"}
_DARK = "#6e2f0c"  # with biases too, where both are in one panel
_GREY, _INK = "#8a8f98", "#333333"
_LEAST = 1e-9  # probability; less is drawn as this
_STYLES = ("-", "--", ":", "-.")


def _shown(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return [reference for reference in metrics["references"] if "inputs" in reference]


def about_figure(metrics: dict[str, Any]) -> str:
    """What is on the figure of these metrics."""
    networks = metrics["networks"]
    tails = sum(bool(of(network["units"], "long tail")) for network in networks)
    tail = (
        "" if not tails else ", trained on a long tail" + (" (where that was done)" * (tails < len(networks)))
    )
    said = "One network" if len(networks) == 1 else "A row for each network"
    return f"{said}: trained as usual{tail}, entropies." + (
        " Known networks below." if _shown(metrics) else ""
    )


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: :func:`about_figure` says what is on it."""
    from matplotlib.figure import Figure

    networks, references = metrics["networks"], _shown(metrics)
    count = len(networks) + bool(references)
    canvas = Figure(figsize=(15, 3.9 * count + 0.4), layout="constrained")
    rows = canvas.subfigures(count, 1, squeeze=False)[:, 0]  # each laid out by itself
    for row, network in zip(rows, networks, strict=False):
        balanced, long_tail, entropies = row.subplots(1, 3, width_ratios=(1, 1, 0.85))
        _draw_balanced(balanced, network)
        if of(network["units"], "long tail"):
            _draw_long_tail(long_tail, network)
        else:
            long_tail.set_axis_off()
        _draw_entropies(entropies, network)
    if references:
        _draw_known(rows[-1].subplots(), references)
    for row in rows:
        for axes in row.axes:
            axes.spines[["top", "right"]].set_visible(False)
    canvas.suptitle(f"The zero image (zero-image, preset {metrics['preset']})", fontsize=13)
    canvas.savefig(path, dpi=130)


def _draw_balanced(axes: Any, network: dict[str, Any]) -> None:
    """Probabilities by class: bars side by side for the seeds with bias, a line without."""
    biased = of(network["units"], "balanced", "with-bias")
    classes = np.arange(len(network["data"]["classes"]))
    width = 0.8 / max(len(biased), 1)
    for index, unit in enumerate(biased):
        at = classes - 0.4 + width * (index + 0.5)
        label = f"with bias, {len(biased)} seeds" if len(biased) > 1 else "with bias"
        axes.bar(at, unit["zero"]["probabilities"], width * 0.88, color=COLOURS["with-bias"],
                 alpha=1 - 0.22 * index, label=None if index else label)  # fmt: skip
    _draw_without(axes, of(network["units"], "balanced", "without-bias"))
    _finish_classes(axes, network, "balanced")


def _draw_long_tail(axes: Any, network: dict[str, Any]) -> None:
    """Probabilities by class, means over the seeds, beside how common the classes were."""
    tail = of(network["units"], "long tail")
    classes = np.arange(len(network["data"]["classes"]))
    axes.bar(classes, tail[0]["prior"], 0.8, color=_GREY, alpha=0.35, label="share of the training images")
    for way, marker, colour in (
        ("long tail", "o", COLOURS["with-bias"]),
        ("long tail, contrasts", "s", _DARK),
    ):
        units = of(network["units"], way, "with-bias")
        if units:
            means = [mean([unit["zero"]["probabilities"][label] for unit in units]) for label in classes]
            label = "with bias" + (", dark images too" if "contrasts" in way else "")
            axes.plot(classes, means, f"{marker}-", color=colour, ms=5, lw=1.6, label=label)
    _draw_without(axes, [u for u in tail if u["variant"] == "without-bias"])
    _finish_classes(axes, network, "long tail")


def _draw_without(axes: Any, units: list[dict[str, Any]]) -> None:
    if units:
        means = np.mean([unit["zero"]["probabilities"] for unit in units], axis=0)
        edges = np.arange(len(means) + 1) - 0.5
        axes.stairs(
            means, edges, baseline=None, color=COLOURS["without-bias"], lw=2.2, label="without bias: 1/C"
        )


def _finish_classes(axes: Any, network: dict[str, Any], way: str) -> None:
    classes = range(len(network["data"]["classes"]))
    axes.set(xlabel="class", ylabel="probability of the zero image")
    axes.set_xticks(list(classes), [str(label) for label in classes])
    axes.set_ylim(0, 1.28 * max(axes.get_ylim()[1], 0.12))
    axes.set_title(f"{network['name']}; {way}", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left")


def _draw_entropies(axes: Any, network: dict[str, Any]) -> None:
    """One line for each way of training, a mark for each network; hollow: untrained."""
    ways = [way for way in TRAININGS if of(network["units"], way)]
    for row, way in enumerate(ways):
        for variant, shift in (("with-bias", -0.13), ("without-bias", 0.13)):
            units = of(network["units"], way, variant)
            before = [unit["watched"][0]["zero"]["entropy"] for unit in units]
            after = [unit["zero"]["entropy"] for unit in units]
            height, colour = np.full(len(units), row + shift), COLOURS[variant]
            first = variant.replace("-", " ") if not row else None
            axes.plot(before, height, "o", mfc="white", mec=colour, ms=6, zorder=3)
            axes.plot(after, height, "o", color=colour, ms=6, zorder=4, label=first)
    axes.plot([], [], "o", mfc="white", mec=_INK, label="untrained")
    axes.axvline(1, color=_GREY, lw=4, alpha=0.3, zorder=1)
    axes.set_yticks(range(len(ways)), ways)
    axes.set_ylim(len(ways) - 0.5, -1.5 if len(ways) > 1 else -0.9)
    axes.set_xlabel("entropy / log C (1: uniform)")
    axes.set_title("How even", loc="left", fontsize=10.5)
    axes.grid(axis="x", alpha=0.25, lw=0.6)
    axes.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper left", handletextpad=0.2, columnspacing=1.0)


def _draw_known(axes: Any, references: list[dict[str, Any]]) -> None:
    """Probabilities from the likeliest class down, each network in its own line style; untrained ones in grey."""
    from matplotlib import colormaps

    trained = [reference for reference in references if reference["trained"]]
    for index, reference in enumerate(references):
        colour = (
            colormaps["plasma"](0.85 * index / max(len(trained) - 1, 1)) if reference["trained"] else _GREY
        )
        for each in (reference["inputs"][0], reference["inputs"][-1]):
            ordered = np.sort(each["probabilities"])[::-1]
            black = each is reference["inputs"][0]
            style = ("-" if black else "--") if reference["trained"] else _STYLES[index % len(_STYLES)]
            label = reference["title"] + ("" if reference["trained"] else ", untrained")
            axes.plot(np.arange(1, len(ordered) + 1), np.maximum(ordered, _LEAST), style, color=colour,
                      lw=1.8 if black else 1.0, label=label if black else None)  # fmt: skip
    for classes in sorted({len(reference["inputs"][0]["probabilities"]) for reference in references}):
        axes.plot([1, classes], [1 / classes] * 2, "-|", color=COLOURS["without-bias"], lw=2.2, zorder=1,
                  label=f"uniform over {classes:,}", markevery=[1], ms=9)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="class, from the likeliest", ylabel="probability")
    axes.set_title("Known networks; thick: a black picture, thin: the zero tensor", loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
