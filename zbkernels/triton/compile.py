"""Ahead-of-time compilation of what an op call would launch, for a named NVIDIA GPU, on a machine with none.

    with recording() as launches:
        conv_relu_pool.forward(x, weight, ...)  # tensors of any device, `meta` included
    code = compile_launch(launches[0], capability=90)
    code.registers, code.local_bytes, code.instructions("wgmma")

TRITON_INTERPRET must not have been set when the kernels were imported.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zbkernels.triton.launch import INT32_MAX, Launch, interpreted

_POINTEE = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class Code:
    """One kernel compiled for one GPU.

    registers: per thread. local_bytes: stack and spill bytes per thread, 0 where nothing is spilled.
    shared_bytes: per block.
    """

    name: str
    capability: int
    ptx: str
    cubin: bytes
    registers: int
    local_bytes: int
    shared_bytes: int

    @functools.cached_property
    def sass(self) -> str:
        """The machine code, disassembled."""
        return _tool("nvdisasm", self.cubin, "-c")

    def instructions(self, pattern: str) -> int:
        """How many PTX lines hold an instruction that the regular expression matches."""
        return sum(1 for line in self.ptx.splitlines() if re.search(pattern, line))

    def machine_instructions(self, pattern: str) -> int:
        """The same of the machine code (SASS)."""
        return sum(1 for line in self.sass.splitlines() if re.search(pattern, line))


Attributes = dict[tuple[int, ...], list[list[Any]]]


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], Attributes]:
    """Signature, constants and attributes as Triton's launcher derives them from the arguments.

    A pointer or an integer that is divisible by 16 is marked so, an integer of 1 becomes a constant, and an integer
    is 64 bits wide only where its value needs it.
    """
    names = launch.kernel.arg_names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: Attributes = {}
    for number, (name, value) in enumerate(zip(names, launch.args, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + _POINTEE[value.dtype]
            divisible = value.data_ptr() % 16 == 0
        elif value == 1:
            signature[name] = "constexpr"
            constants[name] = 1
            continue
        else:
            signature[name] = "i32" if -INT32_MAX - 1 <= value <= INT32_MAX else "i64"
            divisible = value % 16 == 0
        if divisible:
            attributes[(number,)] = [["tt.divisibility", 16]]
    for name in names[len(launch.args) :]:
        signature[name] = "constexpr"
        constants[name] = launch.constants[name]
    return signature, constants, attributes


def compile_launch(launch: Launch, capability: int) -> Code:
    """Compiles a recorded launch for compute capability 80, 90, ...

    Raises RuntimeError where Triton's interpreter is on: its kernels can't be compiled.
    """
    if interpreted():
        raise RuntimeError("compile_launch: TRITON_INTERPRET is set, unset it in a process that compiles")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = specialise(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    cubin = compiled.asm["cubin"]
    registers, local_bytes = resource_usage(cubin)
    return Code(
        name=launch.kernel.__name__,
        capability=capability,
        ptx=compiled.asm["ptx"],
        cubin=cubin,
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=compiled.metadata.shared,
    )


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local bytes (stack and spills) per thread of the one kernel in a cubin."""
    report = _tool("cuobjdump", cubin, "--dump-resource-usage")
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


def _tool(name: str, cubin: bytes, *options: str) -> str:
    """The output of one of the binary tools that come with Triton, on a cubin."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, *options, file.name], capture_output=True, text=True, check=True)
    return done.stdout
