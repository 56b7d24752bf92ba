"""The picture of the ``regions`` experiment: slices through image space above, counts below."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.piecewise import HiddenLayer
from zbkernels.experiments.plane_networks import whole_plane
from zbkernels.experiments.region_planes import cut_plane
from zbkernels.experiments.regions_claims import OFF, ORIGIN, Count, average, depths, in_plane, on_line, sizes
from zbkernels.experiments.regions_report import of_variant
from zbkernels.report import mean

COLOURS = {"with-bias": "#c2571a", "without-bias": "#1f6f8b"}
_INK, _GUIDE = "#2b2b2b", "#8a8a8a"
_MARKERS = {
    1: ("o", "●"),
    2: ("s", "■"),
    3: ("D", "◆"),
    4: ("^", "▲"),
}  # by hidden layers; as a letter for titles
_MORE = ("v", "▼")
_ZOOM = 15
_PALETTE = 200  # colours of the file: thousands of tinted polygons make a large one


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from PIL import Image

    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        slices = _slices(metrics)
        rows = 2 if slices else 1
        canvas = Figure(figsize=(13.2, 4.5 * rows), layout="constrained")
        axes = canvas.subplots(rows, 3, squeeze=False)
        for place, (title, network, half_side) in zip(axes[0], slices, strict=False):
            _draw_slice(place, title, network, half_side)
        for place in axes[0][len(slices) :] if slices else ():
            place.set_axis_off()
        _draw_counts(axes[-1][0], metrics, "line")
        _draw_counts(axes[-1][1], metrics, "plane")
        _draw_training(axes[-1][2], metrics)
        for place in axes[-1]:
            place.spines[["top", "right"]].set_visible(False)
            place.grid(alpha=0.25, lw=0.6)
        canvas.suptitle(
            f"Activation patterns of networks with and without biases ({metrics['data']['title']})",
            fontsize=13.5,
        )
        drawing = io.BytesIO()
        canvas.savefig(drawing, dpi=110)
    image = Image.open(drawing).convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
    image.save(path, format="PNG", optimize=True)


def _slices(metrics: dict[str, Any]) -> list[tuple[str, dict[str, Any], float]]:
    """(title, network on the plane, half a side of the window) of what can be drawn."""
    drawn = {unit["variant"]: unit for unit in metrics["trained"] if "drawn" in unit}
    wanted = [
        ("with-bias", ORIGIN, "With bias, through the origin and two images"),
        ("without-bias", ORIGIN, "Without bias, the same plane: cones"),
        ("without-bias", OFF, "Without bias, through three images"),
    ]
    return [
        (title, drawn[variant]["drawn"][kind], drawn[variant]["drawn"]["half_side"])
        for variant, kind, title in wanted
        if variant in drawn
    ]


def _draw_slice(axes: Any, title: str, network: dict[str, Any], half_side: float) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import hsv_to_rgb

    layers = [HiddenLayer(np.array(part["weight"]), np.array(part["bias"])) for part in network["layers"]]
    polygons = cut_plane(layers, whole_plane(), half_side)
    outlines = [polygons.outline(index) for index in range(len(polygons))]
    random = np.random.default_rng(4)
    hues = 0.50 + 0.17 * random.random(len(polygons))  # teal to violet
    tints = hsv_to_rgb(
        np.stack([hues, random.uniform(0.10, 0.42, len(polygons)), np.full(len(polygons), 0.96)], 1)
    )
    views = [(axes, half_side)]
    if (
        any(layer.bias.any() for layer in layers) and len(network["images"]) == 2
    ):  # polytopes crowd about the origin
        views.append((axes.inset_axes((0.60, 0.0, 0.40, 0.40)), half_side / _ZOOM))
    for view, side in views:
        view.add_collection(PolyCollection(outlines, facecolors=tints, edgecolors="white", linewidths=0.35))
        view.set(xlim=(-side, side), ylim=(-side, side), aspect="equal", xticks=[], yticks=[])
    for x, y in network["images"]:
        axes.plot(x, y, "o", ms=6.5, mfc=COLOURS["with-bias"], mec="white", mew=1.1, zorder=4)
    if len(network["images"]) == 2:
        axes.plot(0, 0, "+", ms=9, color=_INK, mew=1.6, zorder=4)
    zoomed = f" (inset: {_ZOOM} times as large)" if len(views) > 1 else ""
    axes.set_title(f"{title}\n{len(polygons):,} patterns{zoomed}", fontsize=11, loc="left")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_counts(axes: Any, metrics: dict[str, Any], where: str) -> None:
    """Counts of untrained networks against their size: two kinds of line or plane, with and without biases."""
    units = metrics["untrained"]
    xs = np.array(sizes(units))
    kinds: dict[str, Count] = (
        {"through images": on_line("through images"), ORIGIN: on_line(ORIGIN)}
        if where == "line"
        else {OFF: in_plane(OFF), ORIGIN: in_plane(ORIGIN)}
    )
    for variant, colour in COLOURS.items():
        there = of_variant(units, variant)
        if not there:
            continue
        for kind, count in kinds.items():
            hollow = kind == ORIGIN
            means = [average(there, count, neurons=size) for size in xs]
            style, label = "--" if hollow else "-", f"{variant.replace('-', ' ')}, {kind}"
            axes.plot(xs, means, color=colour, lw=1.6, ls=style, zorder=3, label=label)
            for depth in depths(there):
                means = [average(there, count, neurons=size, depth=depth) for size in xs]
                marker, fill = _MARKERS.get(depth, _MORE)[0], "white" if hollow else colour
                axes.plot(xs, means, marker, color=colour, mfc=fill, ms=5, zorder=4)
    guides = (
        {"neurons + 1": xs + 1.0} if where == "line" else {"neurons² / 2": xs**2 / 2.0, "2·neurons": 2.0 * xs}
    )
    middle = len(xs) // 2
    for name, ys in guides.items():
        axes.plot(xs, ys, color=_GUIDE, lw=5, alpha=0.3, zorder=1, solid_capstyle="round")
        axes.annotate(
            name,
            (xs[middle], ys[middle]),
            xytext=(-10, 7),
            textcoords="offset points",
            color=_GUIDE,
            fontsize=9,
            ha="right",
        )
    counted = "patterns along a line" if where == "line" else "patterns in a plane"
    axes.set(xscale="log", yscale="log", xlabel="neurons", ylabel=counted)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.minorticks_off()
    marks = ", ".join(f"{_MARKERS.get(depth, _MORE)[1]} {depth}" for depth in depths(units))
    axes.set_title(f"Untrained, hidden layers: {marks}", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8.5)


def _draw_training(axes: Any, metrics: dict[str, Any]) -> None:
    """Patterns in a plane off the origin, over neurons² / 2, by epoch."""
    for variant, colour in COLOURS.items():
        there = of_variant(metrics["trained"], variant)
        for depth in depths(there):
            chosen = [unit for unit in there if unit["depth"] == depth]
            epochs = [seen["epoch"] for seen in chosen[0]["watched"]]
            scale = chosen[0]["neurons"] ** 2 / 2
            shares = [
                [in_plane(OFF)(unit["watched"][index]) / scale for unit in chosen]
                for index in range(len(epochs))
            ]
            at = range(len(epochs))
            axes.plot(
                at, [mean(s) for s in shares], f"{_MARKERS.get(depth, _MORE)[0]}-", color=colour, lw=1.6, ms=5,
                label=f"{variant.replace('-', ' ')}, {depth} hidden",
            )  # fmt: skip
            axes.set_xticks(list(at), [str(epoch) for epoch in epochs])
    axes.axhline(1, color=_GUIDE, lw=5, alpha=0.3, zorder=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="epochs trained", ylabel="patterns in a plane off the origin / (neurons² / 2)")
    axes.set_title(
        f"While training, {metrics['trained'][0]['neurons']} neurons, means", loc="left", fontsize=11
    )
    axes.legend(frameon=False, fontsize=8.5, ncols=2)
