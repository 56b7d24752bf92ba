"""What every reader returns, and the one error that every reader raises."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

DATA_VARIABLE = "ZBKERNELS_DATA"


class DataError(Exception):
    """A data file is missing, broken or not what it should be. The message names the file and the mend."""


@dataclass(frozen=True)
class Split:
    """Images ``[N, C, H, W]`` float32 in [0, 1] and labels ``[N]`` int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))

    def first(self, count: int) -> Split:
        """The first ``count`` images, fewer where the split is smaller."""
        return Split(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class Dataset:
    """One image set.

    Attributes:
        name: the key by which :func:`zbkernels.data.load` knows it.
        title: what a table or a figure must call it. It says so where the data are not the official ones.
        classes: class names, in label order.
        official: the files carry the checksums of the official distribution.
        note: where the data come from and what differs from the official set ("" where nothing does).
    """

    name: str
    title: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    official: bool
    note: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        _, c, h, w = self.train.images.shape
        return c, h, w

    def to(self, device: torch.device | str) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def subset(self, train: int | None, test: int | None) -> Dataset:
        """The first ``train`` and ``test`` images, with a title that says so. ``None`` keeps them all."""
        kept_train = self.train if train is None else self.train.first(train)
        kept_test = self.test if test is None else self.test.first(test)
        if len(kept_train) == len(self.train) and len(kept_test) == len(self.test):
            return self
        title = f"{self.title}, first {len(kept_train):,} training and {len(kept_test):,} test images"
        return replace(self, title=title, train=kept_train, test=kept_test)


def data_root(root: str | Path | None) -> Path:
    """The folder to read from: ``root``, else ``$ZBKERNELS_DATA``.

    Raises:
        DataError: neither is given, or it is not a folder.
    """
    given = str(root) if root is not None else os.environ.get(DATA_VARIABLE, "")
    if not given:
        raise DataError(
            f"no data folder is given: pass --data DIR or set {DATA_VARIABLE} to a folder in torchvision's "
            "layout (DIR/MNIST/raw, DIR/FashionMNIST/raw); the preset smoke needs none"
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        origin = "--data" if root is not None else DATA_VARIABLE
        raise DataError(
            f"{path}: {origin} must name a folder, and there is {'a file' if path.exists() else 'nothing'}"
        )
    return path
