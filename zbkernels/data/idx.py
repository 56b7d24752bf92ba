"""One idx file (the format of MNIST), checked from its first byte to its last.

Layout: ``00 00 TT DD`` (TT the element type, 08 = unsigned byte; DD the number of dimensions), then DD sizes
as big-endian 32-bit integers, then the elements. 2051 = 0x00000803 opens a file of images, 2049 = 0x00000801
one of labels.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zbkernels.data.dataset import DataError
from zbkernels.data.unpack import TooLarge, gunzip

IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801
_KIND = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class IdxFile:
    """The array of one idx file, the file it came from, and the MD5 of its unpacked content."""

    path: Path
    array: np.ndarray
    md5: str


def find_idx(folder: Path, name: str, source: str) -> Path:
    """``folder/name`` or ``folder/name.gz``; the unpacked one where both exist, as torchvision has it."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder / name}: not found, nor {name}.gz beside it; get it from {source}")


def read_idx(path: Path, magic: int, source: str) -> IdxFile:
    """Read one idx file of unsigned bytes, packed (``.gz``) or not, whole or not at all.

    Args:
        path: the file; the suffix ``.gz`` decides whether it is unpacked.
        magic: ``IMAGES_MAGIC`` or ``LABELS_MAGIC``.
        source: where to get a good copy; every error message ends with it.

    Returns:
        An array ``[N, H, W]`` of images or ``[N]`` of labels, uint8.

    Raises:
        DataError: the file cannot be read, is empty, still compressed, corrupt, of another kind, or too short
            or too long for its own header.
    """

    def broken(what: str) -> DataError:
        return DataError(f"{path}: {what}; delete it and get it again from {source}")

    content = _content(path, broken)
    if not content:
        raise broken("expected an idx file, got an empty one")
    if content[:2] == _GZIP_MAGIC:
        mend = "unpack it, or give it the name it has with .gz" if path.suffix != ".gz" else "unpack it once"
        found = int.from_bytes(content[:4], "big")
        raise DataError(
            f"{path}: expected magic {magic} ({_KIND[magic]}), got {found} (0x{found:08x}), which is a file "
            f"still compressed by gzip: {mend}, or get it again from {source}"
        )
    if len(content) < 4:
        raise broken(f"expected an idx header of 4 bytes, got {len(content)}")
    (found,) = struct.unpack(">I", content[:4])
    if found != magic:
        meaning = f" ({_KIND[found]})" if found in _KIND else ""
        raise broken(f"expected magic {magic} ({_KIND[magic]}), got {found} (0x{found:08x}){meaning}")

    dims = magic & 0xFF
    header = 4 + 4 * dims
    if len(content) < header:
        raise broken(f"expected an idx header of {header} bytes, got {len(content)}")
    shape = struct.unpack(f">{dims}I", content[4:header])
    if 0 in shape:
        raise broken(f"expected at least one element, got a header of shape {list(shape)}")
    wanted = header + math.prod(shape)
    if len(content) != wanted:
        side = "truncated" if len(content) < wanted else "too long"
        raise broken(f"{side}: a header of shape {list(shape)} wants {wanted} bytes, got {len(content)}")
    array = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return IdxFile(path, array, hashlib.md5(content, usedforsecurity=False).hexdigest())


def _content(path: Path, broken: Callable[[str], DataError]) -> bytes:
    """The bytes of ``path``, unpacked where its name ends in .gz."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix != ".gz" or not raw:
        return raw
    if raw[:2] != _GZIP_MAGIC:
        raise broken(f"expected gzip data (first bytes 1f8b), got first bytes {raw[:2].hex()}")
    try:
        return gunzip(raw)
    except TooLarge as error:
        raise broken(f"no idx file of such a set: {error}") from error
    except EOFError as error:
        raise broken(f"truncated: the gzip stream ends early after {len(raw)} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise broken(f"corrupt gzip data ({error})") from error
