"""The parts: what each runs, how long it may take, and how much time is kept for it."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from gpu.build import build
from gpu.process import ROOT, Part, Row, program, run_rows, settle
from gpu.profiler import profiler
from gpu.sanitizer import sanitizer

TESTS = ("python_tests/test_ops.py", "python_tests/test_cases.py")
LARGE_GIB = 20  # the tests marked `large` fit in this


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the parts need to know: the probe's findings, a folder to throw away, and the options."""

    found: dict[str, Any]
    scratch: pathlib.Path
    rebuild: bool = False


@dataclasses.dataclass(frozen=True)
class Spec:
    """``limit`` seconds at most, ``kept`` seconds that the parts before leave to it; ``modules`` it runs."""

    run: Callable[[Machine, float], Part]
    limit: float
    kept: float
    what: str
    modules: tuple[str, ...] = ()


def build_part(machine: Machine, limit: float) -> Part:
    return build(machine.found, machine.scratch, limit, rebuild=machine.rebuild)


def load_part(machine: Machine, limit: float) -> Part:
    return run_rows("load", program("load"), limit)


def ops_part(machine: Machine, limit: float) -> Part:
    return run_rows("ops", program("samples", "--backend", "cuda"), limit)


def triton_part(machine: Machine, limit: float) -> Part:
    if "triton" in machine.found["missing"]:
        return _missing("triton", "triton")
    return run_rows("triton", program("samples", "--backend", "triton"), limit)


def robust_part(machine: Machine, limit: float) -> Part:
    missing = "triton" in machine.found["missing"]
    return run_rows(
        "robust", program("robust", "--backends", "cuda", *([] if missing else ["triton"])), limit
    )


def speed_part(machine: Machine, limit: float) -> Part:
    # The configurations that every user has, not those that someone tuned here before.
    untuned = {"ZBKERNELS_CACHE_DIR": str(machine.scratch / "no-cache")}
    return run_rows("speed", program("speed"), limit, untuned)


def models_part(machine: Machine, limit: float) -> Part:
    return run_rows("models", program("models"), limit)


def graphs_part(machine: Machine, limit: float) -> Part:
    return run_rows("graphs", program("graphs"), limit)


def sanitizer_part(machine: Machine, limit: float) -> Part:
    return sanitizer(machine.found["tools"]["compute-sanitizer"], limit)


def profiler_part(machine: Machine, limit: float) -> Part:
    return profiler(machine.found["tools"]["ncu"], limit)


def tests_part(machine: Machine, limit: float) -> Part:
    if "pytest" in machine.found["missing"]:
        return _missing("tests", "pytest")
    command = [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "gpu.pytest_rows"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(ROOT), *TESTS, "--device", "cuda"]
    command += ["--large"] if machine.found["card"].get("free_gib", 0) >= LARGE_GIB else []
    return run_rows("tests", command, limit)


def _missing(name: str, package: str) -> Part:
    part = Part(name, "skipped", "", rows=[Row(package, "missing", f"{package} is not installed")])
    settle(part)
    return part


PARTS: dict[str, Spec] = {
    "build": Spec(build_part, 150, 5, "build for the card, unless the library brought along holds its code"),
    "load": Spec(load_part, 30, 10, "which libraries load, which kernel each op takes", ("load",)),
    "ops": Spec(ops_part, 50, 15, "every op's samples in every dtype against float64", ("samples",)),
    "robust": Spec(
        robust_part,
        60,
        20,
        "streams, graphs, waiting, large grids, 2^31 elements",
        ("robust", "calls", "card"),
    ),
    "speed": Spec(
        speed_part, 120, 45, "ceilings, every op against its competitors", ("speed", "report", "choices")
    ),
    "models": Spec(models_part, 50, 20, "a training step of each model", ("models",)),
    "graphs": Spec(
        graphs_part, 40, 10, "whole networks in CUDA graphs: inference and training steps", ("graphs", "card")
    ),
    "sanitizer": Spec(
        sanitizer_part, 75, 25, "memcheck, racecheck, initcheck over a few samples", ("samples",)
    ),
    "triton": Spec(triton_part, 40, 10, "the samples by the Triton kernels", ("samples",)),
    "tests": Spec(tests_part, 60, 15, "the op tests and the cases, with pytest", ("pytest_rows",)),
    "profiler": Spec(profiler_part, 30, 0, "how busy our kernels keep the card", ("touch",)),
}


def limit_of(name: str, chosen: list[str], left: float, budget: float) -> float:
    """Seconds a part may take now: what is left less what is kept for those after it, at most its own limit.

    Where few parts were chosen each may take its share of the whole budget.
    """
    later = chosen[chosen.index(name) + 1 :]
    free = left - sum(PARTS[each].kept for each in later)
    return min(max(PARTS[name].limit, budget / len(chosen)), max(free, min(left, PARTS[name].kept)))
