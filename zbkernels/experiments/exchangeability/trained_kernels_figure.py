"""The pictures of the ``trained-kernels`` experiment: rows of kernels from blue to red, as the paper's.

``figure.png`` sets the ends of the first Adam sweep beside SGD; ``figure-SWEEP-INPUTS.png`` beside it has all values of
a sweep (Figures 3, 5, 6, 7, 9, 11, 12, 14, 16), and ``figure-bounds.png`` the bounds along training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zbkernels.exchangeability.layer_kernels import arc_cosine, iterated_arc_cosine
from zbkernels.experiments.exchangeability.encoding import decoded_images, decoded_kernels
from zbkernels.experiments.exchangeability.kernel_drift_claims import named
from zbkernels.experiments.exchangeability.kernel_drift_figure import INK, power
from zbkernels.experiments.exchangeability.measures import ANGLES, NON_ZERO, ZERO
from zbkernels.experiments.exchangeability.sweeps import PLAIN
from zbkernels.experiments.exchangeability.trained_kernels_claims import runs_of
from zbkernels.files import replacing

Row = tuple[dict[str, Any], dict[str, Any], str]  # sweep, run, kind of inputs
_SUMS = {NON_ZERO: "other sums", ZERO: "sums of 0"}
_COLOURS = ("#c2571a", "#1f6f8b")  # bound, gap


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the overview to ``path``, and the others beside it."""
    shown = _shown(metrics)
    _rows(metrics, _overview(metrics, shown), path, "Kernels over training, from blue (start) to red (end)")
    for sweep in metrics["sweeps"]:
        kinds = (NON_ZERO, ZERO) if sweep["rule"] in ("adam", "sgd") else (NON_ZERO,)
        for kind in kinds if sweep["figures"] else ():
            rows = [(sweep, run, kind) for run in runs_of(shown, sweep["key"])]
            with replacing(path.parent / f"figure-{sweep['key']}-{kind}.png") as temporary:
                _rows(metrics, rows, temporary, f"{named(metrics, sweep)}, inputs with {_SUMS[kind]}")
    with replacing(path.parent / "figure-bounds.png") as temporary:
        _bounds(metrics, shown, temporary)


def _shown(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics with those runs alone that a figure shows, in the order of their values."""
    runs = [run for run in metrics["runs"] if "kernels" in run]
    return {**metrics, "runs": sorted(runs, key=lambda run: run["value"])}


def _overview(metrics: dict[str, Any], shown: dict[str, Any]) -> list[Row]:
    """Adam at both ends of epsilon and both kinds of inputs, and SGD in the middle of its list."""
    rows: list[Row] = []
    of_paper = [sweep for sweep in metrics["sweeps"] if sweep["variant"] == PLAIN]
    adam = next((sweep for sweep in of_paper if sweep["rule"] == "adam"), None)
    sgd = next((sweep for sweep in of_paper if sweep["rule"] == "sgd"), None)
    for sweep, kind, places in ((adam, NON_ZERO, (0, -1)), (adam, ZERO, (0,)), (sgd, NON_ZERO, None)):
        runs = runs_of(shown, sweep["key"]) if sweep else []
        if sweep and runs:
            chosen = (len(runs) // 2,) if places is None else places
            rows += [(sweep, runs[place], kind) for place in chosen]
    return rows or [
        (sweep, run, NON_ZERO) for sweep in metrics["sweeps"] for run in runs_of(shown, sweep["key"])
    ]


def _rows(metrics: dict[str, Any], rows: Sequence[Row], path: Path, title: str) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    layers = metrics["layers"]
    height = 1.55 * len(rows) + 1.2
    with rc_context({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}):
        canvas = Figure(figsize=(15.5, height))
        grid = canvas.subplots(len(rows), layers + 3, squeeze=False)
        canvas.subplots_adjust(0.1, 0.55 / height, 0.985, 1 - 0.8 / height, 0.3, 0.3)
        for i, (panels, row) in enumerate(zip(grid, rows, strict=True)):
            _draw(metrics, row, panels, bottom=i == len(rows) - 1)
        for axes, name in zip(
            grid[0],
            [*(f"layer {k + 1}" for k in range(layers)), "whole network", "test images", "training loss"],
            strict=True,
        ):
            axes.set_title(name, fontsize=10.5)
        canvas.suptitle(title, fontsize=13, y=1 - 0.18 / height)
        canvas.savefig(path, dpi=90)


def _draw(metrics: dict[str, Any], row: Row, panels: Any, *, bottom: bool) -> None:
    from matplotlib import colormaps

    sweep, run, kind = row
    layers = metrics["layers"]
    kernels = decoded_kernels(run["kernels"][kind], layers + 1, ANGLES)
    angles = torch.linspace(0, math.pi, ANGLES, dtype=torch.float64)
    degrees = torch.rad2deg(angles)
    colours = colormaps["coolwarm"](torch.linspace(0, 1, len(kernels)).numpy())
    for k, axes in enumerate(panels[: layers + 1]):
        for curve, colour in zip(kernels[:, k], colours, strict=True):
            axes.plot(degrees, curve, color=colour, lw=1.3)
        limit = iterated_arc_cosine(angles, layers) if k == layers else arc_cosine(angles)
        axes.plot(degrees, limit, color="black", lw=1, ls="--")
        axes.set(ylim=(-0.03, 1.03), xticks=(0, 90, 180), yticks=(0, 0.5, 1))
        axes.tick_params(labelsize=8, labelbottom=bottom, labelleft=k == 0)
        if bottom:
            axes.set_xlabel("angle (degrees)", fontsize=8.5)
    what = {"sgd": "SGD", "adam": "Adam", "rmsprop": "RMSProp", "nadam": "Nadam"}[sweep["rule"]]
    gone = "" if run["diverged"] is None else f"\ndiverged at {run['diverged']:,}"
    symbol = {"alpha": r"$\alpha$", "epsilon": r"$\epsilon$"}[sweep["symbol"]]
    label = f"{what}\n{symbol} = {power(run['value'])}\n{_SUMS[kind]}{gone}"
    panels[0].annotate(
        label,
        (0, 0.5),
        xytext=(-34, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=9,
    )
    _pictures(metrics, sweep, run, panels[layers + 1])
    _curve(metrics, run, panels[layers + 2], bottom=bottom)


def _pictures(metrics: dict[str, Any], sweep: dict[str, Any], run: dict[str, Any], axes: Any) -> None:
    """Test images above, what the network makes of them below."""
    shape = metrics["data"][sweep["data"]]["shape"]
    above, below = (
        torch.cat(list(decoded_images(text, shape)), 1)
        for text in (metrics["originals"][sweep["data"]], run["reconstructions"])
    )
    axes.imshow(
        torch.cat([above, below]).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
    )
    axes.set(xticks=(), yticks=())


def _curve(metrics: dict[str, Any], run: dict[str, Any], axes: Any, *, bottom: bool) -> None:
    points = [(metrics["every"] * (i + 1), loss) for i, loss in enumerate(run["curve"]) if loss]
    if points:
        axes.plot(*zip(*points, strict=True), color=INK, lw=1.3)
        axes.set_ylim(0, 1.05 * max(loss for _, loss in points))
    else:
        axes.text(0.5, 0.5, "no number", ha="center", va="center", transform=axes.transAxes, fontsize=9)
        axes.set_yticks(())
    axes.set_xlim(0, metrics["iterations"])
    axes.tick_params(labelsize=8, labelbottom=bottom)
    if bottom:
        axes.set_xlabel("iteration", fontsize=8.5)


def _bounds(metrics: dict[str, Any], shown: dict[str, Any], path: Path) -> None:
    """Distances and what bounds them, of each layer along training, at both ends of each list of epsilon."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    runs = [
        (sweep, run)
        for sweep in metrics["sweeps"]
        if sweep["variant"] == PLAIN and sweep["symbol"] == "epsilon"
        for run in runs_of(shown, sweep["key"])
        if run.get("bounds") and all(run["bounds"])
    ]
    height = 1.9 * max(len(runs), 1) + 1.4
    with rc_context({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}):
        canvas = Figure(figsize=(13, height), layout="constrained")
        grid = canvas.subplots(max(len(runs), 1), metrics["layers"], squeeze=False, sharex=True, sharey=True)
        for (sweep, run), panels in zip(runs, grid, strict=False):
            for layer, axes in enumerate(panels):
                _bound(metrics, run, layer, axes)
            panels[0].set_ylabel(f"{sweep['title']}\nepsilon = {power(run['value'])}", fontsize=9)
        for layer, axes in enumerate(grid[0]):
            axes.set_title(f"layer {layer + 1}", fontsize=10.5)
        for axes in grid[-1]:
            axes.set_xlabel("iteration")
        canvas.legend(
            handles=_bound_legend(), loc="outside lower center", ncols=4, frameon=False, fontsize=10.5
        )
        canvas.suptitle("Distances and their bounds along training, inputs with other sums", fontsize=13)
        canvas.savefig(path, dpi=90)


def _bound(metrics: dict[str, Any], run: dict[str, Any], layer: int, axes: Any) -> None:
    at = [max(iteration, 1) for iteration in metrics["measured_after"]]
    looks = [look[NON_ZERO][layer] or {} for look in run["bounds"]]
    for key, colour, style in (
        ("row_mean_bound", _COLOURS[0], "-"),
        ("row_mean_gap", _COLOURS[1], "-"),
        ("bound", _COLOURS[0], ":"),
        ("gap", _COLOURS[1], ":"),
    ):
        numbers = [math.nan if look.get(key) is None else look[key] for look in looks]
        axes.plot(at, numbers, color=colour, ls=style, lw=1.5, marker="o", ms=3)
    axes.set(xscale="log", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    axes.tick_params(labelsize=8)


def _bound_legend() -> list[Any]:
    from matplotlib.lines import Line2D

    kinds = (
        (_COLOURS[0], "-", "bound by row means"),
        (_COLOURS[1], "-", "distance from the kernel less row means"),
        (_COLOURS[0], ":", "(10), twice, and (11)"),
        (_COLOURS[1], ":", "distance from equation 9"),
    )
    return [
        Line2D([], [], color=colour, lw=1.5, marker="o", ms=3, ls=style, label=label)
        for colour, style, label in kinds
    ]
