"""Contestants and reference of what is done with packed patterns: distances, nearest rows, frequencies, groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import PatternCase
from zbkernels.benchmarking.check import equal
from zbkernels.benchmarking.contestants import Contestant


def bits_of(sig: torch.Tensor) -> torch.Tensor:
    """uint8 [N, 64 W] of int64 [N, W], the lowest bit of a word first (on a little-endian machine)."""
    places = torch.arange(8, dtype=torch.uint8, device=sig.device)
    return ((sig.view(torch.uint8).unsqueeze(-1) >> places) & 1).flatten(1)


def torch_hamming(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int32 [N, M] by a matrix product of the bits, exact in float32: |a| + |b| - 2 a·b; plain torch operations."""
    x, y = bits_of(a).float(), bits_of(b).float()
    return (x.sum(1, keepdim=True) + y.sum(1) - 2 * (x @ y.t())).int()


def torch_topk(q: torch.Tensor, db: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k nearest rows, ties by the lower row (torch.topk alone leaves that open); plain torch operations."""
    rows = db.shape[0]
    keys = torch_hamming(q, db).long() * rows + torch.arange(rows, device=q.device)
    best = keys.topk(k, largest=False).values
    return (best // rows).int(), best % rows


def torch_frequency(sig: torch.Tensor, units: int) -> torch.Tensor:
    """int64 [units]: in how many rows each is on; plain torch operations."""
    return bits_of(sig).sum(0)[:units]


def torch_mix(x: torch.Tensor) -> torch.Tensor:
    """The mixer of nap_hash in plain torch operations; int64 arithmetic wraps, its shifts bring in the sign."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return x ^ ((x >> 31) & (2**33 - 1))


def torch_hash(sig: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2]; plain torch operations."""
    golden = 0x9E3779B97F4A7C15 - 2**64
    s = torch_mix(sig + torch.arange(1, sig.shape[1] + 1, device=sig.device) * golden)
    a = s.sum(1) + sig.shape[1]
    b = torch_mix(((s & (2**32 - 1)) * ((s >> 32) & (2**32 - 1))).sum(1) + golden + a)
    return torch.stack([torch_mix(a + b), b], 1)


def torch_group(sig: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, first rows, counts) by torch.unique, which sorts, and a renumbering by first appearance."""
    return by_first_appearance(*torch.unique(sig, dim=0, return_inverse=True, return_counts=True)[1:])


def by_first_appearance(
    ids: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups numbered in any order -> (ids, first rows, counts) in the order in which they appear."""
    rows = torch.arange(len(ids), device=ids.device)
    first = torch.full_like(counts, len(ids)).scatter_reduce_(0, ids, rows, "amin")
    first, order = first.sort()
    number = torch.empty_like(order)
    number[order] = rows[: len(order)]
    return number[ids], first, counts[order]


class PatternProblem:
    """Inputs, reference and contestants of one :class:`PatternCase`. Everything here is exact: no tolerance."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: PatternCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)

        def draw(rows: int) -> torch.Tensor:
            return zb.nap_pack(torch.rand(rows, case.f, generator=seed, device=device) - 0.5)

        self.inputs: tuple[torch.Tensor, ...]
        if case.mode == "group":
            self.inputs = (draw(case.m)[self._kinds(seed)],)
        elif case.mode in ("frequency", "hash"):
            self.inputs = (draw(case.n),)
        else:
            self.inputs = (draw(case.n), draw(case.m))
        self.expected = _as_list(self._plain()(*self.inputs))

    def _kinds(self, seed: torch.Generator) -> torch.Tensor:
        """Of which of the m kinds each of the n rows is: every one where there are as many."""
        n, m = self.case.n, self.case.m
        if n == m:
            return torch.randperm(n, generator=seed, device=self.device)
        return torch.randint(m, (n,), generator=seed, device=self.device)

    def error(self, outputs: Sequence[torch.Tensor | None]) -> float:
        """0, or:

        Raises:
            Wrong: a shape, dtype or value differs (None stands for an output that a contestant leaves open).
        """
        for out, want in zip(outputs, self.expected, strict=True):
            if out is not None:
                equal(out, want)
        return 0.0

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors."""
        ours, plain = self._ours(), self._plain()
        found = [Contestant("ours", lambda: self._call(ours), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        else:
            found.append(Contestant("numpy", self._numpy, outputs=self._from_numpy))
            if self.case.mode == "topk":
                # Among equal distances it returns other rows, so its distances alone are checked.
                found.append(Contestant("faiss", self._faiss, outputs=_distances_of_faiss))
            if self.case.mode == "group":
                found.append(Contestant("pandas", self._pandas, outputs=_ids_of_pandas))
                found.append(Contestant("polars", self._polars, outputs=_counts_of_polars))
        found.append(Contestant("eager", lambda: self._call(plain)))
        if self.case.mode != "group":  # whose result has no size that a compiler could know
            found.append(Contestant("compile", lambda: self._call(engines.compiled(plain, self.device))))
        return found

    def _ours(self) -> Callable[..., Any]:
        k, f = self.case.k, self.case.f
        functions: dict[str, Callable[..., Any]] = {
            "hamming": zb.nap_hamming,
            "topk": lambda q, db: zb.nap_topk(q, db, k),
            "frequency": lambda sig: zb.nap_frequency(sig, f),
            "hash": zb.nap_hash,
            "group": zb.nap_group,
        }
        return functions[self.case.mode]

    def _plain(self) -> Callable[..., Any]:
        k, f = self.case.k, self.case.f
        functions: dict[str, Callable[..., Any]] = {
            "hamming": torch_hamming,
            "topk": lambda q, db: torch_topk(q, db, k),
            "frequency": lambda sig: torch_frequency(sig, f),
            "hash": torch_hash,
            "group": torch_group,
        }
        return functions[self.case.mode]

    def _call(self, function: Callable[..., Any]) -> Callable[[], Any]:
        function = engines.per_call(function, self.device)

        def call() -> Any:
            with torch.inference_mode():
                return function(*self.inputs)

        return call

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""
        function = self._ours()

        def on_backend(*inputs: torch.Tensor) -> Any:
            with zb.use_backend(backend):
                return function(*inputs)

        return Contestant(f"ours ({backend})", lambda: self._call(on_backend), ours=True)

    def _numpy(self) -> Callable[[], Any]:
        import numpy as np

        if not hasattr(np, "bitwise_count"):
            raise engines.Absent("needs numpy 2")
        # bitwise_count of a signed number is that of its absolute value
        arrays = [t.numpy().view(np.uint64) for t in self.inputs]
        if self.case.mode == "frequency":
            octets, f = arrays[0].view(np.uint8), self.case.f
            return lambda: np.unpackbits(octets, axis=1, count=f, bitorder="little").sum(0, dtype=np.int64)
        if self.case.mode == "hash":
            return lambda: _numpy_hash(arrays[0])
        if self.case.mode == "group":
            signed = arrays[0].view(np.int64)
            return lambda: np.unique(signed, axis=0, return_inverse=True, return_counts=True)[1:]
        if self.case.n * self.case.m > 10**8:
            raise engines.Absent("a table of all distances takes gigabytes")
        a, b = arrays

        def distances() -> Any:
            return np.stack([np.bitwise_count(row ^ b).sum(1, dtype=np.int32) for row in a])

        def nearest() -> Any:
            rows, k = len(b), self.case.k
            keys = distances().astype(np.int64) * rows + np.arange(rows)
            best = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
            return (best // rows).astype(np.int32), best % rows

        return nearest if self.case.mode == "topk" else distances

    def _from_numpy(self, result: Any) -> list[torch.Tensor]:
        arrays = result if isinstance(result, tuple) else (result,)
        found = [torch.from_numpy(array) for array in arrays]
        return list(by_first_appearance(*found)) if self.case.mode == "group" else found

    def _pandas(self) -> Callable[[], Any]:
        try:
            import pandas
        except ImportError:
            raise engines.Absent("not installed") from None
        frame = pandas.DataFrame(self.inputs[0].numpy())
        columns = list(frame.columns)
        return lambda: frame.groupby(columns, sort=False).ngroup()

    def _polars(self) -> Callable[[], Any]:
        try:
            import polars
        except ImportError:
            raise engines.Absent("not installed") from None
        # Its threads are as many as the cores, or POLARS_MAX_THREADS, from its import on.
        if self.threads and polars.thread_pool_size() != self.threads:
            raise engines.Absent(f"POLARS_MAX_THREADS={self.threads} must be set for {self.threads} threads")
        words = self.inputs[0].numpy()
        columns = [f"w{i}" for i in range(words.shape[1])]
        frame = polars.DataFrame({name: words[:, i].copy() for i, name in enumerate(columns)})
        return lambda: frame.group_by(columns, maintain_order=True).len()

    def _faiss(self) -> Callable[[], Any]:
        try:
            import faiss
        except ImportError:
            raise engines.Absent("not installed") from None
        faiss.omp_set_num_threads(self.threads)
        q, db = (t.numpy().view("uint8") for t in self.inputs)
        index = faiss.IndexBinaryFlat(8 * q.shape[1])
        index.add(db)  # a copy of the words: no other preparation
        return lambda: index.search(q, self.case.k)


def _as_list(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _numpy_hash(sig: Any) -> Any:
    """uint64 [N, W] -> int64 [N, 2], the same as :func:`torch_hash`."""
    import numpy as np

    def mix(x: Any) -> Any:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    golden = np.uint64(0x9E3779B97F4A7C15)
    s = mix(sig + np.arange(1, sig.shape[1] + 1, dtype=np.uint64) * golden)
    a = s.sum(1, dtype=np.uint64) + np.uint64(sig.shape[1])
    halves = (s & np.uint64(0xFFFFFFFF)) * (s >> np.uint64(32))
    b = mix(halves.sum(1, dtype=np.uint64) + golden + a)
    return np.stack([mix(a + b), b], 1).view(np.int64)


def _ids_of_pandas(result: Any) -> list[Any]:
    return [torch.from_numpy(result.to_numpy().copy()), None, None]


def _counts_of_polars(result: Any) -> list[Any]:
    return [None, None, torch.from_numpy(result["len"].to_numpy().astype("int64"))]


def _distances_of_faiss(result: Any) -> list[Any]:
    return [torch.from_numpy(result[0]), None]
