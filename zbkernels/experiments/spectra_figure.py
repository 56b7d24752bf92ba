"""The picture of the ``spectra`` experiment: of each image set λ_min(H∞) and ‖X‖² over n."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zbkernels.experiments.preprocessing import NORMALIZATION, PREPROCESSINGS, WHITENING, ZERO_MEAN
from zbkernels.experiments.spectra_claims import PAPER, rows_of

_COLOURS = {NORMALIZATION: "#1f6f8b", ZERO_MEAN: "#c2571a", WHITENING: "#7a5aa6"}
_INK, _FAINT = "#2b2b2b", "#8a8a8a"


def figure(metrics: dict[str, Any], path: Path) -> None:
    """Write the PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sets = metrics["sets"]
    with rc_context({"text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}):
        canvas = Figure(figsize=(11, 4.2 * len(sets) + 0.9), layout="constrained")
        axes = canvas.subplots(len(sets), 2, squeeze=False)
        for (left, right), found in zip(axes, sets, strict=True):
            _draw(left, found, "least")
            _draw(right, found, "norm")
        axes[0][0].legend(frameon=False, fontsize=9)
        axes[0][1].legend(frameon=False, fontsize=9)
        canvas.suptitle("The least eigenvalue of H∞ and the norm of X, for the first n images", fontsize=12.5)
        canvas.savefig(path, dpi=110, format="png")


def _draw(axes: Any, found: dict[str, Any], what: str) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    for how in PREPROCESSINGS:
        rows = rows_of(found, how)
        if rows:
            values = [row["least"]["value"] if what == "least" else row["squared_norm"] for row in rows]
            sizes = [row["n"] for row in rows]
            axes.plot(sizes, values, "o-", ms=4, color=_COLOURS[how], label=how)
    if found["name"] in PAPER:
        images, printed = PAPER[found["name"]]
        for how, (norm, least) in printed.items():
            value = least if what == "least" else norm
            axes.plot(images, value, "o", ms=11, mfc="none", mec=_COLOURS[how], mew=1.2)
        axes.plot([], [], "o", ms=11, mfc="none", mec=_FAINT, mew=1.2, label="the thesis")
    sizes = sorted({row["n"] for row in found["rows"]})
    if what == "norm":
        ratio = [size / found["features"] for size in sizes]
        axes.plot(sizes, ratio, "--", color=_FAINT, lw=1.2, label="n/d")
    title = found["title"] if len(found["title"]) < 50 else found["title"].split(" of ")[0]
    axes.set(xscale="log", yscale="log", xlabel="images n")
    if what == "least":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(f"{title}: {'λ_min(H∞)' if what == 'least' else '‖X‖²'}", fontsize=11, loc="left")
    axes.grid(True, which="both", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
