"""What is read where a paper's image set is absent, always under its own name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zbkernels import data as image_sets
from zbkernels.data.dataset import data_root


@dataclass(frozen=True)
class StandIn:
    """An image set in another's place.

    Attributes:
        name, title: of the image set that stands in.
        for_title: what the paper's image set is called.
        instead_of: where the paper's would lie in the data folder: where none of these is, ``name`` is read. (): only
            a preset that names it reads it.
    """

    name: str
    title: str
    for_title: str
    instead_of: tuple[str, ...] = ()


_STAND_INS = {
    "cifar-10": StandIn(
        "composite-10",
        "the colour composite",
        "CIFAR-10",
        ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    ),
    "cifar-100": StandIn(
        "composite", "the colour composite", "CIFAR-100", ("cifar-100-python", "cifar-100-python.tar.gz")
    ),
    "imagenet": StandIn("imagenette", "Imagenette", "ImageNet"),
}


def load_or_stand_in(name: str, root: str | Path | None) -> image_sets.Dataset:
    """The image set ``name``, or its stand-in where the data folder holds no trace of it.

    Raises:
        DataError: as :func:`zbkernels.data.load`; a set that is there and broken is not stood in for.
    """
    stand_in = _STAND_INS.get(name)
    if stand_in is not None and stand_in.instead_of:
        folder = data_root(root)
        if not any((folder / place).exists() for place in stand_in.instead_of):
            name = stand_in.name
    return image_sets.load(name, root)


def stand_in(name: str, for_name: str) -> StandIn | None:
    """How ``name`` stands in for the paper's image set ``for_name``; None: it does not."""
    found = _STAND_INS.get(for_name)
    return found if found is not None and found.name == name else None
