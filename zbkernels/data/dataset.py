"""What every reader returns, and the one error that every reader raises."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from zbkernels.distributed import Team

DATA_VARIABLE = "ZBKERNELS_DATA"


class DataError(Exception):
    """A data file is missing, broken or not what it should be. The message names the file and the mend."""


@dataclass(frozen=True)
class Split:
    """Images ``[N, C, H, W]`` float32 in [0, 1] and labels ``[N]`` int64."""

    images: Tensor
    labels: Tensor

    kept: ClassVar = "first"  # which ones :meth:`first` keeps, as a title says it

    def __len__(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))

    def first(self, count: int) -> Split:
        """The first ``count`` images, fewer where the split is smaller."""
        return Split(self.images[:count], self.labels[:count])

    @property
    def image_shape(self) -> tuple[int, int, int]:
        _, c, h, w = self.images.shape
        return c, h, w

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``[B, C, H, W]`` and labels ``[B]`` at ``indices`` ([B] int64), on the split's device."""
        indices = indices.to(self.labels.device)
        return self.images[indices], self.labels[indices]

    def batches(
        self, batches: Sequence[Tensor], *, seed: int = 0, epoch: int = 0, team: Team | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """:meth:`batch` of each of ``batches``, one after another.

        ``seed``, ``epoch`` and ``team`` are for splits that are read while they are used
        (:class:`zbkernels.data.streamed.StreamedSplit`).
        """
        del seed, epoch, team
        return (self.batch(indices) for indices in batches)

    def checksum(self, start: int = 0) -> int:
        """CRC-32 of images and labels, going on from ``start``: two splits of equal content have the same."""
        for tensor in (self.images, self.labels):
            start = zlib.crc32(tensor.cpu().contiguous().numpy().data, start)
        return start


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
        return self.train.image_shape

    def to(self, device: torch.device | str) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def subset(self, train: int | None, test: int | None) -> Dataset:
        """The first ``train`` and ``test`` images, with a title that says so. ``None`` keeps them all."""
        kept_train = self.train if train is None else self.train.first(train)
        kept_test = self.test if test is None else self.test.first(test)
        if len(kept_train) == len(self.train) and len(kept_test) == len(self.test):
            return self
        counts = f"{len(kept_train):,} training and {len(kept_test):,} test images"
        title = f"{self.title}, {self.train.kept} {counts}"
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
            "layout (DIR/MNIST/raw, DIR/cifar-10-batches-py, DIR/imagenet/train); the preset smoke needs none"
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        origin = "--data" if root is not None else DATA_VARIABLE
        raise DataError(
            f"{path}: {origin} must name a folder, and there is {'a file' if path.exists() else 'nothing'}"
        )
    return path
