"""What the package costs besides its kernels' time: importing it, calling its ops, compiling it, testing it.

    python bench/cost.py                     writes bench/results/cost.md
    python bench/cost.py --nvcc-times FILE   with the CUDA compiler's time by architecture, from a build that was made
                                             with NVCC_APPEND_FLAGS=-time=FILE
    python bench/cost.py --print             prints it and writes nothing

Times are of this machine, and torch's own stand beside them: python_tests/test_cost.py holds counts and ratios, not
times. The compile times are those in the newest build folder's log, the test times those of the last `make test`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels.benchmarking.machine import cpu_name
from zbkernels.files import write_text

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "bench/results/cost.md"

IMPORT = """
import json, sys, time
began = time.process_time()
import torch
between, before = time.process_time(), set(sys.modules)
import zbkernels
ended, new = time.process_time(), sorted(set(sys.modules) - before)
print(json.dumps({"torch": between - began, "zbkernels": ended - between, "of_torch": len(before), "new": new}))
"""


class Import(NamedTuple):
    """Seconds of processor time of ``import torch`` and then ``import zbkernels``, and the modules that each loads."""

    torch: float
    zbkernels: float
    of_torch: int
    new: list[str]

    @property
    def others(self) -> list[str]:
        """Modules that zbkernels loads and that are neither its own nor torch's to have loaded before."""
        return [name for name in self.new if name.partition(".")[0] != "zbkernels"]


def measure_import(runs: int) -> Import:
    """Medians of fresh interpreters, the first of which compiles what is not compiled yet and does not count."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    found = []
    for _ in range(runs + 1):
        told = subprocess.run(
            [sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, check=True
        )
        found.append(Import(**json.loads(told.stdout.splitlines()[-1])))
    counted = found[1:]
    median = [statistics.median(getattr(f, key) for f in counted) for key in ("torch", "zbkernels")]
    return counted[0]._replace(torch=median[0], zbkernels=median[1])


# --- calls ----------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A way to call: ours, and what of torch's it is held against; ``mode`` is inference, forward or training."""

    name: str
    torch_name: str
    mode: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def calls() -> list[Call]:
    """Inputs so small that the arithmetic takes no time to speak of."""
    x, w = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3)
    v, u = torch.randn(1, 4), torch.randn(4, 4)
    w_grad, u_grad = w.clone().requires_grad_(), u.clone().requires_grad_()
    layer, sig = zb.nn.ConvReLUPool2d(1, 1, 3), zb.nap_pack(torch.randn(1, 64))
    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3, bias=False), torch.nn.ReLU(), torch.nn.MaxPool2d(2))

    def block(weight: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.conv2d(x, weight).relu(), 2)

    def step(forward: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            weight.grad = None
            forward(weight).sum().backward()

        return run

    def linear(weight: torch.Tensor) -> torch.Tensor:
        return F.linear(v, weight).relu()

    conv = "conv_relu_pool2d"
    chain = "conv2d, relu, max_pool2d"
    return [
        Call(conv, "conv2d", "inference", lambda: zb.conv_relu_pool2d(x, w), lambda: F.conv2d(x, w)),
        Call(conv, chain, "inference", lambda: zb.conv_relu_pool2d(x, w), lambda: block(w)),
        Call(
            f"torch.ops.zb.{conv}",
            chain,
            "inference",
            lambda: torch.ops.zb.conv_relu_pool2d(x, w),
            lambda: block(w),
        ),
        Call(
            "nn.ConvReLUPool2d",
            "nn.Conv2d, nn.ReLU, nn.MaxPool2d",
            "inference",
            lambda: layer(x),
            lambda: plain(x),
        ),
        Call(conv, chain, "forward", lambda: zb.conv_relu_pool2d(x, w_grad), lambda: block(w_grad)),
        Call(conv, chain, "training", step(lambda a: zb.conv_relu_pool2d(x, a), w_grad), step(block, w_grad)),
        Call(f"{conv}_nap", chain, "inference", lambda: zb.conv_relu_pool2d_nap(x, w), lambda: block(w)),
        Call("linear_relu", "linear, relu", "inference", lambda: zb.linear_relu(v, u), lambda: linear(u)),
        Call(
            "linear_relu",
            "linear, relu",
            "forward",
            lambda: zb.linear_relu(v, u_grad),
            lambda: linear(u_grad),
        ),
        Call(
            "linear_relu",
            "linear, relu",
            "training",
            step(lambda a: zb.linear_relu(v, a), u_grad),
            step(linear, u_grad),
        ),
        Call("nap_pack", "gt", "inference", lambda: zb.nap_pack(v), lambda: v > 0),
        Call("nap_hamming", "gt", "inference", lambda: zb.nap_hamming(sig, sig), lambda: v > 0),
    ]


class Overhead(NamedTuple):
    """Microseconds a call, the least of many short rounds: whatever else the machine does only adds to them."""

    call: Call
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def measure_calls(rounds: int, repeats: int = 5) -> list[Overhead]:
    """Both sides of all calls in turn, ``rounds`` times, on one thread."""

    def one(function: Callable[[], Any]) -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - began) / repeats * 1e6

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    wanted = calls()
    least = [[float("inf"), float("inf")] for _ in wanted]
    try:
        for turn in range(rounds + 1):  # the first turn loads what is loaded at a first call
            for call, best in zip(wanted, least, strict=True):
                with torch.no_grad() if call.mode == "inference" else nullcontext():
                    taken = one(call.ours), one(call.theirs)
                if turn:
                    best[:] = map(min, best, taken)
    finally:
        torch.set_num_threads(threads)
    return [Overhead(call, *best) for call, best in zip(wanted, least, strict=True)]


# --- compiling and testing ------------------------------------------------------------------------------------------


def build_folder() -> Path | None:
    """The CMake folder that was built last, where there is one."""
    logs = sorted((ROOT / "build").glob("cmake-*/.ninja_log"), key=lambda path: path.stat().st_mtime)
    return logs[-1].parent if logs else None


class Unit(NamedTuple):
    """A source file that was compiled for a library: seconds by the clock, and the object's bytes."""

    library: str
    source: str
    seconds: float
    size: int


def units(folder: Path) -> list[Unit]:
    """What ninja's log says of each object that is there, at its last compilation."""
    found = {}
    for line in (folder / ".ninja_log").read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        match = re.fullmatch(r"(?:cuda_emulation/)?CMakeFiles/(\w+)\.dir/(.+)\.o", output)
        if match and (folder / output).exists():
            size = (folder / output).stat().st_size
            found[output] = Unit(
                match[1], match[2].removeprefix("__/__/"), (int(end) - int(start)) / 1000, size
            )
    return list(found.values())


def library_sizes() -> dict[str, int]:
    names = ("_C_cpu.so", "_C_cuda.so", "_host" + sysconfig.get_config_var("EXT_SUFFIX"))
    paths = [ROOT / "zbkernels" / name for name in names]
    return {path.name: path.stat().st_size for path in paths if path.exists()}


def nvcc_seconds(path: Path) -> dict[str, tuple[int, float]]:
    """Files and seconds by architecture out of the file that nvcc's -time writes; "" for what all share.

    Of a file that was compiled twice the last time counts.
    """
    last: dict[tuple[str, str, str], float] = {}
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if len(row) >= 8 and row[-1].strip() == "ms":
                source, phase, arch = (row[i].strip() for i in (0, 1, 4))
                own = phase in ("cicc", "ptxas", "gcc (preprocessing 1)")
                last[source, phase, re.sub(r"^\D+", "sm_", arch) if own else ""] = float(row[-2]) / 1000
    archs = {arch for _, _, arch in last}
    return {
        arch: (
            len({source for source, _, of in last if of == arch and source}),
            sum(seconds for (_, _, of), seconds in last.items() if of == arch),
        )
        for arch in archs
    }


def test_seconds() -> dict[str, float]:
    """Seconds of each test file, out of what the last `make test` left in out/."""
    total: dict[str, float] = defaultdict(float)
    for report in (ROOT / "out").glob("tests*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            total[case.get("classname", "").rpartition(".")[2]] += float(case.get("time", 0))
    return dict(total)


# --- the table ------------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(head)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def text(nvcc_times: Path | None) -> str:
    found = measure_import(5)
    packages = sorted({name.partition(".")[0] for name in found.others}) or ["none"]
    parts = [
        "# What the package costs besides its kernels' time\n",
        f"Written by `make cost-table` with torch {torch.__version__}, Python {platform.python_version()}, on "
        f"{cpu_name()}. python_tests/test_cost.py holds the counts and the ratios.\n",
        "## Import\n",
        "Processor time of fresh interpreters, medians of 5.\n",
        table(
            ["", "seconds", "modules"],
            [
                ["`import torch`", f"{found.torch:.2f}", found.of_torch],
                ["`import zbkernels` after it", f"{found.zbkernels:.2f}", len(found.new)],
                ["ratio", f"{found.zbkernels / found.torch:.3f}", f"{len(found.new) / found.of_torch:.3f}"],
            ],
        ),
        f"Loaded besides its own and what torch had loaded: {', '.join(packages)}.\n",
        "## A call\n",
        "Microseconds of calls on the smallest inputs, one thread, the least of 300 rounds of 5; *forward* is with a\n"
        "weight that wants a gradient, *training* has the backward pass too.\n",
        table(
            ["", "", "ours", "torch's", "", "ratio"],
            [
                [
                    f"`{o.call.name}`",
                    o.call.mode,
                    f"{o.ours:.1f}",
                    o.call.torch_name,
                    f"{o.theirs:.1f}",
                    f"{o.ratio:.1f}",
                ]
                for o in measure_calls(300)
            ],
        ),
    ]
    folder = build_folder()
    if folder is not None:
        by_library: dict[str, list[Unit]] = defaultdict(list)
        for unit in units(folder):
            by_library[unit.library].append(unit)
        parts += [
            "## Compiling\n",
            "By the clock, file after file, as in the build folder's log; on a machine with other work that is more\n"
            "than the files need.\n",
            table(
                ["", "files", "seconds", "objects, MB", "slowest"],
                [
                    [
                        f"`{name}`",
                        len(of),
                        f"{sum(u.seconds for u in of):.0f}",
                        f"{sum(u.size for u in of) / 1e6:.1f}",
                        "{0.source}, {0.seconds:.0f}".format(max(of, key=lambda u: u.seconds)),
                    ]
                    for name, of in sorted(by_library.items())
                ],
            ),
        ]
    sizes = library_sizes()
    if sizes:
        parts.append(
            table(["library", "MB"], [[f"`{name}`", f"{size / 1e6:.1f}"] for name, size in sizes.items()])
        )
    if nvcc_times is not None:
        by_arch = nvcc_seconds(nvcc_times)
        ordered = sorted(by_arch.items(), key=lambda item: int(re.sub(r"\D", "", item[0]) or 10**6))
        rows = [[arch or "what all share", files, f"{seconds:.0f}"] for arch, (files, seconds) in ordered]
        parts.append(table(["nvcc", "files", "seconds"], rows))
    tests = test_seconds()
    if tests:
        slowest = sorted(tests.items(), key=lambda item: -item[1])[:10]
        rows = [[f"`{name}`", f"{took:.0f}"] for name, took in slowest]
        parts += [
            "## Testing\n",
            table(["", "seconds"], [[f"all {len(tests)} files", f"{sum(tests.values()):.0f}"], *rows]),
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvcc-times", type=Path)
    parser.add_argument("--print", action="store_true")
    args = parser.parse_args()
    written = text(args.nvcc_times)
    print(written)
    if not args.print:
        write_text(TABLE, written)


if __name__ == "__main__":
    main()
