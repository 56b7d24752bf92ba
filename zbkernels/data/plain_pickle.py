"""Reads a pickle of plain values and numpy arrays, and runs none of the code that a pickle may ask for.

CIFAR's files are pickles of Python 2: a dict of strings, lists, integers and arrays of bytes. Unpickling as such may
call any function; here the few names that those files hold stand for the small classes below, which keep what they are
given, and any other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np


class PickleError(Exception):
    """The content is not such a pickle; the message says why."""


def loads(content: bytes) -> Any:
    """The value of a pickle of dicts, lists, tuples, numbers, strings and uint8 arrays.

    Byte strings of Python 2 become text, byte for byte (latin-1).

    Raises:
        PickleError: it is cut off or corrupt, names anything else, or holds an array of other than unsigned bytes.
    """
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding="latin1").load())
    except PickleError:
        raise
    except Exception as error:  # a broken pickle can fail in any way
        raise PickleError(f"not a whole pickle ({error or type(error).__name__})") from error


class _DType:
    """Stands for numpy.dtype."""

    def __init__(self, code: str, align: int = 0, copy: int = 0) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields: of no account for bytes."""


class _Array:
    """Stands for numpy.ndarray, and for the function that makes an empty one."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _DType) or dtype.code != "u1":
            raise PickleError(f"expected an array of uint8, got {getattr(dtype, 'code', dtype)!r}")
        raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
        if len(raw) != math.prod(shape):
            raise PickleError(f"expected {math.prod(shape)} bytes in an array {list(shape)}, got {len(raw)}")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1:
    """Stands for codecs.encode, by which Python 3 writes bytes into pickles of protocol 2. As a class: a pickle could
    set attributes of a function."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding not in ("latin1", "latin-1"):
            raise PickleError(f"expected bytes as latin-1, got {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Never reached: there are no instances."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise PickleError(f"it asks for {module}.{name}, which no such file needs")
        return _KNOWN[module, name]


def _plain(value: Any) -> Any:
    """``value`` with arrays in place of what stood for them."""
    if isinstance(value, _Array):
        if value.array is None:
            raise PickleError("an array without content")
        return value.array
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(entry) for entry in value)
    return value
