"""Small idx sets in torchvision's layout, for tests that must run without the real files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

TRAIN, TEST = 96, 40


def idx_bytes(array: np.ndarray) -> bytes:
    """``array`` (uint8) with the header that its shape asks for."""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def write_idx_set(root: Path, folder: str = "MNIST", *, packed: bool = False) -> Path:
    """Write the four files under ``root/<folder>/raw`` and return that folder.

    Each image is dark noise with a bright block whose place is its label, so that a network learns it quickly.
    """
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for part, count, seed in (("train", TRAIN, 0), ("t10k", TEST, 1)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.random.default_rng(seed).integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 5)
            image[14 * row + 2 : 14 * row + 12, 5 * column + 1 : 5 * column + 5] = 255
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx_bytes(array)
            if packed:
                (raw / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (raw / name).write_bytes(content)
    return raw
