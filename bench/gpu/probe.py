"""The environment report: card, driver, versions and tools, found without importing torch in this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gpu.process import ROOT

# Asked in a process of its own: a sick driver can hang whoever asks.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, os, platform, torch
card, count = {}, 0
if torch.cuda.is_available():
    count = torch.cuda.device_count()
    p = torch.cuda.get_device_properties(0)
    card = {"name": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
            "memory_gib": round(p.total_memory / 2**30, 1),
            "l2_mib": round(getattr(p, "L2_cache_size", 0) / 2**20, 1),
            "shared_kib_a_block": getattr(p, "shared_memory_per_block_optin", 0) // 1024,
            "free_gib": round(torch.cuda.mem_get_info(0)[0] / 2**30, 1)}
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "there" if u.find_spec(name) else ""
names = ("numpy", "triton", "pytest", "hypothesis", "rich", "pybind11", "ninja", "cmake")
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
                  "cudnn": torch.backends.cudnn.version(), "card": card, "cards": count,
                  "cores": len(os.sched_getaffinity(0)), "packages": {n: version(n) for n in names}}))
"""

TOOLS = ("nvcc", "compute-sanitizer", "ncu", "nvidia-smi")
# Switches that change what is built, run or measured; no paths, which say more of a person than of a machine.
SWITCHES = (
    "ZBKERNELS_CUDA",
    "ZBKERNELS_CUDA_ARCHS",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TRITON_INTERPRET",
)


def probe(limit: float = 120.0) -> dict[str, Any]:
    """Everything that the report's head says.

    Raises:
        RuntimeError: torch cannot be imported, or does not answer.
    """
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"torch did not answer within {limit:.0f} s: the driver may be hung") from None
    if done.returncode:
        raise RuntimeError(f"{sys.executable} cannot use torch: {last_line(done.stderr)}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    found["missing"] = [name for name, version in found["packages"].items() if not version]
    found["tools"] = {name: tool(name) for name in TOOLS}
    found["nvcc_version"] = last_line(output([found["tools"]["nvcc"], "--version"]))
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current,compute_mode"
    answer = output([found["tools"]["nvidia-smi"], f"--query-gpu={query}", "--format=csv,noheader"])
    values = [value.strip() for value in answer.partition("\n")[0].split(",")]
    found["smi"] = dict(zip(query.split(","), values, strict=False)) if answer else {}
    found["commit"] = output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    found["switches"] = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    return found


def tool(name: str) -> str:
    """Path of a program of the CUDA toolkit, also where PATH does not name it; "" where it is not there."""
    usual = f"/usr/local/cuda/bin/{name}"
    return shutil.which(name) or (usual if os.access(usual, os.X_OK) else "")


def output(command: Sequence[str]) -> str:
    """What a command prints; "" where it cannot be run, fails or hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def last_line(text: str) -> str:
    """The last line with something in it."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
