"""Reads a pickle of plain values and numpy arrays, and runs none of the code that a pickle may ask for.

CIFAR's files are pickles of Python 2: a dict of strings, lists, integers and arrays of bytes. Unpickling as such may
call any function; here the few names that those files hold stand for the small classes below, which keep what they are
given, and any other name is refused. Time and memory of reading are bounded by the file's size, too: a few bytes can
describe nested values that have more parts than can ever be walked through.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np


class PickleError(Exception):
    """The content is not such a pickle; the message says why."""


def loads(content: bytes) -> Any:
    """The value of a pickle of dicts, lists, tuples, numbers, strings and uint8 arrays.

    Byte strings of Python 2 become text, byte for byte (latin-1).

    Raises:
        PickleError: it is cut off or corrupt, names anything else, holds an array of other than unsigned bytes, or is
            built so that reading it would take unbounded time or memory.
    """
    try:
        _check_bounded(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="latin1").load(), {})
    except PickleError:
        raise
    except Exception as error:  # a broken pickle can fail in any way
        raise PickleError(f"not a whole pickle ({error or type(error).__name__})") from error


# What leaves a value on top that may be used again: its hash is not computed part by part, as a tuple's is.
_REUSABLE = re.compile(
    "(EMPTY_|)(LIST|DICT)|(STACK_|)GLOBAL|REDUCE|NEWOBJ|(SHORT_|)BIN(STRING|UNICODE|BYTES)8?|STRING|UNICODE|BYTEARRAY8"
    "|(BIN|)INT[12]?|LONG[14]?|(BIN|)FLOAT|NONE|NEWTRUE|NEWFALSE"
)
_TUPLES = 1000  # hashing goes down nested tuples; a file of CIFAR has a dozen


def _check_bounded(content: bytes) -> None:
    """Refuse what makes unpickling itself slow or large; :func:`_plain` deals with the rest.

    The hash of a tuple that holds another twice, which does so again, and so on takes 2^depth steps, and the place of a
    value in the memo is the size of an array.
    """
    keeps, fetches = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
    reusable: dict[int, bool] = {}
    tuples, before, on_top = 0, "", False  # on_top: whether the value last kept or fetched may be used again
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if name in keeps or name == "MEMOIZE":
            place = len(reusable) if name == "MEMOIZE" else int(argument)  # type: ignore[arg-type]
            if place > count + 1:
                raise PickleError(
                    f"it keeps a value in place {place:,} of its memo, after {count:,} instructions"
                )
            reusable[place] = bool(_REUSABLE.fullmatch(before)) or (before in fetches and on_top)
        elif name in fetches:
            on_top = reusable.get(int(argument), False)  # type: ignore[arg-type]
            if not on_top:
                raise PickleError("it uses a tuple more than once, which no such file does")
        elif name in ("DUP", "FROZENSET", "EMPTY_SET", "ADDITEMS"):
            raise PickleError(f"it uses {name}, which no such file does")
        elif name.startswith(("TUPLE", "EMPTY_TUPLE")):
            tuples += 1
            if tuples > _TUPLES:
                raise PickleError(f"expected at most {_TUPLES:,} tuples, got more")
        if name != "FRAME":  # it says how long what follows is, and may come between a value and its keeping
            before = name


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
        if not isinstance(dtype, _DType) or not isinstance(dtype.code, str) or dtype.code != "u1":
            code = getattr(dtype, "code", None)
            got = (
                repr(code) if isinstance(code, str) else "another type"
            )  # that could be of any length, shown
            raise PickleError(f"expected an array of uint8, got {got}")
        if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
            raise PickleError("expected an array's shape to be a tuple of integers")
        if not isinstance(content, str | bytes):  # of an integer bytes() would make as many zeros
            raise PickleError(f"expected an array's content to be bytes, got {type(content).__name__}")
        raw = content.encode("latin1") if isinstance(content, str) else content
        if len(raw) != math.prod(shape):
            raise PickleError(f"expected {math.prod(shape)} bytes in an array {list(shape)}, got {len(raw)}")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1:
    """Stands for codecs.encode, by which Python 3 writes bytes into pickles of protocol 2. As a class: a pickle could
    set attributes of a function."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if not isinstance(encoding, str) or encoding not in ("latin1", "latin-1"):
            raise PickleError("expected bytes as latin-1, got another encoding")
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


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """``value`` with arrays in place of what stood for them.

    Args:
        done: what came of each container, by its identity: one that is used many times is walked through once.
    """
    if isinstance(value, _Array):
        if value.array is None:
            raise PickleError("an array without content")
        return value.array
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in done:  # the pickle's value holds them all: no identity is used again
        if isinstance(value, dict):
            done[id(value)] = {_plain(key, done): _plain(entry, done) for key, entry in value.items()}
        else:
            done[id(value)] = type(value)(_plain(entry, done) for entry in value)
    return done[id(value)]
