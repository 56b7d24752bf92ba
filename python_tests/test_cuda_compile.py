"""What the compiled CUDA library tells without a GPU: its architectures, its kernels' resources, its registration."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import zbkernels
from zbkernels import _loader

PACKAGE = Path(zbkernels.__file__).resolve().parent
LIBRARY = PACKAGE / "_C_cuda.so"
CSRC = PACKAGE.parent / "csrc"

BUILD = _loader.build_info(LIBRARY)
NOTE = _loader.build_info(PACKAGE / "_C_cpu.so").get("cuda_note") or "nothing is built here"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"no CUDA library here: {NOTE}")

DTYPES = ["float", "double", "__half", "__nv_bfloat16"]
KERNELS = [
    "pack_weight",
    "windows",
    "uncovered",
    "spread_grad",
    "input_grad",
    "weight_tiles",
    "weight_sums",
    "add_slices",
    "tiles",
    "pack_words",
]


def architectures() -> list[str]:
    """The machine code that the build says it holds, as cuobjdump names it: ["sm_80", "sm_90a"]."""
    return [
        "sm_" + word.removesuffix("-real") for word in BUILD["cuda_archs"].split() if "virtual" not in word
    ]


def cuobjdump() -> str | None:
    """The tool of the CUDA toolkit, or the copy that Triton carries."""
    if found := shutil.which("cuobjdump"):
        return found
    try:
        import triton
    except ImportError:
        return None
    copy = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return str(copy) if copy.exists() else None


def dumped(*options: str) -> str:
    tool = cuobjdump()
    if tool is None:
        pytest.skip("no cuobjdump, neither a toolkit's nor Triton's")
    result = subprocess.run([tool, *options, str(LIBRARY)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def resources() -> dict[str, dict[str, dict[str, int]]]:
    """Registers, stack, shared and local bytes of every kernel: {architecture: {mangled name: {"REG": …}}}."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    functions: dict[str, dict[str, int]] = {}
    name = ""
    for line in dumped("--dump-resource-usage").splitlines():
        if match := re.match(r"arch = (\S+)", line.strip()):
            functions = found.setdefault(match.group(1), {})
        elif match := re.match(r"Function (\S+?):", line.strip()):
            name = match.group(1)
        elif "REG:" in line:
            functions[name] = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
    return found


def mangled(name: str, dtype: str) -> re.Pattern[str]:
    """Matches the symbol of the kernel template ``name`` at ``dtype``, whatever its other arguments."""
    code = {"float": "f", "double": "d"}.get(dtype, f"{len(dtype)}{dtype}")
    return re.compile(rf"{len(name)}{name}I{code}")


def test_every_source_is_there_for_every_architecture() -> None:
    listed = dumped("--list-elf")
    sources = list(CSRC.glob("*/cuda/*.cu"))
    for arch in architectures():
        count = len(re.findall(rf"\.{arch}\.cubin", listed))
        assert count == len(sources), f"{count} of {len(sources)} sources have code for {arch}: {listed}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_there_for_every_dtype(kernel: str, dtype: str) -> None:
    for arch in architectures():
        assert any(mangled(kernel, dtype).search(symbol) for symbol in resources()[arch]), (
            arch,
            kernel,
            dtype,
        )


def test_no_kernel_spills() -> None:
    """A stack frame or local memory is where ptxas puts what does not fit into registers."""
    for arch in architectures():
        for symbol, used in resources()[arch].items():
            assert used["STACK"] == 0 and used["LOCAL"] == 0, (arch, symbol, used)


def test_blocks_of_every_kernel_fit_an_sm() -> None:
    """At most 128 registers: 256 threads, the largest block, then fit twice into the 65,536 of an SM."""
    for arch in architectures():
        for symbol, used in resources()[arch].items():
            assert used["REG"] <= 128, (arch, symbol, used)


# Loads the library in a torch without CUDA: the one symbol that such a torch lacks is put beside it.
REGISTER = """
import ctypes, sys, torch
import zbkernels
from zbkernels.ops._op import OPS
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
library.zb_registration_error.restype = ctypes.c_char_p
print("error:", library.zb_registration_error().decode())
for name in OPS:
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
