"""Contestants and reference of what is done with packed patterns: distances, nearest rows, frequencies."""

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


class PatternProblem:
    """Inputs, reference and contestants of one :class:`PatternCase`. Everything here is exact: no tolerance."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: PatternCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)

        def draw(rows: int) -> torch.Tensor:
            return zb.nap_pack(torch.rand(rows, case.f, generator=seed, device=device) - 0.5)

        self.inputs = (draw(case.n),) if case.mode == "frequency" else (draw(case.n), draw(case.m))
        self.expected = _as_list(self._plain()(*self.inputs))

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
            found.append(Contestant("numpy", self._numpy, outputs=_from_numpy))
            if self.case.mode == "topk":
                # Among equal distances it returns other rows, so its distances alone are checked.
                found.append(Contestant("faiss", self._faiss, outputs=_distances_of_faiss))
        found.append(Contestant("eager", lambda: self._call(plain)))
        found.append(Contestant("compile", lambda: self._call(engines.compiled(plain, self.device))))
        return found

    def _ours(self) -> Callable[..., Any]:
        k, f = self.case.k, self.case.f
        functions: dict[str, Callable[..., Any]] = {
            "hamming": zb.nap_hamming,
            "topk": lambda q, db: zb.nap_topk(q, db, k),
            "frequency": lambda sig: zb.nap_frequency(sig, f),
        }
        return functions[self.case.mode]

    def _plain(self) -> Callable[..., Any]:
        k, f = self.case.k, self.case.f
        functions: dict[str, Callable[..., Any]] = {
            "hamming": torch_hamming,
            "topk": lambda q, db: torch_topk(q, db, k),
            "frequency": lambda sig: torch_frequency(sig, f),
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
        a, b = arrays

        def distances() -> Any:
            return np.stack([np.bitwise_count(row ^ b).sum(1, dtype=np.int32) for row in a])

        def nearest() -> Any:
            rows, k = len(b), self.case.k
            keys = distances().astype(np.int64) * rows + np.arange(rows)
            best = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
            return (best // rows).astype(np.int32), best % rows

        return nearest if self.case.mode == "topk" else distances

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


def _from_numpy(result: Any) -> list[torch.Tensor]:
    arrays = result if isinstance(result, tuple) else (result,)
    return [torch.from_numpy(array) for array in arrays]


def _distances_of_faiss(result: Any) -> list[Any]:
    return [torch.from_numpy(result[0]), None]
