"""Draws the figure of docs/invariance.md out of the page's own code: ``python docs/invariance_figure.py``."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

from zbkernels.data import load_digits
from zbkernels.experiments.contrast import SCALARS
from zbkernels.files import replacing
from zbkernels.invariance import check_scalar_invariance

HERE = Path(__file__).resolve().parent
WITH_BIAS, WITHOUT_BIAS, SECOND = "#c2571a", "#1f6f8b", "#7d5ba6"


def networks() -> list[tuple[str, str, str, nn.Module]]:
    """(label, colour, line, network) of the three that the page trains."""
    page = (HERE / "invariance.md").read_text(encoding="utf-8")
    names: dict[str, nn.Module] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(compile(block, "invariance.md", "exec"), names)
    return [
        ("batch norm", WITH_BIAS, "-", names["model"]),
        ("drop, trained on", WITHOUT_BIAS, "-", names["dropped"]),
        ("fixup, trained anew", SECOND, "--", names["fresh"]),
    ]


def main() -> None:
    digits = load_digits().test
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    for label, colour, line, model in networks():
        rows = check_scalar_invariance(model, digits.images, SCALARS).scalars
        accuracy = []
        for s in SCALARS:
            with torch.no_grad():
                accuracy.append(100 * (model(s * digits.images).argmax(1) == digits.labels).float().mean())
        left.semilogx(SCALARS, accuracy, line, color=colour, marker="o", markersize=3, label=label)
        deviations = [row.own_deviation or 1e-8 for row in rows]  # 0 lies at the lower edge
        right.loglog(SCALARS, deviations, line, color=colour, marker="o", markersize=3)
    left.set(xlabel="contrast s", ylabel="test accuracy, %", ylim=(0, 103))
    left.invert_xaxis()
    left.legend(frameon=False, loc="center right")
    right.set(xlabel="contrast s", ylabel="|f(sx) - s f(x)| / |s f(x)|, worst", ylim=(1e-8, 1e4))
    right.axhline(torch.finfo(torch.float32).eps, color="0.6", linewidth=0.8)
    right.text(3e-3, 9e-8, "float32's epsilon", color="0.45", fontsize=8, va="top")
    right.invert_xaxis()
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    (HERE / "invariance").mkdir(exist_ok=True)
    with replacing(HERE / "invariance" / "contrast.png") as temporary:
        figure.savefig(temporary, dpi=110, format="png")


if __name__ == "__main__":
    main()
