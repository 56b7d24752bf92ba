"""What the emulation of CUDA must see: kernels with one planted fault each (csrc/common/cuda_emulation/faults.cu)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from emulation import KINDS, MISSING, environment, library

pytestmark = [
    pytest.mark.skipif(not library("plain").exists(), reason=MISSING),
    pytest.mark.skipif(bool(os.environ.get("ZBKERNELS_SANITIZER")), reason="starts sanitizers of its own"),
]

RUN = """
import ctypes, sys, torch
library = ctypes.CDLL(sys.argv[1])
library.zb_emulation_fault.restype = ctypes.c_char_p
for name in sys.argv[2:]:
    print(name + "|" + library.zb_emulation_fault(name.encode()).decode(), flush=True)
"""

FINE = ("block_sum", "warp_words", "early_return", "copy_waited")

# Seen by every build: a part of what the launch raises.
RAISED = {
    "copy_not_waited": "computed something else",
    "unwritten": "computed something else",
    "divergent_barrier": "divergent barrier: block 0, thread 0 is at faults.cu:",
    "barrier_in_a_branch": "divergent barrier",
    "misaligned_vector": "misaligned access of 16 bytes",
    "misaligned_copy": "misaligned access of 16 bytes",
    "copy_past_shared_memory": "block 0, thread 63: outside the block's shared memory",
    "copy_never_waited": "returned without waiting for its asynchronous copies",
    "more_shared_memory_than_asked_for": "more shared memory than a block can have",
    "lane_outside_its_mask": "the mask leaves out the lane that calls",
    "source_outside_the_mask": "reads lane 9, which the mask leaves out",
    "warp_waits_for_returned_lanes": "for lanes of its mask that have returned or wait elsewhere",
    "different_masks": "divergent warp",
    "fragments_at_two_places": "divergent warp: this lane is at mma, others of its mask at ldmatrix",
}

# Seen by a sanitizer, which ends the process: a part of its report.
REPORTED = {
    "past_dynamic_memory": ("asan", "heap-buffer-overflow"),
    "past_static_memory": ("asan", "heap-buffer-overflow"),
    "past_global_memory": ("asan", "heap-buffer-overflow"),
    "misaligned_cast": ("asan", "misaligned address"),
    "missing_barrier": ("tsan", "data race"),
    "missing_barrier_at_the_end_of_a_loop": ("tsan", "data race"),
    "missing_warp_barrier": ("tsan", "data race"),
    "copy_without_barrier": ("tsan", "data race"),
    "blocks_write_one_place": ("tsan", "data race"),
}


def run(kind: str, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(library(kind)), *names]
    return subprocess.run(
        command, env=environment(kind), capture_output=True, text=True, timeout=120, check=False
    )


def outcomes(kind: str, *names: str) -> dict[str, str]:
    done = run(kind, *names)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split("|", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_sound_kernels_pass_and_faults_raise(kind: str) -> None:
    found = outcomes(kind, *FINE, *RAISED)
    assert {name: found[name] for name in FINE} == dict.fromkeys(FINE, "")
    for name, text in RAISED.items():
        assert text in found[name], (name, found[name])


@pytest.mark.parametrize("name", REPORTED)
def test_a_sanitizer_reports(name: str) -> None:
    kind, text = REPORTED[name]
    done = run(kind, name)
    assert done.returncode != 0 and text in done.stderr and name in done.stderr, done.stderr[-3000:]


def test_the_message_names_op_kernel_and_thread() -> None:
    found = outcomes("plain", "misaligned_vector")["misaligned_vector"]
    assert found.startswith(
        "faults: misaligned_vector: block 0, thread 0: misaligned access of 16 bytes (ptx.h:"
    )
