"""``NapIndex``: the distinct activation patterns of millions of inputs, and what is known of each.

A pattern is the signature of an input (Definition 1 of *Scalar Invariant Networks with Zero Bias*): int64 words as
:func:`zbkernels.nap_pack` makes them. The index keeps each once, in the order of first appearance, and numbers them
in that order. ``csrc/host/nap_index.cpp`` says how it is laid out in memory, ``nap_index_file.cpp`` in a file.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from zbkernels import _loader
from zbkernels.files import replacing
from zbkernels.ops import nap_topk


@dataclass(frozen=True, eq=False)
class Pattern:
    """One pattern of an index.

    ``signature``: int64 [words]; ``count``: of examples; ``first_id``: of the example that had it first; ``label``:
    of most of its examples (of equals the lowest), None in an index without classes.
    """

    signature: torch.Tensor
    count: int
    first_id: int
    label: int | None


class ClassPurity(NamedTuple):
    """For each class, the patterns whose majority label it is: [classes] each.

    ``patterns``: how many; ``examples``: how many examples these have; ``shared``: how many of those are of the
    class; ``purity``: shared / examples in float64, NaN where there is no such pattern.
    """

    patterns: torch.Tensor
    examples: torch.Tensor
    shared: torch.Tensor
    purity: torch.Tensor


class NapIndex:
    """Distinct signatures with counts, first examples and majority labels; grows as a stream comes in.

    Counts, ids and labels are exact. A signature of 512 bits takes at most 1.3 times its 64 bytes with all of these,
    also while the index grows (a pattern with L labels, L > 1, takes L + 1 times 21 to 43 bytes more). Whatever the
    batches, the number of threads (:func:`torch.get_num_threads`) and the merges that made it, an index of the same
    examples in the same order is the same, down to the bytes of its file.

    Threads may insert and ask at the same time: each call sees the index before or after another's, never within. No
    thread of its own outlives a call, so a process may fork between calls.

    Args:
        words: int64 words of a signature, at least 1.
        classes: labels are 0 ... classes - 1, at most 65,534; 0 for examples without labels.
        predictions: keep how often each class was predicted, too.
        example_ids: keep the ids of all examples of each pattern (16 bytes an example, 8 a pattern), not only
            the first.
        start: id of the first example, from which ids are counted where none are given: for a shard, the number
            of examples in the shards before it.

    Raises:
        ValueError: an argument is out of its range, or there are predictions but no classes.
        RuntimeError: the compiled library ``_host`` is missing.
    """

    def __init__(
        self,
        words: int,
        *,
        classes: int = 0,
        predictions: bool = False,
        example_ids: bool = False,
        start: int = 0,
    ) -> None:
        arguments = {"words": words, "classes": classes, "start": start}
        for name, value in arguments.items():
            if not _is_int(value) or not -(2**63) <= value < 2**63:
                raise TypeError(f"NapIndex: expected {name} to be an int of 64 bits, got {value!r}")
        self._index = _library().NapIndex(
            **arguments, predictions=bool(predictions), example_ids=bool(example_ids)
        )

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def words(self) -> int:
        """int64 words of a signature."""
        return self._index.words

    @property
    def classes(self) -> int:
        """The number of classes, 0 where examples have no labels."""
        return self._index.classes

    def __len__(self) -> int:
        """The number of patterns."""
        return len(self._index)

    @property
    def examples(self) -> int:
        """How many examples were inserted."""
        return self._index.examples

    @property
    def nbytes(self) -> int:
        """Bytes in use for patterns and what is known of them, those of a mapped file included."""
        return self._index.bytes

    def __repr__(self) -> str:
        kept = f", {self.classes} classes" if self.classes else ""
        return f"NapIndex({len(self)} patterns of {self.words} words, {self.examples} examples{kept})"

    # --- filling ----------------------------------------------------------------------------------------------

    def insert(
        self, signatures: Any, labels: Any = None, predictions: Any = None, ids: Any = None
    ) -> torch.Tensor:
        """Adds examples.

        Args:
            signatures: int64 [n, words], a tensor on any device or a NumPy array (uint64 too), any strides.
            labels: integers [n] from 0 to classes - 1; needed if the index has classes, refused if not.
            predictions: the same of predicted labels, if the index keeps predictions.
            ids: integers [n] from 0 to 2**48 - 1 that name the examples; None counts on from ``start``.

        Returns:
            int64 [n]: the number of each example's pattern.

        Raises:
            TypeError, ValueError: an argument is not as above; nothing has been inserted then.
        """
        name = "NapIndex.insert"
        rows = _signatures(name, signatures)
        columns = (_integers(name, "labels", labels), _integers(name, "predictions", predictions))
        found = self._index.insert(
            rows, *columns, _integers(name, "ids", ids), threads=torch.get_num_threads()
        )
        return torch.from_numpy(found)

    def merge(self, other: NapIndex) -> NapIndex:
        """Adds what ``other`` holds, as if its examples had been inserted here now, in its order. Returns self.

        So merging the indexes of successive shards, in their order, gives the index of the whole: patterns in
        order of first appearance, first ids of the earliest shard, the rest added up. It is associative. Shards
        need ids of the whole (``start``, or ``ids``) to agree in these as well.

        Raises:
            TypeError: other is no NapIndex.
            ValueError: other has other words, classes or columns, or is this index.
        """
        if not isinstance(other, NapIndex):
            raise TypeError(f"NapIndex.merge: expected a NapIndex, got {type(other).__name__}")
        self._index.merge(other._index, threads=torch.get_num_threads())
        return self

    # --- looking up -------------------------------------------------------------------------------------------

    def find(self, signatures: Any) -> torch.Tensor:
        """The number of each signature's pattern, -1 where the index does not have it.

        Args:
            signatures: int64 [n, words], as for :meth:`insert`.

        Returns:
            int64 [n].
        """
        rows = _signatures("NapIndex.find", signatures)
        return torch.from_numpy(self._index.find(rows, threads=torch.get_num_threads()))

    def __contains__(self, signature: Any) -> bool:
        """Whether the index has a signature, int64 [words]."""
        row = torch.as_tensor(signature)
        if row.dim() != 1:
            raise ValueError(f"NapIndex: `in` takes one signature [{self.words}], got {list(row.shape)}")
        return bool(self.find(row[None]) >= 0)

    def __getitem__(self, pattern: int) -> Pattern:
        """The pattern of a number; negative numbers count from the end."""
        if not _is_int(pattern):
            raise TypeError(f"NapIndex: expected the number of a pattern, got {pattern!r}")
        if not -len(self) <= pattern < len(self):
            raise IndexError(f"NapIndex: expected the number of one of {len(self)} patterns, got {pattern}")
        return self._patterns(np.array([pattern % len(self)]))[0]

    def __iter__(self) -> Iterator[Pattern]:
        """All patterns in the order of first appearance; what is inserted meanwhile comes too."""
        done = 0
        while done < len(self):
            some = self._patterns(np.arange(done, min(done + 1024, len(self))))
            yield from some
            done += len(some)

    def _patterns(self, which: np.ndarray) -> list[Pattern]:
        labels = self._index.labels(which)[0].tolist() if self.classes else [None] * len(which)
        counts, firsts = self._index.counts(which).tolist(), self._index.first_ids(which).tolist()
        rows = torch.from_numpy(self._index.signatures(which))
        return [Pattern(*row) for row in zip(rows, counts, firsts, labels, strict=True)]

    # --- columns: of the patterns asked for, else of all ------------------------------------------------------------

    def signatures(self, patterns: Any = None) -> torch.Tensor:
        """int64 [n, words], a copy."""
        return self._ask("signatures", patterns)

    def counts(self, patterns: Any = None) -> torch.Tensor:
        """How many examples each pattern has, int64 [n]."""
        return self._ask("counts", patterns)

    def first_ids(self, patterns: Any = None) -> torch.Tensor:
        """The id of the example that had the pattern first, int64 [n]."""
        return self._ask("first_ids", patterns)

    def labels(self, patterns: Any = None) -> torch.Tensor:
        """The label of most of the pattern's examples, of equals the lowest, int64 [n]."""
        self._need("labels", self.classes > 0, "classes")
        return self._ask("labels", patterns)[0]

    def predictions(self, patterns: Any = None) -> torch.Tensor:
        """The class predicted for most of the pattern's examples, of equals the lowest, int64 [n]."""
        self._need("predictions", self._index.has_predictions, "predictions")
        return self._ask("predictions", patterns)[0]

    def class_counts(self, patterns: Any = None) -> torch.Tensor:
        """How many of the pattern's examples have each label, int64 [n, classes]."""
        self._need("class_counts", self.classes > 0, "classes")
        return self._ask("class_counts", patterns)

    def prediction_counts(self, patterns: Any = None) -> torch.Tensor:
        """For how many of the pattern's examples each class was predicted, int64 [n, classes]."""
        self._need("prediction_counts", self._index.has_predictions, "predictions")
        return self._ask("prediction_counts", patterns)

    def example_ids(self, pattern: int) -> torch.Tensor:
        """The ids of all examples of one pattern, as they came, int64 [count].

        Raises:
            ValueError: the index does not keep them.
            IndexError: there is no such pattern.
        """
        self._need("example_ids", self._index.has_example_ids, "example_ids")
        return torch.from_numpy(self._index.example_ids(pattern))

    # --- questions about all of it ----------------------------------------------------------------------------------

    def top(self, k: int) -> torch.Tensor:
        """The numbers of the k patterns with most examples, most first, of equals the earlier: int64 [min(k, len)]."""
        if not _is_int(k) or k < 0:
            raise ValueError(f"NapIndex.top: expected an int k >= 0, got {k!r}")
        return torch.from_numpy(self._index.top(min(k, len(self))))

    def purity(self, patterns: Any = None) -> torch.Tensor:
        """The share of a pattern's examples that have its majority label, float64 [n]."""
        self._need("purity", self.classes > 0, "classes")
        which = torch.arange(len(self)) if patterns is None else patterns  # of one moment, whoever inserts
        return self._ask("labels", which)[1] / self._ask("counts", which).to(torch.float64)

    def class_purity(self) -> ClassPurity:
        """How pure the patterns of each class are; see :class:`ClassPurity`."""
        self._need("class_purity", self.classes > 0, "classes")
        every = torch.arange(len(self))
        labels, shared = self._ask("labels", every)
        counts = self._ask("counts", every)
        zeros = torch.zeros(self.classes, dtype=torch.int64)
        patterns = zeros.index_add(0, labels, torch.ones_like(labels))
        examples, own = zeros.index_add(0, labels, counts), zeros.index_add(0, labels, shared)
        return ClassPurity(patterns, examples, own, own / examples.to(torch.float64))

    def rarity(self, signatures: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """How far inputs are from all that was seen: the Hamming distance to the nearest pattern, and which it is.

        0 is a pattern that the index has. What is not in it is searched through :func:`zbkernels.nap_topk`, over the
        signatures where they lie.

        Args:
            signatures: int64 [n, words], as for :meth:`insert`.

        Returns:
            (int32 [n] distances in units, int64 [n] numbers of patterns), of equally near ones the earlier.

        Raises:
            ValueError: the index is empty, or signatures are not as above.
        """
        rows = _signatures("NapIndex.rarity", signatures)
        nearest = torch.from_numpy(self._index.find(rows, threads=torch.get_num_threads()))
        if len(self) == 0:
            raise ValueError("NapIndex.rarity: the index is empty, nothing is near")
        distance = torch.zeros(len(nearest), dtype=torch.int32)
        unknown = (nearest < 0).nonzero()[:, 0]
        if len(unknown) == 0:
            return distance, nearest
        queries = torch.from_numpy(rows.view(np.int64)[unknown.numpy()])
        best = torch.full((len(unknown),), 2**31 - 1, dtype=torch.int32)
        which = torch.zeros(len(unknown), dtype=torch.int64)
        first = 0
        for block in self._index.blocks():
            d, row = nap_topk(queries, torch.from_numpy(block), 1)
            nearer = d[:, 0] < best
            best, which = torch.where(nearer, d[:, 0], best), torch.where(nearer, row[:, 0] + first, which)
            first += len(block)
        distance[unknown], nearest[unknown] = best, which
        return distance, nearest

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the index to a file.

        It is written beside ``path`` under another name, brought to the disk, and renamed: whatever happens in between,
        path is the old file or the new one. A process that is killed meanwhile leaves the other file, ``.<name>-*``.

        Raises:
            OSError: the file cannot be written.
            ValueError: the index was loaded without verifying, and is damaged.
        """
        target = Path(path)
        with replacing(target) as temporary, temporary.open("r+b") as file:
            self._index.save(file.fileno())
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> NapIndex:
        """Maps a saved index into memory: pages are read as they are used, and what is inserted stays in memory.

        The file must not be written to meanwhile; :meth:`save` replaces it as a whole, which is safe.

        Args:
            verify: reads all of the file and compares it with its checksums. False leaves that to :meth:`verify`,
                or to the first insert, merge, save or copy; format, length and header are checked in any case, and
                reading a damaged index gives wrong answers but does nothing else wrong.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no saved index, or of another version of the format, or cut off, or damaged.
        """
        with Path(path).open("rb") as file:
            return cls._of(_library().NapIndex.load(file.fileno(), str(path), verify))

    def verify(self) -> None:
        """Compares the file that was loaded with its checksums, if that was not done before.

        Raises:
            ValueError: a part of it is damaged; the message names it.
        """
        self._index.verify()

    @classmethod
    def _of(cls, index: Any) -> NapIndex:
        made = cls.__new__(cls)
        made._index = index
        return made

    @classmethod
    def _of_bytes(cls, data: bytes) -> NapIndex:
        return cls._of(_library().NapIndex.from_bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies are the bytes of the file."""
        return type(self)._of_bytes, (self._index.to_bytes(),)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _ask(self, column: str, patterns: Any) -> Any:
        found = getattr(self._index, column)(_integers(f"NapIndex.{column}", "patterns", patterns))
        if isinstance(found, tuple):
            return tuple(map(torch.from_numpy, found))
        return torch.from_numpy(found)

    def _need(self, method: str, kept: bool, argument: str) -> None:
        if not kept:
            raise ValueError(f"NapIndex.{method}: this index was made without {argument}")


def _library() -> Any:
    state = _loader.libraries()["_host"]
    if not state.loaded:
        raise RuntimeError(f"NapIndex: _host is not loaded: {state.reason}. Mend: {state.mend}")
    return importlib.import_module("zbkernels._host")


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _array(function: str, name: str, values: Any) -> np.ndarray:
    """A NumPy array in this machine's byte order, dense in memory."""
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.dtype.is_complex:
            raise TypeError(
                f"{function}: expected {name} as a dense tensor, got {values.dtype}, {values.layout}"
            )
        if values.dtype == torch.bfloat16:
            raise TypeError(f"{function}: expected integers as {name}, got torch.bfloat16")
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if not array.dtype.isnative:
        raise TypeError(f"{function}: expected {name} in native byte order, got {array.dtype.str}")
    return np.ascontiguousarray(array) if array.ndim else array


def _signatures(function: str, values: Any) -> np.ndarray:
    array = _array(function, "signatures", values)
    if array.dtype not in (np.int64, np.uint64):
        raise TypeError(f"{function}: expected signatures of int64, got {array.dtype}")
    return array


def _integers(function: str, name: str, values: Any) -> np.ndarray | None:
    if values is None:
        return None
    array = _array(function, name, values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{function}: expected integers as {name}, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise ValueError(f"{function}: expected {name} below 2**63, got {array.max()}")
    return array.astype(np.int64)
