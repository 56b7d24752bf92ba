"""On what a problem can run: a backend, and a process that is held to an instruction set or to Triton's interpreter."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import zbkernels as zb
from fuzz import conv, dual, judge, linear, patterns
from zbkernels import _loader
from zbkernels.ops import _backend

FAMILIES: dict[str, ModuleType] = {"conv": conv, "linear": linear, "patterns": patterns, "dual": dual}
# Of what FAMILIES' cost() counts. The interpreter takes some milliseconds for a step that a card takes for a block.
TRITON_MOST, EMULATED_MOST = 3_000, 1_000_000
HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Way:
    """``share``: of the time, relative to the others'."""

    name: str
    backend: str
    share: float
    process: str  # ways of one name here share a process
    environment: tuple[tuple[str, str], ...] = ()
    most: int = 2**40  # multiplications, or the like, of a problem


def ways() -> dict[str, Way]:
    """By name, all that this machine has."""
    best = _loader.cpu_capability()
    found = []
    if best:
        found.append(Way(f"cpu-{best}", "cpu", 8, "native"))
        order = ["portable", "avx2", "avx512", "avx512_bf16"]
        for lower in reversed(order[: order.index(best)]):
            held = (("ZBKERNELS_CPU_CAPABILITY", lower),)
            found.append(Way(f"cpu-{lower}", "cpu", 2, lower, held))
    found.append(Way("reference", "reference", 0.5, "native"))
    if _loader.emulated_path().exists():
        found.append(Way("cuda-emulated", _backend.EMULATED, 2, "emulated", (), EMULATED_MOST))
    try:
        import triton  # noqa: F401

        found.append(
            Way("triton-interpreted", "triton", 1.5, "triton", (("TRITON_INTERPRET", "1"),), TRITON_MOST)
        )
    except ImportError:
        pass
    if torch.cuda.is_available():
        card = (("FUZZ_DEVICE", "cuda"),)
        found += [Way(name, name, 6, "card", card) for name in ("cuda", "triton")]
    return {way.name: way for way in found}


def problem(seed: int, family: str, number: int) -> dict[str, Any]:
    return FAMILIES[family].draw(random.Random(f"{seed}/{family}/{number}"))


def data_of(seed: int, family: str, number: int) -> int:
    """The seed of a problem's values."""
    return zlib.crc32(f"{seed}/{family}/{number}".encode())


def key_of(family: str, p: dict[str, Any]) -> str:
    """Equal for equal problems: everything but the values themselves."""
    return family + json.dumps(p, sort_keys=True, separators=(",", ":"))


def try_it(family: str, p: dict[str, Any], backend: str, data: int) -> dict[str, Any]:
    """What became of a problem on a backend of this process: "fault" (or None), "refused", "kernels"."""
    judge.kernels.clear()
    _backend.note_kernel("")  # so that an empty problem, which runs none, does not name the last one's
    try:
        with zb.use_backend(backend):
            fault = FAMILIES[family].check(p, backend, data)
    except RuntimeError as error:
        if f"backend {backend!r} " in str(error):
            return {"fault": None, "refused": str(error)[:200]}
        return {"fault": f"{type(error).__name__}: {str(error)[:500]}"}
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {str(error)[:500]}"}
    return {"fault": fault, "kernels": sorted(judge.kernels)}


def serve() -> None:
    """One problem a line in, one verdict a line out, until the input ends."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    _loader.allow_tf32(False, False)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints must not get among the verdicts
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        family, p, backend, data = json.loads(line)
        print(json.dumps(try_it(family, p, backend, data)), file=out, flush=True)


PATIENCE = 300  # seconds for one problem, of which the largest take some


class Child:
    """A process that checks problems; begun anew where it has died."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if self.process is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
            environment |= dict(self.way.environment)
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
            )
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fuzz", "--serve"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self.process.stdout is not None
            self.process.stdout.readline()

    def ask(self, family: str, p: dict[str, Any], backend: str, data: int) -> dict[str, Any]:
        self.start()
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([family, p, backend, data]) + "\n")
            self.process.stdin.flush()
            # What hangs is ended, and is a fault as a crash is.
            impatient = threading.Timer(PATIENCE, self.process.kill)
            impatient.start()
            try:
                line = self.process.stdout.readline()
            finally:
                late = not impatient.is_alive()
                impatient.cancel()
        except BrokenPipeError:
            line, late = "", False
        if line.endswith("\n"):
            return json.loads(line)
        code = self.process.wait()
        self.process = None
        return {"fault": f"no answer within {PATIENCE} seconds" if late else f"the process ended with {code}"}

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()
