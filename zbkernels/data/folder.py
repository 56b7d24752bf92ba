"""Image files in folders, one folder for each class: which are there, and which label is whose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from zbkernels.data.dataset import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True)
class Folder:
    """The files of ``path/<class>/…``, by class and then by name, whatever the file system's order.

    Attributes:
        classes: names of the class folders, in label order (:func:`class_order`).
        files: path of each image, relative to ``path``.
        labels: of each image.
        ignored: files that are no images by their suffix, relative to ``path``.
    """

    path: Path
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    ignored: tuple[str, ...]


def class_order(names: list[str]) -> list[str]:
    """The label of each class folder is its place here: names that are all whole numbers by their value, so that of
    folders 0, 1, … 999 the label is the name; any other names as text, by code point."""
    if all(name.isascii() and name.isdigit() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def read_folder(path: Path, classes: tuple[str, ...] | None = None) -> Folder:
    """List ``path``, without opening an image.

    Args:
        classes: the class folders that are expected, in label order (those of the training images); None: any.

    Raises:
        DataError: there is no such folder or no class folder in it, a class has no image, two numeric names mean the
            same label, or the classes are others than expected.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one folder for each class in it")
    names, loose = [], 0
    for entry in os.scandir(path):
        if entry.is_dir() and not entry.name.startswith("."):
            names.append(entry.name)
        loose += entry.is_file() and entry.name.lower().endswith(SUFFIXES)
    if not names:
        got = f"{loose:,} images side by side" if loose else "none"
        raise DataError(f"{path}: expected one folder of images for each class, got {got}")
    names = class_order(names)
    if classes is None:
        _check_numbers(path, names)
    elif set(names) != set(classes):
        missing, more = sorted(set(classes) - set(names)), sorted(set(names) - set(classes))
        raise DataError(
            f"{path}: expected the class folders of the training images, got {_some(missing) or 'none'} missing and "
            f"{_some(more) or 'none'} more"
        )
    else:
        names = list(classes)
    files, labels, ignored = [], [], []
    for label, name in enumerate(names):
        found = sorted(_files_below(path / name, name))
        images = [file for file in found if file.lower().endswith(SUFFIXES)]
        if not images:
            got = f"only {_some(found)}" if found else "an empty folder"
            raise DataError(f"{path / name}: expected images ({', '.join(SUFFIXES)}), got {got}")
        files += images
        labels += [label] * len(images)
        ignored += [file for file in found if not file.lower().endswith(SUFFIXES)]
    return Folder(path, tuple(names), tuple(files), tuple(labels), tuple(ignored))


def _files_below(folder: Path, prefix: str) -> list[str]:
    found = []
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue  # what a file system or a copying program leaves behind
        if entry.is_dir():
            found += _files_below(Path(entry.path), f"{prefix}/{entry.name}")
        else:
            found.append(f"{prefix}/{entry.name}")
    return found


def _check_numbers(path: Path, names: list[str]) -> None:
    if not all(name.isascii() and name.isdigit() for name in names):
        return
    for one, two in pairwise(names):
        if int(one) == int(two):
            raise DataError(f"{path}: the class folders {one} and {two} are the same number")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
