"""dual_gram and dual_matvec in Triton's interpreter. Run in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

import triton
import triton.language as tl

import zbkernels as zb
from zbkernels.ops import OPS
from zbkernels.ops._dual_options import in_order
from zbkernels.triton import dual_gram, dual_matvec
from zbkernels.triton.kernels.arc_tangent import arc_tangent, small_sinh
from zbkernels.triton.launch import start

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = (torch.float32, torch.float64)
FORWARD = {"dual_gram": dual_gram.forward, "dual_matvec": dual_matvec.forward}
# The interpreter takes milliseconds for a step of a tile: of the samples those that differ in what is launched.
SAMPLES = (
    "ntk, three layers, biases",
    "the first layer trains",
    "no hidden layer",
    "one feature",
    "transposed",
    "expanded",
    "odd storage offset",
    "no rows",
    "no columns",
    "with itself",
    "equal rows",
    "antipodes, zero, duplicates",
    "not a number",
    "no vectors",
    "every other vector",
)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(
        dtype
    )


def check(name: str, *args: torch.Tensor, **options: Any) -> torch.Tensor:
    """As near to float64's reference as the reference in the inputs' dtype, within a factor, and as many NaNs."""
    got = FORWARD[name](*args, *in_order(options))
    want = OPS[name].reference(*(a.double() for a in args), **options)
    plain = OPS[name].reference(*args, **options)
    assert got.dtype == args[0].dtype and got.shape == want.shape and got.is_contiguous()
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isfinite(), want.isfinite())
    finite = want.isfinite()
    if finite.any():
        scale = float(want[finite].abs().max())
        own = float((plain.double() - want)[finite].abs().max())
        error = float((got.double() - want)[finite].abs().max())
        assert error <= 4 * own + 16 * torch.finfo(got.dtype).eps * scale, (error, own, scale)
    return got


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("dtype", DTYPES, ids=("f32", "f64"))
def test_samples(name: str, dtype: torch.dtype) -> None:
    for sample in OPS[name].samples("cpu", dtype):
        if sample.label in SAMPLES:
            check(name, *sample.args, **sample.kwargs)


FORMS = ("relu", "leaky_relu:0.3", "abs", "identity", "erf:2", "gelu", "sin", "cos", "sin+cos", "sigmoid_erf")


@pytest.mark.parametrize(
    "activation, dtype",
    [(name, torch.float64) for name in FORMS] + [(name, torch.float32) for name in ("relu", "gelu", "sin")],
)
def test_forms(activation: str, dtype: torch.dtype) -> None:
    x = torch.cat([draw(3, 5, dtype=dtype), torch.zeros(1, 5, dtype=dtype)])
    check("dual_gram", x, draw(4, 5, dtype=dtype), kernel="ntk", activation=activation, depth=2, w_std=1.1)
    check("dual_gram", x, x, activation=activation, depth=2, b_std=0.4)


@pytest.mark.parametrize("dtype", DTYPES, ids=("f32", "f64"))
def test_several_tiles_and_parts(dtype: torch.dtype) -> None:
    """Tiles that are cut, of a batch with itself above the diagonal alone, and columns in several parts."""
    # Products and sums are exact: the interpreter's BLAS adds in an order that depends on the row.
    x = (8 * draw(70, 4, dtype=dtype)).round() / 8
    x[69] = x[2]
    K = check("dual_gram", x, x, kernel="ntk")
    assert torch.equal(K, K.mT) and torch.equal(K[69], K[2])
    assert torch.equal(check("dual_gram", x, x.clone(), kernel="ntk"), K)
    y = check("dual_matvec", x, x, draw(70, 2, dtype=dtype), kernel="ntk")
    assert torch.equal(y[69], y[2])


def test_forced_backend() -> None:
    x, y, v = draw(3, 4).requires_grad_(), draw(2, 4), draw(2, 1)
    with zb.use_backend("triton"):
        zb.dual_matvec(x, y, v).sum().backward()
        assert zb.dual_gram(x, y).shape == (3, 2) and zb.last_kernel() == "triton: dual_gram.forward"
        with pytest.raises(RuntimeError, match="activation 'tanh' has no closed form"):
            zb.dual_gram(x, y, activation="tanh")
    torch.testing.assert_close(x.grad, torch.autograd.grad(OPS["dual_matvec"].reference(x, y, v).sum(), x)[0])


@triton.jit
def functions_kernel(y, x, angles, sinhs):
    at = tl.arange(0, 1024)
    above = tl.load(y + at)
    tl.store(angles + at, arc_tangent(above, tl.load(x + at)))
    tl.store(sinhs + at, small_sinh(above))


@pytest.mark.parametrize("dtype", DTYPES, ids=("f32", "f64"))
def test_arc_tangent_and_sinh_are_right_to_a_few_eps(dtype: torch.dtype) -> None:
    t = torch.linspace(-math.pi / 2, math.pi / 2, 1024, dtype=torch.float64)
    tiny = torch.finfo(dtype).tiny
    y = torch.cat([t.sin() * 0.999, torch.tensor([0.0, tiny, -tiny, 1e-20, 0.9, -0.9, 0.5, 0.0])]).to(dtype)
    x = torch.cat([t.cos().abs(), torch.tensor([1.0, 1.0, 1.0, 1e-20, 0.0, 0.0, 0.5, 1e-3])]).to(dtype)
    y, x = y[-1024:].contiguous(), x[-1024:].contiguous()
    angles, sinhs = torch.empty_like(y), torch.empty_like(y)
    start(functions_kernel, 1, y, x, angles, sinhs)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(angles.double(), torch.atan2(y.double(), x.double()), rtol=4 * eps, atol=tiny)
    torch.testing.assert_close(sinhs.double(), torch.sinh(y.double()), rtol=4 * eps, atol=tiny)
