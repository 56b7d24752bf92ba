"""Checks this package on whatever CUDA card is there, within a fixed time; started by gpu_check.sh.

Every part runs in a process of its own with a time limit, and the two result files are written again after
each, so that a crash, a hang or a machine taken away costs one part and not the others. It asks for torch
alone: what else is missing (pytest, nvcc, ninja, pybind11, triton, compute-sanitizer, hypothesis, rich) is
said and gone without.

Exit status: 0 all parts that ran passed, 1 one did not, 2 there is no CUDA device and nothing was run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
MARK = "GPU-CHECK-RESULT "  # a line of a part's output that holds its result as JSON

# Seconds each part may take; together with --budget, whichever ends first.
LIMITS = {"build": 150, "load": 40, "ops": 110, "triton": 60, "sanitizer": 60, "bench": 120, "train": 40}


@dataclasses.dataclass
class Part:
    """One part's outcome. ``state``: passed, failed, timed out or skipped (``summary`` says why)."""

    name: str
    state: str
    summary: str
    seconds: float = 0.0
    result: Any = None
    tail: str = ""
    command: str = ""


# --- what is here

PROBE = """
import json, importlib.util as u, platform, torch
card = {}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    card = {"name": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
            "memory_gib": round(p.total_memory / 2**30, 1)}
names = ("pytest", "hypothesis", "rich", "triton", "numpy", "pybind11", "ninja", "cmake", "pytest_benchmark")
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
                  "cudnn": torch.backends.cudnn.version(), "card": card,
                  "missing": [n for n in names if u.find_spec(n) is None]}))
"""


def probe() -> dict[str, Any]:
    """Card, versions and tools of this machine, asked in a process of its own (a sick driver can hang it).

    Raises:
        RuntimeError: torch cannot be imported or does not answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError("torch did not answer within 120 s: the driver may be hung") from None
    if done.returncode:
        raise RuntimeError(f"{sys.executable} cannot use torch: {_last_line(done.stderr)}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    sanitizer = shutil.which("compute-sanitizer") or _if_file("/usr/local/cuda/bin/compute-sanitizer")
    nvcc = shutil.which("nvcc") or _if_file("/usr/local/cuda/bin/nvcc")
    found["tools"] = {"nvcc": nvcc or "", "compute-sanitizer": sanitizer or ""}
    found["driver"] = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    found["nvcc_version"] = _last_line(_output([nvcc, "--version"])) if nvcc else ""
    return found


def _if_file(path: str) -> str | None:
    return path if os.path.isfile(path) else None


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""


# --- running one part


def run_part(
    name: str, command: Sequence[str], limit: float, environment: dict[str, str] | None = None
) -> Part:
    """Run a command as a part: its own process group, killed as a whole when the limit is over."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Part(name, "failed", f"could not start: {error}", command=" ".join(command))
        try:
            status: int | None = process.wait(timeout=max(1.0, limit))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        log.seek(0)
        output = log.read()
    seconds = time.monotonic() - start
    lines = output.splitlines()
    results = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    plain = [line for line in lines if not line.startswith(MARK)]
    part = Part(name, "passed", _last_line("\n".join(plain)), seconds, command=" ".join(command))
    part.result = json.loads(results[-1]) if results else None
    if isinstance(part.result, dict) and "summary" in part.result:
        part.summary = part.result["summary"]
    if status is None:
        part.state, part.summary = "timed out", f"after {seconds:.0f} s; last line: {part.summary}"
    elif status != 0:
        part.state = "failed"
        part.summary = f"exit status {status}: {part.summary}"
    part.tail = "\n".join(plain[-60:])
    return part


# --- the parts


class Check:
    """The parts, in order. Each method returns its :class:`Part`; ``limit`` is the time it may take."""

    def __init__(self, found: dict[str, Any], *, rebuild: bool, scratch: pathlib.Path) -> None:
        self.found, self.rebuild, self.scratch = found, rebuild, scratch

    @property
    def architecture(self) -> str:
        """The card's, as CMake writes it: ``90a-real``, ``80-real``, ..."""
        number = self.found["card"].get("capability", "9.0").replace(".", "")
        return "90a-real" if number == "90" else f"{number}-real"

    def build(self, limit: float) -> Part:
        """Build in place for this card, unless a library that was brought along already holds its code."""
        library = ROOT / "zbkernels" / "_C_cuda.so"
        brought = _architectures(library)
        if not self.rebuild and self.architecture in brought:
            return Part("build", "skipped", f"uses the library brought along, built for {', '.join(brought)}")
        if not self.found["tools"]["nvcc"]:
            have = (
                f"it holds code for {', '.join(brought)} only"
                if brought
                else "and no library was brought along"
            )
            return Part("build", "failed", f"no nvcc here, {have}; this card needs {self.architecture}")
        environment = {"ZBKERNELS_CUDA": "1", "ZBKERNELS_CUDA_ARCHS": self.architecture}
        if "pybind11" in self.found["missing"]:  # torch carries its headers
            stand_in = self.scratch / "pybind11_stand_in"
            stand_in.mkdir(parents=True, exist_ok=True)
            (stand_in / "pybind11.py").write_text(
                "import importlib.util, os\n\n\ndef get_include():\n"
                "    folder = os.path.dirname(importlib.util.find_spec('torch').origin)\n"
                "    return os.path.join(folder, 'include')\n"
            )
            environment["PYTHONPATH"] = os.pathsep.join([str(stand_in), str(ROOT)])
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        part = run_part("build", command, limit, environment)
        if part.state == "passed":
            part.summary = f"built for {self.architecture} with {self.found['nvcc_version']}"
        return part

    def load(self, limit: float) -> Part:
        """Import, state of each library, where each op's CUDA kernel comes from, one call of each op."""
        return run_part("load", [sys.executable, str(BENCH / "gpu_samples.py"), "--load"], limit)

    def ops(self, limit: float) -> Part:
        """The op tests on the card, and, without any test tool, every op's own samples against float64."""
        samples = self._samples("ops", "cuda", min(limit, 60))
        if "pytest" in self.found["missing"]:
            samples.summary += "; pytest is not installed, so the op tests were not run"
            return samples
        report = self.scratch / "ops.xml"
        command = [sys.executable, "-m", "pytest", "python_tests/test_ops.py", "--device", "cuda"]
        command += ["-q", "-x", "--maxfail=20", "-p", "no:cacheprovider", f"--junitxml={report}"]
        tests = run_part("ops", command, limit - samples.seconds)
        tests.summary = f"test_ops.py: {tests.summary}; samples: {samples.summary}"
        tests.result = {"samples": samples.result, "samples_state": samples.state}
        tests.tail = samples.tail + "\n" + tests.tail
        tests.seconds += samples.seconds
        if tests.state == "passed":
            tests.state = samples.state
        return tests

    def triton(self, limit: float) -> Part:
        """Every op's samples on the card by the Triton kernels."""
        if "triton" in self.found["missing"]:
            return Part("triton", "skipped", "triton is not installed")
        return self._samples("triton", "triton", limit)

    def sanitizer(self, limit: float) -> Part:
        """compute-sanitizer over a few samples of each op: memcheck, then racecheck in the time left."""
        tool = self.found["tools"]["compute-sanitizer"]
        if not tool:
            return Part("sanitizer", "skipped", "compute-sanitizer was not found")
        # Without torch's own memory cache each tensor is an allocation, and an overrun has nowhere to hide.
        environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        whole = Part("sanitizer", "passed", "", result={})
        for check in ("memcheck", "racecheck"):
            left = limit - whole.seconds
            if left < 10:
                whole.summary += f"; {check}: no time left"
                break
            command = [tool, "--tool", check, "--error-exitcode", "9", "--kernel-name-exclude", "kns=at::"]
            command += [sys.executable, str(BENCH / "gpu_samples.py"), "--backend", "cuda", "--few"]
            command += ["--seconds", str(left * 0.7)]
            part = run_part("sanitizer", command, left, environment)
            whole.seconds += part.seconds
            whole.result[check] = {"state": part.state, "summary": part.summary, "result": part.result}
            whole.summary += f"; {check}: {part.state}, {part.summary}"
            whole.tail += f"\n--- {check}\n{part.tail}"
            whole.command = part.command
            if part.state != "passed":
                whole.state = part.state
        whole.summary = whole.summary.removeprefix("; ")
        return whole

    def bench(self, limit: float) -> Part:
        """The quick suite on the card; a run cut off keeps the rows it had."""
        command = [sys.executable, "-m", "zbkernels.benchmarking", "--device", "cuda", "--quick"]
        command += ["--out", str(self.scratch), "--stem", "bench"]
        part = run_part("bench", command, limit)
        with contextlib.suppress(OSError, ValueError, KeyError):  # nothing written before the time was over
            part.result = json.loads((self.scratch / "bench.json").read_text())
            part.summary = f"{len(part.result['rows'])} rows, {len(part.result['failed'])} failed"
        return part

    def train(self, limit: float) -> Part:
        """A small network trained with the fused layers and with plain torch's, step by step the same."""
        return run_part("train", [sys.executable, str(BENCH / "gpu_train.py")], limit)

    def _samples(self, part: str, backend: str, limit: float) -> Part:
        command = [sys.executable, str(BENCH / "gpu_samples.py"), "--backend", backend]
        return run_part(part, [*command, "--seconds", str(limit * 0.8)], limit)


def _architectures(library: pathlib.Path) -> list[str]:
    """What a built library says it holds code for; [] where there is none. Read without loading it."""
    marker = b"zbkernels-build-info:"
    try:
        data = library.read_bytes()
        start = data.index(marker) + len(marker)
        held = json.loads(data[start : data.index(b"\0", start)]).get("cuda_archs", "")
    except (OSError, ValueError):
        return []
    return [name for name in held.replace(",", ";").split(";") if name]


# --- the two files


def write_results(folder: pathlib.Path, stem: str, found: dict[str, Any], parts: Sequence[Part]) -> None:
    """``stem.json`` and ``stem.md``, each whole or not there."""
    report = {"schema": 1, "machine": found, "parts": [dataclasses.asdict(part) for part in parts]}
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".json": json.dumps(report, indent=1, sort_keys=True) + "\n", ".md": markdown(found, parts)}
    for ending, text in texts.items():
        temporary = folder / f".{stem}{ending}.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / f"{stem}{ending}")


def markdown(found: dict[str, Any], parts: Sequence[Part]) -> str:
    """The report as a page: the machine, a line a part, the bench tables, the ends of what failed."""
    card = found["card"]
    lines = [
        f"# GPU check: {card.get('name', 'no card')}",
        "",
        f"- compute capability {card.get('capability', '-')}, "
        f"{card.get('multiprocessors', '-')} multiprocessors, {card.get('memory_gib', '-')} GiB, "
        f"driver {found['driver'] or '-'}",
        f"- Python {found['python']}, torch {found['torch']}, CUDA {found['cuda']}, cuDNN {found['cudnn']}",
        f"- nvcc: {found['nvcc_version'] or 'not found'}",
        f"- not installed: {', '.join(found['missing']) or 'nothing of what is used'}",
        "",
        "| part | state | seconds | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {part.name} | {part.state} | {part.seconds:.0f} | {part.summary.replace('|', '/')} |"
        for part in parts
    ]
    for part in parts:
        if part.name == "bench" and isinstance(part.result, dict) and part.result.get("rows"):
            sys.path.insert(0, str(ROOT))
            from zbkernels.benchmarking.table import markdown as tables

            lines += ["", tables(part.result)]
    for part in parts:
        if part.state in ("failed", "timed out"):
            lines += ["", f"## {part.name}: the end of its output", "", "```", part.tail, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    options = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", metavar="PART", choices=list(LIMITS), default=list(LIMITS))
    options.add_argument("--budget", type=float, default=290.0, help="seconds for everything (default 290)")
    options.add_argument("--out", type=pathlib.Path, help="default: $OUT, else bench/results")
    options.add_argument("--stem", default="", help="name of the files (default: gpu-check-<card>)")
    options.add_argument(
        "--rebuild", action="store_true", help="build even where a library was brought along"
    )
    options.add_argument("--dry-run", action="store_true", help="say what would be done here, run nothing")
    chosen = options.parse_args(arguments)
    begin = time.monotonic()
    try:
        found = probe()
    except RuntimeError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    card = found["card"].get("name")
    print(
        f"gpu_check: {card or 'no CUDA device'}; torch {found['torch']}, Python {found['python']}", flush=True
    )
    if found["missing"]:
        print(f"gpu_check: not installed here: {', '.join(found['missing'])}", flush=True)
    if chosen.dry_run:
        for name in chosen.only:
            what = " ".join((getattr(Check, name).__doc__ or "").split())
            print(f"  {name:10} up to {LIMITS[name]:3d} s  {what}")
        return 0
    if card is None:
        kind = f"is built for CUDA {found['cuda']} but sees no card" if found["cuda"] else "is a CPU build"
        print(f"gpu_check: no CUDA device: torch {found['torch']} {kind}. Nothing was run.", file=sys.stderr)
        return 2
    folder = chosen.out or pathlib.Path(os.environ.get("OUT") or BENCH / "results")
    stem = chosen.stem or "gpu-check-" + "-".join(card.lower().replace("/", " ").split())
    parts: list[Part] = []
    with tempfile.TemporaryDirectory() as scratch:
        check = Check(found, rebuild=chosen.rebuild, scratch=pathlib.Path(scratch))
        for name in [name for name in LIMITS if name in chosen.only]:
            left = chosen.budget - (time.monotonic() - begin)
            if left < 5:
                parts.append(Part(name, "skipped", "the budget is spent"))
            else:
                parts.append(getattr(check, name)(min(LIMITS[name], left)))
            part = parts[-1]
            print(f"[{part.seconds:4.0f} s] {name}: {part.state}: {part.summary}", flush=True)
            write_results(folder, stem, found, parts)
    print(f"gpu_check: {folder / stem}.json, .md; {time.monotonic() - begin:.0f} s in all")
    return 0 if all(part.state in ("passed", "skipped") for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
