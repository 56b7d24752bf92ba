"""The CPU library and _host under AddressSanitizer with UBSan, and under ThreadSanitizer.

The emulated CUDA kernels have theirs in test_cuda_emulation.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulation import environment
from instrumented import KINDS, MISSING, libraries, package

PROGRAM = Path(__file__).with_name("sanitized_program.py")
pytestmark = [
    pytest.mark.skipif(bool(os.environ.get("ZBKERNELS_SANITIZER")), reason="starts sanitizers of its own"),
    pytest.mark.skipif(not all(map(libraries, KINDS)), reason=MISSING),
]
PARTS = {"asan": ("samples", "index"), "tsan": ("threads", "index")}
FAULTS = {"asan": ("overflow", "AddressSanitizer"), "tsan": ("race", "data race")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: package(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def run(kind: str, folder: Path, part: str) -> subprocess.CompletedProcess[str]:
    variables = environment(kind)
    del variables["ZBKERNELS_SANITIZER"]  # that one picks a build of the emulation
    variables["PYTHONPATH"] = str(folder)
    variables["ZBKERNELS_CPU_CAPABILITY"] = "avx2"  # the set that is instrumented
    if kind == "tsan":  # without what lets it overlook how Python and torch hand memory from thread to thread
        variables["TSAN_OPTIONS"] = "halt_on_error=1:exitcode=99:report_signal_unsafe=0"
    command = [sys.executable, str(PROGRAM), part]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in KINDS for part in PARTS[kind]])
def test_nothing_is_reported(kind: str, part: str, folders: dict[str, Path]) -> None:
    done = run(kind, folders[kind], part)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_reported(kind: str, folders: dict[str, Path]) -> None:
    part, text = FAULTS[kind]
    done = run(kind, folders[kind], part)
    assert done.returncode != 0 and text in done.stderr and "conv_relu_pool" in done.stderr, done.stderr[
        -3000:
    ]
