"""Images that are read from their files while they are used: too many for the memory."""

from __future__ import annotations

import copy
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zbkernels.data.dataset import DataError, Split
from zbkernels.data.decode import SIZE, decode
from zbkernels.data.folder import Folder
from zbkernels.distributed import Team

WORKERS_VARIABLE = "ZBKERNELS_DATA_WORKERS"
_AHEAD = 2  # batches that each worker keeps ready

# What a worker is sent for one image: its file, and what its crop is drawn from.
_Job = tuple[str, tuple[int, int, int] | None]


class StreamedSplit(Split):
    """Image files as a :class:`Split`: the same ``len``, ``labels``, ``batch`` and ``batches``, and no ``images``.

    Worker processes decode the batches to come while the network works on one. They are started anew (not forked), so
    a script that uses this needs ``if __name__ == "__main__":``. There are as many as processors that the process may
    use, less one, at most 16, shared among the ranks of this machine; ``$ZBKERNELS_DATA_WORKERS`` sets another number,
    and with 0 the calling process decodes.

    Args:
        folder: the files.
        random: each image is a random crop, half of them mirrored, drawn from (seed, epoch, number of the image) and
            from nothing else: neither workers, nor batches, nor a resumed run change it. Otherwise the middle is taken.
        size: pixels each way.
    """

    kept = "evenly spread"

    folder: Folder
    random: bool
    size: int
    workers: int
    _loader: DataLoader | None  # with its workers, once there was a first pass
    _passes: int

    def __init__(self, folder: Folder, *, random: bool, size: int = SIZE, workers: int | None = None) -> None:
        fields = {
            "labels": torch.tensor(folder.labels),
            "folder": folder,
            "random": random,
            "size": size,
            "workers": _workers() if workers is None else workers,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # as every split, this one stays as it is
        self._forget_workers()

    @property
    def images(self) -> NoReturn:
        """Refused: they are not in memory.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.folder.path}: {len(self):,} images are read as they are needed, and this asks for all of them in "
            "memory; choose an image set such as mnist or cifar-10"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    def __repr__(self) -> str:
        return f"StreamedSplit({len(self):,} images in {self.folder.path}, random={self.random}, size={self.size})"

    def to(self, device: torch.device | str) -> StreamedSplit:
        labels = self.labels.to(device)
        return self if labels is self.labels else self._with(labels=labels)  # its workers go on

    def first(self, count: int) -> StreamedSplit:
        """``count`` images spread over the classes (every k-th), as the files lie class by class."""
        if count >= len(self):
            return self
        chosen = [index * len(self) // count for index in range(count)]
        kept = Folder(
            self.folder.path,
            self.folder.classes,
            tuple(self.folder.files[index] for index in chosen),
            tuple(self.folder.labels[index] for index in chosen),
            self.folder.ignored,
        )
        return self._with(folder=kept, labels=self.labels[chosen])

    def batch(self, indices: Tensor, *, seed: int = 0, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images ``[B, 3, size, size]`` float32 in [0, 1] and labels ``[B]``, decoded by the calling process.

        Raises:
            DataError: a file is no whole image; the message names it.
        """
        return self._on_device(_decoded(self._jobs(indices, seed, epoch), self.size)), self._labels(indices)

    def batches(
        self, batches: Sequence[Tensor], *, seed: int = 0, epoch: int = 0, team: Team | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """:meth:`batch` of each of ``batches``, decoded ahead by the workers.

        Args:
            seed, epoch: what crops are drawn from, besides the image's number.
            team: each rank decodes its share of every batch, and all get the whole.

        Raises:
            DataError: a file is no whole image; the message names it.
            RuntimeError: another pass over this split was begun before this one's end.
        """
        team = team or Team()
        loader = self._started()
        shares = (indices[team.share(len(indices))] for indices in batches)
        loader.batch_sampler.jobs = (self._jobs(share, seed, epoch) for share in shares)  # type: ignore[union-attr]
        this_pass = self._passes + 1
        object.__setattr__(self, "_passes", this_pass)
        for indices, pixels in zip(batches, loader, strict=True):
            if self._passes != this_pass:
                raise RuntimeError(f"{self.folder.path}: a second pass was begun before this one's end")
            yield self._on_device(pixels, team, len(indices)), self._labels(indices)

    def checksum(self, start: int = 0) -> int:
        """CRC-32 of the files' names, the labels and the crop, going on from ``start``; the files are not read."""
        start = zlib.crc32("\n".join(self.folder.files).encode(), start)
        start = zlib.crc32(np.array(self.folder.labels, dtype=np.int64).data, start)
        return zlib.crc32(f"{self.random} {self.size}".encode(), start)

    def _jobs(self, indices: Tensor, seed: int, epoch: int) -> list[_Job]:
        root, files = self.folder.path, self.folder.files
        return [
            (os.path.join(root, files[index]), (seed, epoch, index) if self.random else None)
            for index in indices.tolist()
        ]

    def _labels(self, indices: Tensor) -> Tensor:
        return self.labels[indices.to(self.labels.device)]

    def _on_device(self, pixels: Tensor | str, team: Team | None = None, count: int = 0) -> Tensor:
        """Bytes are sent, a quarter of what floats take, and become floats where they are used."""
        if isinstance(pixels, str):
            raise DataError(pixels)
        pixels = pixels.to(self.labels.device, non_blocking=True)
        if team is not None:
            pixels = team.gather(pixels, count)
        return pixels.float().div_(255)

    def _started(self) -> DataLoader:
        """The loader, whose workers live on from epoch to epoch."""
        if self._loader is None:
            more: dict[str, Any] = {}
            if self.workers:
                more = {
                    "multiprocessing_context": "spawn",
                    "persistent_workers": True,
                    "prefetch_factor": _AHEAD,
                }
            loader: DataLoader = DataLoader(
                _Decoder(self.size),
                batch_sampler=_Jobs(),
                num_workers=self.workers,
                collate_fn=_as_it_is,
                generator=torch.Generator(),  # of a number that nothing uses; torch's own must not be drawn from
                pin_memory=self.labels.device.type == "cuda",
                **more,
            )
            object.__setattr__(self, "_loader", loader)
        assert self._loader is not None
        return self._loader

    def _with(self, **fields: Any) -> StreamedSplit:
        other = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        other._forget_workers()
        return other

    def _forget_workers(self) -> None:
        object.__setattr__(self, "_loader", None)
        object.__setattr__(self, "_passes", 0)


class _Jobs:
    """The batches of the next pass, made one by one as the workers get to them."""

    jobs: Iterator[list[_Job]] = iter(())

    def __iter__(self) -> Iterator[list[_Job]]:
        return self.jobs


class _Decoder(Dataset):
    """What runs in a worker. It knows nothing of the split: a job says all, so it is small to send."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitems__(self, jobs: list[_Job]) -> Tensor | str:
        return _decoded(jobs, self.size)


def _decoded(jobs: Iterable[_Job], size: int) -> Tensor | str:
    """Pixels ``[B, 3, size, size]`` uint8, or what is wrong with a file: an error itself would come out of a worker
    wrapped into a page of text."""
    try:
        pixels = [torch.from_numpy(decode(path, draw, size)) for path, draw in jobs]
    except DataError as error:
        return str(error)
    return torch.stack(pixels) if pixels else torch.empty(0, 3, size, size, dtype=torch.uint8)


def _as_it_is(batch: Any) -> Any:
    return batch


def _workers() -> int:
    given = os.environ.get(WORKERS_VARIABLE)
    if given is not None:
        if not given.isdigit():
            raise DataError(f"{WORKERS_VARIABLE}: expected a whole number, 0 or larger, got {given!r}")
        return int(given)
    mine = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(16, mine - 1))
