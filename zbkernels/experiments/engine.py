"""Where a sweep's independent units run: in this process, one after another, or on Ray's workers.

A unit's result does not depend on where it ran. Workers write into the run's own folder where they see it (one machine,
or a shared file system) and send the result back in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from zbkernels.experiments.base import RunContext

IN_PROCESS, RAY = "in-process", "ray"
ENGINES = (IN_PROCESS, RAY)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Engine:
    """``--engine`` and ``--address``: of a Ray cluster; None starts Ray on this machine, with a worker a core."""

    name: str = IN_PROCESS
    address: str | None = None

    def map(
        self,
        context: RunContext,
        work: Callable[[RunContext, Item], dict[str, Any]],
        items: Sequence[Item],
    ) -> Iterator[tuple[Item, dict[str, Any]]]:
        """Each item with ``work(context, item)``: in order here, as they end with Ray.

        Args:
            work: a function of a module, for Ray to find it by name. On a worker, what it says of its progress is
                not shown.

        Raises:
            ExperimentError: Ray is not installed or does not start, no cluster answers at the address, or a worker was
                killed, again and again.
            Whatever ``work`` raises.
        """
        if self.name == IN_PROCESS:
            for item in items:
                yield item, work(context, item)
        else:
            yield from self._on_ray(context, work, items)

    def _on_ray(
        self,
        context: RunContext,
        work: Callable[[RunContext, Item], dict[str, Any]],
        items: Sequence[Item],
    ) -> Iterator[tuple[Item, dict[str, Any]]]:
        from zbkernels.experiments.base import ExperimentError

        try:
            import ray
        except ModuleNotFoundError as error:
            raise ExperimentError(
                "--engine ray: ray is not installed: pip install 'zbkernels[ray]'"
            ) from error
        own = not ray.is_initialized()
        try:
            if own:
                ray.init(
                    address=self.address,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except Exception as error:  # of no class of its own where Ray's processes don't answer in time
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            what = "Ray did not start" if self.address is None else f"no cluster at {self.address}"
            raise ExperimentError(f"--engine ray: {what}: {reason}") from error
        try:
            cuda = context.device.type == "cuda"
            there = ray.remote(num_cpus=1, num_gpus=1 if cuda else 0)(_on_worker)
            # A Progress holds a terminal, which stays here; a worker's CUDA device is the one it sees.
            alone = replace(context, progress=None, engine=Engine())  # type: ignore[arg-type]
            given = ray.put(alone)
            pending = {there.remote(given, work, item): item for item in items}
            while pending:
                done, _ = ray.wait(list(pending), num_returns=1)
                item = pending.pop(done[0])
                try:
                    yield item, ray.get(done[0])
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except (
                    ray.exceptions.RayError
                ) as error:  # its worker was killed, more often than Ray tries again
                    reason = str(error).strip().splitlines()[0]
                    raise ExperimentError(
                        f"--engine ray: the worker of {item} has ended ({reason}); what is finished is kept, and the "
                        "same command goes on from there"
                    ) from error
        finally:
            if own:
                ray.shutdown()


def _on_worker(
    context: RunContext, work: Callable[[RunContext, Any], dict[str, Any]], item: Any
) -> dict[str, Any]:
    import torch

    from zbkernels.console import Console
    from zbkernels.experiments.progress import Progress

    quiet = Progress(Console(quiet=True))
    device = torch.device(context.device.type)
    return work(replace(context, progress=quiet, device=device), item)
