"""Small CIFAR sets in exactly the official form, for tests that must run without the real files."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zbkernels.data.cifar import CIFAR10, CifarSet

IMAGES = 20  # in each file


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes strings as Python 2 did, as byte strings: what CIFAR's own files hold."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, value: str) -> None:
        self._string(value.encode("latin1"), value)

    def save_raw(self, value: bytes) -> None:
        self._string(value, value)

    def _string(self, content: bytes, value: Any) -> None:
        if len(content) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(content)]) + content)
        else:
            self.write(pickle.BINSTRING + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    dispatch[str] = save_text
    dispatch[bytes] = save_raw


def python2_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, 2).dump(value)
    # Python 2's numpy had one name for the module
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def contents(published: CifarSet, images: int = IMAGES, seed: int = 0) -> dict[str, dict[str, Any]]:
    """File -> the dict it holds: each image dark noise with a bright row whose place is its label."""
    random = np.random.default_rng(seed)
    files: dict[str, dict[str, Any]] = {}
    for name in (*(name for name, _ in published.train), published.test[0]):
        labels = [int(label) for label in np.arange(images) % published.classes]
        pixels = random.integers(0, 90, (images, 3, 32, 32), dtype=np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[label % 3, label % 32] = 255
        files[name] = {
            "data": pixels.reshape(images, -1),
            published.label_key: labels,
            "batch_label": f"{name} of a test",
            "filenames": [f"{index}.png" for index in range(images)],
        }
    files[published.meta] = {published.names_key: [f"class {k}" for k in range(published.classes)]}
    return files


def write_folder(root: Path, published: CifarSet = CIFAR10, *, python3: bool = False, **options: Any) -> Path:
    """Write the unpacked folder and return it."""
    folder = root / published.folder
    folder.mkdir(parents=True)
    for name, value in contents(published, **options).items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=2) if python3 else python2_pickle(value))
    return folder


def write_archive(root: Path, published: CifarSet = CIFAR10, **options: Any) -> Path:
    """Write the archive alone and return it."""
    archive = root / published.archive[0]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, value in contents(published, **options).items():
            content = python2_pickle(value)
            entry = tarfile.TarInfo(f"{published.folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(stream.getvalue(), mtime=0))
    return archive


def made_official(published: CifarSet, folder: Path, archive: Path | None = None) -> CifarSet:
    """``published`` as if the files here were the official ones."""
    md5 = {path.name: _md5(path) for path in folder.iterdir()}
    count = len(contents(published)[published.test[0]]["filenames"])
    return replace(
        published,
        md5=md5,
        train=tuple((name, count) for name, _ in published.train),
        test=(published.test[0], count),
        archive=(published.archive[0], archive.stat().st_size, _md5(archive))
        if archive
        else published.archive,
    )


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
