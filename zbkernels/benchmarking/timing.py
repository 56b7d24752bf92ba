"""Interleaved timing: A B C A B C ..., so that a slow minute of the machine hits everyone alike.

A trap this module avoids: thread pools keep spinning for a while after their work is done and steal the
cores from whoever is timed next (a 5x5 convolution was seen 1.3 times slower for it). Before each sample the
process sleeps, so that every pool goes idle, and the contestant makes one untimed call that wakes its own
pool and brings its own data into the caches.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

LONG = 0.5  # seconds: a call so long needs no warm-up call of its own before each sample


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds per call, one sample a round. ``inner`` calls make one sample."""

    samples: list[float]
    inner: int

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: 0.1 means that a 5% difference says nothing."""
        if len(self.samples) < 4:
            return (max(self.samples) - min(self.samples)) / self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median

    def as_dict(self) -> dict[str, float | int]:
        """What a result file keeps: milliseconds, and how they were taken."""
        return {
            "median_ms": self.median * 1e3,
            "min_ms": min(self.samples) * 1e3,
            "spread": self.spread,
            "rounds": len(self.samples),
            "inner": self.inner,
        }


def interleave(
    calls: dict[str, Callable[[], object]],
    *,
    rounds: int,
    pause: float = 0.2,
    min_sample: float = 0.01,
    clock: Callable[[Callable[[], object], int], float] | None = None,
) -> dict[str, Times]:
    """Time every call once per round, in turn.

    Args:
        calls: name -> a call without arguments, already compiled and warmed up.
        rounds: samples of each.
        pause: seconds of sleep before each sample, for other thread pools to stop spinning.
        min_sample: short calls are repeated inside one sample until it lasts this many seconds.
        clock: ``clock(call, inner) -> seconds per call``; the wall clock by default, see :class:`CudaClock`.

    Returns:
        name -> :class:`Times`, in the given order.
    """
    clock = clock or wall_clock
    once = {name: clock(call, 1) for name, call in calls.items()}
    inner = {
        name: max(1, min(1000, math.ceil(min_sample / max(seconds, 1e-7)))) for name, seconds in once.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()  # a collection inside one contestant's sample would be charged to it alone
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                time.sleep(pause)
                if once[name] < LONG:
                    call()
                samples[name].append(clock(call, inner[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: Times(values, inner[name]) for name, values in samples.items()}


def wall_clock(call: Callable[[], object], inner: int) -> float:
    """Seconds per call of ``inner`` calls in a row, by the monotonic wall clock."""
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner


class CudaClock:
    """Device seconds per call, by events, with the L2 cache flushed before each call.

    The flush (a write larger than any L2) keeps repeated calls over one small buffer from measuring the
    cache, and it runs on the device while the host enqueues the call, so launch overhead is hidden from every
    contestant alike. The median over the ``inner`` calls is returned.
    """

    def __init__(self, flush_bytes: int = 256 << 20) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(flush_bytes // 4, dtype=torch.int32, device="cuda")

    def __call__(self, call: Callable[[], object], inner: int) -> float:
        """Median device seconds of ``inner`` calls."""
        event = self._torch.cuda.Event
        marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(inner)]
        for start, stop in marks:
            self._flush.zero_()
            start.record()
            call()
            stop.record()
        self._torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(stop) for start, stop in marks) * 1e-3


def best(times: dict[str, Times], names: Sequence[str]) -> str | None:
    """The name with the smallest median among ``names`` that were timed; None where none was."""
    timed = [name for name in names if name in times]
    return min(timed, key=lambda name: times[name].median) if timed else None
