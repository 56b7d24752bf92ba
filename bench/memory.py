"""Peak memory of one training step of a block or a network, and of the kernels of infinitely wide networks, ours
beside eager torch, in resident bytes of a process.

    python bench/memory.py                 writes bench/results/memory-cpu.md
    python bench/memory.py cifar1 resnet18 prints the rows of these shapes and networks
    python bench/memory.py --batch 64 …    with another batch
    python bench/memory.py gram-8k         prints the row of a case of the suite infinite

Each step runs in a fresh process: tensors are made, a small step loads what is loaded at the first call, the kernel's
mark of the largest resident set is put back, and the step's growth over what was resident before it is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import zbkernels as zb
from zbkernels.benchmarking import conv, infinite, models
from zbkernels.benchmarking.cases import ITEM_SIZE, ConvCase, DualCase, ModelCase, select
from zbkernels.benchmarking.machine import cpu_name
from zbkernels.files import write_text
from zbkernels.models import ARCHITECTURES

TABLE = Path(__file__).resolve().parents[1] / "bench/results/memory-cpu.md"
SHAPES = ("mnist1", "fashion2", "cifar1", "cifar2", "res9", "vgg5", "stem")
# Networks and their batches.
NETWORKS = {"cnn-fashion": 512, "resnet9": 32, "resnet18": 32, "resnet18-fixup": 32, "resnet50-fixup": 4}
KERNELS = ("gram-8k", "gram-8k-self", "matvec-30k-784-p1", "matvec-30k-784-p1-self")
CONTESTANTS = {  # name -> (ours, memory format)
    "ours": (True, torch.contiguous_format),
    "ours CL": (True, torch.channels_last),
    "eager": (False, torch.contiguous_format),
    "eager CL": (False, torch.channels_last),
}
Case = ConvCase | ModelCase | DualCase


def case_named(name: str, batch: int = 0) -> Case:
    """The training step of a shape of the suite or of a network, ``batch`` 0 keeping its own batch; or a case of the
    suite infinite, which has none.

    Raises:
        ValueError: there is no such shape.
    """
    if name in ARCHITECTURES:
        return ModelCase(name, name, batch or NETWORKS.get(name, 32), "train")
    for kernel in select(["infinite"]):
        if kernel.name == name:
            return kernel
    (case,) = [c for c in select(["conv"], shapes=[name]) if c.mode == "forward"]
    assert isinstance(case, ConvCase)
    return dataclasses.replace(case, n=batch or case.n, mode="train")


def step_of(case: Case, contestant: str) -> Callable[[], object]:
    ours, layout = CONTESTANTS[contestant]
    if isinstance(case, DualCase):
        return _kernel_of(case, ours)
    if isinstance(case, ModelCase):
        return _step_of_network(case, ours, layout)
    block = conv.ours_block if ours else conv.torch_block

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).contiguous(memory_format=layout)

    x, weight = draw(case.n, case.c, case.h, case.w), draw(case.k, case.c, case.kernel, case.kernel)
    grad = draw(case.n, case.k, *case.out_size)
    return conv.TrainingStep(lambda a, b: block(case, a, b), x, weight, grad, case.needs_x)


def _step_of_network(case: ModelCase, ours: bool, layout: torch.memory_format) -> models.TrainingStep:
    model = models.new_model(case.model, fused=ours).to(memory_format=layout)  # type: ignore[call-overload]
    ((images, labels),) = models.batches(1, case.n, case.image, "cpu")
    step = models.training_step(models.with_loss(model), model)
    return models.TrainingStep(model, step, images.contiguous(memory_format=layout), labels)


def _kernel_of(case: DualCase, ours: bool) -> Callable[[], torch.Tensor]:
    """The op, or the composite of the bench: whole for the matrix, by blocks of 1024 for its product with vectors."""
    x1 = torch.randn(case.n, case.d)
    x2 = x1 if case.same else torch.randn(case.m, case.d)
    v = torch.randn(case.m, case.p)
    composite = functools.partial(infinite.relu_ntk, depth=case.depth)
    if case.mode == "gram":
        matrix = functools.partial(zb.dual_gram, **case.options) if ours else composite
        return functools.partial(matrix, x1, x2)
    if ours:
        return functools.partial(zb.dual_matvec, x1, x2, v, **case.options)
    return functools.partial(infinite.blocked, composite, x1, x2, v, 1024, case.same)


def resident(field: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (most since the last reset) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {field}")


def growth_here(case: Case, contestant: str) -> int:
    """Bytes by which the largest resident set of a step exceeds what is resident before it, in this process."""
    # So small that what threads keep of it is nothing.
    small: Case
    if isinstance(case, ModelCase):
        small = ModelCase("small", "cnn-fashion", 1, "train")
    elif isinstance(case, DualCase):
        small = dataclasses.replace(case, n=4, m=4, d=4)
    else:
        small = dataclasses.replace(case, n=1, c=4, k=8, h=32, w=32)
    step_of(small, contestant)()
    step = step_of(case, contestant)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    kept = step()  # as an optimiser finds them: y and the gradients are part of the step
    peak = resident("VmHWM")
    del kept
    return peak - before


def growth(name: str, contestant: str, *, batch: int = 0, threads: int = 1) -> int:
    """:func:`growth_here` of a fresh process, in bytes.

    Raises:
        RuntimeError: the process failed.
    """
    command = [
        sys.executable,
        __file__,
        "--one",
        contestant,
        "--batch",
        str(batch),
        "--threads",
        str(threads),
        name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{name}, {contestant}: {done.stderr}")
    return int(done.stdout)


HEADER = """# Peak memory of a training step

Growth of the resident set over what was there before the step, in MiB: forward and backward of convolution, ReLU and
max pooling, or of a whole network (with its loss and SGD), float32; y and the gradients are part of it, images and
weights are not. {threads} threads, torch {torch}, {cpu}. A fresh process each.
`python bench/memory.py` writes this file.

"""


def table_text(rows: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def step_table(names: Sequence[str], batch: int, threads: int) -> str:
    """Training steps of blocks and networks."""
    rows = [
        ["block or network", "shape", *CONTESTANTS, "ours / eager", "ours CL / eager CL"],
        ["---"] * 2 + ["---:"] * 6,
    ]
    for name in names:
        case = case_named(name, batch)
        found = {c: growth(name, c, batch=batch, threads=threads) for c in CONTESTANTS}
        ratios = [found["ours"] / found["eager"], found["ours CL"] / found["eager CL"]]
        cells = [f"{value / 2**20:.1f}" for value in found.values()] + [f"{ratio:.2f}" for ratio in ratios]
        rows.append([f"`{name}`", case.shape, *cells])
    return table_text(rows)


KERNELS_HEADER = """Kernels of infinitely wide networks, beside what the result itself takes; eager is the composite of
torch operations, for products with vectors by blocks of 1024 rows and columns:

"""


def kernel_table(names: Sequence[str], _: int, threads: int) -> str:
    """The matrix and its products with vectors."""
    rows = [["kernel", "shape", "result", "ours", "eager", "ours / result"], ["---"] * 2 + ["---:"] * 4]
    for name in names:
        case = case_named(name)
        assert isinstance(case, DualCase)
        result = case.n * (case.m if case.mode == "gram" else case.p) * ITEM_SIZE[case.dtype]
        ours, eager = (growth(name, contestant, threads=threads) for contestant in ("ours", "eager"))
        sizes = [f"{value / 2**20:.1f}" for value in (result, ours, eager)]
        ratio = f"{ours / result:.2f}" if case.mode == "gram" else "-"
        rows.append([f"`{name}`", f"`{case.op}` {case.shape}", *sizes, ratio])
    return KERNELS_HEADER + table_text(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=CONTESTANTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        torch.set_num_threads(chosen.threads)
        print(growth_here(case_named(chosen.shapes[0], chosen.batch), chosen.one))
        return 0
    kernels = {case.name for case in select(["infinite"])}
    steps = [name for name in chosen.shapes or (*SHAPES, *NETWORKS) if name not in kernels]
    matrices = [name for name in chosen.shapes or KERNELS if name in kernels]
    text = "\n".join(
        table(names, chosen.batch, chosen.threads)
        for names, table in ((steps, step_table), (matrices, kernel_table))
        if names
    )
    if chosen.shapes:
        print(text)
    else:
        head = HEADER.format(threads=chosen.threads, torch=torch.__version__, cpu=cpu_name())
        write_text(TABLE, head + text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
