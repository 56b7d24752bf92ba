"""Unpacks gzip data in bounded memory: a few kilobytes may stand for any number of zeros."""

from __future__ import annotations

import gzip
import io

MOST = 1 << 30  # bytes; the largest file of the sets that are read here unpacks to 0.55 GB (EMNIST's images)


class TooLarge(ValueError):
    """The data unpack to more than is taken."""


def gunzip(raw: bytes, most: int = MOST) -> bytes:
    """
    Raises:
        TooLarge: there are more than ``most`` bytes.
        EOFError: the stream ends early.
        gzip.BadGzipFile, zlib.error: it is corrupt.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise TooLarge(f"it unpacks to more than {most:,} bytes")
    return content
