"""Contestants and reference of the kernels of infinitely wide networks."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

import zbkernels as zb
from zbkernels.benchmarking import contestants as engines
from zbkernels.benchmarking.cases import DualCase
from zbkernels.benchmarking.check import Wrong, relative_error
from zbkernels.benchmarking.contestants import Absent, Contestant
from zbkernels.infinite import kernels

CHECKED = 256  # rows of the result that are compared with float64: all of 30,000 would take minutes
SIDES = (512, 1024, 2048, 4096)  # of the blocks among which a blocked composite has the best
KEOPS_MOST = 5e7  # inputs x others x features: some seconds a call


class DualProblem:
    """Inputs, reference and contestants of one :class:`DualCase`."""

    documented_error: ClassVar[dict[str, float]] = {}

    def __init__(self, case: DualCase, device: str, threads: int) -> None:
        self.case, self.device, self.threads = case, device, threads
        seed = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=seed, device=device).to(dtype)

        self.x1 = draw(case.n, case.d)
        self.x2 = self.x1 if case.same else draw(case.m, case.d)
        self.v = draw(case.m, case.p)
        self.rows = torch.linspace(0, case.n - 1, min(CHECKED, case.n), device=device).round().long()
        some = self.x1[self.rows].double()
        plain: Callable = kernels.ntk if case.kernel == "ntk" else kernels.nngp
        matrix = plain(some, self.x2.double(), activation=case.activation, depth=case.depth)
        self.expected = matrix if case.mode == "gram" else matrix @ self.v.double()
        # The diagonal is exact here, and not in what others write: sqrt(eps) is their angle of a row and itself.
        self.others = ~(some[:, None, 0] == self.x2[None, :, 0].double()) if case.mode == "gram" else None

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """The relative error of the rows that are checked."""
        (out,) = outputs
        if out.shape[0] != self.case.n:
            raise Wrong(f"{out.shape[0]} rows, expected {self.case.n}")
        got, want = out[self.rows], self.expected
        if self.others is not None:
            if got.shape != want.shape:
                raise Wrong(f"shape {tuple(got.shape)}, expected {tuple(want.shape)}")
            got, want = got[self.others], want[self.others]
        return relative_error(got, want)

    def contestants(self) -> list[Contestant]:
        """Ours first, then the competitors."""
        found = [Contestant("ours", lambda: self._call(self._ours), ours=True)]
        if self.device.startswith("cuda"):
            found += [self.backend(name) for name in ("cuda", "triton")]
        if self.case.mode == "gram":
            found.append(Contestant("eager", lambda: self._call(self._composite)))
            found.append(
                Contestant("compile", lambda: self._call(engines.compiled(self._composite, self.device)))
            )
            return found
        found.append(Contestant("eager", lambda: self._blocked(lambda: self._composite)))
        found.append(
            Contestant(
                "compile", lambda: self._blocked(lambda: engines.compiled(self._composite, self.device))
            )
        )
        found.append(Contestant("keops", self._keops))
        return found

    def _call(self, function: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        function = engines.per_call(function, self.device)

        def call() -> Any:
            with torch.inference_mode():
                return function(self.x1, self.x2)

        return call

    def _ours(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        if self.case.mode == "gram":
            return zb.dual_gram(x1, x2, **self.case.options)
        return zb.dual_matvec(x1, x2, self.v, **self.case.options)

    def backend(self, backend: str) -> Contestant:
        """Ours on one backend by name."""

        def on_backend(x1: torch.Tensor, x2: torch.Tensor) -> Any:
            with zb.use_backend(backend):
                return self._ours(x1, x2)

        return Contestant(f"ours ({backend})", lambda: self._call(on_backend), ours=True)

    @property
    def _composite(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        form = {"relu": relu_ntk, "erf": erf_ntk}.get(self.case.activation)
        if form is None or self.case.kernel != "ntk":
            raise Absent(f"no composite is written of {self.case.activation} {self.case.kernel}")
        return functools.partial(form, depth=self.case.depth)

    def _blocked(self, make: Callable[[], Callable]) -> Callable[[], Any]:
        """The best of several block sizes, found on a few blocks; symmetry is used where there is one."""
        fastest, side = math.inf, 0
        sides = [s for s in SIDES if s <= self.case.n] or [self.case.n]
        for candidate in sides:
            some = min(self.case.n, 2 * max(sides))
            function = make()
            run = functools.partial(
                blocked, function, self.x1[:some], self.x2[:some], self.v[:some], candidate, self.case.same
            )
            with torch.inference_mode():
                run()
                start = time.perf_counter()
                run()
                self._wait()
            spent = time.perf_counter() - start
            if spent < fastest:
                fastest, side = spent, candidate
        function = make()

        def call() -> torch.Tensor:
            with torch.inference_mode():
                return blocked(function, self.x1, self.x2, self.v, side, self.case.same)

        return call

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def _keops(self) -> Callable[[], Any]:
        """The ReLU NTK as a formula of KeOps, which is compiled for it.

        Raises:
            Absent: it is not installed, or the case is another.
        """
        if self.case.activation != "relu" or self.case.kernel != "ntk":
            raise Absent("its formula is written for the ReLU NTK")
        if self.case.n * self.case.m * self.case.d > KEOPS_MOST:
            raise Absent("minutes a call at this size: it writes each layer's formula out once for every use")
        try:
            from pykeops.torch import LazyTensor
        except ImportError:
            raise Absent("not installed") from None
        norms = [(2 / self.case.d * x.square().sum(1)).sqrt() for x in (self.x1, self.x2)]
        xi, ni = LazyTensor(self.x1[:, None, :]), LazyTensor(norms[0][:, None, None])
        yj, nj = (
            LazyTensor(self.x2[None, :, :].contiguous()),
            LazyTensor(norms[1][None, :, None].contiguous()),
        )
        scale = ni * nj
        k = (xi | yj) * (2 / self.case.d)
        t = k
        for _ in range(self.case.depth):
            c = (k / scale).clamp(-1, 1)
            angle = c.acos()
            k = scale * ((1 - c * c).sqrt() + (math.pi - angle) * c) * (1 / math.pi)
            t = k + t * (1 - angle * (1 / math.pi))
        return lambda: t @ self.v


def blocked(
    matrix: Callable, x1: torch.Tensor, x2: torch.Tensor, v: torch.Tensor, side: int, same: bool
) -> torch.Tensor:
    """matrix(x1, x2) @ v by blocks of ``side`` rows and columns; those below the diagonal are not computed twice where
    x2 is the ``same``. Blocks at the edge have shapes of their own."""
    y = v.new_zeros(len(x1), v.shape[1])
    for i in range(0, len(x1), side):
        for j in range(i if same else 0, len(x2), side):
            block = matrix(x1[i : i + side], x2[j : j + side])
            y[i : i + side] += block @ v[j : j + side]
            if same and j > i:
                y[j : j + side] += block.T @ v[i : i + side]
    return y


def relu_ntk(x1: torch.Tensor, x2: torch.Tensor, *, depth: int) -> torch.Tensor:
    """As torch's users write it (w_std = sqrt(2), b_std = 0: the norm stays in every layer)."""
    norms = (2 * x1.square().mean(1)).sqrt()[:, None] * (2 * x2.square().mean(1)).sqrt()
    k = x1 @ x2.T * (2 / x1.shape[1])
    t = k
    for _ in range(depth):
        c = (k / norms).clamp(-1, 1)
        angle = torch.acos(c)
        k = norms * (torch.sqrt(1 - c * c) + (math.pi - angle) * c) / math.pi
        t = k + t * (1 - angle / math.pi)
    return t


def erf_ntk(x1: torch.Tensor, x2: torch.Tensor, *, depth: int) -> torch.Tensor:
    """The same of erf, whose variances change from layer to layer."""
    q1, q2 = (2 * x.square().mean(1) for x in (x1, x2))
    k = x1 @ x2.T * (2 / x1.shape[1])
    t = k
    for _ in range(depth):
        c = 2 * k / torch.sqrt((1 + 2 * q1)[:, None] * (1 + 2 * q2))
        norms = torch.sqrt((1 + 2 * q1)[:, None] * (1 + 2 * q2))
        t = t * (8 / math.pi) / (norms * torch.sqrt(1 - c * c))
        k = (4 / math.pi) * torch.asin(c)
        q1, q2 = ((4 / math.pi) * torch.asin(2 * q / (1 + 2 * q)) for q in (q1, q2))
        t = t + k
    return t
