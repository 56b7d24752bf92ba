"""The picture of the ``convex-region`` experiment: Figure 2 above, what breaks beside it, images below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.experiments.convex_region_claims import total, tried
from zbkernels.experiments.pictures import decode
from zbkernels.experiments.plane_drawing import INK, draw_plane

_BARS = {"convex": "#1f6f8b", "conic": "#c2571a"}
_WRONG = "#b3261e"
_SHOWN = 9  # images of a segment


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}):
        canvas = Figure(figsize=(13.4, 8.3), layout="constrained")
        halves: Any = canvas.subfigures(2, 1, height_ratios=(1.75, 1))
        above, below = halves
        planes = above.subplots(1, 3, width_ratios=(1, 1, 0.72))
        drawn = {network["variant"]: network for network in metrics["drawn"]}
        titles = {
            "without-bias": "Without bias: {} cones from the origin.\nA scaled hull stays in its region.",
            "with-bias": "With bias: {} regions, {} of them bounded.\nA hull is safe here too, scaled "
            "it is not.",
        }
        for axes, (variant, title) in zip(planes, titles.items(), strict=False):
            if variant in drawn:
                shape = drawn[variant]
                draw_plane(axes, shape, title.format(shape["regions"], shape["bounded"]))
            else:
                axes.set_axis_off()
        _draw_broken(planes[2], metrics)
        left, right = below.subfigures(1, 2, width_ratios=(2.35, 1))
        strips = left.subplots(2, 1)
        _draw_set(strips[0], metrics)
        _draw_pair(strips[1], metrics)
        _draw_counterexample(right.subplots(), metrics["counterexample"])
        canvas.suptitle(
            f"Hulls and cones of inputs that share pattern and class ({metrics['data']['title']} in "
            f"the lower rows)",
            fontsize=13.5,
        )
        canvas.savefig(path, dpi=110)


def _draw_broken(axes: Any, metrics: dict[str, Any]) -> None:
    """Share of sets of which a combination leaves the linear piece."""
    groups = {
        "without bias": list(tried(metrics, variant="without-bias")),
        "with bias": list(tried(metrics, variant="with-bias")),
        "max pool,\nsame ReLU bits": list(tried(metrics, variant="without-bias", pools=True)),
        "max pool,\nsame winners": list(tried(metrics, variant="without-bias", pools=True, units="winner")),
    }
    there = [(name, entries) for name, entries in groups.items() if entries]
    for row, (_, entries) in enumerate(there):
        sets = sum(entry["sets"] for entry in entries)
        for index, (kind, colour) in enumerate(_BARS.items()):
            broken = total(entries, (kind,), "broken", "float64")
            other = total(entries, (kind,), "broken_class", "float64")
            at = row + (index - 0.5) * 0.36
            axes.barh(at, 100 * broken / sets, 0.32, color=colour, alpha=0.45, zorder=2)
            axes.barh(at, 100 * other / sets, 0.32, color=colour, zorder=3)
            said = f"{broken:,} of {sets:,} ({other:,})" if broken else f"none of {sets:,}"
            inside = other > 0.6 * sets
            axes.text(
                100 * (other if inside else broken) / sets + (-1.5 if inside else 1.5),
                at,
                said,
                va="center",
                ha="right" if inside else "left",
                fontsize=8.5,
                color="white" if inside else INK,
                zorder=4,
            )
    axes.set_yticks(range(len(there)), [name for name, _ in there])
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="sets that break (%)")
    handles = [axes.barh(0, 0, color=colour, label=f"{kind} combinations") for kind, colour in _BARS.items()]
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="upper right")
    axes.set_title(
        "Sets that leave their linear piece\n(strong colour, in brackets: their class)",
        fontsize=11.5,
        loc="left",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25, lw=0.6)


def _draw_set(axes: Any, metrics: dict[str, Any]) -> None:
    """Images of one pattern, and combinations of them."""
    network = next((n for n in metrics["networks"] if n.get("shown")), None)
    axes.set_axis_off()
    if network is None:
        return
    shown = network["shown"]
    vertices = np.stack([decode(text, shown["shape"]).flatten().numpy() for text in shown["vertices"]])
    mixed = np.array(shown["weights"]) @ vertices
    classes = shown["classes"]
    _strip(axes, [*vertices, None, *mixed], shown["shape"], [*classes[0], None, *classes[1]], classes[0][0])
    axes.set_title(
        f"Without bias, {network['network']}, {network['accuracy']:.1f} % right: {len(vertices)} "
        f"images of one pattern, and "
        f"combinations of them, with their classes",
        fontsize=10.5,
        loc="left",
    )


def _draw_pair(axes: Any, metrics: dict[str, Any]) -> None:
    """The segment between two images that share all ReLU bits under a max pool."""
    network = next((n for n in metrics["networks"] if n.get("searched", {}).get("worst")), None)
    axes.set_axis_off()
    if network is None:
        return
    worst = network["searched"]["worst"]
    one, other = (decode(text, worst["shape"]).flatten().numpy() for text in worst["pair"])
    positions = np.linspace(0, len(worst["classes"]) - 1, _SHOWN).round().astype(int)
    shares = positions / (len(worst["classes"]) - 1)
    images = [(1 - share) * one + share * other for share in shares]
    classes = [worst["classes"][position] for position in positions]
    _strip(axes, images, worst["shape"], classes, worst["classes"][0])
    axes.set_title(
        f"Max pool of pairs, {network['accuracy']:.1f} % right: from one image to another with the "
        f"same ReLU bits and class, "
        "the class changes",
        fontsize=10.5,
        loc="left",
    )


def _strip(axes: Any, images: list[Any], shape: list[int], classes: list[Any], expected: int) -> None:
    """Images side by side (None: a gap), each with its class beneath, red where it is not the expected one."""
    for at, (image, label) in enumerate(zip(images, classes, strict=True)):
        if image is None:
            axes.text(at + 0.5, 0.5, "→", ha="center", va="center", fontsize=20)
            continue
        pixels = image.reshape(shape)[0]
        axes.imshow(
            pixels, cmap="gray_r", vmin=0, vmax=1, extent=(at + 0.04, at + 0.96, 0.04, 0.96), interpolation="nearest"
        )  # fmt: skip
        right = label == expected
        axes.text(
            at + 0.5, -0.02, str(label), ha="center", va="top", fontsize=11, color=INK if right else _WRONG,
            fontweight="normal" if right else "bold",
        )  # fmt: skip
    axes.set(xlim=(0, max(len(images), 12)), ylim=(-0.25, 1), aspect="equal")
    axes.set_anchor("W")


def _draw_counterexample(axes: Any, example: dict[str, Any]) -> None:
    """Both logits along the segment of the smallest counterexample."""
    share, (first, second) = np.array(example["share"]), np.array(example["logits"])
    other = np.array(example["classes"]) != example["classes"][0]
    axes.fill_between(share, 0, 1.05, where=other, color=_WRONG, alpha=0.10, lw=0, step="mid")
    axes.plot(share, first, color=_BARS["convex"], lw=2, label="logit 0 = max of the first pair")
    axes.plot(share, second, color=_BARS["conic"], lw=2, label="logit 1 = max of the second")
    axes.text(0.5, 0.66, "class 1", ha="center", color=_WRONG, fontsize=10)
    axes.set(xlim=(0, 1), ylim=(0.4, 1.05), xlabel="from [1, .1, .8, .8] to [.1, 1, .8, .8]")
    axes.set_title("The smallest case: a 1×2 max pool", fontsize=10.5, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
