"""Contestants and reference of packing and unpacking activation patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import NapCase
from zbkernels.benchmarking.check import equal
from zbkernels.benchmarking.contestants import Contestant


def torch_pack(x: torch.Tensor) -> torch.Tensor:
    """int64 [N, ceil(F/64)] of x [N, ...]: bit j of word k is ``x[n, 64k+j] > 0``; plain torch operations."""
    on = (x > 0).flatten(1)
    words = (on.shape[1] + 63) // 64
    on = torch.nn.functional.pad(on, (0, words * 64 - on.shape[1]))
    bits = torch.arange(64, device=x.device)
    return (on.view(-1, words, 64).long() << bits).sum(-1)  # [N, words]; the bits are disjoint: sum is or


def torch_unpack(signature: torch.Tensor, f: int) -> torch.Tensor:
    """bool [N, f] of int64 [N, ceil(f/64)]; plain torch operations."""
    bits = torch.arange(64, device=signature.device)
    return ((signature.unsqueeze(-1) >> bits) & 1).bool().flatten(1)[:, :f]


class NapProblem:
    """Inputs, reference and contestants of one :class:`NapCase`. Everything here is exact: no tolerance."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: NapCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)
        values = torch.randn(case.n, case.f, generator=seed, device=device)
        if case.mode == "pack":
            self.x = values.to(getattr(torch, case.dtype))
            self.expected = reference_pack(self.x)
        else:
            self.expected = values > 0
            self.x = reference_pack(self.expected)

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """0, or:

        Raises:
            Wrong: a shape, dtype or value differs.
        """
        (out,) = outputs
        equal(out, self.expected)
        return 0.0

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors."""
        case = self.case
        pack = case.mode == "pack"
        plain = torch_pack if pack else (lambda sig: torch_unpack(sig, case.f))
        found = [Contestant("ours", lambda: self._call(self._ours), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        else:
            found.append(Contestant("numpy", self._numpy, outputs=lambda array: [self._from_numpy(array)]))
        found.append(Contestant("eager", lambda: self._call(plain)))
        found.append(Contestant("compile", lambda: self._call(self._compiled(plain))))
        return found

    def _call(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        function = engines.per_call(function, self.device)

        def call() -> torch.Tensor:
            with torch.inference_mode():
                return function(self.x)

        return call

    def _compiled(self, function: Callable) -> Callable:
        return engines.compiled(function, self.device)

    def _ours(self, value: torch.Tensor) -> torch.Tensor:
        return zb.nap_pack(value) if self.case.mode == "pack" else zb.nap_unpack(value, self.case.f)

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""

        def on_backend(value: torch.Tensor) -> torch.Tensor:
            with zb.use_backend(backend):
                return self._ours(value)

        return Contestant(f"ours ({backend})", lambda: self._call(on_backend), ours=True)

    def _numpy(self) -> Callable[[], Any]:
        try:
            import numpy as np
        except ImportError:
            raise engines.Absent("not installed") from None
        engines.numpy_dtype(self.case.dtype)
        array = self.x.numpy()
        if self.case.mode == "pack":
            return lambda: np.packbits(array > 0, axis=1, bitorder="little")
        octets, f = array.view(np.uint8), self.case.f
        return lambda: np.unpackbits(octets, axis=1, count=f, bitorder="little").view(bool)

    def _from_numpy(self, array: Any) -> torch.Tensor:
        if self.case.mode == "unpack":
            return torch.from_numpy(array)
        import numpy as np

        missing = self.expected.shape[1] * 8 - array.shape[1]  # packbits ends at a byte, words at eight
        return torch.from_numpy(np.pad(array, ((0, 0), (0, missing))).view(np.int64))


def reference_pack(x: torch.Tensor) -> torch.Tensor:
    """:func:`torch_pack`'s result by NumPy's ``packbits``, so that it stands on its own where NumPy is there."""
    try:
        import numpy as np
    except ImportError:
        return torch_pack(x.cpu()).to(x.device)
    octets = np.packbits((x > 0).cpu().numpy(), axis=1, bitorder="little")
    missing = -octets.shape[1] % 8
    return torch.from_numpy(np.pad(octets, ((0, 0), (0, missing))).view(np.int64)).to(x.device)
