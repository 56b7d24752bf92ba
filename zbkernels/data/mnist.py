"""MNIST and Fashion-MNIST from idx files in torchvision's layout: ``<root>/<folder>/raw/<file>[.gz]``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from zbkernels.data.dataset import DataError, Dataset, Split, data_root
from zbkernels.data.idx import IMAGES_MAGIC, LABELS_MAGIC, IdxFile, find_idx, read_idx

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class IdxSet:
    """One published set of four idx files.

    ``md5`` holds the checksums of the *unpacked* files: they stay the same whoever packed them.
    """

    name: str
    title: str
    unofficial_title: str
    folder: str
    source: str
    classes: tuple[str, ...]
    md5: dict[str, str]


MNIST = IdxSet(
    name="mnist",
    title="MNIST",
    unofficial_title="MNIST (not the official files)",
    folder="MNIST/raw",
    source="https://ossci-datasets.s3.amazonaws.com/mnist/",
    classes=tuple("0123456789"),
    md5={
        TRAIN_IMAGES: "6bbc9ace898e44ae57da46a324031adb",
        TRAIN_LABELS: "a25bea736e30d166cdddb491f175f624",
        TEST_IMAGES: "2646ac647ad5339dbf082846283269ea",
        TEST_LABELS: "27ae3e4e09519cfbb04c329615203637",
    },
)

FASHION_MNIST = IdxSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    unofficial_title="Fashion-MNIST (re-encoded)",
    folder="FashionMNIST/raw",
    source="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    md5={
        TRAIN_IMAGES: "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        TRAIN_LABELS: "9018921c3c673c538a1fc5bad174d6f9",
        TEST_IMAGES: "8181f5470baa50b63fa0f6fddb340f0a",
        TEST_LABELS: "15d484375f8d13e6eb1aabb0c3f46965",
    },
)


def load_mnist(root: str | Path | None = None) -> Dataset:
    """The 60,000 + 10,000 handwritten digits, ``[N, 1, 28, 28]``."""
    return load_idx_set(MNIST, root)


def load_fashion_mnist(root: str | Path | None = None) -> Dataset:
    """The 60,000 + 10,000 garments, ``[N, 1, 28, 28]``; the title says where the files are not Zalando's."""
    return load_idx_set(FASHION_MNIST, root)


def load_idx_set(published: IdxSet, root: str | Path | None) -> Dataset:
    """Read and check the four files of ``published``.

    Raises:
        DataError: a file is missing or broken, images and labels do not pair up, or a label has no class.
    """
    folder = data_root(root) / published.folder
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; {published.title} is read from there (torchvision's layout). "
            f"Get the four .gz files from {published.source}"
        )
    train, train_files = _split(published, folder, TRAIN_IMAGES, TRAIN_LABELS)
    test, test_files = _split(published, folder, TEST_IMAGES, TEST_LABELS)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"{folder}: training images of shape {list(train.images.shape[1:])} beside test images of shape "
            f"{list(test.images.shape[1:])}; get the four files again from {published.source}"
        )
    foreign = [
        file.path.name
        for name, file in {**train_files, **test_files}.items()
        if file.md5 != published.md5[name]
    ]
    note = ""
    if foreign:
        note = f"the content of {', '.join(foreign)} has not the checksum of the official file"
    return Dataset(
        name=published.name,
        title=published.unofficial_title if foreign else published.title,
        train=train,
        test=test,
        classes=published.classes,
        official=not foreign,
        note=note,
    )


def _split(published: IdxSet, folder: Path, images: str, labels: str) -> tuple[Split, dict[str, IdxFile]]:
    source = published.source
    x = read_idx(find_idx(folder, images, source), IMAGES_MAGIC, source)
    y = read_idx(find_idx(folder, labels, source), LABELS_MAGIC, source)
    if len(x.array) != len(y.array):
        raise DataError(
            f"{y.path}: expected {len(x.array)} labels, one for each image of {x.path.name}, got "
            f"{len(y.array)}; get both again from {source}"
        )
    largest = int(y.array.max())
    if largest >= len(published.classes):
        raise DataError(
            f"{y.path}: expected labels 0 to {len(published.classes) - 1}, got {largest}; "
            f"get it again from {source}"
        )
    pixels = torch.from_numpy(x.array.astype(np.float32) / np.float32(255)).unsqueeze(1)  # [N, 1, H, W]
    return Split(pixels, torch.from_numpy(y.array.astype(np.int64))), {images: x, labels: y}
