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
            same label, or the classes are others than expected; a folder cannot be listed, a link leads nowhere or
            back, or what has an image's name is no regular file.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; expected one folder for each class in it")
    names, loose = [], 0
    for entry in _entries(path):
        if _is_folder(entry):
            names.append(entry.name)
        elif entry.name.lower().endswith(SUFFIXES):
            loose += 1
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
        found = sorted(_files_below(path / name, name, (path,)))
        images = [file for file in found if file.lower().endswith(SUFFIXES)]
        if not images:
            got = f"only {_some(found)}" if found else "an empty folder"
            raise DataError(f"{path / name}: expected images ({', '.join(SUFFIXES)}), got {got}")
        files += images
        labels += [label] * len(images)
        ignored += [file for file in found if not file.lower().endswith(SUFFIXES)]
    return Folder(path, tuple(names), tuple(files), tuple(labels), tuple(ignored))


def _files_below(folder: Path, prefix: str, above: tuple[Path, ...]) -> list[str]:
    """``above``: the folders that lead here, to none of which a link may lead back."""
    found = []
    for parent in above:
        if folder.samefile(parent):
            raise DataError(f"{folder}: a link back to {parent}, which it lies in; delete it")
    for entry in _entries(folder):
        if _is_folder(entry):
            found += _files_below(Path(entry.path), f"{prefix}/{entry.name}", (*above, folder))
        else:
            found.append(f"{prefix}/{entry.name}")
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """All but hidden ones: what a file system or a copying program leaves behind."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; if not, it must be a regular file or have no image's name: a pipe would be waited for."""
    try:
        if entry.is_dir():
            return True
        regular = entry.is_file()
    except OSError as error:  # a link to itself, for one
        raise DataError(f"{entry.path}: cannot be followed ({error.strerror}); delete it") from error
    if not regular and entry.name.lower().endswith(SUFFIXES):
        got = "a link that leads nowhere" if entry.is_symlink() and not os.path.exists(entry.path) else "none"
        raise DataError(f"{entry.path}: expected a regular file, got {got}; delete it")
    return False


def _check_numbers(path: Path, names: list[str]) -> None:
    if not all(name.isascii() and name.isdigit() for name in names):
        return
    for one, two in pairwise(names):
        if int(one) == int(two):
            raise DataError(f"{path}: the class folders {one} and {two} are the same number")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
