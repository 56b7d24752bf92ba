"""Ahead-of-time compilation of what an op call would launch, for a named GPU, on a machine with none.

    with assuming(SM_90), recording() as launches:
        conv_relu_pool.forward(x, weight, ...)  # tensors of any device, `meta` included
    code = compile_launch(launches[0], SM_90)
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
from zbkernels.triton.target import Target

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

    assembly: PTX, or AMD's. registers: per thread. local_bytes: stack and spill bytes per thread (AMD: scratch),
    0 where nothing is spilled. shared_bytes: per block.
    """

    name: str
    target: Target
    assembly: str
    binary: bytes
    registers: int
    local_bytes: int
    shared_bytes: int

    @functools.cached_property
    def machine_code(self) -> str:
        """The machine code, disassembled: SASS. AMD's assembly is that already."""
        return self.assembly if self.target.amd else _tool("nvdisasm", self.binary, "-c")

    def instructions(self, pattern: str) -> int:
        """How many lines of the assembly hold an instruction that the regular expression matches."""
        return sum(1 for line in self.assembly.splitlines() if re.search(pattern, line))

    def machine_instructions(self, pattern: str) -> int:
        """The same of the machine code."""
        return sum(1 for line in self.machine_code.splitlines() if re.search(pattern, line))


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


def compile_launch(launch: Launch, target: Target) -> Code:
    """Compiles a recorded launch.

    Raises RuntimeError where Triton's interpreter is on: its kernels can't be compiled.
    """
    if interpreted():
        raise RuntimeError("compile_launch: TRITON_INTERPRET is set, unset it in a process that compiles")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = specialise(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    gpu = GPUTarget("hip", target.arch, 64) if target.amd else GPUTarget("cuda", int(target.arch), 32)
    compiled = triton.compile(source, target=gpu, options=launch.options)
    assembly, binary = (
        compiled.asm[form] for form in (("amdgcn", "hsaco") if target.amd else ("ptx", "cubin"))
    )
    registers, local_bytes = amd_resource_usage(assembly) if target.amd else resource_usage(binary)
    return Code(
        name=launch.kernel.__name__,
        target=target,
        assembly=assembly,
        binary=binary,
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=compiled.metadata.shared,
    )


def amd_resource_usage(assembly: str) -> tuple[int, int]:
    """Vector registers and scratch bytes per thread, from the comments after the kernel's code."""
    registers, scratch = (
        re.search(rf"; {name}: (\d+)", assembly) for name in ("TotalNumVgprs", "ScratchSize")
    )
    if registers is None or scratch is None:
        raise RuntimeError("compile_launch: the assembly does not tell registers and scratch")
    return int(registers.group(1)), int(scratch.group(1))


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
