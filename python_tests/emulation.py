"""The builds of the emulated CUDA kernels, and how a process is started with a sanitizer's runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import zbkernels

PACKAGE = Path(zbkernels.__file__).resolve().parent
KINDS = ("plain", "asan", "tsan")
MISSING = "the emulated CUDA kernels are not built: ZBKERNELS_EMULATION=1 python setup.py build_ext --inplace"


def library(kind: str) -> Path:
    return PACKAGE / ("_C_emulated.so" if kind == "plain" else f"_C_emulated_{kind}.so")


def environment(kind: str) -> dict[str, str]:
    """Variables for a Python process that loads this build: a sanitizer's runtime must be loaded first."""
    variables = {**os.environ, "ZBKERNELS_SANITIZER": "" if kind == "plain" else kind, "OMP_NUM_THREADS": "1"}
    if kind == "plain":
        return variables
    # The C++ library beside it: a runtime that starts without one can't intercept exceptions later.
    variables["LD_PRELOAD"] = " ".join(map(_from_compiler, (f"lib{kind}.so", "libstdc++.so.6")))
    # Python and torch keep memory to the end on purpose. What is not instrumented is not our concern.
    variables["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=0:exitcode=99"
    variables["UBSAN_OPTIONS"] = "print_stacktrace=1:exitcode=99"
    variables["TSAN_OPTIONS"] = (
        "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=99:report_signal_unsafe=0"
    )
    return variables


def _from_compiler(name: str) -> str:
    command = [shutil.which("c++") or "c++", f"-print-file-name={name}"]
    return os.path.realpath(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
