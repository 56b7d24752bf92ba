"""Figures as data URIs: bounded in pixels and bytes, whatever the file says of itself."""

from __future__ import annotations

import base64
import io
import struct
from dataclasses import dataclass
from pathlib import Path

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_PIXELS = 64_000_000  # that are decoded to make a picture smaller
_MOST_SIDE = 2400  # of a picture as it is embedded: the widest figure of an experiment has 2024
_MOST_BYTES = 1_500_000
_MOST_FILE = 64 << 20


@dataclass(frozen=True)
class Picture:
    uri: str
    width: int
    height: int


def embedded(path: Path) -> Picture:
    """The PNG file ``path`` as a data URI, made smaller where it is large.

    Raises:
        ValueError: it is no PNG file, or too large; the message says which.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size > _MOST_FILE:
        raise ValueError(f"{size:,} bytes, more than {_MOST_FILE:,}")
    data = path.read_bytes()
    if not data.startswith(_SIGNATURE) or data[12:16] != b"IHDR" or len(data) < 57:
        raise ValueError("not a PNG file")
    width, height = struct.unpack(">II", data[16:24])
    if not 0 < width * height <= _MOST_PIXELS:
        raise ValueError(f"{width:,} × {height:,} pixels, more than {_MOST_PIXELS:,}")
    if max(width, height) > _MOST_SIDE or size > _MOST_BYTES:
        data, width, height = _smaller(data)
    return Picture("data:image/png;base64," + base64.b64encode(data).decode(), width, height)


def _smaller(data: bytes) -> tuple[bytes, int, int]:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ValueError("too large to embed without pillow: pip install 'zbkernels[experiments]'") from error
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            picture = image.convert("RGBA" if image.has_transparency_data else "RGB")
    except Exception as error:  # of many kinds where the bytes are arbitrary: a failed assert, for one
        raise ValueError(
            f"a PNG file that cannot be decoded ({str(error) or type(error).__name__})"
        ) from error
    side = float(_MOST_SIDE)
    while True:
        picture.thumbnail((side, side))
        out = io.BytesIO()
        picture.save(out, "PNG")
        if out.tell() <= _MOST_BYTES:
            return out.getvalue(), picture.width, picture.height
        # bytes go about as the pixels do
        side = max(picture.size) * min(0.9, (_MOST_BYTES / out.tell()) ** 0.5)
