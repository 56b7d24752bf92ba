"""What the checks ask of a device beyond tensors: streams, graphs, waiting, room. And a stand-in on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Tensors = tuple[torch.Tensor, ...]


class Card:
    """The CUDA device."""

    device = "cuda"
    elsewhere = "cpu"  # a device that the ops refuse beside this one

    def devices(self) -> list[str]:
        """All cards, this one first."""
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    def current(self) -> str:
        """The card that is current in this thread."""
        return f"cuda:{torch.cuda.current_device()}"

    def sized(self, real: T, small: T) -> T:
        """``real``: the size at which kernels break; a rehearsal takes the small one."""
        return real

    def need(self, gib: float) -> None:
        """Give the caches back and see whether so much memory is free.

        Raises:
            Skip: it is not.
        """
        from gpu.rows import Skip

        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] / 2**30
        if free < gib:
            raise Skip(f"needs {gib:.0f} GiB of memory, {free:.1f} are free")

    def wait(self) -> None:
        """Until everything has been done; an error of a kernel shows here at the latest."""
        torch.cuda.synchronize()

    def busy(self, seconds: float) -> None:
        """Occupy the current stream for about so long."""
        torch.cuda._sleep(int(seconds * 1.5e9))  # cycles

    def is_busy(self) -> bool:
        """Whether the current stream has work left."""
        return not torch.cuda.current_stream().query()

    def new_stream(self) -> Any:
        """A stream that begins after what the current one holds."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        return stream

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """The block's work goes to the stream."""
        return torch.cuda.stream(stream)

    @contextlib.contextmanager
    def no_waiting(self) -> Iterator[None]:
        """torch raises where one of its operations makes the host wait for the device."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def capture(self, call: Callable[[], Tensors]) -> tuple[Callable[[], Any], Tensors]:
        """(replay, the tensors that each replay fills) of a call captured into a CUDA graph."""
        with self.on(self.new_stream()):
            for _ in range(3):  # libraries make their workspaces at the first calls
                call()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = call()
        return graph.replay, results


class Rehearsal(Card):
    """The same calls on the CPU: everything but the device's own behaviour."""

    device = "cpu"
    elsewhere = "meta"
    _busy = False

    def devices(self) -> list[str]:
        return ["cpu", "cpu"]

    def current(self) -> str:
        return "cpu"

    def sized(self, real: T, small: T) -> T:
        return small

    def need(self, gib: float) -> None:
        return None

    def wait(self) -> None:
        self._busy = False

    def busy(self, seconds: float) -> None:
        self._busy = True

    def is_busy(self) -> bool:
        return self._busy

    def new_stream(self) -> Any:
        return None

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def no_waiting(self) -> Iterator[None]:
        yield

    def capture(self, call: Callable[[], Tensors]) -> tuple[Callable[[], Any], Tensors]:
        results = call()

        def replay() -> None:
            for result, again in zip(results, call(), strict=True):
                result.copy_(again)

        return replay, results
