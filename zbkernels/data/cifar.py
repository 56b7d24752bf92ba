"""CIFAR-10 and CIFAR-100 from their Python files in torchvision's layout.

``<root>/cifar-10-batches-py`` and ``<root>/cifar-100-python`` are read where they are, else the archives
``<root>/cifar-10-python.tar.gz`` and ``<root>/cifar-100-python.tar.gz``, in memory: nothing is written, so that the
folder may be read-only and any number of processes may load at once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zbkernels.data.dataset import DataError, Dataset, Split, data_root
from zbkernels.data.plain_pickle import PickleError, loads
from zbkernels.data.unpack import TooLarge, gunzip

_IMAGE = (3, 32, 32)


@dataclass(frozen=True)
class CifarSet:
    """One published set.

    Attributes:
        train, test: (file, the number of images the official one holds).
        label_key, names_key: of a batch's labels and of the class names in ``meta``.
        md5: of the official files, by name.
        archive: name, bytes and MD5 of the official archive.
    """

    name: str
    title: str
    folder: str
    train: tuple[tuple[str, int], ...]
    test: tuple[str, int]
    meta: str
    label_key: str
    names_key: str
    classes: int
    md5: dict[str, str]
    archive: tuple[str, int, str]
    source: str


CIFAR10 = CifarSet(
    name="cifar-10",
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    train=tuple((f"data_batch_{number}", 10_000) for number in range(1, 6)),
    test=("test_batch", 10_000),
    meta="batches.meta",
    label_key="labels",
    names_key="label_names",
    classes=10,
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    archive=("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
    source="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)

CIFAR100 = CifarSet(
    name="cifar-100",
    title="CIFAR-100",
    folder="cifar-100-python",
    train=(("train", 50_000),),
    test=("test", 10_000),
    meta="meta",
    label_key="fine_labels",
    names_key="fine_label_names",
    classes=100,
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    archive=("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
    source="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
)


def load_cifar10(root: str | Path | None = None) -> Dataset:
    """The 50,000 + 10,000 images ``[N, 3, 32, 32]`` of 10 classes."""
    return load_cifar(CIFAR10, root)


def load_cifar100(root: str | Path | None = None) -> Dataset:
    """The 50,000 + 10,000 images ``[N, 3, 32, 32]`` of 100 classes, the fine ones."""
    return load_cifar(CIFAR100, root)


def load_cifar(published: CifarSet, root: str | Path | None) -> Dataset:
    """Read and check the files of ``published``, unpacked or from its archive.

    A file of another content than the official one is taken where it is well-formed and holds another number of images;
    the title then says so. As many images as the official file's, and not its checksum, is a file that was damaged.

    Raises:
        DataError: a file is missing, cut off, damaged or malformed; the message gives its checksum, the official one,
            and the mend.
    """
    files = _files(published, data_root(root))
    names = _names(published, files[published.meta])
    train = _split(published, [_arrays(published, files[name], count) for name, count in published.train])
    test = _split(published, [_arrays(published, files[published.test[0]], published.test[1])])
    if len(train) == sum(count for _, count in published.train):
        _check_balanced(published, files[published.train[0][0]].path.parent, train)
    foreign = [file.path.name for file in files.values() if not file.official]
    note = f"the content of {', '.join(foreign)} has not the checksum of the official file" if foreign else ""
    return Dataset(
        name=published.name,
        title=f"{published.title} (not the official files)" if foreign else published.title,
        train=train,
        test=test,
        classes=names,
        official=not foreign,
        note=note,
    )


@dataclass(frozen=True)
class _File:
    """One file's content; ``path`` is where it lies, or would lie unpacked."""

    path: Path
    content: bytes
    expected: str  # MD5 of the official file
    mend: str

    @cached_property
    def found(self) -> str:
        return _md5(self.content)

    @property
    def official(self) -> bool:
        return self.found == self.expected

    def broken(self, what: str) -> DataError:
        return DataError(
            f"{self.path}: {what}; expected MD5 {self.expected}, found {self.found} "
            f"({len(self.content):,} bytes); {self.mend}"
        )


def _files(published: CifarSet, root: Path) -> dict[str, _File]:
    """Every file of the set, by name, from its folder or else from its archive."""
    wanted = [*(name for name, _ in published.train), published.test[0], published.meta]
    folder, archive = root / published.folder, root / published.archive[0]
    if folder.is_dir():
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            instead = (
                f"delete the folder, and {archive.name} beside it is read"
                if archive.is_file()
                else f"delete the folder and unpack {archive.name} again, from {published.source}"
            )
            raise DataError(f"{folder}: half unpacked, {', '.join(missing)} not found; {instead}")
        contents = {name: _read(folder / name) for name in wanted}
        mend = f"delete it and unpack {archive.name} again, from {published.source}"
    elif archive.is_file():
        contents = _unpacked(published, archive, wanted)
        folder = archive / published.folder
        mend = f"delete {archive.name} and get it again from {published.source}"
    else:
        raise DataError(
            f"{folder}: no such folder, nor {archive.name} beside it; {published.title} is read from there "
            f"(torchvision's layout). Get it from {published.source}"
        )
    return {name: _File(folder / name, contents[name], published.md5[name], mend) for name in wanted}


def _unpacked(published: CifarSet, archive: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """The wanted files of the archive. It is unpacked in memory, and whole: only its last bytes tell a damaged one."""
    raw = _read(archive)
    _, size, expected = published.archive

    def broken(what: str) -> DataError:
        return DataError(
            f"{archive}: {what}; expected {size:,} bytes of MD5 {expected}, found {len(raw):,} of {_md5(raw)}; "
            f"delete it and get it again from {published.source}"
        )

    if len(raw) == size and _md5(raw) != expected:
        raise broken("damaged")
    try:
        content = gunzip(raw)
    except TooLarge as error:
        raise broken(f"no archive of such a set: {error}") from error
    except EOFError as error:
        raise broken("cut off, the gzip stream ends early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise broken(f"corrupt gzip data ({error})") from error
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for name in wanted:
                # No link, which may lead in a circle, and not sparse, which may say that it is of any length.
                member = tar.getmember(f"{published.folder}/{name}")
                if not member.isreg() or member.issparse() or member.size > len(content):
                    raise broken(f"expected a file {name} in it, got something else")
                stream = tar.extractfile(member)
                assert stream is not None
                found[name] = stream.read()
    except KeyError as error:
        raise broken(f"no {published.folder}/{name} in it") from error
    except DataError:
        raise
    except Exception as error:  # the headers of a broken archive fail in any way
        raise broken(f"not a whole tar archive ({error or type(error).__name__})") from error
    return found


def _arrays(published: CifarSet, file: _File, official_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``[N, 3, 32, 32]`` uint8 and labels ``[N]`` int64 of one batch, checked."""
    batch = _dict(file)
    pixels, labels = batch.get("data"), batch.get(published.label_key)
    features = int(np.prod(_IMAGE))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != features:
        got = list(pixels.shape) if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise file.broken(f"expected 'data' to be bytes [N, {features}], got {got}")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not len(pixels):
        count = len(labels) if isinstance(labels, list) else type(labels).__name__
        raise file.broken(
            f"expected '{published.label_key}' to be a list of {len(pixels)} labels, got {count}"
        )
    wrong = [label for label in labels if not isinstance(label, int) or not 0 <= label < published.classes]
    if wrong:
        raise file.broken(f"expected labels 0 to {published.classes - 1}, got {_shown(wrong[0])}")
    if len(pixels) == official_count and not file.official:
        raise file.broken(f"damaged: it holds {official_count:,} images, but not the official content")
    return pixels.reshape(-1, *_IMAGE), np.array(labels, dtype=np.int64)


def _shown(label: Any) -> str:
    """A wrong label, for a message: others than small ones can be of any size."""
    if (isinstance(label, str) and len(label) <= 20) or (isinstance(label, int) and label.bit_length() <= 64):
        return repr(label)
    return f"a value of {type(label).__name__}" + (" of more than 64 bits" if isinstance(label, int) else "")


def _split(published: CifarSet, batches: list[tuple[np.ndarray, np.ndarray]]) -> Split:
    pixels = torch.from_numpy(np.concatenate([each for each, _ in batches]))
    labels = torch.from_numpy(np.concatenate([each for _, each in batches]))
    return Split(pixels.float().div_(255), labels)


def _names(published: CifarSet, file: _File) -> tuple[str, ...]:
    names = _dict(file).get(published.names_key)
    if not isinstance(names, list) or len(names) != published.classes:
        got = len(names) if isinstance(names, list) else type(names).__name__
        raise file.broken(f"expected '{published.names_key}' to be {published.classes} names, got {got}")
    if not all(isinstance(name, str) for name in names):
        other = next(type(name).__name__ for name in names if not isinstance(name, str))
        raise file.broken(f"expected '{published.names_key}' to be names, got a value of {other} among them")
    return tuple(names)


def _check_balanced(published: CifarSet, folder: Path, train: Split) -> None:
    """The official training images are as many of each class."""
    counts = train.labels.bincount(minlength=published.classes)
    expected = len(train) // published.classes
    if (counts != expected).any():
        worst = int((counts - expected).abs().argmax())
        raise DataError(
            f"{folder}: expected {expected:,} training images of each class, got {int(counts[worst]):,} of class "
            f"{worst}; get it again from {published.source}"
        )


def _dict(file: _File) -> dict[Any, Any]:
    try:
        value = loads(file.content)
    except PickleError as error:
        raise file.broken(f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise file.broken(f"expected a dict, got {type(value).__name__}")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
