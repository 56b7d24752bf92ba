"""Files of a NapIndex: what comes back, what is refused, and what a killed process leaves."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from zbkernels import _loader
from zbkernels.nap import NapIndex

pytestmark = pytest.mark.skipif(not _loader.libraries()["_host"].loaded, reason="_host is not built")

HEADER, SECTIONS = 960, 592
NAMES = (
    "words", "counts", "first ids", "first ids, upper bits", "labels", "predictions", "table", "carries",
    "label counts", "prediction counts", "ids", "previous", "last",
)  # fmt: skip


def example(n: int = 500) -> NapIndex:
    """An index in which no section is empty."""
    gen = torch.Generator().manual_seed(n)
    rows = torch.randint(-(2**63), 2**63 - 1, (n, 3), generator=gen)[
        torch.randint(n, (2 * n,), generator=gen)
    ]
    labels, predictions = (torch.randint(5, (2 * n,), generator=gen) for _ in range(2))
    index = NapIndex(3, classes=5, predictions=True, example_ids=True, start=2**33)
    index.insert(rows, labels, predictions)
    many = NapIndex(3, classes=5, predictions=True, example_ids=True)
    many._index.insert(np.zeros((1, 3), np.int64), *[np.zeros(1, np.int64)] * 3, 1)
    return index.merge(many)


def with_carries() -> NapIndex:
    index = NapIndex(1)
    index.insert(torch.zeros(2**20, 1, dtype=torch.int64))
    for _ in range(13):
        index.merge(NapIndex._of_bytes(index._index.to_bytes()))
    return index


def sections(data: bytes) -> list[tuple[int, int]]:
    """(offset, bytes) of each section, as documented in csrc/host/nap_index_file.cpp."""
    table = np.frombuffer(data, dtype="<u8", count=3 * len(NAMES), offset=SECTIONS).reshape(-1, 3)
    return [(int(offset), int(size)) for offset, size, _ in table]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    index = example()
    index.save(tmp_path / "a.zbnap")
    saved = (tmp_path / "a.zbnap").read_bytes()
    for verify in (True, False):
        loaded = NapIndex.load(tmp_path / "a.zbnap", verify=verify)
        loaded.save(tmp_path / "b.zbnap")
        assert (tmp_path / "b.zbnap").read_bytes() == saved == index._index.to_bytes()
        assert torch.equal(loaded.class_counts(), index.class_counts())
        assert torch.equal(loaded.find(index.signatures()), torch.arange(len(index)))
        assert [loaded.example_ids(i).tolist() for i in range(5)] == [
            index.example_ids(i).tolist() for i in range(5)
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zbnap", "b.zbnap"]
    assert all(
        size > 0 for _, size in sections(saved)[:7] + sections(saved)[8:]
    )  # every byte of these is tested
    carries = with_carries()
    carries.save(tmp_path / "c")
    assert sections((tmp_path / "c").read_bytes())[7][1] == 16
    assert NapIndex.load(tmp_path / "c").counts().tolist() == [2**33]


def test_the_header_is_as_documented(tmp_path: Path) -> None:
    index = example()
    index.save(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    fields = np.frombuffer(data, dtype="<u8", count=HEADER // 8)
    assert data[:8] == b"ZBNAPIDX"
    assert fields[1:9].tolist() == [1, len(data), 3, 5, 3, len(index), index.examples, 2**33]
    assert fields[10:74].sum() == len(index)
    (at, size), first_ids = sections(data)[0], sections(data)[2]
    words = np.frombuffer(data, dtype="<i8", count=size // 8, offset=at).reshape(-1, 3)
    assert np.array_equal(words, index.signatures().numpy())
    low = np.frombuffer(data, dtype="<u4", count=len(index), offset=first_ids[0])
    assert np.array_equal(low, index.first_ids().numpy().astype(np.uint32))
    offset = HEADER
    for at, size in sections(data):
        assert at == offset
        offset = -(-(at + size) // 64) * 64
    assert offset == len(data)


def test_inserting_into_a_loaded_index_goes_on_in_memory(tmp_path: Path) -> None:
    """From every size around the borders of a chunk: the part of it that is in the file is followed by memory."""
    for n in (1, 63, 64, 65, 65_535, 65_536, 65_537):
        rows = torch.arange(n + 1000)[:, None]
        index = NapIndex(1, classes=2, example_ids=True)
        labels = (rows[:, 0] % 2).contiguous()
        index.insert(rows[:n], labels[:n])
        index.save(tmp_path / "a")
        saved = (tmp_path / "a").read_bytes()
        loaded = NapIndex.load(tmp_path / "a")
        for some in (index, loaded):
            some.insert(rows, 1 - labels)
        assert loaded._index.to_bytes() == index._index.to_bytes()
        assert (tmp_path / "a").read_bytes() == saved
        loaded.save(tmp_path / "a")  # onto the file that it has mapped
        assert (tmp_path / "a").read_bytes() == index._index.to_bytes()
        assert torch.equal(loaded.signatures(), rows)


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda d: b"", "no file of a NapIndex"),
    "short": (lambda d: d[:15], "no file of a NapIndex"),
    "magic": (lambda d: b"ZBNAPIDY" + d[8:], "no file of a NapIndex"),
    "other file": (lambda d: b"\x7fELF" * 500, "no file of a NapIndex"),
    "version 2": (lambda d: d[:8] + b"\x02" + d[9:], "expected format version 1, got 2"),
    "version 0": (lambda d: d[:8] + b"\x00" + d[9:], "expected format version 1, got 0"),
    "header only in part": (lambda d: d[:959], "cut off within its header, after 959 bytes"),
    "header only": (lambda d: d[:960], r"expected \d+ bytes, got 960: the file is cut off"),
    "last byte": (lambda d: d[:-1], "the file is cut off"),
    "one byte more": (lambda d: d + b"\0", "something was added"),
    "words": (lambda d: d[:24] + b"\x04" + d[25:], "the header does not match its checksum"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("verify", (True, False))
def test_other_files_are_refused_by_name(tmp_path: Path, name: str, verify: bool) -> None:
    damage, text = REFUSED[name]
    path = write(tmp_path / "a.zbnap", damage(example(20)._index.to_bytes()))
    with pytest.raises(ValueError, match=rf"^NapIndex.load: {re.escape(str(path))}: .*{text}"):
        NapIndex.load(path, verify=verify)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NapIndex.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        NapIndex.load(tmp_path)
    with pytest.raises(ValueError, match="no file of a NapIndex"):
        NapIndex.load("/dev/null")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_os_error() -> None:
    with open("/dev/full", "wb") as file, pytest.raises(OSError, match="No space left"):
        example(20)._index.save(file.fileno())


def test_every_truncation_at_a_border_is_refused(tmp_path: Path) -> None:
    data = example(100)._index.to_bytes()
    ends = {HEADER, *(at for at, _ in sections(data)), *(at + size for at, size in sections(data))}
    for end in sorted({e + d for e in ends for d in (-1, 0, 1)} - {len(data)}):
        path = write(tmp_path / "a", data[:end])
        for verify in (True, False):
            with pytest.raises(ValueError, match=r"cut off|added"):
                NapIndex.load(path, verify=verify)


def test_a_changed_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Every section, its ends and the zeros after it; at load, or later at the first change, save or copy."""
    draw = random.Random(0)
    for index in (example(100), with_carries()):
        data = index._index.to_bytes()
        for name, (at, size) in zip(NAMES, sections(data), strict=True):
            if not size:
                continue
            filled = -(-size // 64) * 64
            for place in {at, at + size - 1, at + filled - 1, at + draw.randrange(filled)}:
                bad = bytearray(data)
                bad[place] ^= 1 << draw.randrange(8)
                path = write(tmp_path / "a", bytes(bad))
                text = f'{re.escape(str(path))}: section "{name}" does not match its checksum'
                with pytest.raises(ValueError, match=f"^NapIndex.load: {text}"):
                    NapIndex.load(path)
                lazy = NapIndex.load(path, verify=False)
                with pytest.raises(ValueError, match=f"^NapIndex.verify: {text}"):
                    lazy.verify()
                with pytest.raises(ValueError, match=f"^NapIndex.save: {text}"):
                    lazy.save(tmp_path / "b")
                with pytest.raises(ValueError, match=f"^NapIndex.merge: {text}"):
                    NapIndex._of_bytes(data).merge(lazy)
        for place in range(0, HEADER, 7):
            bad = bytearray(data)
            bad[place] ^= 1 << draw.randrange(8)
            with pytest.raises(ValueError, match=r"^NapIndex\.load"):
                NapIndex.load(write(tmp_path / "a", bytes(bad)), verify=False)
    assert not (tmp_path / "b").exists()


def test_reading_a_damaged_index_does_no_harm(tmp_path: Path) -> None:
    """Not verified, its answers may be wrong; they must still come, and from within the file."""
    index = example(60)
    data, rows = index._index.to_bytes(), index.signatures()
    draw = random.Random(1)
    for at, size in sections(data):
        for _ in range(5 if size else 0):
            bad = bytearray(data)
            start = at + draw.randrange(size)
            bad[start : min(start + 40, at + size)] = draw.randbytes(min(40, at + size - start))
            lazy = NapIndex.load(write(tmp_path / "a", bytes(bad)), verify=False)
            assert len(lazy.find(rows)) == len(rows)
            assert lazy.class_counts().shape == lazy.prediction_counts().shape == (len(index), 5)
            for i in range(len(lazy)):
                assert len(lazy.example_ids(i)) <= index.examples
            lazy.labels(), lazy.predictions(), lazy.first_ids(), lazy.top(5), lazy.rarity(rows ^ 1)


KILLER = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from zbkernels.nap import NapIndex
    torch.set_num_threads(1)
    path, size = Path(sys.argv[1]), 20_000
    rows = torch.arange(size)[:, None].expand(size, 8).contiguous()
    ends = NapIndex(8), NapIndex(8)
    ends[0].insert(rows)
    ends[1].insert(rows.flip(0))
    whole = [end._index.to_bytes() for end in ends]
    ends[0].save(path)
    draw = random.Random(0)
    for _ in range(40):
        child = os.fork()
        while child == 0:
            for end in ends:
                end.save(path)
        time.sleep(draw.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_bytes() in whole
        assert len(NapIndex.load(path)) == size
    print(len(list(path.parent.glob("." + path.stem + "-*"))))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_process_killed_while_it_saves_leaves_one_of_the_two(tmp_path: Path) -> None:
    path = tmp_path / "index.zbnap"
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no kill came while a file was being written"
    NapIndex.load(path).save(path)
