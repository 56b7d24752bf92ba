"""The C++ kernels of ``dual_gram`` and ``dual_matvec`` on the CPU: every form, blocks, equal rows, strange numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compare import value_fault
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import dual_gram, dual_matvec
from zbkernels.ops._op import COMPILED

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(("dual_gram", "cpu") not in COMPILED, reason="the CPU library has no kernel"),
]
BLOCK = 96  # rows that the kernels pack together
ACTIVATIONS = (
    "relu",
    "leaky_relu:0.3",
    "leaky_relu:-2",
    "abs",
    "identity",
    "erf",
    "erf:3",
    "gelu",
    "sin",
    "cos",
    "sin+cos",
    "sigmoid_erf",
    "tanh_erf",
)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(x: Tensor, y: Tensor, **options: object) -> Tensor:
    with zb.use_backend("reference"):
        return dual_gram(x, y, **options)


def fault(x: Tensor, y: Tensor, **options: object) -> str | None:
    """What is wrong with the kernel's matrix, beside the reference's own error in this dtype."""
    with zb.use_backend("cpu"):
        got = dual_gram(x, y, **options)
    exact = plain(x.double(), y.double(), **options)
    slack = 0.0
    if x.dtype == torch.float64 and exact.numel():
        # There is no finer reference: what float32 loses of these angles, in float64's units, takes its place.
        lost = (plain(x.float(), y.float(), **options) - exact).abs().max() / exact.abs().max().clamp(
            min=1e-300
        )
        slack = 8 * float(lost) * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        slack += 16 * torch.finfo(torch.float64).eps
    return value_fault(got, plain(x, y, **options), exact, slack=slack)


def moved(x: Tensor, y: Tensor, exact: Tensor, eps: float, **options: object) -> Tensor:
    """How far the kernel of float64 inputs goes at most when every cosine is taken ``eps`` of itself nearer to 0, as
    rounding may take it. A feature that x alone has lengthens it by the factor 1 + eps."""
    share = (2 * eps) ** 0.5 * x.norm(dim=1, keepdim=True)
    scale = ((x.shape[1] + 1) / x.shape[1]) ** 0.5  # the first layer divides by the number of features
    longer, other = torch.cat([x, share], 1), torch.cat([y, torch.zeros_like(y[:, :1])], 1)
    return (plain(scale * longer, scale * other, **options) - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_form(activation: str, dtype: torch.dtype) -> None:
    x, y = draw(50, 33, dtype=dtype), draw(37, 33, seed=1, dtype=dtype)
    for options in (
        {"kernel": "nngp", "depth": 1},
        {"kernel": "ntk", "depth": 3, "w_std": 1.2, "b_std": 0.3},
        {"kernel": "ntk", "depth": 2, "train": "first"},
        {"kernel": "ntk", "depth": 0, "b_std": 0.5},
    ):
        for scale in (1.0, 1e-3, 30.0):
            found = fault(scale * x, scale * y, activation=activation, **options)
            assert found is None, (options, scale, found)


@pytest.mark.parametrize("activation", ["erf", "sin", "relu"])
def test_small_inputs_keep_their_digits(activation: str) -> None:
    """Relative to each entry's own scale: a small argument's arc sine is no difference of two large numbers."""
    x, y = 1e-4 * draw(20, 9), 1e-4 * draw(20, 9, seed=1)
    got = dual_gram(x, y, activation=activation, depth=2)
    exact = plain(x.double(), y.double(), activation=activation, depth=2)
    assert (got - exact).abs().max() <= 16 * torch.finfo(torch.float32).eps * exact.abs().max()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 2 * BLOCK + 9),
    columns=st.integers(1, 2 * BLOCK + 9),
    features=st.integers(1, 40),
    depth=st.integers(0, 4),
    activation=st.sampled_from(ACTIVATIONS),
    kernel=st.sampled_from(["nngp", "ntk"]),
    w_std=st.sampled_from([0.5, 1.0, 2**0.5]),
    b_std=st.sampled_from([0.0, 0.1, 2.0]),
    double=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_problem(
    rows: int,
    columns: int,
    features: int,
    depth: int,
    activation: str,
    kernel: str,
    w_std: float,
    b_std: float,
    double: bool,
    seed: int,
) -> None:
    dtype = torch.float64 if double else torch.float32
    # One feature has angles of 0 and 180 degrees alone: there a kink is found to sqrt(eps).
    features = max(features, 2)
    x, y = draw(rows, features, seed=seed, dtype=dtype), draw(columns, features, seed=seed + 1, dtype=dtype)
    options = {"kernel": kernel, "activation": activation, "depth": depth, "w_std": w_std, "b_std": b_std}
    got, exact = dual_gram(x, y, **options), plain(x.double(), y.double(), **options)
    eps = torch.finfo(dtype).eps
    # The reference's own error in this dtype, and what four units of a cosine's last place do. Over 500 problems drawn
    # as these, errors were up to 1.5 of the sum in float32, and 2.3 in float64, whose reference has no error to add.
    allowed = (plain(x, y, **options).double() - exact).abs().max() + eps * exact.abs().max()
    allowed += moved(x.double(), y.double(), exact, 4 * eps, **options)
    assert (got.double() - exact).abs().max() <= 4 * allowed
    v = draw(columns, 2, seed=seed + 2, dtype=dtype)
    product = dual_matvec(x, y, v, **options).double()
    error = (product - got.double() @ v.double()).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * (got.double().abs() @ v.double().abs()).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_with_itself_over_blocks(dtype: torch.dtype) -> None:
    """Symmetric bit for bit, equal rows bit for bit wherever they stand, and as exact as between two tensors."""
    x = draw(3 * BLOCK + 5, 21, dtype=dtype)
    x[5], x[BLOCK + 1], x[-1] = x[200], x[200], x[200]
    options = {"kernel": "ntk", "depth": 3, "b_std": 0.2}
    K = dual_gram(x, x, **options)
    assert torch.equal(K, K.t())
    assert torch.equal(K, dual_gram(x, x.clone(), **options))
    for row in (5, BLOCK + 1, -1):
        assert torch.equal(K[row], K[200])
    assert (K[[5, BLOCK + 1], [200, len(x) - 1]] == K[200, 200]).all()
    v = draw(len(x), 5, seed=1, dtype=dtype)
    y = dual_matvec(x, x, v, **options)
    assert torch.equal(y[5], y[200]) and torch.equal(y[-1], y[200])
    torch.testing.assert_close(y, dual_matvec(x, x.clone(), v, **options), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y.double(), K.double() @ v.double(), rtol=1e-4, atol=1e-4)


def test_equal_rows_beside_extreme_ones() -> None:
    """A block with a row of zeros goes another way; rows in it have the same kernels as their equals elsewhere."""
    x = draw(2 * BLOCK, 7)
    x[3], x[9] = 0, 1e-25
    x[BLOCK + 1 :] = x[1:BLOCK]
    x[BLOCK + 3], x[BLOCK + 9] = x[BLOCK + 4], x[BLOCK + 4]
    same = [i for i in range(1, BLOCK) if i not in (3, 9)]
    others = [BLOCK + i for i in same]
    for activation in ("relu", "leaky_relu:0.3", "erf"):
        K = dual_gram(x, x, kernel="ntk", depth=3, activation=activation)
        assert torch.equal(K[same], K[others]) and torch.equal(K, K.t())


def test_no_angle_between_equal_rows_of_any_length() -> None:
    """Sums of many features round; equal rows are still equal, and those that differ in one number are not."""
    x = draw(40, 3000)
    y = x.clone()
    y[0, 17] += 5
    K = dual_gram(x, y, kernel="ntk", depth=3)
    exact = plain(x.double(), x.double(), kernel="ntk", depth=3).diagonal()
    error = (K.diagonal().double() - exact).abs() / exact
    assert error[1:].max() < 4 * torch.finfo(torch.float32).eps
    assert error[0] > 1e-4


def test_strange_numbers_as_in_the_reference() -> None:
    points = torch.tensor(
        [
            [1.0, 2],
            [0, 0],
            [float("nan"), 1],
            [float("inf"), 0],
            [3e19, 1],
            [1e-25, 0],
            [-0.0, 0.0],
            [1e-25, 1e-25],
        ]
    )
    for activation in ("relu", "leaky_relu:0.2", "abs", "identity", "erf", "gelu", "sin"):
        for kernel in ("nngp", "ntk"):
            for b_std in (0.0, 0.4):
                options = {"activation": activation, "kernel": kernel, "depth": 2, "b_std": b_std}
                got, want = (
                    dual_gram(points, points.clone(), **options),
                    plain(points, points.clone(), **options),
                )
                # Where a norm overflows float32 the two may overflow in different steps.
                keep = [0, 1, 2, 5, 6, 7]
                a, b = got[keep][:, keep], want[keep][:, keep]
                torch.testing.assert_close(
                    a,
                    b,
                    rtol=2e-3,
                    atol=1e-6,
                    equal_nan=True,
                    msg=lambda m: f"{options}: {m}",  # noqa: B023
                )


def test_large_norms() -> None:
    x, y = 1e17 * draw(20, 6), 1e-17 * draw(20, 6, seed=1)
    for a, b in ((x, x.flip(0)), (x, y), (y, y.flip(0))):
        got = dual_gram(a, b, kernel="ntk", depth=3)
        exact = plain(a.double(), b.double(), kernel="ntk", depth=3)
        assert (got - exact).abs().max() <= 1e-5 * exact.abs().max() and exact.abs().max() > 0


def test_peak_memory_of_a_product_is_not_that_of_the_matrix() -> None:
    code = """
import torch, zbkernels as zb
from pathlib import Path
def resident(field):
    return next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
torch.set_num_threads(1)
x, v = torch.randn(5000, 20), torch.randn(5000, 3)
zb.dual_matvec(x[:200], x[:200], v[:200]); zb.dual_gram(x[:200], x[:200])
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
y = zb.dual_matvec(x, x, v, kernel="ntk", depth=3)
print(resident("VmHWM") - before)
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
K = zb.dual_gram(x, x, kernel="ntk", depth=3)
print(resident("VmHWM") - before)
"""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not tell the largest resident set")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    product, matrix = map(int, run.stdout.split())
    whole = 5000 * 5000 * 4 >> 10
    assert product < whole / 8
    assert matrix < 1.05 * whole


VARIANT = """
import sys, pathlib
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import test_dual_cpu as t
for activation in t.ACTIVATIONS:
    for dtype in (torch.float32, torch.float64):
        x, y = t.draw(50, 17, dtype=dtype), t.draw(37, 17, seed=1, dtype=dtype)
        found = t.fault(x, y, activation=activation, kernel="ntk", depth=2, b_std=0.3)
        assert found is None, (activation, dtype, found)
t.test_with_itself_over_blocks(torch.float32)
t.test_strange_numbers_as_in_the_reference()
print(t.zb.last_kernel())
t.dual_gram(x, x)
print(t.zb.last_kernel())
"""


@pytest.mark.parametrize("capability", ["avx2", "portable"])
def test_other_instruction_sets(capability: str) -> None:
    if _loader.cpu_capability() in ("portable", capability):
        pytest.skip("this processor has no other than this one")
    env = {**os.environ, "ZBKERNELS_CPU_CAPABILITY": capability}
    code = VARIANT.format(tests=str(Path(__file__).parent))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[1] == f"cpu: dual_gram {capability}"


def test_an_activation_without_a_form_goes_to_the_reference() -> None:
    x = draw(4, 5)
    explained = zb.explain("dual_gram", x, x, activation="sigmoid")
    assert explained.chosen == "reference" and "has no closed form" in explained.verdicts["cpu"]
    dual_gram(x, x, activation="sigmoid")
    assert zb.last_kernel() == "reference"
    with torch.inference_mode():  # past the rules in Python: the kernel itself hands over
        torch.ops.zb.dual_matvec(x, x, draw(4, 2), activation="tanh")
    assert zb.last_kernel() == "reference"
    with zb.use_backend("cpu"), pytest.raises(RuntimeError, match="has no closed form"):
        dual_gram(x, x, activation="sigmoid")
    name = "leaky_relu:0.1" + 60 * "0"  # longer than most, and a number as Python reads it
    assert torch.equal(dual_gram(x, x, activation=name), dual_gram(x, x, activation="leaky_relu:0.1"))
    torch.testing.assert_close(
        dual_gram(x, x, activation="leaky_relu:1_0e-2"), dual_gram(x, x, activation="leaky_relu:0.1")
    )
