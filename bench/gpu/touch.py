"""Calls each op at a bench's size, twice: what a profiler watches.

The first row is torch's alone: where a tool refuses the device, not even that one ends.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence

import torch

from gpu.rows import Task, options, run_tasks
from gpu.speed import shrunk
from zbkernels.benchmarking.cases import Case, select
from zbkernels.benchmarking.runner import problem_of

KEYS = (
    ("conv", "forward", "cifar2-b512-f16"),
    ("conv", "forward", "res9-b512"),
    ("conv", "train", "mnist1"),
    ("conv", "train", "cifar2-b512-bf16"),
    ("conv", "nap", "cifar2"),
    ("linear", "nap", "wide"),
    ("nap", "pack", "pack"),
    ("nap", "unpack", "unpack"),
)


def ready(device: str) -> str:
    """One kernel of torch's."""
    return str(float(torch.ones(1, device=device).add_(1)))


def touch(case: Case, device: str) -> str:
    """Ours in channels_last where there is such a form, without checks: a profiler makes each kernel slow."""
    by_name = {each.name: each for each in problem_of(case, device, 1).contestants()}
    call = by_name.get("ours CL", by_name["ours"]).build()
    for _ in range(2):
        call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return "called"


def cases() -> list[Case]:
    """The cases of :data:`KEYS`."""
    by_key = {(case.suite, case.mode, case.name): case for case in select(device="cuda")}
    return [by_key[key] for key in KEYS]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return options(__doc__.splitlines()[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    device = chosen.device
    rows = [Task("ready", functools.partial(ready, device))]
    rows += [
        Task(f"{case.suite} {case.mode} {case.name}", functools.partial(touch, case, device))
        for case in cases()
    ]
    return run_tasks(rows, chosen)


def rehearse() -> str:
    """The same on a CPU, small."""
    ready("cpu")
    return f"{len([touch(shrunk(case), 'cpu') for case in cases()])} calls"


if __name__ == "__main__":
    sys.exit(main())
