"""Training by several processes, started by ``torchrun --nproc-per-node N -m zbkernels run …``.

Every process (rank) runs the same program. Of each training batch it takes a share, and the gradient is that of the
whole batch; of the test images it takes some batches, and sums are over all. What a rank decides by looking at files,
rank 0 decides for all (:meth:`Team.agree`), and **rank 0 alone writes**: within :func:`joined`, what the other
ranks write by :mod:`zbkernels.files` is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

TIMEOUT = timedelta(minutes=10)  # how long a rank waits for another one before it gives up
_STARTED_BY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets

T = TypeVar("T")


class DistributedError(Exception):
    """The ranks cannot go on together; the message says why."""


@dataclass(frozen=True)
class Team:
    """The processes that train one network. ``Team()`` is one process alone, for which nothing below communicates."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's part of ``count`` things in a row: equal parts, but that the last ranks' may be smaller."""
        each = -(-count // self.size)
        return slice(min(self.rank * each, count), min((self.rank + 1) * each, count))

    def parallel(self, model: nn.Module) -> nn.Module:
        """``model``, with every rank's gradients averaged where there are several. Weights become rank 0's."""
        return nn.parallel.DistributedDataParallel(model) if self.size > 1 else model

    def mean(self, value: Tensor) -> Tensor:
        """Each element's mean over the ranks."""
        return self.sum(value) / self.size

    def sum(self, value: Tensor) -> Tensor:
        """Each element's sum over the ranks."""
        return self._reduced(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        """Each element's maximum over the ranks."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def gather(self, part: Tensor, count: int) -> Tensor:
        """``count`` rows on every rank, of which this one holds those of :meth:`share`."""
        if self.size == 1:
            return part
        each = -(-count // self.size)
        padded = part.new_zeros(each, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[:count]  # only the last parts are padded

    def share_buffers(self, model: nn.Module) -> None:
        """Make every rank's buffers (batch norm's statistics, each of its own share) those of rank 0."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def agree(self, decide: Callable[[], T]) -> T:
        """What ``decide()`` returns on rank 0, which alone calls it. Where it raises there, every rank raises that."""
        if self.size == 1:
            return decide()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = decide()
            except Exception as error:
                answer[1] = error
        dist.broadcast_object_list(answer, 0)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def check_same(self, what: str, value: Any) -> None:
        """Wait for all ranks, and see that each has the same.

        Raises:
            DistributedError: one has another, on every rank.
        """
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise DistributedError(f"rank {rank}: expected {what} as on rank 0, {values[0]}, got {other}")

    def _reduced(self, value: Tensor, how: Any) -> Tensor:
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value, how)
        return value


_team = Team()


def team() -> Team:
    """The team within :func:`joined`; one process alone outside of it."""
    return _team


def launched() -> bool:
    """Whether torchrun (or what sets the same environment) started this process as one of several."""
    return all(name in os.environ for name in _STARTED_BY) and int(os.environ["WORLD_SIZE"]) > 1


def speaks() -> bool:
    """Whether this process is the one that talks to the user."""
    return not launched() or os.environ["RANK"] == "0"


@contextmanager
def joined(device: str) -> Iterator[torch.device]:
    """Be one of the ranks that torchrun started: the process group is made from the environment, and ended after the
    block. Outside of torchrun the block runs as one process.

    Args:
        device: "cpu" (gloo), or "cuda" (nccl), of which each rank takes the card of its local rank.

    Yields:
        this rank's device.

    Raises:
        DistributedError: a card is named, there are fewer cards than ranks, or another rank has ended.
    """
    global _team
    if not launched():
        yield torch.device(device)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = _own_device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        # bound to its card, so that collectives of plain objects need not guess it
        card = own if own.type == "cuda" else None
        dist.init_process_group("nccl" if card else "gloo", timeout=TIMEOUT, device_id=card)
        _team = Team(rank, size)
        yield own
    except RuntimeError as error:
        if not _of_communication(error):
            raise
        raise DistributedError(
            f"rank {rank} of {size}: another rank has ended or does not answer ({str(error).splitlines()[0]}); its own "
            "message says why, and the same command goes on from the last checkpoint"
        ) from error
    finally:
        _team = Team()
    dist.destroy_process_group()  # not after a failure: nccl's would wait for the rank that is gone


def _own_device(device: str) -> torch.device:
    asked, local = torch.device(device), int(os.environ["LOCAL_RANK"])
    if asked.type != "cuda":
        return asked
    if asked.index is not None:
        raise DistributedError(f"expected --device cuda under torchrun, one card for each rank, got {device}")
    if local >= torch.cuda.device_count():
        raise DistributedError(
            f"expected a CUDA device for local rank {local}, got {torch.cuda.device_count()} devices; "
            "start no more processes than there are cards"
        )
    return torch.device("cuda", local)


def _of_communication(error: RuntimeError) -> bool:
    """Whether torch.distributed raised it: gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed" in str(error)
