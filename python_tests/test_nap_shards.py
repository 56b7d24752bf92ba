"""Indexes made in shards are the index of the whole, here and on a local Ray with two workers."""

from __future__ import annotations

import builtins
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from zbkernels import _loader
from zbkernels.nap import NapIndex
from zbkernels.nap.shards import index_recording, index_shards, record_index, shards_of

pytestmark = pytest.mark.skipif(not _loader.libraries()["_host"].loaded, reason="_host is not built")
needs_record = pytest.mark.skipif(
    importlib.util.find_spec("zbkernels.nap.record") is None, reason="no recorder"
)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray of this machine, with two workers, for all tests here."""
    module = pytest.importorskip("ray")
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield module
    module.shutdown()


def file_of(index: NapIndex) -> bytes:
    return index._index.to_bytes()


def drawn(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(n)
    rows = torch.randint(-(2**63), 2**63 - 1, (n // 3, 4), generator=gen)
    return rows[torch.randint(n // 3, (n,), generator=gen)], torch.randint(7, (n,), generator=gen)


def indexed(rows: torch.Tensor, labels: torch.Tensor, start: int = 0) -> NapIndex:
    index = NapIndex(rows.shape[1], classes=7, predictions=True, example_ids=True, start=start)
    index.insert(rows, labels, labels)
    return index


def test_shards_are_successive_and_of_whole_batches() -> None:
    assert shards_of(10, 3) == [range(3), range(3, 6), range(6, 10)]
    assert shards_of(10, 3, 4) == [range(4), range(4, 8), range(8, 10)]
    assert shards_of(9, 99, 4) == [range(4), range(4, 8), range(8, 9)]
    for length in range(1, 40):
        for shards in range(1, 8):
            parts = shards_of(length, shards, 5)
            assert [i for part in parts for i in part] == list(range(length))
            assert all(len(part) % 5 == 0 for part in parts[:-1]) and all(len(part) for part in parts)


def test_shards_here_are_the_whole() -> None:
    rows, labels = drawn(10_000)

    def index_part(part: range) -> NapIndex:
        return indexed(rows[part.start : part.stop], labels[part.start : part.stop], part.start)

    for shards in (1, 2, 7):
        merged = index_shards(index_part, shards_of(10_000, shards))
        assert file_of(merged) == file_of(indexed(rows, labels))


def test_shards_on_ray_are_the_whole(ray: Any) -> None:
    rows, labels = drawn(20_000)
    shared = ray.put((rows, labels))

    def index_part(part: range) -> NapIndex:
        import ray

        rows, labels = ray.get(shared)
        index = NapIndex(4, classes=7, predictions=True, example_ids=True, start=part.start)
        index.insert(*(x[part.start : part.stop] for x in (rows, labels, labels)))
        return index

    merged = index_shards(index_part, shards_of(20_000, 5), engine="ray")
    assert file_of(merged) == file_of(indexed(rows, labels))
    assert ray.is_initialized()  # it was not ours to stop


def test_a_workers_error_arrives(ray: Any) -> None:
    def index_part(part: int) -> NapIndex:
        index = NapIndex(1, classes=2)
        index.insert(torch.zeros(1, 1, dtype=torch.int64), [part])
        return index

    with pytest.raises(ValueError, match=r"NapIndex\.insert: expected labels from 0 to 1, got 2"):
        index_shards(index_part, [0, 1, 2], engine="ray")


class Data:
    """Images with labels, and a small network with a layer of ours and plain ones."""

    def __init__(self) -> None:
        import zbkernels as zb

        gen = torch.Generator().manual_seed(0)
        self.images = TensorDataset(
            torch.randn(50, 1, 8, 8, generator=gen), torch.randint(3, (50,), generator=gen)
        )
        torch.manual_seed(0)
        self.model = nn.Sequential(
            zb.nn.ConvReLUPool2d(1, 4, 3, padding=1),
            nn.Flatten(),
            nn.Linear(64, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        )


@needs_record
def test_recorded_shards_are_the_whole(tmp_path: Any) -> None:
    data = Data()
    kept = {"classes": 3, "predictions": True, "example_ids": True, "batch_size": 8}
    whole = record_index(data.model, data.images, **kept)
    assert (
        whole.examples == 50 and whole.example_ids(whole.find(whole.signatures()[:1])[0].item()).numel() > 0
    )
    for _ in range(2):  # the second time from the recordings
        sharded = record_index(data.model, data.images, shards=3, out=tmp_path, **kept)
        assert file_of(sharded) == file_of(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"shard-{i:05}" for i in range(3)]


@needs_record
def test_recorded_shards_on_ray_are_the_whole(ray: Any) -> None:
    data = Data()
    kept = {"classes": 3, "predictions": True, "batch_size": 8}
    on_ray = record_index(data.model, data.images, shards=2, engine="ray", **kept)
    assert file_of(on_ray) == file_of(record_index(data.model, data.images, **kept))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="index_shards: expected engine to be one of here, ray, got 'dask'"):
        index_shards(lambda part: NapIndex(1), [1], engine="dask")
    with pytest.raises(ValueError, match="index_shards: expected at least one part"):
        index_shards(lambda part: NapIndex(1), [])
    with pytest.raises(ValueError, match="record_index: expected shards to be at least 1, got 0"):
        record_index(nn.ReLU(), TensorDataset(torch.zeros(1)), shards=0)
    with pytest.raises(ValueError, match="record_index: expected the data set's length to be at least 1"):
        record_index(nn.ReLU(), TensorDataset(torch.zeros(0)))
    recording = SimpleNamespace(
        signatures=torch.zeros(2, 1, dtype=torch.int64), labels=None, predictions=None
    )
    with pytest.raises(ValueError, match="index_recording: the recording has no labels"):
        index_recording(recording, classes=2)
    assert len(index_recording(recording)) == 1


@needs_record
def test_chosen_layers_of_a_recording() -> None:
    from zbkernels.nap import RecordingError, record

    model = nn.Sequential(nn.Linear(5, 70), nn.ReLU(), nn.Linear(70, 3), nn.ReLU(), nn.Linear(3, 2))
    recording = record(model, [torch.randn(50, 5)], progress=False)
    first, last = recording.layers
    for layers, words in ((["3"], last.of(recording.signatures)), (["1"], first.of(recording.signatures))):
        index, wanted = index_recording(recording, layers=layers), NapIndex(words.shape[1])
        wanted.insert(words)
        assert index.words == words.shape[1] and torch.equal(index.signatures(), wanted.signatures())
        assert torch.equal(index.counts(), wanted.counts())
    whole = index_recording(recording, layers=["?"])
    assert torch.equal(whole.signatures(), index_recording(recording).signatures())
    with pytest.raises(RecordingError, match="no layer '4'; there are 1, 3"):
        index_recording(recording, layers=["4"])


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_ray(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ray":
            raise ImportError("no ray")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(ImportError, match=r"zbkernels\[ray\]"):
        index_shards(lambda part: NapIndex(1), [1], engine="ray")
