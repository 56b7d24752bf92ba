"""Which libraries load, and which kernel each op takes on the device: one call of each op."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

import zbkernels as zb
from gpu.rows import Task, options, run_tasks
from zbkernels import _loader
from zbkernels.ops._op import OPS, Op


def tasks(device: str) -> list[Task]:
    """A row for each library and for each public op."""
    needed = "_C_cuda" if device.startswith("cuda") else ""
    libraries = [
        Task(name, functools.partial(library, name, required=name == needed)) for name in _loader.libraries()
    ]
    return libraries + [
        Task(op.name, functools.partial(first_call, op, device), 40.0)
        for op in OPS.values()
        if op.public is not None
    ]


def library(name: str, *, required: bool) -> tuple[str, dict[str, Any]]:
    """What became of one library.

    Raises:
        AssertionError: it is required and not loaded.
    """
    state = _loader.libraries()[name]
    assert state.loaded or not required, state.reason
    note = f"not loaded: {state.reason}"
    if state.loaded:
        built = {key: state.build.get(key) for key in ("torch", "nvcc", "cuda_archs")}
        note = "loaded" + "".join(f", {key} {value}" for key, value in built.items() if value)
    return note, {"build": state.build, "loaded": state.loaded}


def first_call(op: Op, device: str) -> tuple[str, dict[str, str]]:
    """The kernel that one call ran, and what is said of the others."""
    assert op.public is not None
    sample = next(iter(op.samples(device, torch.float32)))
    op.public(*sample.args, **sample.kwargs)
    took = zb.last_kernel()
    return took, dict(zb.explain(op.name, *sample.args, **sample.kwargs).verdicts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return options(__doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    return run_tasks(tasks(chosen.device), chosen)


def rehearse() -> str:
    """Everything on a CPU: the rows and what they say."""
    done = [task.do() for task in tasks("cpu")]
    return f"{len(done)} libraries and ops"


if __name__ == "__main__":
    sys.exit(main())
