"""Every CUDA kernel on the host, through the emulation: against exact results, in this process and under sanitizers.

``pytest python_tests/test_cuda_emulation.py`` takes the plain build. The last tests here start these files again
in processes with AddressSanitizer and UBSan, and, on a part of the cases, with ThreadSanitizer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulation import MISSING, environment, library
from exact import (
    DTYPE_IDS,
    DTYPES,
    check_backward,
    check_forward,
    exact_sample,
    images_of_any_strides,
    same,
    samples_of,
    train_step,
    whole,
)

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS
from zbkernels.ops._geometry import Geometry

FILES = sorted(Path(__file__).parent.glob("test_cuda_emulation*.py"))
SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
state = _loader.load_emulated()
assert state.loaded, state.reason
ops = torch.ops.zb_emulated
CONV = ops._conv_relu_pool2d_forward
CONV_BACKWARD = ops._conv_relu_pool2d_backward
# A sanitizer slows everything tenfold; these samples are large, and what they are of is in smaller ones too.
LARGE = ("stem", "large window", "slope, large window")

FIRST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def no_gradients() -> object:
    with torch.no_grad():
        yield


def sample_cases(op: str) -> list[object]:
    """One pytest parameter for each sample and dtype; under ThreadSanitizer each dtype takes its share."""
    cases: list[object] = []
    for index, (dtype, name) in enumerate(zip(DTYPES, DTYPE_IDS, strict=True)):
        for number, label in enumerate(samples_of(op, dtype)):
            if SANITIZER == "tsan" and (number % len(DTYPES) != index or label.split(", units=")[0] in LARGE):
                continue
            cases.append(pytest.param(dtype, label, id=f"{name}-{label}"))
    return cases


@pytest.mark.parametrize("dtype, label", sample_cases("_conv_relu_pool2d_forward"))
def test_conv_forward(dtype: torch.dtype, label: str) -> None:
    sample = exact_sample("_conv_relu_pool2d_forward", dtype, label)
    check_forward(CONV, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("dtype, label", sample_cases("_conv_relu_pool2d_backward"))
def test_conv_backward(dtype: torch.dtype, label: str) -> None:
    check_backward(CONV_BACKWARD, dtype, label)


# --- the first layers' kernels ------------------------------------------------------------------------------------

# (N, C, H, W), (K, R, S), convolution: tiles whole and cut, channels off the quads, planes that cross words.
FIRST_LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "mnist": ((2, 1, 28, 28), (32, 5, 5), {"padding": 2}),
    "cifar": ((1, 3, 14, 37), (21, 3, 3), {"padding": 1}),
    "stem": ((1, 3, 37, 41), (9, 7, 7), {"stride": 2, "padding": 3}),
    "4 channels, stride 2": ((3, 4, 15, 11), (5, 3, 3), {"stride": 2, "padding": (0, 1)}),
    "2 channels, 2x3": ((2, 2, 9, 10), (3, 2, 3), {"stride": (2, 1), "padding": (2, 1)}),
    "5x5 on a corner": ((1, 1, 3, 3), (4, 5, 5), {"padding": 2}),
    "depthwise": ((2, 5, 19, 70), (5, 3, 3), {"groups": 5, "padding": 1}),
    "groups": ((1, 6, 9, 13), (72, 3, 3), {"groups": 2}),
    "tiles both ways": ((1, 1, 41, 70), (19, 3, 3), {}),
}
POOL_3_2 = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
FIRST_POOLS: dict[str, dict[str, Any]] = {
    "max": {},
    "max, slope": {"negative_slope": 0.5},
    "max, ceil_mode, padding": {"ceil_mode": True, "pool_padding": 1},
    "max 3/2": POOL_3_2,
    "max 3/2, slope": {**POOL_3_2, "negative_slope": 0.25},
    "max 3x2/2, ceil_mode": {"pool_kernel": (3, 2), "pool_stride": 2, "ceil_mode": True},
    "avg": {"pool": "avg"},
    "avg, ceil_mode, slope": {"pool": "avg", "ceil_mode": True, "negative_slope": 0.5},
    "avg 3/2": {**POOL_3_2, "pool": "avg", "count_include_pad": False},
    "none": {"pool": "none"},
    "none, slope": {"pool": "none", "negative_slope": 0.5},
}


def check_first_layer(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> None:
    """Codes with and without each kind of signature, by the kernel that is meant."""
    g = Geometry.of("test", **options)
    multiplies = x.dtype != torch.float32 and weight.shape[0] // g.groups >= 5
    kernel = "first layer tensor core" if multiplies else "first layer"

    def forward(*args: Any, **kwargs: Any) -> Any:
        results = CONV(*args, **kwargs)
        assert zb.last_kernel() == f"cuda-emulated: {kernel}"
        return results

    conv, pool = g.conv_args(), g.pool_kwargs()
    units = ["", "relu", "output"]
    if g.pool == "max" and g.negative_slope == 0:
        units.append("winner")
    for number, kind in enumerate(units):
        check_forward(forward, x, weight, *conv, **pool, need_code=number != 1, units=kind)


@pytest.mark.parametrize("dtype", FIRST_DTYPES)
@pytest.mark.parametrize("pool", FIRST_POOLS)
@pytest.mark.parametrize("layer", FIRST_LAYERS)
def test_first_layer(layer: str, pool: str, dtype: torch.dtype) -> None:
    number = list(FIRST_LAYERS).index(layer) + list(FIRST_POOLS).index(pool)
    if SANITIZER == "tsan" and number % 12 != 4 * FIRST_DTYPES.index(dtype):
        pytest.skip("each dtype takes a twelfth of the cases under ThreadSanitizer")
    image, (k, r, s), conv = FIRST_LAYERS[layer]
    x = whole(*image, dtype=dtype)
    weight = whole(k, image[1] // conv.get("groups", 1), r, s, dtype=dtype, seed=1, most=1)
    options = {**conv, **FIRST_POOLS[pool]}
    check_first_layer(x, weight, **options)
    check_first_layer(x.to(memory_format=torch.channels_last), weight, **options)


@pytest.mark.parametrize("dtype", FIRST_DTYPES)
def test_first_layer_of_any_strides(dtype: torch.dtype) -> None:
    weight = whole(12, 3, 3, 3, dtype=dtype, seed=1, most=1)
    for x in images_of_any_strides(dtype):
        check_first_layer(x, weight, padding=1)
        check_first_layer(x, weight.flip(2).contiguous().transpose(2, 3), padding=1, **POOL_3_2)


@pytest.mark.parametrize("dtype", FIRST_DTYPES)
def test_first_layer_passes_nan_and_infinity(dtype: torch.dtype) -> None:
    x, weight = whole(2, 2, 12, 14, dtype=dtype), whole(9, 2, 3, 3, dtype=dtype, seed=1, most=1)
    x[0, 0, 3, 3], x[0, 1, 4, 4] = float("nan"), float("nan")
    x[1, 0, 0, 0], x[1, 1, 11, 13] = float("inf"), -float("inf")
    for pool in ({}, POOL_3_2, {"pool": "none"}, {"negative_slope": 0.5}):
        check_first_layer(x, weight, padding=1, **pool)


def test_first_layer_leaves_the_rest_to_others() -> None:
    x, weight = whole(1, 3, 16, 16, dtype=torch.float32), whole(8, 3, 3, 3, dtype=torch.float32)
    for options in (
        {"dilation": 2},
        {"stride": 3},
        {"pool_stride": 1},
        {"pool_kernel": 5},
        {"pool_stride": 3},
    ):
        g = Geometry.of("test", **options)
        CONV(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units="")
        assert zb.last_kernel() != "cuda-emulated: first layer"


# --- the other ops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, label", sample_cases("linear_relu"))
def test_linear(dtype: torch.dtype, label: str) -> None:
    x, weight, *rest = exact_sample("linear_relu", dtype, label).args
    slope = rest[0] if rest else 0.0
    y, sig = ops.linear_relu_nap(x, weight, slope)
    pre = (x.double() @ weight.double().t()).to(dtype)
    same(y, F.relu(pre) if slope == 0 else pre if slope == 1 else F.leaky_relu(pre, slope))
    same(ops.linear_relu(x, weight, slope), y)
    words = OPS["nap_pack"].reference(y.reshape(y.shape[:-1].numel(), weight.shape[0]))
    same(sig, words.reshape(*y.shape[:-1], words.shape[-1]))


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bool), ids=(*DTYPE_IDS, "bool"))
def test_nap_pack(dtype: torch.dtype) -> None:
    for sample in OPS["nap_pack"].samples("cpu", torch.float32 if dtype == torch.bool else dtype):
        x = sample.args[0] > 0 if dtype == torch.bool else sample.args[0]
        assert torch.equal(ops.nap_pack(x), OPS["nap_pack"].reference(x)), sample.label


def test_nap_pack_walks_any_strides() -> None:
    x = torch.randn(3, 4, 5, 6, 7, generator=torch.Generator().manual_seed(8))
    for order in ((0, 4, 3, 2, 1), (1, 0, 3, 4, 2), (4, 1, 2, 3, 0), (0, 2, 1, 4, 3)):
        view = x.permute(order)
        assert torch.equal(ops.nap_pack(view), OPS["nap_pack"].reference(view))


def test_nap_unpack() -> None:
    for sample in OPS["nap_unpack"].samples():
        assert torch.equal(ops.nap_unpack(*sample.args), OPS["nap_unpack"].reference(*sample.args)), (
            sample.label
        )


@pytest.mark.parametrize("make_grad", ("cat", "sum", "permute"))
def test_training_through_the_public_op(make_grad: str) -> None:
    with torch.enable_grad():
        got = train_step("cuda-emulated", make_grad)
        assert zb.last_kernel().startswith("cuda-emulated: ")
        again, wanted = train_step("cuda-emulated", make_grad), train_step("reference", make_grad)
    for ours, repeated, theirs in zip(got, again, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert torch.equal(ours, repeated)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_padding_is_a_zero_that_a_weight_of_infinity_turns_into_nan(channels: int) -> None:
    """In every kernel, as in torch's float64 convolution; torch's own float32 one skips padding on some processors."""
    x, weight = torch.rand(2, channels, 6, 6) + 1, torch.rand(16, channels, 3, 3)
    weight[0, 0, 0, 0], weight[1, 0, 2, 1] = float("inf"), -float("inf")
    for pool in ("max", "avg", "none"):
        with zb.use_backend("reference"):
            expected = zb.conv_relu_pool2d(x.double(), weight.double(), padding=2, pool=pool)
        with zb.use_backend("cuda-emulated"):
            y = zb.conv_relu_pool2d(x, weight, padding=2, pool=pool)
        assert expected.isnan().any() and torch.equal(y.isnan(), expected.isnan())
        torch.testing.assert_close(y.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_explain_names_the_backend_only_where_it_is_asked_for() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 1, 1)
    assert "cuda-emulated" not in zb.explain("conv_relu_pool2d", x, weight).verdicts
    with zb.use_backend("cuda-emulated"):
        assert zb.explain("conv_relu_pool2d", x, weight).chosen == "cuda-emulated"


@pytest.fixture(scope="session")
def under_sanitizers(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """The processes of every build that a test of this session waits for, side by side: each takes one core."""
    folder, running = tmp_path_factory.mktemp("sanitizers"), {}
    chosen = (item for item in request.session.items if "under_sanitizers" in item.fixturenames)
    for kind in (item.callspec.params["kind"] for item in chosen):
        if not library(kind).exists():
            continue
        log = folder / f"{kind}.log"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, FILES)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment(kind), stdout=file, stderr=file)
        running[kind] = process, log
    yield running
    for process, _ in running.values():
        process.kill()
        process.wait()


@pytest.mark.skipif(bool(SANITIZER), reason="starts the sanitizers")
@pytest.mark.parametrize("kind", ("asan", "tsan"))
def test_under_a_sanitizer(
    kind: str, under_sanitizers: dict[str, tuple[subprocess.Popen[bytes], Path]]
) -> None:
    if kind not in under_sanitizers:
        pytest.skip(MISSING)
    process, log = under_sanitizers[kind]
    assert process.wait(timeout=1500) == 0, log.read_text(errors="replace")[-5000:]
