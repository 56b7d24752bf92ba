"""From an image file to pixels of one size: crops as training and testing on ImageNet have them."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zbkernels.data.dataset import DataError

SIZE = 224  # pixels each way of what the network sees
RESIZED = 256  # the shorter side of a test image before its middle is cut out
SCALE = (0.08, 1.0)  # of the whole image's area that a training crop takes
RATIO = (3 / 4, 4 / 3)  # of a training crop's width to its height
_TRIES = 10

# PIL would try all that it knows, such as EPS, for which it starts another program.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
MOST_PIXELS = (
    1 << 30
) // 12  # 89 million: PIL's own limit, at which it only warns; ImageNet's largest has 61 million

Box = tuple[int, int, int, int]  # left, upper, right, lower


def decode(path: str | Path, draw: tuple[int, int, int] | None = None, size: int = SIZE) -> np.ndarray:
    """Pixels ``[3, size, size]`` uint8 of an image file, whatever its format and colours.

    Args:
        draw: (seed, epoch, number of the image), from which alone a random crop (:func:`random_box`) and whether it is
            mirrored are drawn; None: the shorter side is resized to ``size·256/224`` and the middle taken.

    Raises:
        DataError: the file cannot be read or is no whole image, or its grey values are in no known range
            (:func:`deep_grey`).
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with open_image(path) as opened:
            grey = deep_grey(opened)
            if grey is not None:
                opened = Image.fromarray(np.rint(grey * 255).astype(np.uint8))
            image = opened.convert("RGB")  # reads the whole file; a few of ImageNet's are grey or CMYK
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: expected an image file, got none that can be identified") from error
    except Exception as error:  # a broken file fails in any way
        what = error or type(error).__name__
        raise DataError(f"{path}: a broken image file ({what}); delete it or get it again") from error
    if draw is None:
        pixels = _middle(image, size)
    else:
        chance = random.Random(repr(draw))  # Python promises the same numbers in every version
        box = random_box(image.width, image.height, chance)
        pixels = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        if chance.random() < 0.5:
            pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(pixels, dtype=np.uint8).transpose(2, 0, 1))  # [3, size, size]


@contextmanager
def open_image(path: str | Path) -> Iterator[Any]:
    """PIL's image of a file in one of :data:`FORMATS`, told by its content; its pixels are not read yet.

    Raises:
        UnidentifiedImageError: it is none of these.
        ValueError: it says that it has more than ``MOST_PIXELS``.
        OSError, and what else PIL raises: it is broken.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below, by name
        try:
            opened = Image.open(path, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from error
    with opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"expected at most {MOST_PIXELS:,} pixels, got {opened.width} × {opened.height}")
        yield opened


def deep_grey(image: Any) -> np.ndarray | None:
    """Pixels ``[H, W]`` float32 in [0, 1] of a picture of PIL with one channel of more than 8 bits; None of any other.

    PIL's own conversion to 8 bits cuts such values off at 255. Integers (16 bits, in modes ``I;16…`` and ``I``) are
    divided by 65535; floating values (mode ``F``) are taken as they are.

    Raises:
        ValueError: integers outside 0 … 65535, or floating values outside [0, 1].
    """
    if not image.mode.startswith(("I", "F")):
        return None
    values = np.asarray(image)
    largest, kind = (1, "floating") if image.mode == "F" else (65535, "whole")
    if values.size and not (values.min() >= 0 and values.max() <= largest):  # not: NaN fails too
        raise ValueError(
            f"expected {kind} grey values in 0 to {largest}, got {values.min():g} to {values.max():g}"
        )
    return values.astype(np.float32) / np.float32(largest)


def random_box(width: int, height: int, chance: random.Random) -> Box:
    """A crop of an image: its share of the area uniform in 0.08 … 1, the logarithm of its width to height uniform
    between 3:4 and 4:3, its place uniform (Szegedy et al., Going Deeper with Convolutions). After ten draws that don't
    fit, the largest middle of allowed proportions."""
    for _ in range(_TRIES):
        area = width * height * _uniform(chance, *SCALE)
        ratio = math.exp(_uniform(chance, math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(chance.random() * (width - w + 1)), int(chance.random() * (height - h + 1))
            return left, upper, left + w, upper + h
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def _middle(image: Any, size: int) -> Any:
    from PIL import Image

    shorter = round(size * RESIZED / SIZE)
    width, height = image.size
    if width <= height:
        resized = image.resize((shorter, int(shorter * height / width)), Image.Resampling.BILINEAR)
    else:
        resized = image.resize((int(shorter * width / height), shorter), Image.Resampling.BILINEAR)
    left, upper = round((resized.width - size) / 2), round((resized.height - size) / 2)
    return resized.crop((left, upper, left + size, upper + size))


def _uniform(chance: random.Random, low: float, high: float) -> float:
    return low + (high - low) * chance.random()
