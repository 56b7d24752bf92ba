"""CIFAR: right tensors from whole files, and from damaged ones an error that names file, checksums and mend."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import IMAGES, contents, made_official, python2_pickle, write_archive, write_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from zbkernels import data as image_sets
from zbkernels.data import DataError, plain_pickle
from zbkernels.data.cifar import CIFAR10, CIFAR100, CifarSet, load_cifar
from zbkernels.data.plain_pickle import PickleError, loads

SETS = {"cifar-10": CIFAR10, "cifar-100": CIFAR100}


@pytest.mark.parametrize("form", ["folder", "archive", "python3"])
@pytest.mark.parametrize("name", SETS)
def test_both_layouts_of_torchvision_are_read(tmp_path: Path, name: str, form: str) -> None:
    published = SETS[name]
    if form == "archive":
        write_archive(tmp_path, published)
    else:
        write_folder(tmp_path, published, python3=form == "python3")
    data = image_sets.load(name, tmp_path)
    files = contents(published)
    pixels = np.concatenate([files[file]["data"] for file, _ in published.train]).reshape(-1, 3, 32, 32)
    assert torch.equal(data.train.images, torch.from_numpy(pixels / np.float32(255)))
    assert data.train.labels.tolist() == [
        k for file, _ in published.train for k in files[file][published.label_key]
    ]
    assert data.test.images.shape == (IMAGES, 3, 32, 32)
    assert (data.test.images.dtype, data.test.labels.dtype) == (torch.float32, torch.int64)
    assert data.classes == tuple(f"class {k}" for k in range(published.classes))
    assert data.title == f"{published.title} (not the official files)"
    assert not data.official
    assert published.test[0] in data.note and "checksum of the official" in data.note


def test_official_content_is_known_by_its_checksums(tmp_path: Path) -> None:
    archive, folder = write_archive(tmp_path), write_folder(tmp_path)
    published = made_official(CIFAR10, folder, archive)
    for part in ("unpacked", "from the archive"):
        data = load_cifar(published, tmp_path)
        assert (data.official, data.title, data.note) == (True, "CIFAR-10", ""), part
        shutil.rmtree(folder, ignore_errors=True)
    packed_again = gzip.compress(gzip.decompress(archive.read_bytes()), 1)
    archive.write_bytes(packed_again)
    assert load_cifar(published, tmp_path).official  # the content counts, not who packed it


def test_what_the_official_sets_are() -> None:
    assert sum(count for _, count in CIFAR10.train) == sum(count for _, count in CIFAR100.train) == 50_000
    assert CIFAR10.test[1] == CIFAR100.test[1] == 10_000
    assert CIFAR10.md5["data_batch_1"] == "c99cafc152244af753f735de768cd75f"
    assert CIFAR100.md5["train"] == "16019d7e3df5f24257cddd939b257f8d"


def test_an_archive_cut_at_three_quarters(tmp_path: Path) -> None:
    archive = write_archive(tmp_path)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(DataError) as caught:
        image_sets.load("cifar-10", tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{archive}: cut off, the gzip stream ends early; ")
    assert "expected 170,498,071 bytes of MD5 c58f30108f718f92721af3b95e74349a" in said
    assert f"found {len(whole) * 3 // 4:,} of " in said
    assert "delete it and get it again from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in said
    archive.write_bytes(whole)  # the good file in place: nothing of the failure is left
    assert len(image_sets.load("cifar-10", tmp_path).train) == 5 * IMAGES


@pytest.mark.parametrize("at", [0.02, 0.3, 0.7, 0.999])
def test_one_changed_byte_in_an_archive_of_the_right_size(tmp_path: Path, at: float) -> None:
    folder, archive = write_folder(tmp_path), write_archive(tmp_path)
    published = made_official(CIFAR10, folder, archive)
    shutil.rmtree(folder)
    content = bytearray(archive.read_bytes())
    content[int(at * len(content))] ^= 0x10
    archive.write_bytes(bytes(content))
    expected = f"expected {len(content):,} bytes of MD5 {published.archive[2]}, found {len(content):,} of "
    with pytest.raises(DataError, match=f"{archive.name}: damaged; {expected}[0-9a-f]{{32}}; delete it"):
        load_cifar(published, tmp_path)
    with pytest.raises(DataError, match=f"{archive.name}: .*; expected 170,498,071 .*; delete it"):
        load_cifar(CIFAR10, tmp_path)  # no size says what it should be, yet the gzip checksum does


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
def test_one_changed_byte_in_an_unpacked_file_of_the_right_size(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path)
    published = made_official(CIFAR10, folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1  # a pixel: the file is as well-formed as before
    (folder / name).write_bytes(bytes(content))
    with pytest.raises(DataError) as caught:
        load_cifar(published, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{folder / name}: damaged: it holds 20 images, but not the official content; ")
    assert f"expected MD5 {published.md5[name]}, found " in said
    assert "delete it and unpack cifar-10-python.tar.gz again" in said


def test_half_an_unpacked_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "data_batch_3").unlink()
    with pytest.raises(
        DataError, match=r"half unpacked, data_batch_3 not found; delete the folder and unpack"
    ):
        image_sets.load("cifar-10", tmp_path)
    write_archive(tmp_path)
    with pytest.raises(DataError, match=r"delete the folder, and cifar-10-python.tar.gz beside it is read"):
        image_sets.load("cifar-10", tmp_path)
    shutil.rmtree(folder)
    assert len(image_sets.load("cifar-10", tmp_path).train) == 5 * IMAGES


def test_two_processes_at_once_in_a_read_only_folder(tmp_path: Path) -> None:
    write_archive(tmp_path)
    tmp_path.chmod(0o555)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code = (
        "import sys; from zbkernels.data import load; "
        "d = load('cifar-10', sys.argv[1]); print(d.test.checksum(d.train.checksum()))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=100)[0] for process in both]
    tmp_path.chmod(0o755)
    data = image_sets.load("cifar-10", tmp_path)
    assert {int(line) for line in said} == {data.test.checksum(data.train.checksum())}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_whole_of_cifar10_is_50000_images_5000_of_each_class(tmp_path: Path) -> None:
    """Files of the official size, of black images."""
    folder = tmp_path / CIFAR10.folder
    folder.mkdir()
    batch = python2_pickle({"data": np.zeros((10_000, 3072), np.uint8), "labels": [*range(10)] * 1000})
    for name in (*(name for name, _ in CIFAR10.train), "test_batch"):
        (folder / name).write_bytes(batch)
    (folder / "batches.meta").write_bytes(python2_pickle({"label_names": [*"abcdefghij"]}))
    with pytest.raises(
        DataError, match="data_batch_1: damaged: it holds 10,000 images, but not the official"
    ):
        image_sets.load("cifar-10", tmp_path)
    data = load_cifar(
        replace(made_official(CIFAR10, folder), train=CIFAR10.train, test=CIFAR10.test), tmp_path
    )
    assert data.official
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.train.labels.bincount().tolist() == [5_000] * 10
    assert len(data.test) == 10_000


def test_as_many_of_each_class(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    published = made_official(CIFAR10, folder)
    assert load_cifar(published, tmp_path).train.labels.bincount().tolist() == [10] * 10
    files = contents(CIFAR10)
    files["data_batch_2"]["labels"][3] = 9
    (folder / "data_batch_2").write_bytes(python2_pickle(files["data_batch_2"]))
    uneven = made_official(CIFAR10, folder)
    with pytest.raises(DataError, match=r"expected 10 training images of each class, got \d+ of class [39]"):
        load_cifar(uneven, tmp_path)


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda batch: {k: v for k, v in batch.items() if k != key}


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no data": (_without("data"), r"expected 'data' to be bytes \[N, 3072\], got NoneType"),
    "no labels": (_without("labels"), r"expected 'labels' to be a list of 20 labels, got NoneType"),
    "flat": (lambda b: b | {"data": b["data"].ravel()}, r"got \[61440\]"),
    "other size": (lambda b: b | {"data": b["data"][:, :-1].copy()}, r"got \[20, 3071\]"),
    "floats": (lambda b: b | {"data": b["data"] / 255}, "expected an array of uint8, got 'f8'"),
    "short labels": (lambda b: b | {"labels": b["labels"][1:]}, "a list of 20 labels, got 19"),
    "large label": (lambda b: b | {"labels": [10] * 20}, "expected labels 0 to 9, got 10"),
    "text label": (lambda b: b | {"labels": ["3"] * 20}, "expected labels 0 to 9, got '3'"),
    "empty": (lambda b: b | {"data": b["data"][:0].copy(), "labels": []}, "got 0"),
    "list": (lambda b: [b], "expected a dict, got list"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_batches_are_refused(tmp_path: Path, kind: str) -> None:
    change, said = MALFORMED[kind]
    folder = write_folder(tmp_path)
    (folder / "data_batch_4").write_bytes(python2_pickle(change(contents(CIFAR10)["data_batch_4"])))
    with pytest.raises(
        DataError, match=rf"data_batch_4: .*{said}.*; expected MD5 634d1841.*, found [0-9a-f]{{32}}"
    ):
        image_sets.load("cifar-10", tmp_path)


@pytest.mark.parametrize("published", SETS.values(), ids=SETS)
def test_wrong_class_names_are_refused(tmp_path: Path, published: CifarSet) -> None:
    folder = write_folder(tmp_path, published)
    (folder / published.meta).write_bytes(python2_pickle({published.names_key: ["one"]}))
    with pytest.raises(
        DataError, match=rf"{published.meta}: expected .* to be {published.classes} names, got 1"
    ):
        image_sets.load(published.name, tmp_path)


def test_other_archives_and_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"cifar-10-batches-py: no such folder, nor cifar-10-python.tar.gz beside it"
    ):
        image_sets.load("cifar-10", tmp_path)
    archive = tmp_path / "cifar-10-python.tar.gz"
    for content, said in (
        (b"", "no cifar-10-batches-py/data_batch_1 in it|not a whole tar|cut off"),
        (b"<!DOCTYPE html>", "corrupt gzip data"),
        (gzip.compress(b"no tar" * 500), "not a whole tar archive"),
        (
            gzip.compress(gzip.decompress(write_archive(tmp_path, CIFAR100).read_bytes())),
            "data_batch_1 in it",
        ),
        (_linked(), "expected a file data_batch_1 in it, got something else|data_batch_1 in it"),
    ):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=said):
            image_sets.load("cifar-10", tmp_path)


def _linked() -> bytes:
    """An archive in which a file is a link to one outside."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        entry = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    return stream.getvalue()


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": Harm()}, protocol=protocol))
    with pytest.raises(
        DataError, match=r"batches.meta: cannot be read: it asks for \w+.system, which no such file needs"
    ):
        image_sets.load("cifar-10", tmp_path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("name", ["eval", "getattr", "open", "exec"])
def test_no_builtin_is_reached(name: str) -> None:
    with pytest.raises(PickleError, match=f"builtins.{name}"):
        loads(f"cbuiltins\n{name}\n(S'1'\ntR.".encode())


@pytest.mark.parametrize("name", [b"cnumpy\nndarray", b"cnumpy\ndtype", b"c_codecs\nencode"])
def test_what_stands_for_the_known_names_cannot_be_changed(name: bytes) -> None:
    """By the opcode that sets an object's state: here attributes of the class or function itself."""
    before = {key: dict(vars(value)) for key, value in plain_pickle._KNOWN.items()}
    with pytest.raises(PickleError):
        loads(name + b"\n(N(S'__doc__'\nS'changed'\ndtb.")
    assert {key: dict(vars(value)) for key, value in plain_pickle._KNOWN.items()} == before


@given(cut=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_damage_to_a_pickle_is_one_kind_of_error(cut: float, flips: list[tuple[float, int]]) -> None:
    content = bytearray(python2_pickle({"labels": [1, 2], "data": np.zeros((2, 3), np.uint8), "x": ["a"]}))
    for at, by in flips:
        content[int(at * (len(content) - 1))] ^= by
    kept = bytes(content[: int(cut * len(content))]) if not flips else bytes(content)
    try:
        value = loads(kept)
    except PickleError:
        return
    if not flips:
        assert kept == bytes(content)
        assert value["data"].shape == (2, 3)
