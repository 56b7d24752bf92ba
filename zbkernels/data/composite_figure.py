"""The picture of the composite in docs: ``python -m zbkernels.data.composite_figure docs/composite.png``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from zbkernels.data.composite import load_composite
from zbkernels.data.dataset import Dataset
from zbkernels.files import replacing


def figure(data: Dataset, path: Path) -> None:
    """The first test image of every class: a row for each garment, a column for each digit."""
    from matplotlib.figure import Figure
    from PIL import Image

    labels = data.test.labels.tolist()
    canvas = Figure(figsize=(7.6, 6.4), layout="constrained")
    grid = canvas.subplots(10, 10, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for label, axes in enumerate(grid.flat):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if label in labels:
            axes.imshow(data.test.images[labels.index(label)].permute(1, 2, 0).numpy())
        garment, digit = data.classes[label].split(", ")
        if label < 10:
            axes.set_title(digit, fontsize=9)
        if digit == "0":
            axes.set_ylabel(garment, rotation=0, ha="right", va="center", fontsize=9)
    canvas.suptitle(f"{data.title}\n(a stand-in, not CIFAR)", fontsize=9)
    drawn = io.BytesIO()
    canvas.savefig(drawn, dpi=80)
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)


def main(path: str) -> None:
    with replacing(Path(path)) as temporary:
        figure(load_composite(), temporary)


if __name__ == "__main__":
    main(sys.argv[1])
