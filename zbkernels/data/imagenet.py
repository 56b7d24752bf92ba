"""ImageNet and Imagenette, streamed from torchvision's layouts: ``train/<wnid>/…`` and ``val/<wnid>/…``.

ImageNet is read from ``<root>/imagenet``, or from ``<root>`` itself where that holds ``train`` and ``val``. Imagenette
is read from ``<root>/imagenette2``, ``imagenette2-320`` or ``imagenette2-160``, the first that is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from zbkernels.data.dataset import DataError, Dataset, data_root
from zbkernels.data.folder import Folder, read_folder
from zbkernels.data.streamed import StreamedSplit

IMAGENETTE_NAMES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
_NAMES_FILE = "meta.bin"  # torchvision's: ({wnid: names}, the wnid of each validation image)


@dataclass(frozen=True)
class FolderSet:
    """One published set; ``counts`` are its training images, test images and classes."""

    name: str
    title: str
    counts: tuple[int, int, int]
    source: str


IMAGENET = FolderSet(
    "imagenet", "ImageNet", (1_281_167, 50_000, 1_000), "https://image-net.org/challenges/LSVRC/2012/"
)
IMAGENETTE = FolderSet("imagenette", "Imagenette", (9_469, 3_925, 10), "https://github.com/fastai/imagenette")


def load_imagenet(root: str | Path | None = None) -> Dataset:
    """ImageNet's 1,281,167 + 50,000 images, ``[N, 3, 224, 224]``, 1,000 classes by their WordNet numbers.

    Class names come from ``meta.bin`` where torchvision has written one, and are the folders' names else.

    Raises:
        DataError: a folder is missing or empty, or the classes of ``train`` and ``val`` differ.
    """
    base = data_root(root)
    own = base / "imagenet"
    path = base if not own.is_dir() and (base / "train").is_dir() else own
    return load_folders(IMAGENET, path, "", _names(path))


def load_imagenette(root: str | Path | None = None) -> Dataset:
    """Imagenette's (version 2) 9,469 + 3,925 images, ``[N, 3, 224, 224]``, ten easy classes of ImageNet.

    Raises:
        DataError: as :func:`load_imagenet`.
    """
    base = data_root(root)
    forms = {"imagenette2": "", "imagenette2-320": " (320 pixels)", "imagenette2-160": " (160 pixels)"}
    folder = next((name for name in forms if (base / name).is_dir()), "imagenette2")
    return load_folders(IMAGENETTE, base / folder, forms[folder], IMAGENETTE_NAMES)


def load_folders(published: FolderSet, path: Path, suffix: str, names: dict[str, str]) -> Dataset:
    """``path/train`` and ``path/val`` as a streamed set; training images in random crops, test images in their middle.

    Args:
        suffix: to the title, where the set has several forms.
        names: folder -> the class's name; one that is not in it is called as its folder.

    Raises:
        DataError: as :func:`load_imagenet`.
    """
    for part in ("train", "val"):
        if not (path / part).is_dir():
            raise DataError(
                f"{path / part}: no such folder; {published.title} is read from {path}/train/CLASS/FILE and "
                f"{path}/val/CLASS/FILE (torchvision's layout). Get it from {published.source}"
            )
    train = read_folder(path / "train")
    test = read_folder(path / "val", train.classes)
    found = (len(train.files), len(test.files), len(train.classes))
    official = found == published.counts
    title = published.title + suffix
    if not official:
        title += f" (not the official set: {found[0]:,} + {found[1]:,} images of {found[2]:,} classes)"
    note = "its images were counted, not compared with the official ones"
    return Dataset(
        name=published.name,
        title=title,
        train=StreamedSplit(train, random=True),
        test=StreamedSplit(test, random=False),
        classes=tuple(names.get(wnid, wnid) for wnid in train.classes),
        official=official,
        note=note + _left_out(train, test),
    )


def _left_out(*folders: Folder) -> str:
    ignored = [f"{folder.path.name}/{file}" for folder in folders for file in folder.ignored]
    if not ignored:
        return ""
    more = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
    return f"; left out, as no images by their names: {', '.join(ignored[:3])}{more}"


def _names(path: Path) -> dict[str, str]:
    """The classes' first names from torchvision's file; none where there is no such file."""
    file = path / _NAMES_FILE
    if not file.is_file():
        return {}
    try:
        names, _ = torch.load(file, weights_only=True)
        return {wnid: each if isinstance(each, str) else each[0] for wnid, each in names.items()}
    except Exception as error:  # torch.load fails in many ways
        raise DataError(
            f"{file}: expected torchvision's class names, got a file that cannot be read as such "
            f"({str(error).splitlines()[0]}); delete it: without it classes are called as their folders"
        ) from error
