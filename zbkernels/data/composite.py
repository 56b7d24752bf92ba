"""A colour composite of Fashion-MNIST garments and MNIST digits: a labelled stand-in where CIFAR is absent.

Image i is made from garment i and digit i of the two sets: the garment in one colour before a dark gradient, and in
front of it, anywhere, the digit at half its size in a colour far from the garment's. Places and colours are drawn by
hashing the image's number, and the arithmetic is in integers, so the images are the same bytes on every machine.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zbkernels.data.dataset import DataError, Dataset, Split
from zbkernels.data.mnist import load_fashion_mnist, load_mnist

SIZE = 32  # pixels each way, as CIFAR's
TRAIN_IMAGES = 50_000  # as many as CIFAR has, of the 60,000 that could be made: an epoch has as many steps
_TEST_NUMBERS = 1 << 32  # test images draw from numbers that no training image has
_CHUNK = 2_000  # images at a time, for the memory of the intermediate integers
_HUES = 6 * 256  # around the circle of full colours


def load_composite(root: str | Path | None = None) -> Dataset:
    """50,000 + 10,000 images ``[N, 3, 32, 32]`` of 100 classes, garment × digit; the label is 10·garment + digit.

    Raises:
        DataError: MNIST or Fashion-MNIST is missing or broken, or their images are not 28×28.
    """
    return _load(root, "composite", digits_count=True)


def load_composite_garments(root: str | Path | None = None) -> Dataset:
    """The images of :func:`load_composite` in 10 classes, the garments; the digit is clutter.

    Raises:
        DataError: as :func:`load_composite`.
    """
    return _load(root, "composite-10", digits_count=False)


def compose(garments: np.ndarray, digits: np.ndarray, first: int = 0) -> np.ndarray:
    """Colour images ``[N, 3, 32, 32]`` uint8 from gray ones.

    Args:
        garments, digits: ``[N, 28, 28]`` uint8.
        first: number of the first image. Colours and places of an image depend on its number alone.
    """
    number = np.arange(first, first + len(garments), dtype=np.uint64)
    hue = _draw(number, "hue", _HUES)
    apart = _HUES // 3 + _draw(number, "hues apart", _HUES // 3)  # at least a third of the circle, either way
    halves = (
        digits.reshape(-1, 14, 2, 14, 2).astype(np.int64).sum(axis=(2, 4)) // 3
    )  # 4/3 of the mean: thin strokes
    canvas = _gradient(number)
    for name, gray, colour in (
        ("garment", garments.astype(np.int64), _colour(hue, 40 + _draw(number, "garment's white", 100))),
        ("digit", np.minimum(halves, 255), _colour(hue + apart, _draw(number, "digit's white", 64))),
    ):
        places = 1 + SIZE - gray.shape[1]
        down, right = (_draw(number, f"{name} {way}", places) for way in ("down", "right"))
        alpha = _placed(gray, down, right)[:, None]  # [N, 1, 32, 32], 0 to 255
        canvas = (canvas * (255 - alpha) + colour[:, :, None, None] * alpha + 127) // 255
    return canvas.astype(np.uint8)


def _load(root: str | Path | None, name: str, *, digits_count: bool) -> Dataset:
    fashion, mnist = load_fashion_mnist(root), load_mnist(root)
    for part in (fashion, mnist):
        if part.image_shape != (1, 28, 28):
            raise DataError(
                f"{name}: expected {part.title} of images [1, 28, 28], got {list(part.image_shape)}"
            )
    classes = tuple(f"{g}, {d}" for g in fashion.classes for d in mnist.classes)
    return Dataset(
        name=name,
        title=f"colour composite of {fashion.title} and {mnist.title}, {100 if digits_count else 10} classes",
        train=_split(fashion.train, mnist.train, 0, TRAIN_IMAGES, digits_count),
        test=_split(fashion.test, mnist.test, _TEST_NUMBERS, None, digits_count),
        classes=classes if digits_count else fashion.classes,
        official=fashion.official and mnist.official,
        note="; ".join(
            [
                "a stand-in of 32×32×3 pixels made from garments and digits; not CIFAR, nor any image set of the paper",
                *(f"{part.title}: {part.note}" for part in (fashion, mnist) if part.note),
            ]
        ),
    )


def _split(garments: Split, digits: Split, first: int, limit: int | None, digits_count: bool) -> Split:
    count = min(len(garments), len(digits), limit or len(digits))
    images = torch.empty(count, 3, SIZE, SIZE)
    for start in range(0, count, _CHUNK):
        chosen = slice(start, min(start + _CHUNK, count))
        composed = compose(_bytes(garments.images[chosen]), _bytes(digits.images[chosen]), first + start)
        images[chosen] = torch.from_numpy(composed.astype(np.float32) / np.float32(255))
    labels = garments.labels[:count]
    return Split(images, 10 * labels + digits.labels[:count] if digits_count else labels.clone())


def _bytes(images: Tensor) -> np.ndarray:
    """``[N, 1, 28, 28]`` in [0, 1] -> the pixels ``[N, 28, 28]`` uint8 that they were read from."""
    return images[:, 0].mul(255).round().to(torch.uint8).numpy()


def _draw(number: np.ndarray, purpose: str, limit: int) -> np.ndarray:
    """One integer in 0 … limit-1 for each image, [N] int64: SplitMix64 of its number and the purpose."""
    z = (number << np.uint64(32)) ^ (number >> np.uint64(32)) ^ np.uint64(zlib.crc32(purpose.encode()))
    z = z + np.uint64(0x9E3779B97F4A7C15)  # wraps, as all of these do
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(limit)).astype(np.int64)


def _colour(hue: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Full colours [N, 3] of a hue (0 red, 512 green, 1024 blue, around 1536), ``white`` of 255 parts mixed in."""
    around = (hue[:, None] - np.array([0, _HUES // 3, 2 * _HUES // 3])) % _HUES  # distance from each primary
    full = np.clip(512 - np.minimum(around, _HUES - around), 0, 255)
    return white[:, None] + full * (255 - white[:, None]) // 255


def _gradient(number: np.ndarray) -> np.ndarray:
    """Dark backgrounds [N, 3, 32, 32]: from one colour to another across the image, in any direction to the right."""
    ends = np.stack([_draw(number, f"ground {index}", 96) for index in range(6)], axis=1)  # [N, 6]
    from_, to = ends[:, :3, None, None], ends[:, 3:, None, None]
    slope = _draw(number, "slope", SIZE + 1)[:, None, None, None]
    row, column = np.arange(SIZE)[:, None], np.arange(SIZE)[None, :]
    way = slope * row + (SIZE - slope) * column  # 0 to 32·31
    whole = SIZE * (SIZE - 1)
    return (from_ * (whole - way) + to * way) // whole


def _placed(gray: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``gray`` [N, S, S] on a field of 0, [N, 32, 32], each image moved down and right by its own numbers."""
    field = np.zeros((len(gray), SIZE, SIZE), dtype=np.int64)
    side = np.arange(gray.shape[1])
    image = np.arange(len(gray))[:, None, None]
    field[image, down[:, None, None] + side[:, None], right[:, None, None] + side] = gray
    return field
