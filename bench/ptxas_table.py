"""What the compiler made of each CUDA kernel, as a table: registers, spills, shared memory, occupancy. Needs no GPU.

    python bench/ptxas_table.py            writes bench/results/ptxas.md from zbkernels/_C_cuda.so
    python bench/ptxas_table.py --check    compares instead: says what is missing or spills more, and exits with 1

Kernels and architectures are those that cuobjdump finds in the library (a CUDA toolkit's, or the one that Triton
carries). Only the dynamic shared memory, an argument of the launch, has to be stated: in DYNAMIC_SHARED.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zbkernels._loader import build_info

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "zbkernels/_C_cuda.so"
TABLE = ROOT / "bench/results/ptxas.md"
REMAKE = "`make ptxas` remakes the table"

SUM_BYTES = {"float": 4, "double": 8, "half": 4, "bfloat16": 4}


def tile_bytes(element: str) -> int:
    """tile_shared_bytes of csrc/common/cuda/tile_product.h."""
    return 2 * 16 * 65 * SUM_BYTES[element]


def conv_tile_bytes(_element: str, _product: str, columns: str, pooled: str, _adds: str) -> int:
    """TileOutput::shared_bytes of csrc/conv_relu_pool/cuda/tiles.h."""
    windows = 32 if pooled in ("true", "1") else 128
    staged = (64 * (windows + 4) + 32) * (6 if windows == 32 else 4)
    return max(staged, 3 * (128 + int(columns)) * 64) + windows * 40


def outer_tile_bytes(element: str, _product: str, rows: str) -> int:
    """kShared of csrc/conv_relu_pool/cuda/backward_tiles_weight.cu."""
    size, skew = (2, 16) if element != "float" else (4, 32)
    return 3 * (64 // size) * ((int(rows) + 128) * size + 2 * skew)


def dual_tile_bytes(element: str) -> int:
    """Tile::shared_bytes of csrc/dual_kernel/cuda/product.h."""
    size = SUM_BYTES[element]
    rows, pad = (128 if size == 4 else 64), 16 // size
    return max(2 * 16 * (rows + 64 + 2 * pad), rows * 65) * size


# Bytes that the launches give to the kernels with dynamic shared memory, from the template arguments. --check and
# the tests ask for a row where a kernel touches shared memory and has no static one; where it has both kinds, the
# binary cannot tell that the row is missing.
DYNAMIC_SHARED: dict[str, Callable[..., int]] = {
    # At most; the tiles' sizes say how much.
    "conv_relu_pool::first_layer": lambda *_: 82 * 1024 - 1280,  # kFirstMostShared of first_layer.h
    "conv_relu_pool::first_layer_tensor_core": lambda *_: 82 * 1024 - 1280,
    "conv_relu_pool::direct_input": lambda *_: 48 * 1024,
    "conv_relu_pool::direct_weight": lambda *_: 48 * 1024,
    "conv_relu_pool::outer_tiles": outer_tile_bytes,
    "conv_relu_pool::tiles": conv_tile_bytes,
    "conv_relu_pool::weight_sums": lambda element: 256 * SUM_BYTES[element],
    "conv_relu_pool::weight_tiles": tile_bytes,
    "dual_kernel::gram_tiles": dual_tile_bytes,
    "dual_kernel::matvec_tiles": dual_tile_bytes,
    "linear_relu::tiles": tile_bytes,
    "nap::nearest_of_parts": lambda *_: 80 * 1024,  # at most: kMostShared of csrc/nap/cuda/topk.cu
}
SHARED_INSTRUCTION = re.compile(r"(LDS|STS|LDSM|STSM|LDGSTS|ATOMS|SYNCS|UBLKCP|UTMALDG)\b")


class Limits(NamedTuple):
    """What an SM holds at once; by CUDA's programming guide and cuda_occupancy.h."""

    warps: int
    blocks: int
    shared: int


LIMITS = {
    80: Limits(64, 32, 164 * 1024),
    86: Limits(48, 16, 100 * 1024),
    89: Limits(48, 24, 100 * 1024),
    90: Limits(64, 32, 228 * 1024),
    100: Limits(64, 32, 228 * 1024),
    120: Limits(48, 24, 100 * 1024),
}
# Alike on all of these.
REGISTERS, REGISTER_UNIT, PARTITIONS = 65536, 256, 4
RESERVED_SHARED, SHARED_UNIT = 1024, 128  # the driver takes 1 KiB of each block


class Kernel(NamedTuple):
    registers: int
    spill: int  # bytes of the stack frame and of local memory
    static: int  # bytes of shared memory
    dynamic: int | None  # None: the launch gives some, and DYNAMIC_SHARED does not say how much
    block: int | None  # the most threads; None without __launch_bounds__

    def blocks_per_sm(self, arch: str) -> int | None:
        """How many blocks an SM holds at once; None where that is not known."""
        limits = LIMITS.get(number(arch))
        if limits is None or self.block is None or self.dynamic is None:
            return None
        warps = math.ceil(self.block / 32)
        warp_registers = round_up(self.registers * 32, REGISTER_UNIT)
        by_registers = REGISTERS // PARTITIONS // warp_registers * PARTITIONS // warps
        by_shared = limits.shared // round_up(self.static + self.dynamic + RESERVED_SHARED, SHARED_UNIT)
        return min(limits.blocks, limits.warps // warps, by_registers, by_shared)


def round_up(value: int, unit: int) -> int:
    return math.ceil(value / unit) * unit


def number(arch: str) -> int:
    """90 for sm_90a."""
    return int(re.sub(r"\D", "", arch))


# --- reading the library ------------------------------------------------------------------------------------------


def cuobjdump() -> str | None:
    """The tool of the CUDA toolkit, or the copy that Triton carries."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    copy = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
    return str(copy) if copy.exists() else None


def dumped(library: Path, *options: str) -> str:
    line = [cuobjdump(), *options, str(library)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=300)
    if result.returncode:
        raise RuntimeError(f"cuobjdump failed: {result.stderr}")
    return result.stdout


@cache
def readable(symbol: str) -> str:
    """The kernel's name and template arguments, as in conv_relu_pool::windows<half, 8>."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_void_p
    text = demangle(symbol.encode(), None, None, None)
    name = ctypes.string_at(text).decode() if text else symbol
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for end, letter in enumerate(name):  # to the parenthesis of the parameters, past those of (Enum)1
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:end]
            break
    return re.sub(r"\bzb::", "", name).replace("__half", "half").replace("__nv_bfloat16", "bfloat16")


@cache
def instructions(library: Path, arch: str) -> dict[str, Counter[str]]:
    """How often each instruction stands in each kernel's machine code: {name: {"LDG.E.128.CONSTANT": 4}}."""
    found: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for line in dumped(library, "--dump-sass", "--gpu-architecture", arch).splitlines():
        if match := re.match(r"\s+Function : (\S+)", line):
            counts = found.setdefault(readable(match.group(1)), Counter())
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            counts[match.group(1)] += 1
    return found


def blocks(library: Path) -> dict[str, dict[str, int]]:
    """Threads of the largest block, where __launch_bounds__ gives them: {architecture: {symbol: threads}}."""
    found: dict[str, dict[str, int]] = {}
    functions: dict[str, int] = {}
    symbol = attribute = ""
    for line in dumped(library, "--dump-elf").splitlines():
        if match := re.match(r"arch = (\S+)", line):
            functions = found.setdefault(match.group(1), {})
        elif match := re.match(r"\.nv\.info\.(\S+)", line):
            symbol = match.group(1)
        elif match := re.match(r"\s*Attribute:\s+(\S+)", line):
            attribute = match.group(1)
        elif "Value:" in line and attribute in ("EIATTR_MAX_THREADS", "EIATTR_REQNTID"):
            functions[symbol] = math.prod(int(size, 16) for size in re.findall(r"0x[0-9a-f]+", line))
    return found


@cache
def kernels(library: Path = LIBRARY) -> dict[str, dict[str, Kernel]]:
    """{architecture: {name: …}}. Of a kernel that several sources instantiate, the copy with the most registers."""
    threads = blocks(library)
    found: dict[str, dict[str, Kernel]] = {}
    arch = symbol = ""
    for line in dumped(library, "--dump-resource-usage").splitlines():
        if match := re.match(r"arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function (\S+?):", line):
            symbol = match.group(1)
        elif "REG:" in line:
            used = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            # From 9.0 on SHARED counts what the driver reserves, where it counts anything.
            static = max(0, used["SHARED"] - (RESERVED_SHARED if number(arch) >= 90 else 0))
            name = readable(symbol)
            dynamic = dynamic_bytes(name, static, instructions(library, arch)[name])
            block = threads[arch].get(symbol)
            kernel = Kernel(used["REG"], used["STACK"] + used["LOCAL"], static, dynamic, block)
            functions = found.setdefault(arch, {})
            functions[name] = max(kernel, functions.get(name, kernel), key=lambda k: (k.registers, k.spill))
    return dict(sorted(found.items(), key=lambda item: (number(item[0]), item[0])))


def dynamic_bytes(name: str, static: int, code: Counter[str]) -> int | None:
    base, _, arguments = name.removesuffix(">").partition("<")
    if base in DYNAMIC_SHARED:
        return DYNAMIC_SHARED[base](*filter(None, arguments.split(", ")))
    touches = any(SHARED_INSTRUCTION.match(opcode) for opcode in code)
    return None if touches and static == 0 else 0


# --- the table ----------------------------------------------------------------------------------------------------

HEADER = """# Registers, spills, shared memory and occupancy of the CUDA kernels

By nvcc {nvcc}; `make ptxas` writes this file. Per architecture:

- registers: of a thread;
- spill: bytes of stack and local memory of a thread;
- block: the most threads of a block (`__launch_bounds__`);
- shared: static + dynamic bytes of a block;
- warps: theoretical occupancy, warps that an SM holds at once of the most it can hold, with these registers, this
  shared memory (and the 1 KiB that the driver takes of each block) and the largest block.

`?`: the binary does not tell (no `__launch_bounds__`, or dynamic shared memory that `bench/ptxas_table.py` has no
row for).

"""
COLUMNS = ["registers", "spill", "block", "shared", "warps"]


def cells(arch: str, kernel: Kernel | None) -> list[str]:
    if kernel is None:
        return ["-"] * len(COLUMNS)
    blocks = kernel.blocks_per_sm(arch)
    warps = "?" if blocks is None else f"{blocks * math.ceil(kernel.block / 32)}/{LIMITS[number(arch)].warps}"
    dynamic = "?" if kernel.dynamic is None else kernel.dynamic
    shared = f"{kernel.static} + {dynamic}" if dynamic else str(kernel.static)
    return [str(kernel.registers), str(kernel.spill), str(kernel.block or "?"), shared, warps]


def render(found: dict[str, dict[str, Kernel]], nvcc: str) -> str:
    heads = ["kernel", *(f"{arch} {column}" for arch in found for column in COLUMNS)]
    lines = [heads, ["---"] * len(heads)]
    for name in sorted({name for functions in found.values() for name in functions}):
        line = [f"`{name}`"]
        for arch, functions in found.items():
            line += cells(arch, functions.get(name))
        lines.append(line)
    return HEADER.format(nvcc=nvcc) + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def stated_spills(table: str) -> dict[str, dict[str, int]]:
    """What a written table says: {architecture: {name: bytes}}."""
    heads, _, *lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    found: dict[str, dict[str, int]] = {}
    for at, head in enumerate(heads):
        if head.endswith(" spill"):
            found[head.removesuffix(" spill")] = {
                line[0].strip("`"): int(line[at]) for line in lines if line[at] != "-"
            }
    return found


def problems(found: dict[str, dict[str, Kernel]], stated: dict[str, dict[str, int]]) -> list[str]:
    """Where the library has what the table does not state. Register counts may differ: each nvcc has its own."""
    here = {name for functions in found.values() for name in functions}
    rows = {name for functions in stated.values() for name in functions}
    texts = [f"{name} has no row: {REMAKE}" for name in sorted(here - rows)]
    for arch, functions in found.items():
        for name, kernel in sorted(functions.items()):
            allowed = stated.get(arch, {}).get(name, 0)
            if kernel.spill > allowed:
                texts.append(
                    f"{name} spills {kernel.spill} bytes on {arch}, {allowed} by the table: mend it, or, where "
                    f"that is meant, {REMAKE}"
                )
            if kernel.dynamic is None:
                texts.append(
                    f"{name} takes shared memory from its launch on {arch}: state how many bytes in "
                    "DYNAMIC_SHARED of bench/ptxas_table.py"
                )
    if stated.keys() <= found.keys():  # else a kernel may be absent because its architecture was not built
        texts += [f"{name} has a row and is not in the library: {REMAKE}" for name in sorted(rows - here)]
        unknown = DYNAMIC_SHARED.keys() - {name.partition("<")[0] for name in here}
        texts += [f"DYNAMIC_SHARED names {name}, which is not in the library" for name in sorted(unknown)]
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--out", type=Path, default=TABLE, help="default: bench/results/ptxas.md")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with the file")
    options = parser.parse_args()
    if not options.library.exists():
        parser.error(f"{options.library} is not there: `make build` builds it where nvcc is")
    if cuobjdump() is None:
        parser.error("no cuobjdump, neither a toolkit's nor Triton's (`pip install triton`)")
    found = kernels(options.library)
    if not options.check:
        options.out.write_text(render(found, build_info(options.library)["nvcc"]))
    texts = problems(found, stated_spills(options.out.read_text()))
    for text in texts:
        print(text, file=sys.stderr)
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main())
