"""Every Triton kernel compiled ahead of time for sm_80 and sm_90, and its code read. Needs no GPU.

The calls are made with tensors on the `meta` device: what they would launch is recorded and compiled.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest
import torch

if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
    pytest.skip("TRITON_INTERPRET is set, its kernels can't be compiled", allow_module_level=True)
pytest.importorskip("triton")

from zbkernels.ops._geometry import Geometry
from zbkernels.triton import (
    conv_relu_pool,
    linear_relu,
    nap_frequency,
    nap_hamming,
    nap_pack,
    nap_topk,
    nap_unpack,
)
from zbkernels.triton.compile import Code, compile_launch, specialise
from zbkernels.triton.launch import Launch, recording

CAPABILITIES = (80, 90)
SIXTEEN_BYTES = r"\bLDG\w*\S*\.128\b"  # LDG straight to registers, LDGSTS to shared memory


def meta(*shape: int, dtype: torch.dtype = torch.float16, channels_last: bool = False) -> torch.Tensor:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="meta", memory_format=layout)


def conv(
    dtype: torch.dtype,
    *,
    groups: int = 1,
    size: int = 32,
    channels_last: bool = False,
    need_code: bool = True,
    units: str = "",
    backward: bool = False,
    **pool: object,
) -> None:
    """cifar2 of the suite (64 -> 128 channels, 3x3, "same"), or 64 -> 64 with groups."""
    outputs = 128 if groups == 1 else 64
    x = meta(128, 64, size, size, dtype=dtype, channels_last=channels_last)
    weight = meta(outputs, 64 // groups, 3, 3, dtype=dtype, channels_last=channels_last)
    g = Geometry.of("test", 1, 1, 1, groups, **pool)
    y, code, _ = conv_relu_pool.forward(
        x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=need_code, units=units
    )
    if backward:
        conv_relu_pool.backward(
            y, x, weight, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=True
        )


def smallest_searches() -> None:
    """Arguments of 1 become constants of the kernel, which not every operation of Triton takes."""
    nap_hamming.forward(signatures(1, 1), signatures(1, 1))
    for rows in (1, 2):
        nap_topk.forward(signatures(1, 1), signatures(rows, 1), 1)
    nap_frequency.forward(signatures(1, 1), 1)


def linear(dtype: torch.dtype, inputs: int = 784) -> None:
    linear_relu.forward(meta(512, inputs, dtype=dtype), meta(512, inputs, dtype=dtype), 0.0, need_sig=True)


def signatures(rows: int, words: int = 16) -> torch.Tensor:
    return meta(rows, words, dtype=torch.int64)


f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
OVERLAPPING = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}

# What is called, and which of the kernels that it launches are looked at.
CASES: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "conv f16": (lambda: conv(f16), ("conv_act_pool_kernel",)),
    "conv bf16 channels_last": (lambda: conv(bf16, channels_last=True), ("conv_act_pool_kernel",)),
    "conv f32": (lambda: conv(f32), ("conv_act_pool_kernel",)),
    "conv f64": (lambda: conv(f64), ("conv_act_pool_kernel",)),
    "conv depthwise f16": (lambda: conv(f16, groups=64), ("conv_act_pool_kernel",)),
    "conv slope, bits in the kernel": (
        lambda: conv(f16, size=26, units="output", negative_slope=0.1, **OVERLAPPING),
        ("conv_act_pool_kernel", "planes_to_signature_kernel"),
    ),
    "conv winner": (lambda: conv(f16, units="winner"), ("winner_kernel",)),
    "conv average and its backward": (
        lambda: conv(bf16, pool="avg", units="relu", backward=True),
        ("conv_act_pool_kernel", "pool_map_kernel", "expand_kernel"),
    ),
    "backward of max, f32": (lambda: conv(f32, backward=True, **OVERLAPPING), ("expand_kernel",)),
    "linear f16": (lambda: linear(f16), ("linear_act_kernel",)),
    "linear f32": (lambda: linear(f32), ("linear_act_kernel",)),
    "linear f64": (lambda: linear(f64), ("linear_act_kernel",)),
    "pack f32": (lambda: nap_pack.forward(meta(4096, 16384, dtype=f32)), ("pack_kernel",)),
    "pack f16 channels_last": (
        lambda: nap_pack.forward(meta(128, 64, 14, 14, channels_last=True)),
        ("pack_kernel",),
    ),
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
        ("hamming_kernel", "nearest_kernel", "frequency_kernel"),
    ),
    "frequency": (lambda: nap_frequency.forward(signatures(10**6), 1000), ("frequency_kernel",)),
    "frequency, one word": (lambda: nap_frequency.forward(signatures(10**6, 1), 64), ("frequency_kernel",)),
    "unpack": (lambda: nap_unpack.forward(meta(4096, 16, dtype=torch.int64), 1024), ("unpack_kernel",)),
}


@functools.cache
def launches_of(case: str) -> tuple[Launch, ...]:
    call, kernels = CASES[case]
    with recording() as launches:
        call()
    return tuple(launch for launch in launches if launch.kernel.__name__ in kernels)


@functools.cache
def compiled(case: str, capability: int) -> tuple[Code, ...]:
    return tuple(compile_launch(launch, capability) for launch in launches_of(case))


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", CASES)
def test_compiles_without_spills(case: str, capability: int) -> None:
    codes = compiled(case, capability)
    assert {code.name for code in codes} == set(CASES[case][1])
    for code in codes:
        assert code.local_bytes == 0, f"{code.name}: {code.local_bytes} bytes spilled"
        assert code.shared_bytes <= 48 * 1024, f"{code.name}: {code.shared_bytes} bytes of shared memory"
        assert code.instructions(r"\batom\.|\bred\.") == 0, f"{code.name}: atomics"
        assert code.instructions(r"\.ftz") == 0, f"{code.name}: subnormals are flushed to zero"


@pytest.mark.parametrize("case", ("conv f16", "conv bf16 channels_last", "linear f16"))
@pytest.mark.parametrize("capability, instruction", ((80, r"\bmma\.sync"), (90, r"\bwgmma\.mma_async")))
def test_half_precision_runs_on_tensor_cores(case: str, capability: int, instruction: str) -> None:
    for code in compiled(case, capability):
        assert code.instructions(instruction) > 0, code.name


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", ("conv f32", "conv f64", "linear f32", "linear f64"))
def test_full_precision_is_summed_in_full(case: str, capability: int) -> None:
    """float32 in fused multiply-adds, never TF32; float64 in its own."""
    for code in compiled(case, capability):
        assert code.instructions(r"tf32|\bw?g?mma\.") == 0, code.name
        assert code.instructions(r"\bfma\.rn\." + ("f64" if "f64" in case else "f32")) > 0, code.name


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    "case",
    (
        "conv bf16 channels_last",
        "linear f16",
        "linear f32",
        "pack f32",
        "hamming",
        "topk",
        "topk, one query",
        "frequency",
        "frequency, one word",
    ),
)
def test_rows_of_a_multiple_of_16_are_loaded_16_bytes_at_a_time(case: str, capability: int) -> None:
    for code in compiled(case, capability):
        assert code.machine_instructions(SIXTEEN_BYTES) > 0, code.name


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case, distances", (("hamming", 16), ("topk", 16), ("hamming, odd words", 16)))
def test_a_word_costs_one_population_count(case: str, distances: int, capability: int) -> None:
    """A plain distance needs two a word. A thread has `distances`; its loop takes one word or two, its end counts
    what is left in the plane."""
    words = 1 if "odd" in case else 2
    for code in compiled(case, capability):
        assert code.instructions(r"\bpopc\.b32") == (words + 1) * distances
        assert code.instructions(r"\bpopc\.b64") == 0
        assert code.machine_instructions(r"\bPOPC\b") == (words + 1) * distances


def test_every_kernel_is_compiled_here() -> None:
    """A kernel that nobody added to the cases would go unread."""
    import triton

    from zbkernels.triton.kernels import bits, conv, frequency, hamming, linear, pool

    kernels = {
        name
        for module in (bits, conv, frequency, hamming, linear, pool)
        for name, value in vars(module).items()
        if isinstance(value, triton.JITFunction) and name.endswith("_kernel")
    }
    assert kernels == {kernel for _, names in CASES.values() for kernel in names}


def test_specialisation_follows_the_launcher() -> None:
    """Integers of 1 become constants, multiples of 16 are marked, large ones are 64 bits wide."""
    with recording() as launches:
        nap_pack.forward(torch.empty(1, dtype=torch.float32, device="meta").expand(2**33, 48))
    signature, constants, attributes = specialise(launches[0])
    assert signature["x"] == "*fp32" and signature["words"] == "*i32"
    assert signature["rows"] == "i64" and signature["units"] == "i32"
    assert constants["D1"] == 1 and signature["D1"] == "constexpr"
    units = list(signature).index("units")
    assert attributes[(units,)] == [["tt.divisibility", 16]]
    assert (list(signature).index("halves"),) not in attributes
