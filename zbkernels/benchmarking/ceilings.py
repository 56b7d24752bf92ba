"""What this machine can do, measured in the same run: the peaks of its products, the bandwidth, how fast it counts
bits.

On a card the float32 product runs on the ordinary units (TF32 is off), those of float16 and bfloat16 on the
tensor cores; ``tf32`` is the float32 product with TF32 allowed, for comparison: no row is held to it.

A row's *floor* is the largest of (operations / FMA peak), (least bytes / bandwidth) and (words whose bits are counted /
their rate on the CPU, in the first cache); its ``of_ceiling`` is
floor / time. A data sheet's figures are not used: a shared or throttled machine does not reach them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

from zbkernels import _loader
from zbkernels.benchmarking.timing import CudaClock, wall_clock


@dataclasses.dataclass
class Ceilings:
    """Peak operations per second by dtype, and the best bytes per second of those in ``bandwidth``."""

    flops: dict[str, float]
    bytes_per_second: float
    how: dict[str, str]
    bandwidth: dict[str, float] = dataclasses.field(default_factory=dict)  # of sum, amax and copy
    popcounts: float = 0.0  # words of 64 bits a second; 0 where it was not measured

    def floor(self, flops: int, least_bytes: int, dtype: str, counted: int = 0) -> tuple[float, str]:
        """Seconds no plain implementation goes under, and which ceiling sets them (``fma``, ``bytes`` or ``popcount``).

        ``counted`` words must have their bits counted.

        Half precision on a CPU may be computed in float32 inside the kernel, so the faster of the two peaks
        counts there.
        """
        peak = max(self.flops[dtype], self.flops["float32"]) if flops else 1.0
        arithmetic, traffic = flops / peak, least_bytes / self.bytes_per_second
        counting = counted / self.popcounts if self.popcounts else 0.0
        if counting > max(arithmetic, traffic):
            return counting, "popcount"
        return (arithmetic, "fma") if arithmetic >= traffic else (traffic, "bytes")

    def merge(self, other: Ceilings) -> None:
        """Keep the better of two measurements: a ceiling is the best the machine was seen to do."""
        for dtype, value in other.flops.items():
            if value > self.flops.get(dtype, 0.0):
                self.flops[dtype], self.how[f"fma {dtype}"] = value, other.how[f"fma {dtype}"]
        if other.bytes_per_second > self.bytes_per_second:
            self.bytes_per_second, self.how["bytes"] = other.bytes_per_second, other.how["bytes"]
        for name, rate in other.bandwidth.items():
            self.bandwidth[name] = max(rate, self.bandwidth.get(name, 0.0))
        self.popcounts = max(self.popcounts, other.popcounts)


def measure(dtypes: Iterable[str], device: str = "cpu", *, seconds: float = 2.0) -> Ceilings:
    """Measure the ceilings of ``device`` at torch's current thread count.

    FMA peak: the best of two square ``torch.mm`` (float32 without TF32 on CUDA). Bandwidth: the best of
    ``sum``, ``amax`` and a copy (bytes read plus written) over a buffer far larger than the caches.
    ``seconds`` is roughly what each figure may cost. A card's figures are always those of all its dtypes.
    """
    import torch

    cuda = device.startswith("cuda")
    clock = CudaClock() if cuda else None
    flops, how = {}, {}
    for dtype in dict.fromkeys(["float32", *(("float16", "bfloat16", "tf32") if cuda else ()), *dtypes]):
        best = 0.0
        sizes = (4096, 8192) if cuda else (1024, 2048)
        for size in sizes:
            kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
            a = torch.randn(size, size, device=device).to(kind)
            b = torch.randn(size, size, device=device).to(kind)
            out = torch.empty_like(a)
            product = functools.partial(torch.mm, a, b, out=out)
            with _tf32(dtype == "tf32"):
                rate = _best_rate(product, 2 * size**3, clock, seconds / 2)
            if rate > best:
                best, how[f"fma {dtype}"] = rate, f"torch.mm of {size}x{size}"
            if rate < 2e10 and not cuda:
                break  # a slow emulated dtype: the larger size would cost seconds and say nothing new
        flops[dtype] = best
    buffer = torch.ones((1 << 30 if cuda else 256 << 20) // 4, device=device)
    target = torch.empty_like(buffer)
    nbytes = buffer.numel() * 4
    rates = {
        "sum": _best_rate(buffer.sum, nbytes, clock, seconds / 3),
        "amax": _best_rate(buffer.amax, nbytes, clock, seconds / 3),
        "copy": _best_rate(functools.partial(target.copy_, buffer), 2 * nbytes, clock, seconds / 3),
    }
    name = max(rates, key=rates.__getitem__)
    how["bytes"] = f"torch {name} of {nbytes >> 20} MiB"
    popcounts = 0.0
    if not cuda and _loader.count_bits(1):
        repeats = 2000
        popcounts = _best_rate(
            lambda: _loader.count_bits(repeats), _loader.count_bits(repeats), clock, seconds / 3
        )
    return Ceilings(flops, rates[name], how, rates, popcounts)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """float32 products of the block with or without TF32."""
    import torch

    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def _best_rate(
    call: Callable[[], object], work: float, clock: Callable[[Callable, int], float] | None, seconds: float
) -> float:
    """Work per second of the fastest sample (a ceiling is the best seen, not the median)."""
    clock = clock or wall_clock
    call()
    rounds = max(3, min(30, int(seconds / max(clock(call, 1), 1e-4))))
    return work / min(clock(call, 1) for _ in range(rounds))
