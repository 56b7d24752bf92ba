"""The picture of the ``linear-dynamics`` experiment: starts of rank one above, small random starts and steps below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zbkernels.experiments.effectively_linear.linear_dynamics_claims import average
from zbkernels.experiments.effectively_linear.symmetric_starts import ALPHAS

_SLOPES = {0.0: "#1f6f8b", 0.1: "#3f9bb3", 0.25: "#2f8f7f", 0.5: "#7a5aa6", 0.75: "#e0a458", 1.0: "#c2571a"}
_FAINT, _DARK = "#8a8a8a", "#333333"
_DRAWN = (0.0, 0.25, 0.5, 1.0)  # slopes whose learning curves are drawn


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG: the panels of the parts that were run, four a row."""
    from matplotlib.figure import Figure

    panels: list[Callable[[Any, dict[str, Any]], None]] = []
    if metrics["rank_one"] is not None:
        panels += [_learning_curves, _time_course, _errors]
    if metrics["unbalanced"] is not None:
        panels += [_both_parts, _even_part]
    if metrics["scales"] is not None:
        panels += [_scales, _widths]
    if metrics["step_size"] is not None:
        panels.append(_steps)
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    canvas = Figure(figsize=(4.5 * columns, 4.1 * rows + 0.5), layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False).flat
    for axes, draw in zip(grid, panels, strict=False):
        draw(axes, metrics)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.6)
    for axes in list(grid)[len(panels) :]:
        axes.set_axis_off()
    canvas.suptitle(
        f"Two-layer bias-free leaky ReLU networks on symmetric data, beside linear networks ({metrics['preset']})",
        fontsize=12.5,
    )
    canvas.savefig(path, dpi=110, format="png")


def _curves(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    return next(setting["curves"] for setting in metrics["rank_one"] if setting["name"] == name)


def _learning_curves(axes: Any, metrics: dict[str, Any]) -> None:
    curves = _curves(metrics, "general")
    for alpha in _DRAWN:
        own = [time / ((1 + alpha) / 2) for time in curves["times"]]
        loss = curves["losses"][ALPHAS.index(alpha)]
        axes.plot(
            own,
            loss,
            color=_SLOPES[alpha],
            lw=2,
            label=f"slope {alpha:g}" + (" (linear)" if alpha == 1 else ""),
        )
        axes.plot(own[::6], curves["reduced_loss"][::6], "o", ms=3, color=_DARK, mew=0)
    axes.set(xlabel="the network's own time", ylabel="loss", xlim=(0, curves["times"][-1]))
    _title(axes, "Any covariance and r: loss, and the reduced\nequations (dots), each at its own pace c")
    axes.legend(frameon=False, fontsize=8.5)


def _time_course(axes: Any, metrics: dict[str, Any]) -> None:
    curves = _curves(metrics, "whitened")
    axes.plot(curves["times"], curves["reduced_a"], color=_FAINT, lw=6, alpha=0.5, label="logistic")
    styles = ((0.0, "-", 2.2), (0.5, (0, (4, 2)), 2.0), (1.0, (0, (1, 2)), 2.0))
    for alpha, style, width in styles:
        axes.plot(
            curves["times"],
            curves["a"][ALPHAS.index(alpha)],
            color=_SLOPES[alpha],
            ls=style,
            lw=width,
            label=f"slope {alpha:g}",
        )
    axes.set(xlabel="time of the linear network, c t", ylabel="a = c ‖W2‖²")
    _title(axes, "Whitened inputs, r along the target:\nlayers' norm and the closed form")
    axes.legend(frameon=False, fontsize=8.5)


def _errors(axes: Any, metrics: dict[str, Any]) -> None:
    for name, style in (("whitened", "-"), ("general", (0, (4, 2)))):
        curves = _curves(metrics, name)
        end = curves["times"][-1]
        times = [time / end for time in curves["times"]]
        for key, alpha, label in (("reduced_weights", 0.0, "reduced"), ("weights", 0.0, "linear network")):
            values = [max(value, 1e-17) for value in curves[key][ALPHAS.index(alpha)]]
            axes.plot(
                times,
                values,
                color=_DARK if key == "reduced_weights" else _SLOPES[0.0],
                ls=style,
                lw=1.7,
                label=f"from {label}, {name}",
            )
    axes.set(
        yscale="log", ylim=(1e-17, 1e-2), xlabel="time, of the run", ylabel="weights apart, of their norm"
    )
    _title(axes, "ReLU weights: from the linear network's,\nand from the reduced solution")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _both_parts(axes: Any, metrics: dict[str, Any]) -> None:
    curves = metrics["unbalanced"]["curves"]["slope 0, 0.9"]
    size = curves["size"]
    for key, k, colour in (("positive", 0, "#c2571a"), ("negative", 1, "#7a5aa6")):
        axes.plot(
            curves["times"], [v / size for v in curves[key]], color=colour, lw=2.2, label=f"{key} part of W2"
        )
        axes.plot(
            curves["times"][::8], [v / size for v in curves["said"][k]][::8], "o", ms=3.2, color=_DARK, mew=0
        )
    axes.plot(
        curves["times"],
        [v / size for v in curves["even"]],
        color=_SLOPES[0.0],
        lw=2.2,
        label="even part of f (rms)",
    )
    axes.set(xlabel="time of the linear network, c t", ylabel="of the final size")
    _title(
        axes, "Parts of W2 of unequal norm (9 to 1), ReLU:\ntwo logistics (dots), and an even part between"
    )
    axes.legend(frameon=False, fontsize=8.5)


def _even_part(axes: Any, metrics: dict[str, Any]) -> None:
    rows = metrics["unbalanced"]["rows"]
    for share, marker, style in ((1.0, "s", "-"), (0.9, "o", (0, (4, 2))), (0.75, "^", (0, (1, 1.5)))):
        line = average(rows, "even", "alpha", share=share)
        axes.plot(
            *zip(*line, strict=True),
            marker=marker,
            ms=5,
            ls=style,
            color=_SLOPES[0.0],
            lw=1.7,
            label=f"share {share:g}",
        )
    axes.set(
        xlabel="slope of the leaky ReLU", ylabel="largest even part, of the final output", ylim=(-0.02, 0.56)
    )
    _title(axes, "Largest even part over training, by the share\nof the positive part in ‖W2‖²")
    axes.legend(frameon=False, fontsize=8.5)


def _scales(axes: Any, metrics: dict[str, Any]) -> None:
    rows = metrics["scales"]
    for alpha in sorted({row["alpha"] for row in rows}):
        for start, style in (("as drawn", "o-"), ("balanced", "s--")):
            line = average(rows, "outputs", "scale", start=start, alpha=alpha)
            axes.plot(
                *zip(*line, strict=True),
                style,
                ms=4,
                lw=1.7,
                color=_SLOPES[alpha],
                label=f"slope {alpha:g}, {start}",
            )
    floor = average(rows, "floor", "alpha", start="as drawn")[0][1]
    axes.axhline(floor, color=_FAINT, lw=1, ls=(0, (1, 1.5)), label="floor told from the draws, slope 0")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="scale of the random start",
        ylabel="outputs apart, of the final output",
    )
    _title(
        axes,
        f"Random starts, width {metrics['plan']['width']}: distance from the\nlinear network, largest over training",
    )
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")


def _widths(axes: Any, metrics: dict[str, Any]) -> None:
    rows = metrics["widths"]
    for alpha in sorted({row["alpha"] for row in rows}):
        chosen = [row for row in rows if row["alpha"] == alpha]
        axes.plot(
            [row["width"] for row in chosen],
            [row["outputs"] for row in chosen],
            "o",
            ms=4,
            color=_SLOPES[alpha],
            alpha=0.45,
            mew=0,
        )
        squares = average([{**row, "square": row["outputs"] ** 2} for row in chosen], "square", "width")
        axes.plot(
            [w for w, _ in squares],
            [s**0.5 for _, s in squares],
            lw=1.8,
            color=_SLOPES[alpha],
            label=f"slope {alpha:g}, rms",
        )
    widths = sorted({row["width"] for row in rows})
    said = [
        0.5 * (3 / width) ** 0.5 / 2 for width in widths
    ]  # of tanh(|ln ratio|/4)/2 for many units: see the page
    axes.plot(widths, said, color=_FAINT, lw=1.2, ls=(0, (1, 1.5)), label="√(3/width)/4, slope 0")
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel="outputs apart, of the final output")
    axes.set_xticks(widths, [f"{width}" for width in widths])
    axes.set_xticks([], minor=True)
    _title(axes, f"Random starts of scale {rows[0]['scale']:g}: distance by width,\neach draw and the mean")
    axes.legend(frameon=False, fontsize=8.5)


def _steps(axes: Any, metrics: dict[str, Any]) -> None:
    rows = metrics["step_size"]
    for name, style in (("whitened", "-"), ("general", (0, (4, 2)))):
        for alpha, marker in ((0.0, "o"), (0.5, "s")):
            line = average(rows, "from_flow", "step", setting=name, alpha=alpha)
            size = 6.5 if alpha == 0 else 3
            axes.plot(
                *zip(*line, strict=True),
                marker=marker,
                ms=size,
                ls=style,
                lw=1.6,
                color=_SLOPES[alpha],
                label=f"{name}, slope {alpha:g}",
            )
    first = average(rows, "from_flow", "step", setting="whitened", alpha=0.0)
    axes.plot(
        [x for x, _ in first],
        [first[0][1] / 2 * x / first[0][0] for x, _ in first],
        color=_FAINT,
        lw=1,
        ls=(0, (1, 1.5)),
        label="∝ step",
    )
    axes.set(
        xscale="log", yscale="log", xlabel="step of gradient descent", ylabel="weights apart, of their norm"
    )
    steps = [step for step, _ in first][::2]
    axes.set_xticks(steps, [f"{step:.2g}" for step in steps])
    axes.set_xticks([], minor=True)
    _title(axes, "Gradient descent: distance from the flow,\nlargest over training")
    axes.legend(frameon=False, fontsize=8.5)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10.5)
