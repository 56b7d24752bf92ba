"""NumPy's files, read in memory that their own size bounds: a header may claim any shape, a few kilobytes any zeros."""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

_UNPACKED = 1 << 28  # bytes that may be packed into however few
_RATIO = 20  # of what unpacks to more, to what the file holds


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The array of a ``.npy`` file under the name "images", or those of a ``.npz`` file by their names.

    Raises:
        OSError, ValueError, EOFError, zipfile.BadZipFile, and what else a broken archive may cause: the file cannot be
            read, is no such file, holds Python objects, or fewer bytes than it claims.
    """
    with path.open("rb") as file:
        packed = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        if not packed:
            return {"images": _array(file, os.fstat(file.fileno()).st_size)}
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            whole = sum(member.file_size for member in members)
            held = os.fstat(file.fileno()).st_size
            if whole > max(_UNPACKED, _RATIO * held):
                raise ValueError(f"it claims to unpack to {whole:,} bytes, from {held:,}")
            return {
                member.filename.removesuffix(".npy"): _array(
                    io.BytesIO(archive.read(member)), member.file_size
                )
                for member in members
            }


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """One array, of whose shape the header must say no more than ``size`` bytes hold."""
    start = file.tell()
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {'.'.join(map(str, version))}")
    shape, _, dtype = read_header(file)
    if any(each < 0 for each in shape):
        raise ValueError(f"expected a shape, got {shape}")
    wanted = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and wanted > size - (file.tell() - start):
        raise ValueError(
            f"its header of shape {list(shape)} wants {wanted:,} bytes, got {size - file.tell() + start:,}"
        )
    file.seek(start)
    return np.lib.format.read_array(file, allow_pickle=False)
