"""Readers: right tensors from good files, and one clear error, never a partial read, from every kind of bad one."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from idx_files import TEST, TRAIN, idx_bytes, write_idx_set

from zbkernels import data as image_sets
from zbkernels.data import DataError, mnist
from zbkernels.data.idx import IMAGES_MAGIC, LABELS_MAGIC, read_idx

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "gz"])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_reads_torchvisions_layout(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    raw = write_idx_set(tmp_path, folder, packed=packed)
    data = image_sets.load(name, tmp_path)
    assert data.train.images.shape == (TRAIN, 1, 28, 28)
    assert data.test.images.shape == (TEST, 1, 28, 28)
    assert data.train.images.dtype == torch.float32
    assert data.train.labels.dtype == torch.int64
    content = (raw / f"{IMAGES}.gz").read_bytes() if packed else (raw / IMAGES).read_bytes()
    pixels = np.frombuffer(gzip.decompress(content) if packed else content, np.uint8, offset=16)
    assert torch.equal(data.train.images.flatten(), torch.from_numpy(pixels / np.float32(255)))
    assert data.train.images.min() >= 0
    assert data.train.images.max() == 1
    assert data.image_shape == (1, 28, 28)
    assert len(data.classes) == 10


def test_files_with_other_checksums_are_never_called_official(tmp_path: Path) -> None:
    write_idx_set(tmp_path, "MNIST")
    write_idx_set(tmp_path, "FashionMNIST")
    fashion = image_sets.load("fashion-mnist", tmp_path)
    assert fashion.title == "Fashion-MNIST (re-encoded)"
    assert not fashion.official
    assert IMAGES in fashion.note
    assert "official" in fashion.note
    digits = image_sets.load("mnist", tmp_path)
    assert digits.title == "MNIST (not the official files)"
    assert not digits.official


@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "gz"])
def test_official_files_are_recognised_by_their_content(tmp_path: Path, packed: bool) -> None:
    raw = write_idx_set(tmp_path, packed=packed)
    md5 = {}
    for path in raw.iterdir():
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        md5[path.name.removesuffix(".gz")] = hashlib.md5(content, usedforsecurity=False).hexdigest()
    published = dataclasses.replace(mnist.MNIST, md5=md5)
    data = mnist.load_idx_set(published, tmp_path)
    assert data.official
    assert data.title == "MNIST"
    assert data.note == ""
    one_other = dataclasses.replace(published, md5=md5 | {LABELS: "0" * 32})
    data = mnist.load_idx_set(one_other, tmp_path)
    assert not data.official
    assert LABELS in data.note
    assert IMAGES not in data.note


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def _web_page(path: Path) -> None:
    path.write_bytes(b"<!DOCTYPE html><html><body>403 Forbidden</body></html>")


def _still_packed(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def _labels_instead(path: Path) -> None:
    path.write_bytes(path.with_name(path.name.replace("images-idx3", "labels-idx1")).read_bytes())


BROKEN = {
    "truncated": (False, _cut, ["truncated", "[96, 28, 28]", "75280 bytes", "got 37640"]),
    "truncated gz": (True, _cut, ["truncated", "gzip stream ends early"]),
    "corrupt gz": (True, _flip, ["corrupt gzip data"]),
    "empty": (False, lambda path: path.write_bytes(b""), ["expected an idx file, got an empty one"]),
    "empty gz": (True, lambda path: path.write_bytes(b""), ["got an empty one"]),
    "gz of nothing": (True, lambda path: path.write_bytes(gzip.compress(b"")), ["got an empty one"]),
    "web page": (False, _web_page, ["expected magic 2051 (images)", "0x3c21444f"]),
    "web page as gz": (True, _web_page, ["expected gzip data", "3c21"]),
    "still compressed": (False, _still_packed, ["0x1f8b08", "still compressed by gzip", ".gz"]),
    "packed twice": (True, _still_packed, ["still compressed by gzip", "unpack it once"]),
    "labels": (False, _labels_instead, ["expected magic 2051 (images), got 2049 (0x00000801) (labels)"]),
    "header only": (False, lambda path: path.write_bytes(path.read_bytes()[:16]), ["truncated", "got 16"]),
    "half a header": (False, lambda path: path.write_bytes(path.read_bytes()[:9]), ["16 bytes, got 9"]),
    "three bytes": (False, lambda path: path.write_bytes(b"\0\0\x08"), ["4 bytes, got 3"]),
    "too long": (False, lambda path: path.write_bytes(path.read_bytes() + b"\0"), ["too long", "got 75281"]),
    "no image": (
        False,
        lambda path: path.write_bytes(idx_bytes(np.zeros((0, 28, 28), np.uint8))),
        ["at least one element", "[0, 28, 28]"],
    ),
    "missing": (False, lambda path: path.unlink(), ["not found, nor train-images-idx3-ubyte.gz beside it"]),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_named_with_what_was_found_and_where_to_get_it(tmp_path: Path, fault: str) -> None:
    packed, harm, expected = BROKEN[fault]
    raw = write_idx_set(tmp_path, packed=packed)
    path = raw / (f"{IMAGES}.gz" if packed else IMAGES)
    good = path.read_bytes()
    harm(path)
    with pytest.raises(DataError) as caught:
        image_sets.load("mnist", tmp_path)
    message = str(caught.value)
    for part in [str(raw / IMAGES), mnist.MNIST.source, *expected]:
        assert part in message
    assert "\n" not in message
    path.write_bytes(good)  # the good file in its place is all it takes
    assert len(image_sets.load("mnist", tmp_path).train) == TRAIN


def test_number_of_labels_must_be_the_number_of_images(tmp_path: Path) -> None:
    raw = write_idx_set(tmp_path)
    (raw / LABELS).write_bytes(idx_bytes(np.zeros(TRAIN - 1, np.uint8)))
    with pytest.raises(DataError, match=f"{LABELS}: expected {TRAIN} labels, .*, got {TRAIN - 1}"):
        image_sets.load("mnist", tmp_path)


def test_labels_must_have_a_class(tmp_path: Path) -> None:
    raw = write_idx_set(tmp_path)
    (raw / LABELS).write_bytes(idx_bytes(np.full(TRAIN, 10, np.uint8)))
    with pytest.raises(DataError, match=f"{LABELS}: expected labels 0 to 9, got 10"):
        image_sets.load("mnist", tmp_path)


def test_training_and_test_images_must_have_one_size(tmp_path: Path) -> None:
    raw = write_idx_set(tmp_path)
    (raw / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((TEST, 27, 28), np.uint8)))
    with pytest.raises(DataError, match=r"\[1, 28, 28\] beside test images of shape \[1, 27, 28\]"):
        image_sets.load("mnist", tmp_path)


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / IMAGES).mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / IMAGES, IMAGES_MAGIC, "the source")


def test_labels_are_read_by_their_own_magic(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.arange(7, dtype=np.uint8)))
    assert read_idx(path, LABELS_MAGIC, "the source").array.tolist() == list(range(7))


def test_without_a_folder_the_message_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ZBKERNELS_DATA", raising=False)
    with pytest.raises(DataError, match=r"--data DIR or set ZBKERNELS_DATA"):
        image_sets.load("mnist")
    with pytest.raises(DataError, match="there is nothing"):
        image_sets.load("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"MNIST/raw: no such folder.*Get the four .gz files from"):
        image_sets.load("mnist", tmp_path)
    write_idx_set(tmp_path)
    monkeypatch.setenv("ZBKERNELS_DATA", str(tmp_path))
    assert len(image_sets.load("mnist").test) == TEST


def test_an_unknown_set_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match="unknown image set 'cifar'; known: mnist, fashion-mnist, cifar-10, "):
        image_sets.load("cifar")


def test_digits_are_split_the_same_way_every_time() -> None:
    first, second = image_sets.load("digits"), image_sets.load("digits")
    assert (len(first.train), len(first.test)) == (1437, 360)
    assert first.image_shape == (1, 8, 8)
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.labels, second.test.labels)
    assert first.test.labels.bincount(minlength=10).min() >= 25  # every class is tested
    assert first.train.images.max() == 1
    assert "digits" in first.title


def test_a_subset_says_that_it_is_one(tmp_path: Path) -> None:
    write_idx_set(tmp_path)
    data = image_sets.load("mnist", tmp_path)
    part = data.subset(10, None)
    assert (len(part.train), len(part.test)) == (10, TEST)
    assert "first 10 training" in part.title
    assert data.subset(None, None) is data
    assert data.subset(10**6, 10**6).title == data.title  # not a subset at all


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_files(data_root: Path, name: str) -> None:
    data = image_sets.load(name, data_root)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.image_shape == (1, 28, 28)
    if data.official:
        assert (
            data.train.labels[:5].tolist()
            == {"mnist": [5, 0, 4, 1, 9], "fashion-mnist": [9, 0, 0, 3, 0]}[name]
        )
    else:
        assert data.title in ("Fashion-MNIST (re-encoded)", "MNIST (not the official files)")
