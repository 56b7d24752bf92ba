"""What a result file says about where it came from: processor or card, instruction sets, versions."""

from __future__ import annotations

import datetime
import os
import platform
from typing import TYPE_CHECKING, Any

from zbkernels.benchmarking.contestants import installed_versions

if TYPE_CHECKING:
    from zbkernels.benchmarking.runner import Settings

# Switches that change what a contestant may do; those that are set stand in the report.
SWITCHES = (
    "ZBKERNELS_CPU_CAPABILITY",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "KMP_BLOCKTIME",
)


def describe(settings: Settings) -> dict[str, Any]:
    """The report's head. No host name, user or path: only what bears on the numbers."""
    import torch

    threads = settings.threads or torch.get_num_threads()
    head: dict[str, Any] = {
        "schema": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "device": settings.device,
        "threads": threads,
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": installed_versions(),
        "environment": {name: os.environ[name] for name in SWITCHES if name in os.environ},
    }
    if settings.device.startswith("cuda"):
        card = torch.cuda.get_device_properties(0)
        head["gpu"] = {
            "name": card.name,
            "capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
            "memory_gib": round(card.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
        head["machine"] = f"{card.name}, CUDA {torch.version.cuda}"
    else:
        head["machine"] = f"{threads} threads of {head['cpu']}, {head['cpu_capability']}"
    return head


def cpu_name() -> str:
    """The processor's name as the kernel reports it, with family and model (a cloud's name hides them)."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not line.strip():
                    break
                fields[key.strip()] = value.strip()
    except OSError:
        pass
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name
