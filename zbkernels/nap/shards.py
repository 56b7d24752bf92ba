"""Indexes of many inputs, part by part, on as many machines as Ray has: merged, they are the index of the whole.

A part is a run of successive inputs. Each is indexed on its own, with the ids its inputs have in the whole, and the
indexes are merged in the order of the parts (:meth:`NapIndex.merge`), so the result is that of one machine going
through all of them, down to the bytes of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from zbkernels.nap.index import NapIndex
from zbkernels.nap.layers import Layer

ENGINES = ("here", "ray")
_ROWS = 1 << 16  # of a recording at a time
Part = TypeVar("Part")


def index_shards(
    index_part: Callable[[Part], NapIndex],
    parts: Sequence[Part],
    *,
    engine: str = "here",
    address: str | None = None,
    cpus: float = 1,
) -> NapIndex:
    """Indexes each part by ``index_part`` and merges the indexes in the order of ``parts``.

    The ids of a part's examples must be those of the whole: ``NapIndex(…, start=…)`` or ``insert(…, ids=…)``.

    Args:
        index_part: makes the index of a part; with Ray it runs on a worker and must be picklable.
        parts: at least one, in the order of the whole.
        engine: "here" runs one after another in this process, "ray" all at once on Ray's workers. One index at a time
            is fetched and merged; the others wait in Ray's object store.
        address: of a Ray cluster, as for ``ray.init``; None takes the one this process is connected to, else starts
            one on this machine for the length of the call.
        cpus: that Ray reserves for a part.

    Raises:
        ValueError: there are no parts, the engine is another, or the indexes do not go together.
        ImportError: ray is missing (the extra ``[ray]``).
    """
    if engine not in ENGINES:
        raise ValueError(f"index_shards: expected engine to be one of {', '.join(ENGINES)}, got {engine!r}")
    if len(parts) == 0:
        raise ValueError("index_shards: expected at least one part, got none")
    if engine == "here":
        return _merged(map(index_part, parts))
    with _ray(address) as ray:
        task = ray.remote(num_cpus=cpus)(index_part)
        waiting = [task.remote(part) for part in parts]
        return _merged(ray.get(waiting.pop(0)) for _ in parts)  # popped: Ray may forget what has been merged


def record_index(
    model: nn.Module,
    dataset: Dataset[Any],
    *,
    shards: int = 1,
    batch_size: int = 256,
    units: str = "relu",
    layers: Sequence[str] | None = None,
    classes: int = 0,
    predictions: bool = False,
    example_ids: bool = False,
    out: str | Path | None = None,
    engine: str = "here",
    address: str | None = None,
    cpus: float = 1,
) -> NapIndex:
    """The index of a model's activation patterns over a data set, recorded and indexed in shards.

    Shards end where batches do, so that the model sees the same batches however many there are: its layers may
    round otherwise in batches of another size. Ids are the positions in the data set.

    Args:
        model, units, layers: as for :func:`zbkernels.nap.record`.
        dataset: with a length; item i is x, or (x, label) with a label from 0 to classes - 1.
        shards: how many parts to make, at most one a batch.
        batch_size: inputs that go through the model at a time.
        classes, predictions, example_ids: what to keep, as for :class:`NapIndex`.
        out: a folder that keeps the recordings, ``shard-00000`` and so on, from which a run cut off goes on; with
            Ray all machines must see it. None: temporary files.
        engine, address, cpus: as for :func:`index_shards`.

    Raises:
        ValueError: the data set is empty, or a number is below 1.
        RecordingError: as :func:`zbkernels.nap.record`.
        ImportError: ray is missing (the extra ``[ray]``).
    """
    length = len(dataset)  # type: ignore[arg-type]
    for name, value in (("shards", shards), ("batch_size", batch_size), ("the data set's length", length)):
        if value < 1:
            raise ValueError(f"record_index: expected {name} to be at least 1, got {value}")

    def index_part(part: tuple[int, range]) -> NapIndex:
        from zbkernels.nap.record import record

        number, rows = part
        folder = None if out is None else Path(out) / f"shard-{number:05}"
        loader = DataLoader(Subset(dataset, rows), batch_size=batch_size)
        recording = record(
            model, loader, units=units, layers=layers, out=folder, predictions=predictions, progress=False
        )
        return index_recording(
            recording,
            classes=classes,
            predictions=predictions,
            example_ids=example_ids,
            start=rows.start,
        )

    parts = list(enumerate(shards_of(length, shards, batch_size)))
    return index_shards(index_part, parts, engine=engine, address=address, cpus=cpus)


def index_recording(
    recording: Any,
    *,
    layers: Sequence[str] | None = None,
    classes: int = 0,
    predictions: bool = False,
    example_ids: bool = False,
    start: int = 0,
) -> NapIndex:
    """The index of a recording, of which a part at a time is in memory.

    Args:
        recording: a :class:`zbkernels.nap.Recording`; its labels and predictions are used where they are asked for.
        layers: names of the layers to index, with ``*`` and ``?``, as :meth:`Recording.choose` takes them: a pattern is
            then their words, one after another. None for all.
        classes, predictions, example_ids, start: as for :class:`NapIndex`.

    Raises:
        RecordingError: a layer is not in the recording.
        ValueError: labels or predictions are asked for and the recording has none, or they are out of range.
    """
    for name, wanted in (("labels", classes > 0), ("predictions", predictions)):
        if wanted and getattr(recording, name) is None:
            raise ValueError(f"index_recording: the recording has no {name}")
    chosen = None if layers is None else recording.choose(layers)
    index = NapIndex(
        recording.signatures.shape[1] if chosen is None else sum(layer.words for layer in chosen),
        classes=classes,
        predictions=predictions,
        example_ids=example_ids,
        start=start,
    )
    for at in range(0, len(recording.signatures), _ROWS):
        rows = slice(at, at + _ROWS)
        index.insert(
            recording.signatures[rows] if chosen is None else _words(recording.signatures[rows], chosen),
            recording.labels[rows] if classes else None,
            recording.predictions[rows] if predictions else None,
        )
    return index


def _words(signatures: torch.Tensor, layers: Sequence[Layer]) -> torch.Tensor:
    return torch.cat([layer.of(signatures) for layer in layers], 1)


def shards_of(length: int, shards: int, batch_size: int = 1) -> list[range]:
    """range(length) in at most ``shards`` successive parts of whole batches (but for the last), as even as can be."""
    batches = -(-length // batch_size)
    shards = min(shards, batches)
    borders = [min(i * batches // shards * batch_size, length) for i in range(shards + 1)]
    return [range(begin, end) for begin, end in pairwise(borders)]


def _merged(indexes: Iterable[NapIndex]) -> NapIndex:
    waiting = iter(indexes)
    whole = next(waiting)
    for index in waiting:
        whole.merge(index)
    return whole


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Ray, connected; what was started here is stopped afterwards."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("index_shards: engine='ray' needs ray: pip install 'zbkernels[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    # A cluster of one's own needs no dashboard; one that is joined has its own settings.
    settings = {"address": address} if address else {"include_dashboard": False}
    ray.init(**settings, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()
