"""Every Triton kernel compiled ahead of time for NVIDIA's and AMD's GPUs, and its code read. Needs no GPU.

The cases are those of bench/triton_table.py: calls with tensors on the `meta` device, whose launches are
recorded and compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
    pytest.skip("TRITON_INTERPRET is set, its kernels can't be compiled", allow_module_level=True)
pytest.importorskip("triton")

from zbkernels.ops._geometry import Geometry
from zbkernels.triton import conv_relu_pool, linear_relu, nap_pack
from zbkernels.triton.compile import Code, compile_launch, specialise
from zbkernels.triton.launch import recording
from zbkernels.triton.target import GFX_942, SM_80, SM_90, SM_100, Target

_path = Path(__file__).resolve().parents[1] / "bench/triton_table.py"
_spec = importlib.util.spec_from_file_location("triton_table", _path)
triton_table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(triton_table)
CASES, compiled = triton_table.CASES, triton_table.compiled

TILED = ("conv_tiles_kernel", "linear_act_kernel")
ON_ALL = (
    "tiles f16, max",
    "tiles f16, max and code",
    "tiles f16, no pool",
    "tiles f32",
    "linear f16",
    "hamming",
    "topk",
    "frequency",
)


def pairs() -> list[object]:
    """Each case for the two kinds of NVIDIA GPUs most in use, the first ones for the others too."""
    return [
        pytest.param(case, target, id=f"{case}-{target.arch}")
        for case in CASES
        for target in ((SM_80, SM_90, SM_100, GFX_942) if case in ON_ALL else (SM_80, SM_90))
    ]


def tiled(case: str, target: Target) -> Code:
    """The first kernel of a case."""
    return compiled(case, target)[0]


@pytest.mark.parametrize("case, target", pairs())
def test_compiles_without_spills(case: str, target: Target) -> None:
    codes = compiled(case, target)
    assert {code.name for code in codes} == set(CASES[case][1])
    for code in codes:
        limit = target.shared_limit if code.name in TILED else 48 * 1024
        assert code.local_bytes == 0, f"{code.name}: {code.local_bytes} bytes spilled"
        assert code.shared_bytes <= limit, f"{code.name}: {code.shared_bytes} bytes of shared memory"
        assert code.instructions(r"\batom\.|\bred\.|_atomic_") == 0, f"{code.name}: atomics"
        # float64 knows no flushing; its exp looks at the exponent alone as a float32.
        assert case == "gram f64, sin" or code.instructions(r"\.ftz") == 0, (
            f"{code.name}: subnormals are flushed to zero"
        )


@pytest.mark.parametrize("case", ("tiles f16, max and code", "tiles f16, no pool", "linear f16"))
@pytest.mark.parametrize("target", (SM_80, SM_90, SM_100, GFX_942), ids=lambda target: target.arch)
def test_half_precision_runs_on_tensor_cores(case: str, target: Target) -> None:
    """By each GPU's own instruction, and no other."""
    code = tiled(case, target)
    found = {name for name, pattern in triton_table.PRODUCTS.items() if code.instructions(pattern)}
    assert found - {"fma"} == {target.product}


@pytest.mark.parametrize("target", (SM_80, SM_90), ids=lambda target: target.arch)
@pytest.mark.parametrize("case", ("tiles TF32", "linear TF32"))
def test_tf32_where_it_is_allowed(case: str, target: Target) -> None:
    assert tiled(case, target).instructions(r"mma.*tf32") > 0


@pytest.mark.parametrize("target", (SM_80, SM_90), ids=lambda target: target.arch)
@pytest.mark.parametrize(
    "case",
    (
        "tiles f32",
        "tiles f32, signature",
        "general f32, 3 channels",
        "general f64",
        "linear f32",
        "linear f64",
        "gram",
        "matvec",
        "gram f64, sin",
    ),
)
def test_full_precision_is_summed_in_full(case: str, target: Target) -> None:
    """float32 in fused multiply-adds, never TF32, a signature's whatever torch allows; float64 in its own."""
    code = tiled(case, target)
    assert code.instructions(r"tf32|\bw?g?mma\.") == 0
    assert code.instructions(r"\bfma\.rn\." + ("f64" if "f64" in case else "f32")) > 0


@pytest.mark.parametrize("target", (SM_80, SM_90, SM_100), ids=lambda target: target.arch)
@pytest.mark.parametrize("case", ("tiles f16, max and code", "tiles f32", "linear f16"))
def test_operands_come_in_16_bytes_straight_to_shared_memory(case: str, target: Target) -> None:
    code = tiled(case, target)
    loads = code.machine_instructions(r"\bLDG(STS)?\b")
    assert loads == code.machine_instructions(r"\bLDGSTS\S*\.128\b") > 0
    assert code.machine_instructions(triton_table.SIXTEEN_BYTES_OUT) > 0


@pytest.mark.parametrize("target", (SM_80, SM_90), ids=lambda target: target.arch)
def test_what_is_copied_first_also_comes_and_goes_in_16_bytes(target: Target) -> None:
    """NCHW, channels that fill no step: both operands are padded to whole chunks, y's planes are stored along
    W."""
    code = tiled("tiles bf16 NCHW, 40 channels, slope", target)
    loads = code.machine_instructions(r"\bLDG(STS)?\b")
    assert loads == code.machine_instructions(r"\bLDGSTS\S*\.128\b") > 0
    assert code.machine_instructions(triton_table.SIXTEEN_BYTES_OUT) > 0


@pytest.mark.parametrize(
    "case",
    (
        "pack f32",
        "linear f32",
        "hamming",
        "topk",
        "topk, one query",
        "frequency",
        "frequency, one word",
        "gram with itself",
        "matvec",
    ),
)
def test_rows_of_a_multiple_of_16_are_loaded_16_bytes_at_a_time(case: str) -> None:
    for code in compiled(case, SM_90):
        assert code.machine_instructions(triton_table.SIXTEEN_BYTES) > 0, code.name


@pytest.mark.parametrize("target", (SM_80, SM_90, SM_100, GFX_942), ids=lambda target: target.arch)
@pytest.mark.parametrize("case", ("tiles f16, max", "tiles f16, max and code"))
def test_windows_are_pooled_in_registers(case: str, target: Target) -> None:
    """Against the same tile without a pool: no shuffle more, and no more through shared memory for each
    tensor that is stored (the way out, in whole rows, goes through it)."""
    code, unpooled = tiled(case, target), tiled("tiles f16, no pool", target)
    shuffle = r"\bshfl\.|\bredux\.|_dpp|_permute|_swizzle|v_permlane"
    through_shared = r"\bbar\.sync|\bs_barrier|\bst\.shared|\bstmatrix|\bds_write"
    assert code.instructions(shuffle) == unpooled.instructions(shuffle)
    stored = 2 if "code" in case else 1
    assert code.instructions(through_shared) <= stored * unpooled.instructions(through_shared)


def test_sizes_of_one_compile() -> None:
    """An argument of 1 becomes a constant, of which not everything can be asked that a number can."""
    for size, pool in ((1, "none"), (2, "max"), (2, "avg")):
        x, weight = (torch.empty(1, 16, s, s, dtype=torch.float16, device="meta") for s in (size, 1))
        g = Geometry.of("test", pool=pool)
        with recording() as launches:
            conv_relu_pool.forward(
                x, weight.expand(16, 16, 1, 1), *g.conv_args(), **g.pool_kwargs(), need_code=True, units=""
            )
            linear_relu.forward(x[:, :, 0, 0], x[:, :, 0, 0], 0.0, need_sig=False)
        for launch in launches:
            assert compile_launch(launch, SM_90).local_bytes == 0


def test_the_table_has_each_case() -> None:
    """bench/results/triton.md, which no compilation is spent on here, has a row for each case and no spill in any."""
    lines = [line.strip("| ").split(" | ") for line in triton_table.TABLE.read_text().splitlines()]
    rows = [line for line in lines if line[0] in CASES]
    assert {line[0] for line in rows} == set(CASES), "`make triton-table` remakes it"
    for line in rows:
        assert all(" + 0, " in cell for cell in line[2:]), line


@pytest.mark.parametrize("target", (SM_80, SM_90), ids=lambda target: target.arch)
@pytest.mark.parametrize("case, distances", (("hamming", 16), ("topk", 16), ("hamming, odd words", 16)))
def test_a_word_costs_one_population_count(case: str, distances: int, target: Target) -> None:
    """A plain distance needs two a word. A thread has `distances`; its loop takes one word or two, its end counts
    what is left in the plane."""
    words = 1 if "odd" in case else 2
    for code in compiled(case, target):
        assert code.instructions(r"\bpopc\.b32") == (words + 1) * distances
        assert code.instructions(r"\bpopc\.b64") == 0
        assert code.machine_instructions(r"\bPOPC\b") == (words + 1) * distances


@pytest.mark.parametrize("target", (SM_80, SM_90), ids=lambda target: target.arch)
def test_hashes_and_groups_read_two_words_at_a_time(target: Target) -> None:
    """A row's beginning is even, which the compiler knows from a hint that it loses in a function's argument."""
    for code in compiled("hash and groups", target):
        assert code.machine_instructions(triton_table.SIXTEEN_BYTES) > 0


def test_every_kernel_is_compiled_here() -> None:
    """A kernel that nobody added to the cases would go unread."""
    import triton

    from zbkernels.triton import kernels as package

    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    ]
    kernels = {
        name
        for module in modules
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
