"""What Triton's compiler made of each kernel, as a table: registers, spills, shared memory. Needs no GPU.

    python bench/triton_table.py           writes bench/results/triton.md
    python bench/triton_table.py CASE …    prints the rows of the cases that hold one of these words

Calls are made with tensors on the `meta` device; what they would launch is recorded and compiled. The tests
read the same cases (python_tests/test_triton_aot.py).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zbkernels.ops._geometry import Geometry
from zbkernels.triton import (
    conv_relu_pool,
    conv_tiles,
    dual_gram,
    dual_matvec,
    layer_kernel,
    linear_relu,
    nap_frequency,
    nap_group,
    nap_hamming,
    nap_hash,
    nap_pack,
    nap_topk,
    nap_unpack,
)
from zbkernels.triton.compile import Code, compile_launch
from zbkernels.triton.config import Config
from zbkernels.triton.launch import Launch, recording
from zbkernels.triton.target import GFX_942, SM_80, SM_90, SM_100, Target, assuming

TABLE = Path(__file__).resolve().parents[1] / "bench/results/triton.md"
TARGETS = (SM_80, SM_90, SM_100, GFX_942)
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
OVERLAPPING = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}


def meta(*shape: int, dtype: torch.dtype = f16, channels_last: bool = False) -> torch.Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="meta", memory_format=layout)


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def conv(
    dtype: torch.dtype,
    *,
    channels: int = 64,
    outputs: int = 128,
    groups: int = 1,
    size: int = 32,
    channels_last: bool = True,
    need_code: bool = True,
    units: str = "",
    tf32: bool = False,
    backward: bool = False,
    **pool: Any,
) -> None:
    """cifar2 of the suite (64 → 128 channels, 3×3, "same") unless told otherwise."""
    x = meta(128, channels, size, size, dtype=dtype, channels_last=channels_last)
    weight = meta(outputs, channels // groups, 3, 3, dtype=dtype, channels_last=channels_last)
    g = Geometry.of("table", 1, 1, 1, groups, **pool)
    with tf32_allowed(tf32):
        y, code, _ = conv_relu_pool.forward(
            x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=need_code, units=units
        )
    if backward:
        conv_relu_pool.backward(
            y, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=True
        )


def linear(
    dtype: torch.dtype, inputs: int = 784, rows: int = 4096, need_sig: bool = True, tf32: bool = False
) -> None:
    with tf32_allowed(tf32):
        linear_relu.forward(
            meta(rows, inputs, dtype=dtype), meta(512, inputs, dtype=dtype), 0.0, need_sig=need_sig
        )


def signatures(rows: int, words: int = 16) -> torch.Tensor:
    return meta(rows, words, dtype=torch.int64)


def smallest_searches() -> None:
    """Arguments of 1 become constants of the kernel, which not every operation of Triton takes."""
    nap_hamming.forward(signatures(1, 1), signatures(1, 1))
    for rows in (1, 2):
        nap_topk.forward(signatures(1, 1), signatures(rows, 1), 1)
    nap_frequency.forward(signatures(1, 1), 1)
    groups(1, 1)


def groups(rows: int, words: int) -> None:
    """The two kernels of nap_group; what is between them and after depends on data, which meta tensors have none of."""
    sig = signatures(rows, words)
    nap_hash.forward(sig)
    nap_group.compare_neighbours(sig, meta(rows, dtype=torch.int64), meta(rows, dtype=torch.int64))


def gram(
    dtype: torch.dtype = f32, activation: str = "relu", features: int = 784, itself: bool = False
) -> None:
    x = meta(8192, features, dtype=dtype)
    other = x if itself else meta(8192, features, dtype=dtype)
    dual_gram.forward(x, other, "ntk", activation, 3, 2**0.5, 0.1, "all")


def matvec(dtype: torch.dtype = f32, activation: str = "relu", rows: int = 30000) -> None:
    x, y, v = meta(rows, 784, dtype=dtype), meta(30000, 784, dtype=dtype), meta(30000, 10, dtype=dtype)
    dual_matvec.forward(x, y, v, "ntk", activation, 3, 2**0.5, 0.1, "all")


def layer(dtype: torch.dtype = f32, biased: bool = False, own_angles: bool = False) -> None:
    u, v = meta(64, 3072, dtype=dtype), meta(64, 3072, dtype=dtype)
    angles = meta(*((64, 32) if own_angles else (32,)), dtype=f32)
    layer_kernel.forward(u, v, angles, meta(3072, dtype=dtype) if biased else None, True)


GENERAL = "conv_act_pool_kernel"
TILED = "conv_tiles_kernel"

# What is called, and which of the kernels that it launches are looked at.
CASES: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "tiles f16, max": (lambda: conv(f16, need_code=False), (TILED,)),
    "tiles f16, max and code": (lambda: conv(f16), (TILED,)),
    "tiles f16, no pool": (lambda: conv(f16, need_code=False, pool="none"), (TILED,)),
    "tiles bf16 NCHW, 40 channels, slope": (
        lambda: conv(bf16, channels=40, channels_last=False, negative_slope=0.1),
        (TILED,),
    ),
    "tiles bf16, average, bits of the map": (
        lambda: conv(bf16, size=26, pool="avg", units="relu"),
        (TILED, "windows_to_map_kernel"),
    ),
    "tiles f16, ceil_mode, bits": (lambda: conv(f16, size=29, ceil_mode=True, units="output"), (TILED,)),
    "tiles f16, 32 channels": (lambda: conv(f16, channels=32, outputs=32), (TILED,)),
    "tiles f16, 4 groups": (lambda: conv(f16, channels=256, outputs=256, groups=4), (TILED,)),
    "tiles TF32": (lambda: conv(f32, tf32=True), (TILED,)),
    "tiles f32": (lambda: conv(f32), (TILED,)),
    "tiles f32, signature": (lambda: conv(f32, units="output", tf32=True), (TILED,)),
    "general f16, overlapping pool": (lambda: conv(f16, **OVERLAPPING), (GENERAL,)),
    "general f32, 3 channels": (lambda: conv(f32, channels=3, outputs=64), (GENERAL,)),
    "general f64": (lambda: conv(f64), (GENERAL,)),
    "general f16, depthwise": (lambda: conv(f16, outputs=64, groups=64), (GENERAL,)),
    "general, slope, bits": (
        lambda: conv(f16, size=26, units="output", negative_slope=0.1, **OVERLAPPING),
        (GENERAL, "planes_to_signature_kernel"),
    ),
    "winner": (lambda: conv(f16, units="winner"), ("winner_kernel",)),
    "general, average and its backward": (
        lambda: conv(bf16, channels=8, pool="avg", units="relu", backward=True),
        (GENERAL, "pool_map_kernel", "expand_kernel"),
    ),
    "backward of max, f32": (lambda: conv(f32, backward=True, **OVERLAPPING), ("expand_kernel",)),
    "linear f16": (lambda: linear(f16), ("linear_act_kernel",)),
    "linear bf16, no bits, 16 rows": (lambda: linear(bf16, rows=16, need_sig=False), ("linear_act_kernel",)),
    "linear TF32": (lambda: linear(f32, need_sig=False, tf32=True), ("linear_act_kernel",)),
    "linear f32": (lambda: linear(f32, tf32=True), ("linear_act_kernel",)),
    "linear f64": (lambda: linear(f64), ("linear_act_kernel",)),
    "pack f32": (lambda: nap_pack.forward(meta(4096, 16384, dtype=f32)), ("pack_kernel",)),
    "pack f16 channels_last": (
        lambda: nap_pack.forward(meta(128, 64, 14, 14, channels_last=True)),
        ("pack_kernel",),
    ),
    "unpack": (lambda: nap_unpack.forward(meta(4096, 16, dtype=torch.int64), 1024), ("unpack_kernel",)),
    "hamming": (lambda: nap_hamming.forward(signatures(1000), signatures(10**6)), ("hamming_kernel",)),
    "hamming, odd words": (
        lambda: nap_hamming.forward(signatures(1000, 17), signatures(10**6, 17)),
        ("hamming_kernel",),
    ),
    "topk": (lambda: nap_topk.forward(signatures(1000), signatures(10**6), 10), ("nearest_kernel",)),
    "topk, one query": (lambda: nap_topk.forward(signatures(1), signatures(10**6), 10), ("nearest_kernel",)),
    "topk, k 128": (lambda: nap_topk.forward(signatures(1000), signatures(10**6), 128), ("nearest_kernel",)),
    "topk, long rows": (
        lambda: nap_topk.forward(signatures(1000, 2000), signatures(10**5, 2000), 128),
        ("nearest_kernel",),
    ),
    "searches of one row and one word": (
        smallest_searches,
        ("hamming_kernel", "nearest_kernel", "frequency_kernel", "hash_kernel", "begins_kernel"),
    ),
    "hash and groups": (lambda: groups(10**6, 8), ("hash_kernel", "begins_kernel")),
    "hash and groups, odd words": (lambda: groups(10**6, 17), ("hash_kernel", "begins_kernel")),
    "frequency": (lambda: nap_frequency.forward(signatures(10**6), 1000), ("frequency_kernel",)),
    "frequency, one word": (lambda: nap_frequency.forward(signatures(10**6, 1), 64), ("frequency_kernel",)),
    "gram": (gram, ("gram_kernel",)),
    "gram with itself": (lambda: gram(itself=True), ("describe_rows_kernel", "gram_kernel")),
    "gram GELU, 20 features": (lambda: gram(activation="gelu", features=20), ("gram_kernel",)),
    "gram f64, sin": (lambda: gram(f64, "sin"), ("gram_kernel",)),
    "matvec": (matvec, ("matvec_kernel",)),
    "matvec f64, erf, 16 rows": (lambda: matvec(f64, "erf", 16), ("matvec_kernel",)),
    "matvec GELU, 16 rows": (lambda: matvec(f32, "gelu", 16), ("matvec_kernel",)),
    "layer f32": (layer, ("layer_sums_kernel",)),
    "layer bf16, bias, angles of each pair": (
        lambda: layer(bf16, biased=True, own_angles=True),
        ("layer_sums_kernel",),
    ),
    "layer f64": (lambda: layer(f64), ("layer_sums_kernel",)),
}


@functools.cache
def launches_of(case: str, target: Target) -> tuple[Launch, ...]:
    call, kernels = CASES[case]
    with assuming(target), recording() as launches:
        call()
    return tuple(launch for launch in launches if launch.kernel.__name__ in kernels)


@functools.cache
def compiled(case: str, target: Target) -> tuple[Code, ...]:
    return tuple(compile_launch(launch, target) for launch in launches_of(case, target))


@contextmanager
def tile_forced(number: int) -> Iterator[None]:
    """Within this block the tiled kernels take candidate `number` (the last, where there are fewer)."""

    def nth(_op: Any, _device: Any, _dtype: Any, _shape: str, candidates: Callable[[], Any]) -> Config:
        found = candidates()
        return found[min(number, len(found) - 1)]

    before = conv_tiles.choose, linear_relu.choose
    conv_tiles.choose = linear_relu.choose = nth
    try:
        yield
    finally:
        conv_tiles.choose, linear_relu.choose = before


# --- the table ----------------------------------------------------------------------------------------------------

PRODUCTS = {
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mma": r"\bmma\.sync",
    "mfma": r"v_mfma",
    "fma": r"\bfma\.rn\.f(32|64)|v_fma_f(32|64)|v_fmac_f(32|64)",
}
SIXTEEN_BYTES = r"\bLDG\w*\S*\.128\b|global_load_dwordx4|buffer_load_dwordx4"  # LDGSTS goes to shared memory
SIXTEEN_BYTES_OUT = r"\bSTG\S*\.128\b|global_store_dwordx4|buffer_store_dwordx4"
HEADER = """# Registers, spills, shared memory and products of the Triton kernels

By Triton {version}, ahead of time; `make triton-table` writes this file. No card has run these kernels yet.

A cell:

- registers + local bytes (stack and spills; AMD: scratch) of a thread,
- bytes of shared memory of a block,
- what multiplies, and how many such instructions there are,
- 16-byte loads / 16-byte stores of global memory,
- for tiled kernels the tile: rows × columns × depth of a step, warps (w), stages of the pipeline (s).

"""


def product(code: Code) -> str:
    for name, pattern in PRODUCTS.items():
        if count := code.instructions(pattern):
            return f"{name} {count}"
    return "-"


def tile(launch: Launch) -> str:
    c = launch.constants
    if "BLOCK_C" not in c:
        return ""
    warps = launch.options["num_warps"]
    return f", {c['BLOCK_M']}×{c['BLOCK_N']}×{c['BLOCK_C']} w{warps} s{launch.options['num_stages']}"


def cell(code: Code, launch: Launch) -> str:
    wide = code.machine_instructions(SIXTEEN_BYTES), code.machine_instructions(SIXTEEN_BYTES_OUT)
    usage = f"{code.registers} + {code.local_bytes}, {code.shared_bytes}, {product(code)}"
    return f"{usage}, {wide[0]}/{wide[1]}{tile(launch)}"


def rows(cases: list[str]) -> Iterator[list[str]]:
    for case in cases:
        columns = [zip(compiled(case, t), launches_of(case, t), strict=True) for t in TARGETS]
        for pairs in zip(*columns, strict=True):
            yield [case, f"`{pairs[0][0].name}`", *(cell(code, launch) for code, launch in pairs)]


def main(words: list[str]) -> int:
    import triton

    cases = [case for case in CASES if not words or any(re.search(word, case) for word in words)]
    heads = ["case", "kernel", *(t.arch if t.amd else f"sm_{t.arch}" for t in TARGETS)]
    lines = [heads, ["---"] * len(heads), *rows(cases)]
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    if words:
        print(text)
    else:
        TABLE.write_text(HEADER.format(version=triton.__version__) + text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
