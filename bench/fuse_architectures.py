"""What ``zb.fuse(model, x)`` gains on well-known networks in plain torch code: forward and a training step.

    python bench/fuse_architectures.py                writes bench/results/fuse-architectures.md
    python bench/fuse_architectures.py VGG 'MLP'      prints the rows of these networks

The networks are those of python_tests/plain_architectures.py at their usual width, without biases and batch norms (in
their usual form nearly nothing can be fused). One copy stays plain; another is fused by what ``fuse`` measures on the
batch, once in ``eval()`` and once in ``train()``. Both get the same batches, in turn.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zbkernels as zb
from zbkernels.benchmarking.machine import cpu_name
from zbkernels.benchmarking.timing import interleave
from zbkernels.files import write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python_tests"))
from plain_architectures import ARCHITECTURES, Architecture  # noqa: E402

TABLE = ROOT / "bench/results/fuse-architectures.md"
HEADER = """# fuse on well-known networks

Milliseconds (medians of {rounds} interleaved rounds) of the networks of `python_tests/plain_architectures.py` at their
usual width, without biases and batch norms, float32: as they are written, and after `zb.fuse(model, x)`, which fuses
only what it measured to be faster on the batch. gain: plain over fused; above 1 the fused model is faster. chains: how
many of those found were fused. A training step is forward, the outputs' sum, backward and SGD. spread: the larger
interquartile range of the two over its median; a gain within it says nothing. {threads} threads, torch {torch}, {cpu}.
Load average {load} when it was done. `python bench/fuse_architectures.py` writes this file.

"""
COLUMNS = ["network", "batch", *["chains", "plain", "fused", "gain", "spread"] * 2]


def forward(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        model(*inputs)


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Tensor, ...]) -> None:
    optimizer.zero_grad()
    total(model(*inputs)).backward()
    optimizer.step()


def total(value: Any) -> Tensor:
    """The sum of all that a forward returned."""
    if isinstance(value, Tensor):
        return value.sum()
    values = value.values() if isinstance(value, dict) else value
    return sum((total(each) for each in values), torch.zeros(()))


def call(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    if not model.training:
        return functools.partial(forward, model, inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)  # both keep their weights but for roundings
    return functools.partial(training_step, model, optimizer, inputs)


def cells(model: nn.Module, inputs: tuple[Tensor, ...], rounds: int) -> list[str]:
    """chains, plain, fused, gain and spread, in the mode that the model is in."""
    fused = copy.deepcopy(model)
    found = len(zb.fuse(fused, when="always").fused)
    taken = len(zb.fuse(fused, inputs).fused)
    contestants = {"plain": call(model, inputs), "fused": call(fused, inputs)}
    for each in contestants.values():
        each()
    times = interleave(contestants, rounds=rounds)
    plain, ours = times["plain"], times["fused"]
    gain = f"{plain.median / ours.median:.2f}" if taken else "-"
    spread = f"{100 * max(plain.spread, ours.spread):.0f}%"
    return [f"{taken} of {found}", f"{plain.median * 1e3:.3g}", f"{ours.median * 1e3:.3g}", gain, spread]


def row(name: str, each: Architecture, rounds: int) -> list[str]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lazy layers are new
        model = each.usual(bias=False)
    inputs = each.usual_inputs()
    shape = "x".join(map(str, each.usual_shape))
    batch = f"{each.inputs} of {shape}" if each.inputs > 1 else shape
    return [name, batch, *cells(model.eval(), inputs, rounds), *cells(model.train(), inputs, rounds)]


def table(names: Sequence[str], rounds: int) -> str:
    lines = [COLUMNS, ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2)]
    lines[0] = [title + (", train" if place > 6 else "") for place, title in enumerate(COLUMNS)]
    for name in names:
        lines.append(row(name, ARCHITECTURES[name], rounds))
        print(" | ".join(lines[-1]), file=sys.stderr)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=", ".join(ARCHITECTURES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in ARCHITECTURES]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(ARCHITECTURES)}")
    torch.set_num_threads(chosen.threads)
    rows = table(chosen.names or list(ARCHITECTURES), chosen.rounds)
    if chosen.names:
        print(rows)
        return 0
    told = {"rounds": chosen.rounds, "threads": chosen.threads, "torch": torch.__version__, "cpu": cpu_name()}
    write_text(TABLE, HEADER.format(**told, load=f"{os.getloadavg()[0]:.1f}") + rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
