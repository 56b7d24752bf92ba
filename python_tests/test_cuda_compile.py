"""What the compiled CUDA library tells without a GPU: its architectures, its kernels' resources and machine code,
its registration."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import zbkernels
from zbkernels import _loader

PACKAGE = Path(zbkernels.__file__).resolve().parent
LIBRARY = PACKAGE / "_C_cuda.so"
CSRC = PACKAGE.parent / "csrc"

# The script that writes bench/results/ptxas.md reads the library for the tests as well.
_spec = importlib.util.spec_from_file_location("ptxas_table", PACKAGE.parent / "bench/ptxas_table.py")
ptxas_table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ptxas_table)
Kernel = ptxas_table.Kernel

BUILD = _loader.build_info(LIBRARY)
NOTE = _loader.build_info(PACKAGE / "_C_cpu.so").get("cuda_note") or "nothing is built here"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"no CUDA library here: {NOTE}")
reads_the_library = pytest.mark.skipif(
    ptxas_table.cuobjdump() is None, reason="no cuobjdump, neither a toolkit's nor Triton's"
)

DTYPES = ["float", "double", "half", "bfloat16"]
# The general kernels, on which every dtype falls back.
KERNELS = [
    "pack_weight",
    "windows",
    "uncovered",
    "spread_grad",
    "input_grad",
    "weight_tiles",
    "weight_sums",
    "add_slices",
    "direct_weight",
    "direct_input",
    "tiles",
    "pack_words",
    "pack_vectors",
    "pack_columns",
]


class Meant(NamedTuple):
    """An instruction that each of some kernels must have, as regular expressions: of the kernels' whole names in
    bench/results/ptxas.md, of the instruction's beginning, and of the architectures' where not all have it."""

    kernels: str
    instruction: str
    architectures: str = "sm_"


MEANT = [
    Meant(r"nap::unpack_bits", r"STG\.E\.128"),
    Meant(r"nap::pack_vectors<.+>", r"LDG\.E\.128"),
    # Words two at a time, products of single bits (from sm_100 on there are none), distances two at a time.
    Meant(r"nap::(hash|insert)_rows<(true|\(bool\)1)>", r"LDG\.E\.128"),
    Meant(r"nap::(distances_of_all|nearest_of_parts)<.+(true|\(bool\)1)>", r"LDG\.E\.128"),
    Meant(r"nap::(distances_of_all|nearest_of_parts)<.+>", r"BMMA\.168256\.AND\.POPC", r"sm_[89]\d"),
    Meant(r"nap::distances_of_all<int.+>", r"STG\.E\.64"),
    # x in and y out by 16 bytes; weights and values of x from shared memory.
    Meant(r"conv_relu_pool::first_layer<.+>", r"LDG\.E\.128"),
    Meant(r"conv_relu_pool::first_layer<.+>", r"STG\.E\.128"),
    Meant(r"conv_relu_pool::first_layer<.+>", r"LDS\.128"),
    # The same, and the product of staged fragments.
    Meant(r"conv_relu_pool::first_layer_tensor_core<.+>", r"HMMA\.16816\.F32"),
    Meant(r"conv_relu_pool::first_layer_tensor_core<.+>", r"LDG\.E\.128"),
    Meant(r"conv_relu_pool::first_layer_tensor_core<.+>", r"STG\.E\.128"),
    Meant(r"conv_relu_pool::first_layer_tensor_core<.+>", r"LDS\.128"),
    # Chunks by cp.async, and fragments from shared memory to the tensor cores.
    Meant(r"conv_relu_pool::tiles<.*TensorCore.*>", r"HMMA"),
    Meant(r"conv_relu_pool::tiles<.*TensorCore.*>", r"LDSM\.16\.M88\.4"),
    Meant(r"conv_relu_pool::tiles<.*>", r"LDGSTS\.E\.BYPASS\.128"),
    Meant(r"conv_relu_pool::tiles<.*Fma.*>", r"LDS\.128"),
    Meant(r"conv_relu_pool::tiles<.*>", r"STG\.E\.128"),
    # Fragments across the positions, turned on the way (halves).
    Meant(r"conv_relu_pool::outer_tiles<.*TensorCore.*>", r"HMMA"),
    Meant(r"conv_relu_pool::outer_tiles<(half|bfloat16), .*>", r"LDSM\.16\.MT88\.4"),
    Meant(r"conv_relu_pool::outer_tiles<.*>", r"LDGSTS\.E\.BYPASS\.128"),
    Meant(r"conv_relu_pool::outer_tiles<.*Fma.*>", r"LDS\.128"),
    Meant(r"conv_relu_pool::outer_tiles<.*Fma.*>", r"STG\.E\.128"),
    Meant(r"conv_relu_pool::outer_tiles<.*TensorCore.*>", r"STG\.E\.64"),
    # Rows by 16 bytes, and operands from shared memory; multiply-adds in full.
    Meant(r"dual_kernel::(gram|matvec)_tiles<.+>", r"LDG\.E\.128"),
    Meant(r"dual_kernel::(gram|matvec)_tiles<.+>", r"LDS\.128"),
    Meant(r"dual_kernel::(gram|matvec)_tiles<float>", r"FFMA"),
    Meant(r"dual_kernel::(gram|matvec)_tiles<double>", r"DFMA"),
    # The packed weights of several channels.
    Meant(r"conv_relu_pool::(windows|uncovered|input_grad)<\w+, [48]>", r"LDG\.E\.128"),
]


def architectures() -> list[str]:
    """The machine code that the build says it holds, as cuobjdump names it: ["sm_80", "sm_90a"]."""
    return [
        "sm_" + word.removesuffix("-real") for word in BUILD["cuda_archs"].split() if "virtual" not in word
    ]


@reads_the_library
def test_every_source_is_there_for_every_architecture() -> None:
    listed = ptxas_table.dumped(LIBRARY, "--list-elf")
    sources = list(CSRC.glob("*/cuda/*.cu"))
    for arch in architectures():
        count = len(re.findall(rf"\.{arch}\.cubin", listed))
        assert count == len(sources), f"{count} of {len(sources)} sources have code for {arch}: {listed}"


@reads_the_library
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_there_for_every_dtype(kernel: str, dtype: str) -> None:
    instance = re.compile(rf"\w+::{kernel}<{dtype}\b")
    for arch in architectures():
        assert any(map(instance.match, ptxas_table.kernels(LIBRARY)[arch])), (arch, kernel, dtype)


@reads_the_library
def test_no_kernel_spills() -> None:
    """A stack frame or local memory is where ptxas puts what does not fit into registers."""
    for arch, kernels in ptxas_table.kernels(LIBRARY).items():
        for name, kernel in kernels.items():
            assert kernel.spill == 0, (arch, name, kernel)


@reads_the_library
def test_two_blocks_of_every_kernel_fit_an_sm() -> None:
    """While one block waits at a barrier or for its first loads, another has work for the SM."""
    for arch, kernels in ptxas_table.kernels(LIBRARY).items():
        for name, kernel in kernels.items():
            blocks = kernel.blocks_per_sm(arch)
            # Where the size of a block is not known, the registers of two with 256 threads.
            assert kernel.registers <= 128 if blocks is None else blocks >= 2, (arch, name, kernel)


@reads_the_library
def test_the_committed_table_is_of_these_kernels() -> None:
    stated = ptxas_table.stated_spills(ptxas_table.TABLE.read_text())
    assert {"sm_80", "sm_90a"} <= stated.keys(), "`make ptxas` makes the table of what `make test` compiles"
    texts = ptxas_table.problems(ptxas_table.kernels(LIBRARY), stated)
    assert not texts, "\n".join(texts)


@reads_the_library
@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: f"{meant.kernels} {meant.instruction}")
def test_kernels_have_the_instructions_meant(meant: Meant) -> None:
    archs = [arch for arch in architectures() if re.match(meant.architectures, arch)]
    if not archs:
        pytest.skip(f"no code for {meant.architectures} in this build")
    for arch in archs:
        code = {
            name: counts
            for name, counts in ptxas_table.instructions(LIBRARY, arch).items()
            if re.fullmatch(meant.kernels, name)
        }
        assert code, f"no kernel for {arch} is named {meant.kernels}"
        for name, counts in code.items():
            has = any(re.match(meant.instruction, opcode) for opcode in counts)
            assert has, (
                f"{name} for {arch} has no {meant.instruction}, but {alike(counts, meant.instruction)}"
            )


def alike(counts: Counter[str], instruction: str) -> dict[str, int]:
    """The instructions of the same kind, for a message: all LDG for LDG.E.128."""
    kind = re.search(r"\w+", instruction).group()
    return {opcode: count for opcode, count in sorted(counts.items()) if opcode.startswith(kind)}


# --- the table's own arithmetic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "arch", "blocks"),
    [
        (Kernel(32, 0, 0, 0, 128), "sm_80", 16),  # 64 warps
        (Kernel(32, 0, 0, 0, 128), "sm_89", 12),  # 48 warps
        (Kernel(32, 0, 0, 0, 32), "sm_86", 16),  # the most blocks
        (Kernel(128, 0, 0, 0, 256), "sm_90a", 2),  # registers
        (Kernel(129, 0, 0, 0, 256), "sm_90a", 1),  # registers, in units of 8 a thread
        (Kernel(32, 0, 0, 163 * 1024, 128), "sm_80", 1),  # all shared memory but the driver's 1 KiB
        (Kernel(32, 0, 1, 163 * 1024, 128), "sm_80", 0),
        (Kernel(32, 0, 24 * 1024, 24 * 1024, 128), "sm_120", 2),
        (Kernel(32, 0, 0, None, 128), "sm_80", None),
        (Kernel(32, 0, 0, 0, None), "sm_80", None),
    ],
)
def test_blocks_that_an_sm_holds(kernel: Kernel, arch: str, blocks: int | None) -> None:
    assert kernel.blocks_per_sm(arch) == blocks


def test_names_are_readable() -> None:
    symbol = "_ZN2zb14conv_relu_pool12_GLOBAL__N_17windowsI6__halfLi8EEEvPT_"
    assert ptxas_table.readable(symbol) == "conv_relu_pool::windows<half, 8>"


def test_problems_that_the_table_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas_table, "DYNAMIC_SHARED", {"nap::gone": len})
    good, spills, unknown = Kernel(32, 0, 0, 0, 128), Kernel(255, 8, 0, 0, 128), Kernel(32, 0, 0, None, 128)
    stated = ptxas_table.stated_spills(
        ptxas_table.render(
            {
                "sm_80": {"nap::a": good, "nap::b<half, 8>": spills},
                "sm_90a": {"nap::a": good, "nap::c": good},
            },
            "13.0",
        )
    )
    assert stated == {"sm_80": {"nap::a": 0, "nap::b<half, 8>": 8}, "sm_90a": {"nap::a": 0, "nap::c": 0}}

    found = {"sm_80": {"nap::a": spills, "nap::b<half, 8>": spills, "nap::d": unknown}}
    assert ptxas_table.problems(found, stated) == [
        "nap::d has no row: `make ptxas` remakes the table",
        "nap::a spills 8 bytes on sm_80, 0 by the table: mend it, or, where that is meant, `make ptxas` remakes the "
        "table",
        "nap::d takes shared memory from its launch on sm_80: state how many bytes in DYNAMIC_SHARED of "
        "bench/ptxas_table.py",
    ]
    found = {"sm_80": {"nap::a": good, "nap::b<half, 8>": good}, "sm_90a": {"nap::a": good}}
    assert ptxas_table.problems(found, stated) == [
        "nap::c has a row and is not in the library: `make ptxas` remakes the table",
        "DYNAMIC_SHARED names nap::gone, which is not in the library",
    ]


# --- registration -------------------------------------------------------------------------------------------------

# Loads the library in a torch without CUDA: the one symbol that such a torch lacks is put beside it.
REGISTER = """
import ctypes, sys, torch
import zbkernels
from zbkernels.ops._op import OPS
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
library.zb_registration_error.restype = ctypes.c_char_p
print("error:", library.zb_registration_error().decode())
for name in (name for name, op in OPS.items() if not op.composite):
    print(name, torch._C._dispatch_has_kernel_for_dispatch_key(f"zb::{name}", "CUDA"))
"""


def test_registers_a_kernel_for_every_op(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if torch.version.cuda is not None or compiler is None or not (PACKAGE / "_C_cpu.so").exists():
        pytest.skip("needs a torch without CUDA, a C++ compiler and the CPU library")
    stub = tmp_path / "stub.so"
    source = 'extern "C" int aoti_torch_get_current_cuda_stream(int, void**) { return 1; }'
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", stub], input=source, text=True, check=True
    )
    result = subprocess.run(
        [sys.executable, "-c", REGISTER, stub, LIBRARY],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "error: "
    assert len(lines) > 6 and all(line.endswith(" True") for line in lines[1:]), result.stdout
