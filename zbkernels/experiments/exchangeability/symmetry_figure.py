"""The picture of the experiment ``exchangeability``: rounding over training, tests of each layer, and their power."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.exchangeability.symmetry_tests import SIDES
from zbkernels.experiments.exchangeability.symmetry_claims import START, curve, is_of_pixels

_COLOURS = {"sgd": "#1f6f8b", "adam": "#c2571a", "rmsprop": "#7a5aa6", "nadam": "#2f8f7f"}
_FAINT, _RED = "#8a8a8a", "#8c3a3a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(17, 9.4), layout="constrained")
    grid = canvas.subplots(2, 3)
    _draw_rounding(grid[0][0], metrics, "float64")
    _draw_rounding(grid[0][1], metrics, "float32")
    _draw_controls(grid[0][2], metrics)
    _draw_tests(grid[1][0], metrics)
    _draw_unevenness(grid[1][1], metrics)
    _draw_power(grid[1][2], metrics)
    canvas.suptitle(f"Exchangeability of trained autoencoders ({metrics['preset']})", fontsize=12.5)
    canvas.savefig(path, dpi=110, format="png")


def _shown(metrics: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rules in Keras' form, each under its short name."""
    names = {f"{name}, keras": name for name in _COLOURS} | {"sgd": "sgd"}
    return [(names[found["rule"]], found) for found in metrics["permuted"] if found["rule"] in names]


def _draw_rounding(axes: Any, metrics: dict[str, Any], precision: str) -> None:
    for name, found in _shown(metrics):
        rows = found[precision]["rows"][1:]
        steps = [row["step"] for row in rows]
        axes.plot(
            steps, [row["permuted"] for row in rows], "o-", ms=3.5, lw=1.7, color=_COLOURS[name], label=name
        )
        axes.plot(steps, [row["rounded"] for row in rows], color=_COLOURS[name], lw=1.2, ls=(0, (1, 1.5)))
    eps = metrics["permuted"][0][precision]["eps"]
    axes.axhline(eps, color=_FAINT, lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="‖difference‖ / ‖weights‖")
    axes.set_title(
        f"{precision}: units permuted before training (—),\none rounding in each weight (···); grey: the unit",
        loc="left",
        fontsize=10.5,
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    _tidy(axes)


def _draw_controls(axes: Any, metrics: dict[str, Any]) -> None:
    for name, found in _shown(metrics):
        rows = found["float64"]["rows"][1:]
        steps = [row["step"] for row in rows]
        for key, style in (("permuted", "-"), ("inputs", (0, (5, 2))), ("uneven", (0, (1, 1.5)))):
            label = name if key == "permuted" else None
            axes.plot(steps, [row[key] for row in rows], color=_COLOURS[name], ls=style, lw=1.7, label=label)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="‖difference‖ / ‖weights‖")
    axes.set_title(
        "Hidden units permuted (—); columns of the first layer too (- -);\na rule whose steps depend on the unit (···)",
        loc="left",
        fontsize=10.5,
    )
    axes.legend(frameon=False, fontsize=9, loc="center left")
    _tidy(axes)


def _places(metrics: dict[str, Any]) -> list[tuple[int, str]]:
    return [(layer, side) for layer in range(1, len(metrics["layers"])) for side in SIDES]


def _spread_out(metrics: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Ensembles and where they stand beside each other."""
    chosen = [found for found in metrics["ensembles"] if found["name"] in (START, *_COLOURS)]
    return [(0.15 * (i - (len(chosen) - 1) / 2), found) for i, found in enumerate(chosen)]


def _by_place(axes: Any, metrics: dict[str, Any], key: str) -> None:
    places = _places(metrics)
    for shift, found in _spread_out(metrics):
        values = [found["layers"][layer - 1][side][key] for layer, side in places]
        start = found["name"] == START
        axes.plot(
            [i + shift for i in range(len(places))],
            [100 * value if key == "unevenness" else value for value in values],
            "o",
            ms=5,
            mfc="none" if start else None,
            color=_FAINT if start else _COLOURS[found["name"]],
            label="before training" if start else found["name"],
        )
    for i, (layer, side) in enumerate(places):
        if is_of_pixels(metrics, layer, side):
            axes.axvspan(i - 0.5, i + 0.5, color=_RED, alpha=0.08, lw=0)
    axes.set_xticks(range(len(places)), [f"layer {layer}\n{side}" for layer, side in places], fontsize=8.5)
    _tidy(axes)


def _draw_tests(axes: Any, metrics: dict[str, Any]) -> None:
    _by_place(axes, metrics, "p")
    axes.axhline(0.05, color=_FAINT, lw=0.9, ls=(0, (4, 2)))
    axes.set(yscale="log", ylim=(0.6 / (metrics["permutations"] + 1), 1.4), ylabel="p")
    axes.set_title(
        f"Tests of exchangeability, {metrics['networks']} networks\n(shaded: fails by Theorem 5; line: 0.05)",
        loc="left",
        fontsize=10.5,
    )
    axes.legend(frameon=False, fontsize=8.5, loc="lower center")


def _draw_unevenness(axes: Any, metrics: dict[str, Any]) -> None:
    _by_place(axes, metrics, "unevenness")
    axes.set(yscale="symlog", ylabel="standard deviation of mean squares (%)")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.1)
    axes.set_title(
        "How much rows and columns differ in expected mean square,\nchance taken off",
        loc="left",
        fontsize=10.5,
    )


def _draw_power(axes: Any, metrics: dict[str, Any]) -> None:
    styles = {"scale": "-", "shift": (0, (5, 2)), "pair": (0, (1, 1.5))}
    counts = sorted({row["networks"] for row in metrics["power"]["rows"]})
    shades = ("#e0a458", "#c2571a", "#8c3a3a")[-len(counts) :]
    for networks, colour in zip(counts, shades, strict=True):
        for kind, style in styles.items():
            points = curve(metrics, networks, kind)
            label = f"{networks} networks" if kind == "scale" else None
            axes.plot(
                [100 * size for size, _ in points],
                [100 * share for _, share in points],
                color=colour,
                ls=style,
                lw=1.7,
                label=label,
            )
    axes.axhline(5, color=_FAINT, lw=0.9, ls=(0, (4, 2)))
    axes.set(xlabel="size of what is planted in one column (%)", ylabel="found (%)", ylim=(0, 104))
    axes.set_title(
        "Power at level 5 %: a column scaled (—), shifted (- -),\ncorrelated with another (···)",
        loc="left",
        fontsize=10.5,
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
