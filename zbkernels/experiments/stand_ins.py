"""What is read where a paper's image set is absent: the colour composite, always under its own name."""

from __future__ import annotations

from pathlib import Path

from zbkernels import data as image_sets
from zbkernels.data.dataset import data_root

# Image set of the paper -> what stands in, and where the set itself would be.
_STAND_INS = {
    "cifar-10": ("composite-10", ("cifar-10-batches-py", "cifar-10-python.tar.gz")),
    "cifar-100": ("composite", ("cifar-100-python", "cifar-100-python.tar.gz")),
}


def load_or_stand_in(name: str, root: str | Path | None) -> image_sets.Dataset:
    """The image set ``name``, or its stand-in where the data folder holds no trace of it.

    Raises:
        DataError: as :func:`zbkernels.data.load`; a set that is there and broken is not stood in for.
    """
    if name in _STAND_INS:
        stand_in, places = _STAND_INS[name]
        folder = data_root(root)
        if not any((folder / place).exists() for place in places):
            name = stand_in
    return image_sets.load(name, root)


def stands_in(name: str, for_name: str) -> bool:
    """Whether the image set ``name`` is the stand-in for ``for_name``."""
    return for_name in _STAND_INS and _STAND_INS[for_name][0] == name
