"""The picture of the ``ldnet-error`` experiment: Figures 1, 2 and 3 of the thesis, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.ldnet_error_claims import DOWNSCALED, LINEARIZED, NAMES, NORMAL, average, errors

_COLOURS = {NORMAL: "#c2571a", LINEARIZED: "#1f6f8b", DOWNSCALED: "#1f6f8b"}
_PANELS = (
    ("Figure 1: {}", "erf:2", (NORMAL, LINEARIZED)),
    ("Figure 2: {}", "relu", (NORMAL, LINEARIZED)),
    ("Figure 3: {}, LD-net by downscaled targets", "relu", (NORMAL, DOWNSCALED)),
)
_INK = "#2b2b2b"
_MARKERS = "osD^vP"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: the error against the target scale, a line for each width, the wider the darker."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        canvas = Figure(figsize=(14.4, 5.6), layout="constrained")
        panels = canvas.subplots(1, 3, sharey=True)
        for axes, (title, activation, kinds) in zip(panels, _PANELS, strict=True):
            for kind in kinds:
                _draw(axes, metrics, activation, kind)
            axes.set(xscale="log", yscale="log", xlabel="y scale")
            axes.set_title(title.format(NAMES[activation]), fontsize=12, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, lw=0.6)
        panels[0].set_ylabel("‖u - u_IEIN‖ / ‖y‖")
        canvas.legend(
            handles=[*_kinds(), *_widths(metrics)],
            loc="outside lower center",
            ncols=9,
            frameon=False,
            fontsize=10.5,
        )
        canvas.suptitle(
            f"How far networks are from the infinite ensemble of infinitely wide ones ({metrics['data']['title']}, "
            f"{metrics['steps']:,} steps)",
            fontsize=13.5,
        )
        canvas.savefig(path, dpi=110)


def _shade(colour: str, metrics: dict[str, Any], width: int) -> tuple[float, float, float]:
    """Light for narrow networks, the colour itself and darker for wide ones."""
    from matplotlib.colors import to_rgb

    widths = metrics["widths"]
    place = widths.index(width) / max(len(widths) - 1, 1)  # 0 to 1
    red, green, blue = to_rgb(colour)
    light = 0.55 * (1 - place)
    dark = 1 - 0.45 * max(0.0, place - 0.5) / 0.5
    return tuple(dark * part + (1 - dark * part) * light for part in (red, green, blue))


def _draw(axes: Any, metrics: dict[str, Any], activation: str, kind: str) -> None:
    found = errors(metrics, activation, kind)
    for width in metrics["widths"]:
        scales = [scale for scale in metrics["scales"] if (width, scale) in found]
        if not scales:
            continue
        colour = _shade(_COLOURS[kind], metrics, width)
        seeds = [list(found[width, scale].values()) for scale in scales]
        axes.plot(
            scales,
            [average(found[width, scale]) for scale in scales],
            marker=_MARKERS[metrics["widths"].index(width) % len(_MARKERS)],
            ms=4.5,
            lw=1.5,
            ls="-" if kind == NORMAL else "--",
            color=colour,
        )
        axes.fill_between(
            scales, [min(s) for s in seeds], [max(s) for s in seeds], color=colour, alpha=0.15, lw=0
        )


def _kinds() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=_COLOURS[NORMAL], lw=2, label="normal"),
        Line2D(
            [],
            [],
            color=_COLOURS[LINEARIZED],
            lw=2,
            ls="--",
            label="LD-net",
        ),
    ]


def _widths(metrics: dict[str, Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [],
            [],
            color=_shade("#6b6b6b", metrics, width),
            marker=_MARKERS[i % len(_MARKERS)],
            ls="",
            label=f"m = {width:,}",
        )
        for i, width in enumerate(metrics["widths"])
    ]
