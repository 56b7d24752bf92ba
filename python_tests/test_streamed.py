"""Image folders: labels by rule and not by accident, crops that depend on their draw alone, broken files named."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import write_image, write_imagenette
from PIL import Image
from torch import nn

from zbkernels import data as image_sets
from zbkernels.data import DataError
from zbkernels.data.decode import RATIO, SCALE, decode, random_box
from zbkernels.data.folder import class_order, read_folder
from zbkernels.data.streamed import StreamedSplit
from zbkernels.train import Epoch, TrainConfig, train


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calling process decodes, but in the tests of the workers."""
    monkeypatch.setenv("ZBKERNELS_DATA_WORKERS", "0")


# Which label is whose.


def test_numeric_class_folders_have_their_number_as_label(tmp_path: Path) -> None:
    """As text, the folder 10 would be class 2, 11 class 3, and 2 class 4."""
    for number in (7, 11, 0, 2, 10, 5, 1, 9, 3, 8, 4, 6):
        write_image(tmp_path / str(number) / "only.png", number)
    split = StreamedSplit(read_folder(tmp_path), random=False)
    images, labels = split.batch(torch.arange(12))
    assert torch.equal(images[:, 0, 0, 0].mul(255).round().long(), labels)
    assert split.folder.classes == tuple(map(str, range(12)))


def test_wordnet_names_are_in_the_order_of_text(tmp_path: Path) -> None:
    names = ["n02979186", "n01440764", "n03888257", "n02102040", "n10148035", "n00007846"]
    random.Random(5).shuffle(names)
    for index, name in enumerate(names):
        write_image(tmp_path / name / "b.JPEG", 10 * index)
        write_image(tmp_path / name / "a.JPEG", 10 * index + 5)
    folder = read_folder(tmp_path)
    assert folder.classes == tuple(sorted(names))
    assert folder.files == tuple(f"{name}/{file}.JPEG" for name in sorted(names) for file in "ab")
    assert folder.labels == tuple(label for label in range(6) for _ in "ab")


@given(
    st.permutations(["0", "7", "10", "100", "11", "2", "999"]),
    st.permutations(["n1", "n10", "n2", "10", "9"]),
)
@settings(max_examples=30, deadline=None)
def test_the_order_is_a_rule(numbers: list[str], names: list[str]) -> None:
    assert class_order(numbers) == ["0", "2", "7", "10", "11", "100", "999"]
    assert class_order(names) == ["10", "9", "n1", "n10", "n2"]  # one name that is no number: text


def test_two_names_of_one_number_are_refused(tmp_path: Path) -> None:
    for name in ("1", "01", "2"):
        write_image(tmp_path / name / "a.png", 1)
    with pytest.raises(DataError, match="the class folders 01 and 1 are the same number"):
        read_folder(tmp_path)


def test_an_empty_class_and_files_of_other_kinds(tmp_path: Path) -> None:
    base = write_imagenette(tmp_path)
    (base / "train/n02102040/notes.txt").write_text("not an image")
    (base / "train/n02102040/.DS_Store").write_text("")
    (base / "train/LOC.csv").write_text("")
    data = image_sets.load("imagenette", tmp_path)
    assert len(data.train) == 18
    assert "left out, as no images by their names: train/n02102040/notes.txt" in data.note
    for image in (base / "train/n02102040").glob("*.JPEG"):
        image.unlink()
    with pytest.raises(DataError, match=r"n02102040: expected images \(\.jpg.*got only n02102040/notes.txt"):
        image_sets.load("imagenette", tmp_path)
    (base / "train/n02102040/notes.txt").unlink()
    with pytest.raises(DataError, match=r"train/n02102040: expected images .*, got an empty folder"):
        image_sets.load("imagenette", tmp_path)


def test_an_image_under_another_formats_name_is_an_image(tmp_path: Path) -> None:
    """One of ImageNet's .JPEG files is a PNG."""
    path = write_image(tmp_path / "a/x.png", 77).rename(tmp_path / "a/x.JPEG")
    assert (decode(path) == 77).all()


# The published sets.


def test_imagenette(tmp_path: Path) -> None:
    write_imagenette(tmp_path, suffix="-160")
    data = image_sets.load("imagenette", tmp_path)
    assert data.title == "Imagenette (160 pixels) (not the official set: 18 + 12 images of 3 classes)"
    assert data.classes == ("tench", "English springer", "cassette player")
    assert (len(data.train), len(data.test), data.image_shape) == (18, 12, (3, 224, 224))
    assert data.test.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    images, labels = data.test.batch(torch.tensor([11, 0, 5]))
    assert (images.shape, images.dtype, labels.tolist()) == ((3, 3, 224, 224), torch.float32, [2, 0, 1])
    assert 0.5 < images[0].mean() < images[0].max() <= 1
    part = data.subset(6, 3)
    assert part.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert part.title.endswith(", evenly spread 6 training and 3 test images")
    write_imagenette(tmp_path, classes=2)  # the full size is taken where both are there
    assert image_sets.load("imagenette", tmp_path).title.startswith("Imagenette (not the")


@pytest.mark.parametrize("below", ["imagenet", "."])
def test_imagenet_and_its_names(tmp_path: Path, below: str) -> None:
    write_imagenette(tmp_path).rename(tmp_path / "kept")
    base = tmp_path / "root" / below
    base.mkdir(parents=True)
    for part in ("train", "val"):
        shutil.copytree(tmp_path / "kept" / part, base / part)
    assert image_sets.load("imagenet", tmp_path / "root").classes == ("n01440764", "n02102040", "n02979186")
    names = {"n01440764": ("tench", "Tinca tinca"), "n02102040": ("English springer",), "n9": ("another",)}
    torch.save((names, ["n01440764"]), base / "meta.bin")
    data = image_sets.load("imagenet", tmp_path / "root")
    assert data.classes == ("tench", "English springer", "n02979186")
    assert not data.official
    (base / "meta.bin").write_bytes(b"no torch file")
    with pytest.raises(DataError, match=r"meta.bin: expected torchvision's class names.*delete it"):
        image_sets.load("imagenet", tmp_path / "root")


def test_missing_and_differing_folders(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"imagenet/train: no such folder; .*/train/CLASS/FILE .*image-net.org"
    ):
        image_sets.load("imagenet", tmp_path)
    base = write_imagenette(tmp_path)
    shutil.move(base / "val/n02102040", base / "val/n09999999")
    with pytest.raises(DataError, match=r"val: .*, got n02102040 missing and n09999999 more"):
        image_sets.load("imagenette", tmp_path)
    shutil.rmtree(base / "val")
    write_image(base / "val/ILSVRC2012_val_00000001.JPEG", 3)
    with pytest.raises(
        DataError, match=r"val: expected one folder of images for each class, got 1 images side by"
    ):
        image_sets.load("imagenette", tmp_path)


def test_what_wants_all_images_is_told_why_not(tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    data = image_sets.load("imagenette", tmp_path)
    with pytest.raises(DataError, match=r"train: 18 images are read as they are needed, .* such as mnist"):
        _ = data.train.images
    assert "18 images" in repr(data.train)


# Crops.


def test_the_middle_of_a_resized_image() -> None:
    """A file of 448×512 is resized to 256×292 or so, and the middle is the file's middle."""
    pixels = np.zeros((448, 512, 3), dtype=np.uint8)
    pixels[192:256, 224:288] = 255  # a square in the middle
    path = write_image(Path(os.environ.get("TMPDIR", "/tmp")) / f"square-{os.getpid()}.png", pixels)
    try:
        found = decode(path)
    finally:
        path.unlink()
    assert (found.shape, found.dtype) == ((3, 224, 224), np.uint8)
    rows, columns = (found[0] > 127).any(1).nonzero()[0], (found[0] > 127).any(0).nonzero()[0]
    side = 64 * 256 / 448
    assert abs(len(rows) - side) <= 1 and abs(len(columns) - side) <= 1
    assert abs(rows.mean() - 111.5) <= 1 and abs(columns.mean() - 111.5) <= 1


@given(width=st.integers(1, 900), height=st.integers(1, 900), seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_a_random_box_lies_in_the_image(width: int, height: int, seed: int) -> None:
    left, upper, right, lower = random_box(width, height, random.Random(seed))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


def test_random_boxes_are_spread_as_they_should_be() -> None:
    chance = random.Random(1)
    boxes = [random_box(400, 400, chance) for _ in range(4000)]
    left, upper, right, lower = np.array(boxes).T
    areas, ratios = (right - left) * (lower - upper) / 160_000, (right - left) / (lower - upper)
    assert areas.min() > SCALE[0] - 0.01 and areas.max() <= 1
    assert ratios.min() > RATIO[0] - 0.03 and ratios.max() < RATIO[1] + 0.03
    assert abs(np.mean(areas[areas < 0.5]) - 0.29) < 0.01  # uniform where all proportions fit
    assert abs(np.log(ratios).mean()) < 0.02  # as often wide as tall
    centres = (left + right) / 800
    assert abs(centres.mean() - 0.5) < 0.01 and centres.std() > 0.1


def test_a_crop_depends_on_its_draw_and_half_are_mirrored(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], (60, 1, 3))
    path = write_image(tmp_path / "ramp.png", ramp)
    first = decode(path, (0, 1, 2))
    assert np.array_equal(first, decode(path, (0, 1, 2)))
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not np.array_equal(first, decode(path, other))
    mirrored = sum(
        bool(crop[0, 10, 0] > crop[0, 10, -1]) for crop in (decode(path, (0, 0, k), 32) for k in range(400))
    )
    assert 160 < mirrored < 240


def test_grey_palette_cmyk_and_transparent_files(tmp_path: Path) -> None:
    for mode, value, suffix in (
        ("L", 90, "png"),
        ("P", 5, "png"),
        ("CMYK", (0, 0, 0, 165), "jpg"),
        ("RGBA", (90,) * 4, "png"),
    ):
        path = tmp_path / f"{mode}.{suffix}"
        image = Image.new(mode, (300, 260), value)  # type: ignore[arg-type]
        if mode == "P":
            image.putpalette([90] * 768)
        image.save(path)
        assert np.abs(decode(path).astype(int) - 90).max() <= 1, mode


# Batches.


def _spread(split: StreamedSplit) -> list[torch.Tensor]:
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(3))
    return list(order.split(5))


def test_batches_are_the_same_however_they_are_read(tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    folder = read_folder(tmp_path / "imagenette2/train")
    split = StreamedSplit(folder, random=True, size=32)
    batches = _spread(split)
    state = torch.get_rng_state()
    expected = [split.batch(indices, seed=4, epoch=2) for indices in batches]
    with_workers = StreamedSplit(folder, random=True, size=32, workers=1)
    for way in (split, with_workers, with_workers):  # the workers' second pass is by the same processes
        for (images, labels), (right, right_labels) in zip(
            way.batches(batches, seed=4, epoch=2), expected, strict=True
        ):
            assert torch.equal(images, right)
            assert torch.equal(labels, right_labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(expected[0][0], split.batch(batches[0], seed=4, epoch=3)[0])
    # An image's crop does not depend on its neighbours.
    assert expected[1][0].shape == (5, 3, 32, 32)
    alone = split.batch(batches[1][2:3], seed=4, epoch=2)[0]
    assert torch.equal(alone[0], expected[1][0][2])
    # A broken file is named by a worker as by ourselves, in one line.
    broken = tmp_path / "imagenette2/train/n01440764/n01440764_3.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    for way in (with_workers, split):
        with pytest.raises(
            DataError, match=r"^.*n01440764_3.JPEG: a broken image file \(.*\); delete it or get it again$"
        ):
            list(way.batches(batches))
    broken.write_text("<html>403</html>")
    with pytest.raises(
        DataError, match=r"^.*n01440764_3.JPEG: expected an image file, got none that can be identified$"
    ):
        list(with_workers.batches(batches))


def test_training_that_was_cut_off_goes_on_with_the_same_crops(tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    data = image_sets.load("imagenette", tmp_path)
    train_part, test_part = (
        StreamedSplit(split.folder, random=split.random, size=16) for split in (data.train, data.test)
    )
    data = replace(data, train=train_part, test=test_part)
    config = TrainConfig(3, 8, lr=0.05, optimizer="sgd", mixup=0.7, schedule="cosine")

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

    def untimed(history: list[Epoch]) -> list[Epoch]:
        return [replace(epoch, seconds=0) for epoch in history]

    uncut, resumed = network(), network()
    expected = train(uncut, data, config)
    steps = 0

    def cut() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:  # of three batches an epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), data, config, folder=tmp_path / "run", on_batch=cut)
    assert untimed(train(resumed, data, config, folder=tmp_path / "run")) == untimed(expected)
    assert torch.equal(resumed[0].weight, uncut[0].weight)


def test_two_passes_at_once_are_refused(tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    split = StreamedSplit(read_folder(tmp_path / "imagenette2/val"), random=False, size=32)
    first, second = split.batches(_spread(split)), split.batches(_spread(split))
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="a second pass was begun before this one's end"):
        next(first)


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    folder = read_folder(tmp_path / "imagenette2/val")
    monkeypatch.setenv("ZBKERNELS_DATA_WORKERS", "many")
    with pytest.raises(
        DataError, match="ZBKERNELS_DATA_WORKERS: expected a whole number, 0 or larger, got 'many'"
    ):
        StreamedSplit(folder, random=False)
    monkeypatch.delenv("ZBKERNELS_DATA_WORKERS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert StreamedSplit(folder, random=False).workers == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert StreamedSplit(folder, random=False).workers == 7
    assert Counter(StreamedSplit(folder, random=False).labels.tolist()) == {0: 4, 1: 4, 2: 4}


def test_checksums_tell_sets_apart(tmp_path: Path) -> None:
    write_imagenette(tmp_path)
    train, again = (StreamedSplit(read_folder(tmp_path / "imagenette2/train"), random=True) for _ in range(2))
    assert train.checksum() == again.checksum() != StreamedSplit(train.folder, random=False).checksum()
    assert train.first(7).checksum() != train.checksum() != train.checksum(1)
