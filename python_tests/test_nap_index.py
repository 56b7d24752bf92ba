"""NapIndex against a dictionary: columns, batches, threads, merges, collisions, bad input, memory."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zbkernels as zb
from zbkernels import _loader
from zbkernels.nap import NapIndex

pytestmark = pytest.mark.skipif(not _loader.libraries()["_host"].loaded, reason="_host is not built")


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(n: int, words: int, *, distinct: int, seed: int = 0) -> torch.Tensor:
    """int64 [n, words], of at most ``distinct`` signatures."""
    gen = torch.Generator().manual_seed(seed)
    rows = torch.randint(-(2**63), 2**63 - 1, (distinct, words), generator=gen)
    return rows[torch.randint(distinct, (n,), generator=gen)]


def labels_for(n: int, classes: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


def file_of(index: NapIndex) -> bytes:
    return index._index.to_bytes()


class Oracle:
    """What an index must hold, one example at a time."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, ...], dict[str, list[int]]] = {}

    def insert(self, rows: Any, labels: Any, predictions: Any, ids: Any) -> list[int]:
        numbers = []
        for row, label, prediction, id_ in zip(rows.tolist(), labels, predictions, ids, strict=True):
            entry = self.found.setdefault(tuple(row), {"labels": [], "predictions": [], "ids": []})
            entry["labels"].append(int(label))
            entry["predictions"].append(int(prediction))
            entry["ids"].append(int(id_))
            numbers.append(list(self.found).index(tuple(row)))
        return numbers

    def check(self, index: NapIndex, classes: int) -> None:
        entries = list(self.found.values())
        every = [np.bincount(e["labels"], minlength=classes) for e in entries]
        assert len(index) == len(entries) and index.examples == sum(len(e["ids"]) for e in entries)
        assert index.signatures().tolist() == [list(key) for key in self.found]
        assert index.counts().tolist() == [len(e["ids"]) for e in entries]
        assert index.first_ids().tolist() == [e["ids"][0] for e in entries]
        assert index.labels().tolist() == [int(c.argmax()) for c in every]  # of equals the lowest
        assert index.class_counts().tolist() == [c.tolist() for c in every]
        assert index.purity().tolist() == [c.max() / c.sum() for c in every]
        predicted = [np.bincount(e["predictions"], minlength=classes) for e in entries]
        assert index.prediction_counts().tolist() == [c.tolist() for c in predicted]
        assert index.predictions().tolist() == [int(c.argmax()) for c in predicted]
        assert [index.example_ids(i).tolist() for i in range(len(index))] == [e["ids"] for e in entries]
        order = sorted(range(len(entries)), key=lambda i: (-len(entries[i]["ids"]), i))
        assert index.top(3).tolist() == order[:3] and index.top(10**6).tolist() == order
        whole = index.class_purity()
        for c in range(classes):
            own = [e for e in every if e.argmax() == c]
            assert whole.patterns[c] == len(own) and whole.examples[c] == sum(int(e.sum()) for e in own)
            assert whole.shared[c] == sum(int(e.max()) for e in own)
            purity = float(whole.purity[c])
            assert purity == int(whole.shared[c]) / int(whole.examples[c]) if own else purity != purity


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_it_holds_what_a_dictionary_would(data: st.DataObject) -> None:
    words, classes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    seed, start = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 2**33))
    parts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
    index = NapIndex(words, classes=classes, predictions=True, example_ids=True, start=start)
    shards = []
    oracle, done = Oracle(), 0
    for i, n in enumerate(parts):
        rows = draw(n, words, distinct=12, seed=seed) >> data.draw(st.sampled_from([0, 61]))
        labels, predictions = labels_for(n, classes, seed + i), labels_for(n, classes, seed + i + 50)
        given_ids = data.draw(st.booleans())
        ids = labels_for(n, 2**48 - 1, i) if given_ids else torch.arange(start + done, start + done + n)
        numbers = index.insert(rows, labels, predictions, ids if given_ids else None)
        assert numbers.tolist() == oracle.insert(rows, labels, predictions, ids)
        assert index.find(rows).tolist() == numbers.tolist()
        shards.append(
            NapIndex(words, classes=classes, predictions=True, example_ids=True, start=start + done)
        )
        shards[-1].insert(rows, labels, predictions, ids)
        done += n
    oracle.check(index, classes)
    cut = data.draw(st.integers(0, len(shards)))
    for first in (shards[:cut], shards[cut:]):  # (a b …) (c d …): merging is associative
        for shard in first[1:]:
            first[0].merge(shard)
    merged = shards[0].merge(shards[cut]) if 0 < cut < len(shards) else shards[0]
    oracle.check(merged, classes)
    assert file_of(merged) == file_of(index)


def filled(parts: list[int], threads: int, rows: torch.Tensor, labels: torch.Tensor) -> NapIndex:
    torch.set_num_threads(threads)
    index = NapIndex(rows.shape[1], classes=10, example_ids=True)
    done = 0
    for n in parts:
        index.insert(rows[done : done + n], labels[done : done + n])
        done += n
    return index


def test_batches_threads_and_merges_do_not_show() -> None:
    """200,000 examples: parts of the insert, several sizes of the table, patterns with several labels."""
    n = 200_000
    rows, labels = draw(n, 2, distinct=90_000), labels_for(n, 10)
    whole = filled([n], 1, rows, labels)
    expected = file_of(whole)
    assert len(whole) > 65_536 and (whole.purity() < 1).sum() > 10_000
    for parts, threads in (([n], 2), ([n], 3), ([1, 4095, 4096, 70_000, n - 78_192], 2), ([n // 2] * 2, 64)):
        assert file_of(filled(parts, threads, rows, labels)) == expected
    shards = []
    for i in range(4):
        shards.append(NapIndex(2, classes=10, example_ids=True, start=i * n // 4))
        shards[-1].insert(rows[i * n // 4 : (i + 1) * n // 4], labels[i * n // 4 : (i + 1) * n // 4])
    a, b, c, d = shards
    assert file_of(copy.deepcopy(a).merge(b).merge(c).merge(d)) == expected
    assert file_of(a.merge(b.merge(c.merge(d)))) == expected
    first, ids, counts = np.unique(rows.numpy(), axis=0, return_index=True, return_counts=True)
    order = np.argsort(ids)
    assert whole.signatures().numpy().tolist() == first[order].tolist()
    assert whole.counts().tolist() == counts[order].tolist()
    assert whole.first_ids().tolist() == ids[order].tolist()


@pytest.mark.parametrize("words", (1, 3, 8, 16, 1000))
def test_wide_and_narrow_signatures(words: int) -> None:
    rows = draw(3000, words, distinct=2000)
    index = NapIndex(words)
    numbers = index.insert(rows)
    assert torch.equal(index.signatures()[numbers], rows)
    assert torch.equal(index.find(rows), numbers)
    assert (index.find(rows ^ 1) == -1).all()
    assert rows[0] in index and (rows[0] ^ 1) not in index
    again = NapIndex(words)
    for pattern in index:
        again.insert(pattern.signature[None], ids=[pattern.first_id])
    assert torch.equal(again.signatures(), index.signatures())


def hash_of(words: list[int]) -> tuple[int, int]:
    """(the state after all words but the last step's finish, the hash) of csrc/host/nap_table.h."""
    h, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    for word in words:
        product = (h ^ word & mask) * 0xD6E8FEB86659FD93
        h = (product ^ product >> 64) & mask
    end = ((h ^ h >> 32) * 0xFF51AFD7ED558CCD) & mask
    return h, end ^ end >> 29


def test_made_up_collisions_stay_right() -> None:
    """Two words: the second undoes what the first did to the state, so that all 64 bits of the hash agree."""
    firsts = range(1, 2001)
    rows = [[first, hash_of([first])[0] ^ 12345] for first in firsts]
    assert len({hash_of(row)[1] for row in rows}) == 1
    signatures = torch.from_numpy(np.array(rows, dtype=np.uint64).view(np.int64))
    index = NapIndex(2)
    assert index.insert(signatures.repeat(2, 1)).tolist() == list(range(2000)) * 2
    assert index.find(signatures.flip(0)).tolist() == list(range(1999, -1, -1))
    assert index.counts().tolist() == [2] * 2000
    filled_parts = np.frombuffer(file_of(index), dtype=np.uint64)[10:74]
    assert sorted(filled_parts)[-2:] == [0, 2000]  # one part of the table has them all: this is that hash
    other = NapIndex(2)
    other.insert(signatures[::3])
    assert index.merge(other).counts().sum() == 4000 + len(signatures[::3])


def test_counts_beyond_32_bits() -> None:
    index = NapIndex(1, classes=3)
    row = torch.tensor([[7]])
    index.insert(row.expand(2**20 - 1, 1), torch.full((2**20 - 1,), 2))
    for _ in range(12):
        index.merge(copy.deepcopy(index))
    assert index.counts().tolist() == [2**32 - 2**12]
    twin = copy.deepcopy(index)
    labels = torch.tensor([2] * 4990 + [0, 2, 1] * 2 + [2] * 4)  # 2^32 is passed before the labels differ
    index.insert(row.expand(5000, 1), labels)
    for one in labels.split(1):
        twin.insert(row, one)
    for some in (index, twin, copy.deepcopy(index)):
        assert some.counts().tolist() == [2**32 + 904]
        assert some.class_counts().tolist() == [[2, 2, 2**32 + 900]] and some.labels().tolist() == [2]
    assert file_of(index) == file_of(twin)
    index.merge(twin)
    assert index.class_counts().tolist() == [[4, 4, 2**33 + 1800]]


def test_ids_up_to_48_bits() -> None:
    index = NapIndex(1, example_ids=True)
    ids = [2**48 - 1, 0, 2**32, 2**32 - 1, 5]
    index.insert(torch.tensor([[0], [1], [2], [3], [0]]), ids=ids)
    for some in (index, copy.deepcopy(index), NapIndex(1, example_ids=True).merge(index)):
        assert some.first_ids().tolist() == ids[:4]
        assert some.example_ids(0).tolist() == [2**48 - 1, 5]


def test_majority_label_moves_with_the_counts() -> None:
    index = NapIndex(1, classes=65_534)
    row = torch.zeros(1, 1, dtype=torch.int64)
    seen: list[int] = []
    for label in (9, 65_533, 65_533, 9, 3, 3, 3, 9, 9, 0):
        index.insert(row, [label])
        seen.append(int(index.labels()))
    # By hand: of equal counts the lowest label.
    assert seen == [9, 9, 65_533, 9, 9, 3, 3, 3, 9, 9]
    assert index[0].label == 9 and index[-1].count == 10


# --- rarity ----------------------------------------------------------------------------------------------------


def test_rarity_is_the_distance_to_the_nearest_pattern(tmp_path: Path) -> None:
    rows = draw(400, 2, distinct=300) & 0xFF
    index = NapIndex(2)
    index.insert(rows[:250])
    index.save(tmp_path / "index")
    index = NapIndex.load(tmp_path / "index")
    index.insert(rows)  # signatures now lie in the file's pages and in others
    queries = torch.cat([rows[:5], draw(60, 2, distinct=60, seed=5) & 0xFF, rows[5:9] ^ 1])
    distance, pattern = index.rarity(queries)
    table = zb.nap_hamming(queries, index.signatures())
    assert torch.equal(distance, table.min(1).values)
    assert torch.equal(pattern, table.argmin(1))  # ties: the first
    assert distance[:5].tolist() == [0] * 5 and (distance > 0).any()


def test_rarity_over_several_blocks() -> None:
    rows = torch.arange(70_000)[:, None] * 8
    index = NapIndex(1)
    index.insert(rows)
    assert len(index._index.blocks()) == 2
    distance, pattern = index.rarity(torch.tensor([[65_536 * 8 + 1], [69_999 * 8], [5]]))
    assert distance.tolist() == [1, 0, 2] and pattern.tolist() == [65_536, 69_999, 0]


# --- bad input -------------------------------------------------------------------------------------------------

ROWS = torch.arange(6).view(3, 2)
BAD: dict[str, tuple[Callable[[NapIndex], Any], type[Exception], str]] = {
    "width": (lambda i: i.insert(ROWS[:, :1]), ValueError, r"NapIndex.insert: .* shape \[n, 2\], got \[3, 1\]"),
    "one row": (lambda i: i.insert(ROWS[0]), ValueError, r"NapIndex.insert: .* 2 dimensions, got \[2\]"),
    "float": (lambda i: i.insert(ROWS.float()), TypeError, "NapIndex.insert: expected signatures of int64"),
    "int32": (lambda i: i.find(ROWS.int()), TypeError, "NapIndex.find: expected signatures of int64, got int32"),
    "big-endian": (lambda i: i.insert(ROWS.numpy().astype(">i8")), TypeError, "insert: .* native byte order, got >i8"),
    "no labels": (lambda i: i.insert(ROWS), ValueError, "NapIndex.insert: this index needs labels"),
    "label": (lambda i: i.insert(ROWS, [0, 4, 1]), ValueError, "insert: expected labels from 0 to 3, got 4 in row 1"),
    "negative label": (lambda i: i.insert(ROWS, [0, 3, -1]), ValueError, "NapIndex.insert: .* got -1 in row 2"),
    "label type": (lambda i: i.insert(ROWS, [0.5, 1, 2]), TypeError, "NapIndex.insert: expected integers as labels"),
    "label length": (lambda i: i.insert(ROWS, [0, 1]), ValueError, r"insert: expected labels of shape \[3\].*\[2\]"),
    "predictions": (lambda i: i.insert(ROWS, [0] * 3, [0] * 3), ValueError, "insert: got predictions, but"),
    "ids length": (lambda i: i.insert(ROWS, [0] * 3, ids=[1] * 4), ValueError, r"insert: expected ids of shape \[3\]"),
    "id": (lambda i: i.insert(ROWS, [0] * 3, ids=[1, 2, 2**48]), ValueError, r"insert: expected ids from 0 to 2\^48"),
    "negative id": (lambda i: i.insert(ROWS, [0] * 3, ids=[-1, 2, 2]), ValueError, "insert: expected ids from 0"),
    "sparse": (lambda i: i.insert(ROWS.to_sparse()), TypeError, "NapIndex.insert: .* dense tensor"),
    "merge itself": (lambda i: i.merge(i), ValueError, "NapIndex.merge: an index cannot be merged into itself"),
    "merge other": (lambda i: i.merge(NapIndex(2)), ValueError, "NapIndex.merge: expected .* 4 classes.* got .* 0 cl"),
    "merge what": (lambda i: i.merge({}), TypeError, "NapIndex.merge: expected a NapIndex, got dict"),
    "pattern": (lambda i: i.counts([0, 9]), IndexError, "NapIndex.counts: expected patterns from 0 to 0, got 9"),
    "getitem": (lambda i: i[1], IndexError, "NapIndex: expected the number of one of 1 patterns, got 1"),
    "in": (lambda i: ROWS in i, ValueError, r"NapIndex: `in` takes one signature \[2\], got \[3, 2\]"),
    "top": (lambda i: i.top(-1), ValueError, "NapIndex.top: expected an int k >= 0"),
    "ids not kept": (lambda i: i.example_ids(0), ValueError, "NapIndex.example_ids: this index was made without"),
    "predictions not kept": (lambda i: i.predictions(), ValueError, "NapIndex.predictions: this index was made w"),
    "rarity of none": (lambda i: NapIndex(2).rarity(ROWS), ValueError, "NapIndex.rarity: the index is empty"),
    "words": (lambda i: NapIndex(0), ValueError, "NapIndex: expected 1 to .* words a signature, got 0"),
    "words type": (lambda i: NapIndex(1.5), TypeError, "NapIndex: expected words to be an int"),  # type: ignore[arg-type]
    "classes": (lambda i: NapIndex(1, classes=65_535), ValueError, "NapIndex: expected 0 to 65534 classes, got 65535"),
    "start": (lambda i: NapIndex(1, start=-1), ValueError, "NapIndex: expected a start from 0"),
    "no classes": (lambda i: NapIndex(1, predictions=True), ValueError, "NapIndex: predictions need classes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name_and_changes_nothing(name: str) -> None:
    call, error, text = BAD[name]
    index = NapIndex(2, classes=4)
    index.insert(torch.tensor([[8, 9]]), [1])
    before = file_of(index)
    with pytest.raises(error, match=text):
        call(index)
    assert file_of(index) == before


def test_any_strides_dtypes_of_labels_and_empty_batches() -> None:
    rows = draw(50, 4, distinct=20)
    plain, strided = NapIndex(4, classes=3), NapIndex(4, classes=3)
    labels = labels_for(50, 3)
    plain.insert(rows, labels)
    plain.insert(rows[:0], labels[:0])
    strided.insert(rows.t().contiguous().t()[:10], labels[:10].to(torch.uint8))
    strided.insert(
        rows.repeat(1, 2)[10:30, 4:].numpy().view(np.uint64), labels[10:30].numpy().astype(np.int16)
    )
    strided.insert(rows[30:].numpy()[::-1][::-1], labels[30:].tolist())
    strided.insert(rows[:0], [])
    assert file_of(plain) == file_of(strided)
    empty = NapIndex(4)
    assert list(empty) == [] and empty.top(3).tolist() == [] and empty.find(rows).unique().tolist() == [-1]
    assert rows[0] not in empty
    assert len(empty.merge(NapIndex(4))) == 0 and copy.deepcopy(empty).examples == 0


# --- copies, threads, processes, memory --------------------------------------------------------------------------


def test_copies_and_pickles_are_independent() -> None:
    index = NapIndex(2, classes=4, predictions=True, example_ids=True, start=3)
    rows, labels = draw(500, 2, distinct=100), labels_for(500, 4)
    index.insert(rows, labels, labels)
    before = file_of(index)
    for twin in (copy.copy(index), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert file_of(twin) == before
        twin.insert(rows ^ 1, labels, labels)
        assert len(twin) == 2 * len(index) and file_of(index) == before
    assert "100 patterns" in repr(index) or str(len(index)) in repr(index)


def test_asking_while_another_thread_inserts() -> None:
    rows = torch.arange(300_000)[:, None]
    index = NapIndex(1)
    faults: list[str] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            n = len(index)
            found = index.find(rows[: min(n, 1000)])
            if n and found.tolist() != list(range(min(n, 1000))):
                faults.append(f"{n}: {found}")
            if len(index.counts()) < n or len(index.signatures(range(min(n, 10)))) != min(n, 10):
                faults.append(f"{n}: fewer than before")

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for some in rows.split(50_000):
        index.insert(some)
    done.set()
    for thread in asking:
        thread.join()
    assert not faults and len(index) == 300_000


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_goes_on_with_its_copy() -> None:
    text = run("""
        import os, torch
        from zbkernels.nap import NapIndex
        torch.set_num_threads(2)
        rows = torch.arange(20_000)[:, None]
        index = NapIndex(1)
        index.insert(rows)
        child = os.fork()
        if child == 0:
            index.insert(rows + 20_000)
            os._exit(0 if len(index) == 40_000 and (index.find(rows) >= 0).all() else 1)
        print(os.waitpid(child, 0)[1], len(index))
    """)
    assert text.split() == ["0", "20000"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_at_most_1_3_times_the_signatures_also_while_growing() -> None:
    """2 million distinct signatures of 512 bits, 128 MB, with count, first id and label."""
    text = run("""
        import torch
        from pathlib import Path
        from zbkernels.nap import NapIndex
        torch.set_num_threads(2)
        def peak():
            return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) << 10
        rows, labels = torch.randint(-2**63, 2**63 - 1, (20_000, 8)), torch.randint(10, (20_000,))
        NapIndex(8, classes=10).insert(rows, labels)  # threads, and what they keep
        index, before = NapIndex(8, classes=10), peak()
        for i in range(100):
            rows += 1
            index.insert(rows, labels)
        print(len(index), peak() - before, index.nbytes)
    """)
    patterns, growth, claimed = map(int, text.split())
    assert patterns == 2_000_000
    assert claimed <= 1.3 * 64 * patterns
    assert growth <= 1.3 * 64 * patterns, growth / (64 * patterns)
    assert growth >= 64 * patterns  # so the measure sees what it is for
