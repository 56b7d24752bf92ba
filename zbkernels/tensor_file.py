"""Tensors in safetensors files that carry a checksum: a flipped bit is told and never computed with."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from zbkernels.files import replacing, resembles

_CHECKSUM = "crc32"


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write dense tensors, from any device, and ``metadata`` to ``path``, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    # safetensors stores dense row-major data only.
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    given = dict(metadata or {})
    with replacing(path) as temporary:
        try:
            save_file(stored, temporary, metadata={**given, _CHECKSUM: _crc32(stored, given)})
        except SafetensorError as error:  # a full disk, for one
            raise OSError(f"{path}: cannot be written ({error})") from error


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors by name, metadata) of a safetensors file. One without a checksum, of another writer, is taken as it is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or its content is not what was written; the message does not name the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dictionary
        expected = metadata.pop(_CHECKSUM, None)
        found = None if expected is None else _crc32(tensors, metadata)
    except OSError:
        raise
    except Exception as error:  # a broken file fails in any way
        raise ValueError(str(error) or type(error).__name__) from error
    if expected is None and any(resembles(key, _CHECKSUM) for key in metadata):
        raise ValueError("the name of its checksum has changed: the file is damaged")
    if found != expected:
        raise ValueError(f"expected the checksum {str(expected)[:20]}, got {found}: the file is damaged")
    return tensors, metadata


def _crc32(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    crc = zlib.crc32(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
