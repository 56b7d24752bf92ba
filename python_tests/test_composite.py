"""The colour composite: the same bytes everywhere, each part of it visible, and never called CIFAR."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import TEST, TRAIN, idx_bytes, write_idx_set

from zbkernels import data as image_sets
from zbkernels.data import DataError, composite, composite_figure


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_idx_set(tmp_path, "MNIST")
    write_idx_set(tmp_path, "FashionMNIST")
    return tmp_path


def gray(value: int, count: int = 1) -> np.ndarray:
    return np.full((count, 28, 28), value, dtype=np.uint8)


def test_both_forms_hold_the_same_images_and_say_what_they_are(root: Path) -> None:
    hundred, ten = image_sets.load("composite", root), image_sets.load("composite-10", root)
    for data in (hundred, ten):
        assert data.train.images.shape == (TRAIN, 3, 32, 32)
        assert data.test.images.shape == (TEST, 3, 32, 32)
        assert data.train.images.dtype == torch.float32
        assert data.train.images.min() >= 0 and data.train.images.max() <= 1
        assert "colour composite of Fashion-MNIST (re-encoded) and MNIST" in data.title
        assert "not CIFAR" in data.note and "checksum" in data.note
        assert not data.official
    assert torch.equal(hundred.train.images, ten.train.images)
    assert (len(hundred.classes), len(ten.classes)) == (100, 10)
    assert hundred.classes[37] == "Dress, 7"
    garments = image_sets.load("fashion-mnist", root).test.labels
    digits = image_sets.load("mnist", root).test.labels
    assert torch.equal(ten.test.labels, garments)
    assert torch.equal(hundred.test.labels, 10 * garments + digits)


def test_the_bytes_are_always_these() -> None:
    """Of a fixed pattern, so that no file and no generator has a say."""
    ramp = (np.arange(6 * 28 * 28) * 37 % 256).astype(np.uint8).reshape(6, 28, 28)
    images = composite.compose(ramp, ramp[::-1], first=12_345)
    assert (images.shape, images.dtype) == ((6, 3, 32, 32), np.uint8)
    assert zlib.crc32(images.tobytes()) == 0x3F19295E


@given(first=st.integers(0, 2**33), count=st.integers(1, 5), where=st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_an_image_depends_on_its_number_alone(first: int, count: int, where: int) -> None:
    """So chunks, subsets and other machines make the same image."""
    where = min(where, count - 1)
    garments, digits = gray(200, count), gray(90, count)
    alone = composite.compose(garments[where : where + 1], digits[where : where + 1], first + where)
    assert np.array_equal(composite.compose(garments, digits, first)[where], alone[0])


def test_the_parts_are_where_they_should_be() -> None:
    black = gray(0, 400)
    ground = composite.compose(black, black)
    assert ground.max() < 96
    with_garment = composite.compose(gray(255, 400), black)
    covered = (with_garment != ground).any(1).sum((1, 2))
    assert np.abs(covered - 28 * 28).max() <= 2  # one pixel may have the garment's own colour
    with_digit = composite.compose(black, gray(255, 400))
    assert np.abs((with_digit != ground).any(1).sum((1, 2)) - 14 * 14).max() <= 2
    # A white digit on a white garment shows: the two colours are far apart.
    both = composite.compose(gray(255, 400), gray(255, 400)).astype(int)
    apart = np.abs(both - with_garment).sum(1).max((1, 2))
    assert apart.min() > 100
    # Every place and many colours occur.
    rows = (with_digit != ground).any(1).any(2).argmax(1)
    assert set(rows.tolist()) == set(range(19))
    assert len({tuple(image[:, 16, 16]) for image in with_garment}) > 300


def test_hues_go_round_the_circle() -> None:
    white = np.zeros(7, dtype=np.int64)
    colours = composite._colour(np.array([0, 256, 512, 768, 1024, 1280, 1536]), white)
    assert colours.tolist() == [
        [255, 0, 0],
        [255, 255, 0],
        [0, 255, 0],
        [0, 255, 255],
        [0, 0, 255],
        [255, 0, 255],
        [255, 0, 0],
    ]


def test_no_test_image_is_composed_as_a_training_image(root: Path) -> None:
    assert composite._TEST_NUMBERS > composite.TRAIN_IMAGES
    drawn = composite._draw(np.arange(20_000, dtype=np.uint64), "hue", 1536)
    assert np.bincount(drawn, minlength=1536).max() < 40  # 13 expected: spread evenly
    other = composite._draw(np.arange(20_000, dtype=np.uint64), "slope", 1536)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.03
    tests = composite._draw(composite._TEST_NUMBERS + np.arange(20_000, dtype=np.uint64), "hue", 1536)
    assert (drawn == tests).mean() < 0.005


def test_other_sizes_and_missing_files_are_refused(root: Path, tmp_path: Path) -> None:
    for part in ("train", "t10k"):
        path = root / "MNIST/raw" / f"{part}-images-idx3-ubyte"
        path.write_bytes(idx_bytes(np.zeros((TRAIN if part == "train" else TEST, 14, 14), np.uint8)))
    with pytest.raises(DataError, match=r"composite: expected MNIST .*\[1, 28, 28\], got \[1, 14, 14\]"):
        image_sets.load("composite", root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="FashionMNIST/raw: no such folder"):
        image_sets.load("composite-10", tmp_path / "empty")


def test_the_picture_is_drawn(root: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "composite.png"
    composite_figure.figure(image_sets.load("composite", root), path)
    assert imread(path).shape[:2] == (512, 608)
    assert len(np.unique(imread(path)[..., :3].reshape(-1, 3), axis=0)) > 50


def test_the_picture_in_the_docs_is_small() -> None:
    assert (Path(__file__).parents[1] / "docs/composite.png").stat().st_size < 150_000
