"""Small image folders in torchvision's layout, for tests that must run without the real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(
    path: Path, pixels: np.ndarray | int, size: tuple[int, int] = (40, 30), **options: object
) -> Path:
    """Write ``pixels`` ([H, W, 3] uint8), or one grey value on (width, height) pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (pixels,) * 3) if isinstance(pixels, int) else Image.fromarray(pixels)
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def write_imagenette(root: Path, train: int = 6, test: int = 4, classes: int = 3, suffix: str = "") -> Path:
    """``root/imagenette2<suffix>`` with so many images of each class: noise, brighter from class to class."""
    base = root / f"imagenette2{suffix}"
    random = np.random.default_rng(0)
    names = ["n01440764", "n02102040", "n02979186", "n03000684"][:classes]
    for part, count in (("train", train), ("val", test)):
        for label, name in enumerate(names):
            for index in range(count):
                width, height = 36 + 4 * (index % 4), 44 - 4 * (index % 3)
                pixels = random.integers(70 * label, 70 * label + 60, (height, width, 3), dtype=np.uint8)
                write_image(base / part / name / f"{name}_{index}.JPEG", pixels, quality=90)
    return base
