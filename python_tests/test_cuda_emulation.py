"""Every CUDA kernel on the host, through the emulation: against exact results, in this process and under sanitizers.

``pytest python_tests/test_cuda_emulation.py`` takes the plain build. The last tests here start these files again
in processes with AddressSanitizer and UBSan, and with ThreadSanitizer, on a part of the cases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    same,
    samples_of,
    train_step,
)

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS

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


@pytest.fixture(autouse=True)
def no_gradients() -> object:
    with torch.no_grad():
        yield


def sample_cases(op: str) -> list[object]:
    """One pytest parameter for each sample and dtype; under a sanitizer each dtype takes its share of them."""
    cases: list[object] = []
    for index, (dtype, name) in enumerate(zip(DTYPES, DTYPE_IDS, strict=True)):
        for number, label in enumerate(samples_of(op, dtype)):
            if SANITIZER and (number % len(DTYPES) != index or label.split(", units=")[0] in LARGE):
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


def test_explain_names_the_backend_only_where_it_is_asked_for() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 1, 1)
    assert "cuda-emulated" not in zb.explain("conv_relu_pool2d", x, weight).verdicts
    with zb.use_backend("cuda-emulated"):
        assert zb.explain("conv_relu_pool2d", x, weight).chosen == "cuda-emulated"


@pytest.mark.skipif(bool(SANITIZER), reason="starts the sanitizers")
@pytest.mark.parametrize("kind", ("asan", "tsan"))
def test_under_a_sanitizer(kind: str) -> None:
    if not library(kind).exists():
        pytest.skip(MISSING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, FILES)],
        env=environment(kind),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
