"""The benches of all ops on the card: first every row without torch.compile, then with it as far as time allows.

Compiling with max-autotune takes longer than measuring everything else, so it comes last, the rows that say most
first; what is not compiled in time is left out, and the rows measured before stay.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from gpu.report import bench_line
from gpu.rows import LeftOut, Task, options, run_tasks
from zbkernels.benchmarking import ceilings, contestants
from zbkernels.benchmarking.cases import Case, ConvCase, LinearCase, NapCase, PatternCase, select
from zbkernels.benchmarking.ceilings import Ceilings
from zbkernels.benchmarking.conv import ours_block, torch_block
from zbkernels.benchmarking.runner import (
    Settings,
    environment,
    measure,
    prepare,
    prepare_problem,
    problem_of,
)
from zbkernels.benchmarking.shape_class import class_of
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase

HALF = ("-f16", "-bf16")
CORE = ("mnist1", "fashion2", "cifar1", "cifar2", "res9", "vgg5", "stem")
FILLING = ("cifar2-b512", "res9-b512", "vgg5-b512")

# (suite, mode): names, in the order in which they are measured; `zb bench --device cuda` has the rest.
ROWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("conv", "forward"): (
        *CORE,
        *FILLING,
        *(name + half for half in HALF for name in (*CORE, *FILLING)),
    ),
    ("conv", "train"): (
        "mnist1",
        "cifar1",
        *FILLING[:2],
        *(name + half for half in HALF for name in FILLING[:2]),
    ),
    ("conv", "nap"): ("mnist1", "cifar2", "cifar2-f16"),
    ("linear", "forward"): ("fcn1", "wide", "wide-f16", "wide-bf16"),
    ("linear", "train"): ("fcn1", "wide", "wide-bf16"),
    ("linear", "nap"): ("wide",),
    ("nap", "pack"): ("pack", "pack-f16"),
    ("nap", "unpack"): ("unpack",),
    ("nap", "hash"): ("hash",),
    ("nap", "hamming"): ("hamming-large",),
    ("nap", "topk"): ("topk-large", "topk-one-large"),
    ("nap", "group"): ("group", "group-distinct"),
    ("nap", "frequency"): ("frequency-large",),
    ("trained-kernels", "kernel"): ("kernel-3072", "kernel-3072-bf16"),
    ("trained-kernels", "train"): ("iteration-3072", "iteration-3072-bf16"),
}
SUITES = ("conv", "linear", "nap", "trained-kernels")
# With torch.compile, the most telling first.
COMPILED = [
    ("conv", "forward", "cifar2-b512-f16"),
    ("nap", "pack", "pack"),
    ("conv", "forward", "mnist1"),
    ("linear", "forward", "wide-bf16"),
    ("conv", "forward", "res9-b512-bf16"),
    ("conv", "train", "cifar2-b512-bf16"),
    ("conv", "forward", "cifar2-b512"),
    ("conv", "nap", "cifar2"),
    ("nap", "unpack", "unpack"),
    ("conv", "forward", "vgg5-b512-f16"),
    ("conv", "train", "mnist1"),
]


def chosen_cases() -> list[Case]:
    """The cases of :data:`ROWS`, in their order."""
    by_key = {(case.suite, case.mode, case.name): case for case in select(SUITES, device="cuda")}
    return [by_key[suite, mode, name] for (suite, mode), names in ROWS.items() for name in names]


def without(case: Case, *, compiled: bool) -> tuple[str, ...]:
    """Who sits out. Of two compiled convolutions the channels_last one is kept: the better on tensor cores."""
    if not compiled:
        return ("compile", "compile CL")
    return ("compile",) if case.suite == "conv" else ()


@dataclasses.dataclass
class Bench:
    """The rows of one run; the ceilings are measured once, when they are first asked for."""

    settings: Settings
    _ceilings: Ceilings | None = None

    def ceilings(self) -> Ceilings:
        """What the device reaches in this process."""
        if self._ceilings is None:
            self._ceilings = ceilings.measure([], self.settings.device, seconds=self.settings.ceiling_seconds)
        return self._ceilings

    def ceiling_row(self) -> tuple[str, dict[str, Any]]:
        """The row that shows them."""
        found = self.ceilings()
        flops = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in found.flops.items())
        moved = ", ".join(f"{name} {rate / 1e9:.4g}" for name, rate in found.bandwidth.items())
        return f"TFLOP/s: {flops}; GB/s: {moved}", {"ceilings": dataclasses.asdict(found)}

    def row(self, case: Case, compiled: bool = False) -> tuple[str, dict[str, Any]]:
        """Check and time one case.

        Raises:
            LeftOut: with ``compiled``, where torch.compile has no right result.
        """
        if self.settings.device.startswith("cuda"):
            torch.cuda.empty_cache()
        settings = dataclasses.replace(self.settings, without=without(case, compiled=compiled))
        prepared = prepare(case, settings)
        if compiled and not any(name.startswith("compile") for name in prepared.calls):
            raise LeftOut("; ".join(f"{name}: {why}" for name, why in prepared.absent.items()))
        row = measure(prepared, settings, self.ceilings())
        return in_words(row), {"bench": row}

    def tasks(self) -> list[Task]:
        """Ceilings, rows, rows with torch.compile."""
        cases = chosen_cases()
        by_key = {(case.suite, case.mode, case.name): case for case in cases}
        return [
            Task("ceilings", self.ceiling_row, 40.0),
            *(Task(title(case), functools.partial(self.row, case), 40.0) for case in cases),
            *(
                Task(
                    f"{title(by_key[key])}, compiled",
                    functools.partial(self.row, by_key[key], compiled=True),
                    60.0,
                    optional=True,
                )
                for key in COMPILED
            ),
        ]


def title(case: Case) -> str:
    """A row's name."""
    return f"{case.suite} {case.mode} {case.name}"


def in_words(row: dict[str, Any]) -> str:
    """A measured row as a note."""
    line = bench_line(row)
    ratios = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in line.ratios.items())
    backends = "".join(f", {name} {ms:.3g} ms" for name, ms in line.backends.items())
    return f"{line.ms:.3g} ms{backends}, {ratios}, {line.of_ceiling:.0%} {row['bound']}; {line.kernel}"


def settings_for(device: str) -> Settings:
    """Few rounds: a card that nobody shares repeats itself well, and five minutes are short."""
    return Settings.of(device=device, rounds=5)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return options(__doc__.splitlines()[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    bench = Bench(settings_for(chosen.device))
    with environment(bench.settings):
        return run_tasks(bench.tasks(), chosen)


def shrunk(case: Case) -> Case:
    """The same case small enough for a CPU that only looks whether everything fits together."""
    if isinstance(case, ConvCase):
        c, k, groups = min(case.c, 8), min(case.k, 12), 4 if case.groups > 1 else 1
        return dataclasses.replace(case, n=2, c=c, k=k, groups=groups, h=min(case.h, 16), w=min(case.w, 16))
    if isinstance(case, LinearCase):
        return dataclasses.replace(case, n=5, fan_in=70, fan_out=66)
    if isinstance(case, PatternCase):
        return dataclasses.replace(case, n=min(case.n, 5), m=min(case.m, 9), f=130)
    if isinstance(case, AngleCase):
        return dataclasses.replace(case, pairs=3, d=40, n=50, angles=5)
    if isinstance(case, IterationCase):
        return dataclasses.replace(case, n=9, width=40)
    return dataclasses.replace(case, n=5, f=130)


def rehearse() -> str:
    """Shapes of every case at full size, and every contestant of a card on a CPU with the case made small.

    The kernels asked for by name (cuda, triton) must say that they cannot run here, and nothing else.
    """
    cases, traced = chosen_cases(), set()
    with environment(Settings(threads=1)), _traced_only():
        for case in cases:
            if isinstance(case, ConvCase):
                _shapes(case)
            problem = problem_of(shrunk(case), "cpu", 1)
            problem.device = "cuda"  # whose contestants are set up; the tensors stay on the CPU
            kind = (case.suite, case.mode)
            out = without(case, compiled=kind not in traced)  # tracing each kind once is enough
            traced.add(kind)
            prepared = prepare_problem(problem, out)
            for name, why in prepared.absent.items():
                expected = "left out" if name in out else "can't run this call"
                assert name in out or name in ("ours (cuda)", "ours (triton)"), (
                    f"{title(case)}: {name}: {why}"
                )
                assert expected in why or "has no kernel" in why, f"{title(case)}: {name}: {why}"
    small = Settings(threads=1, rounds=2, pause=0.0, min_sample=0.0)
    limits = Ceilings({"float32": 1e11}, 1e10, {"fma float32": "made up", "bytes": "made up"})
    pack = shrunk(next(case for case in cases if isinstance(case, NapCase)))
    with environment(small), _traced_only():
        _, data = Bench(small, limits).row(pack, compiled=True)
    assert data["bench"]["kernels"]["ours"]
    classes = {(case.op, case.dtype, class_of(case)) for case in cases}
    return (
        f"{len(cases)} rows in {len(classes)} shape classes and {len(COMPILED)} with torch.compile, "
        f"{len(traced)} kinds traced"
    )


def _shapes(case: ConvCase) -> None:
    """Both sides' results have the shape that the case counts bytes by, at full size."""
    meta = {"device": "meta", "dtype": getattr(torch, case.dtype)}
    x = torch.empty(case.n, case.c, case.h, case.w, **meta)
    weight = torch.empty(case.k, case.c // case.groups, case.kernel, case.kernel, **meta)
    plain = dataclasses.replace(case, mode="forward")
    for block in (ours_block, torch_block):
        shape = tuple(block(plain, x, weight).shape)
        expected = (case.n, case.k, *case.out_size)
        assert shape == expected, f"{title(case)}: {block.__name__} gives {shape}, expected {expected}"


@contextlib.contextmanager
def _traced_only() -> Any:
    """torch.compile traces and checks, and compiles nothing."""
    before = contestants.COMPILER
    contestants.COMPILER = "eager"
    try:
        yield
    finally:
        contestants.COMPILER = before


if __name__ == "__main__":
    sys.exit(main())
