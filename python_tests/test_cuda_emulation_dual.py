"""dual_gram and dual_matvec, emulated: every form, whole and cut tiles, equal rows, parts of the columns."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from emulation import MISSING

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import OPS

if not _loader.emulated_path().exists():
    pytest.skip(MISSING, allow_module_level=True)
state = _loader.load_emulated()
assert state.loaded, state.reason
ops = torch.ops.zb_emulated
SANITIZER = os.environ.get("ZBKERNELS_SANITIZER", "")
FORMS = ("relu", "leaky_relu:0.3", "abs", "identity", "erf:2", "gelu", "sin", "cos", "sin+cos", "sigmoid_erf")


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(
        dtype
    )


def check(name: str, *args: torch.Tensor, parallel: bool = False, **options: Any) -> torch.Tensor:
    """As near to float64's reference as the reference in the inputs' dtype, within a factor, and as many NaNs.

    parallel: whether some pairs are, but for equal ones: their angle has an error of sqrt(eps) (zb.infinite.nngp).
    """
    got = getattr(ops, name)(*args, **options)
    want = OPS[name].reference(*(a.double() for a in args), **options)
    plain = OPS[name].reference(*args, **options)
    assert got.dtype == args[0].dtype and got.is_contiguous() and got.shape == want.shape
    assert torch.equal(got.isfinite(), want.isfinite()) and torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    if finite.any():
        scale = float(want[finite].abs().max())
        eps = torch.finfo(got.dtype).eps
        bound = eps**0.5 if parallel else 16 * eps
        own = float((plain.double() - want)[finite].abs().max())
        error = float((got.double() - want)[finite].abs().max())
        assert error <= 4 * own + bound * scale, (error, own, scale)
    return got


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=("f32", "f64"))
@pytest.mark.parametrize("name", ("dual_gram", "dual_matvec"))
def test_samples(name: str, dtype: torch.dtype) -> None:
    for sample in list(OPS[name].samples("cpu", dtype))[:: 4 if SANITIZER == "tsan" else 1]:
        if sample.kwargs.get("activation") == "sigmoid":
            continue
        got = check(name, *sample.args, **sample.kwargs)
        getattr(ops, name)(*sample.args, **sample.kwargs)
        assert (
            got.numel() == 0 or len(sample.args[1]) == 0 or zb.last_kernel() == f"cuda-emulated: {name} tiles"
        )


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=("f32", "f64"))
@pytest.mark.parametrize("activation", FORMS)
def test_forms(activation: str, dtype: torch.dtype) -> None:
    """Generic pairs, an equal one, opposite ones, zero vectors and a NaN, with and without biases."""
    if SANITIZER == "tsan" and dtype == torch.float64:
        pytest.skip("one dtype under TSan, which looks at the barriers alone")
    x = torch.cat([draw(4, 5, dtype=dtype), torch.zeros(1, 5, dtype=dtype)])
    y = torch.cat([x[:2], -x[1:2], x[3:] * 3, torch.full((1, 5), float("nan"), dtype=dtype)])
    for options in ({"b_std": 0.4, "train": "first"}, {"w_std": 1.1}):
        check("dual_gram", x, y, kernel="ntk", activation=activation, depth=2, parallel=True, **options)
        check("dual_gram", x, y[:2] + 0.5, kernel="ntk", activation=activation, depth=2, **options)
    check("dual_gram", x, y[:-1], activation=activation, depth=2)


@pytest.mark.parametrize(
    "N, M, features", ((1, 300, 1), (130, 65, 16), (129, 64, 20), (257, 1, 33), (130, 65, 33))
)
def test_whole_and_cut_tiles(N: int, M: int, features: int) -> None:
    """Vectors of 16 bytes and single numbers, several tiles, several items a block, several parts of the columns."""
    x, y, v = draw(N, features), draw(M, features), draw(M, 3)
    K = check("dual_gram", x, y, kernel="ntk", depth=2)
    got = check("dual_matvec", x, y, v, kernel="ntk", depth=2)
    torch.testing.assert_close(got, K @ v, rtol=1e-5, atol=1e-5 * float(K.abs().max()))
    shifted = torch.empty(M * features + 1)[1:].view(M, features).copy_(y)
    assert torch.equal(ops.dual_gram(x, shifted, kernel="ntk", depth=2), K)  # number by number: the same sums
    assert torch.equal(ops.dual_gram(x, y.t().contiguous().t(), kernel="ntk", depth=2), K)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=("f32", "f64"))
def test_a_batch_with_itself_is_symmetric(dtype: torch.dtype) -> None:
    x = draw(150, 12, dtype=dtype)
    K = check("dual_gram", x, x, kernel="ntk", depth=3, b_std=0.2)
    assert torch.equal(K, K.mT)
    assert torch.equal(ops.dual_gram(x, x.clone(), kernel="ntk", depth=3, b_std=0.2), K)


@pytest.mark.parametrize("activation", ("relu", "erf", "gelu", "cos"))
def test_equal_rows_are_equal_bit_for_bit(activation: str) -> None:
    """Across tiles, -0 beside 0 too; the angle between them is 0, so the diagonal is what it is in float64."""
    x = draw(70, 40)
    x[:, 3] = 0.0
    twice = torch.cat([x, x, -x])
    twice[75, 3] = -0.0
    options = {"kernel": "ntk", "activation": activation, "depth": 3}
    K = ops.dual_gram(twice, twice, **options)
    assert torch.equal(K[:70], K[70:140]) and torch.equal(K[:, :70], K[:, 70:140])
    pairs, exact = (
        K[:70, 70:140].diagonal(),
        OPS["dual_gram"].reference(x.double(), x.double(), **options).diagonal(),
    )
    torch.testing.assert_close(pairs.double(), exact, rtol=3e-6, atol=0)
    y = ops.dual_matvec(twice, twice, draw(210, 2), **options)
    assert torch.equal(y[:70], y[70:140])


def test_a_row_that_differs_in_one_bit_is_another() -> None:
    x = draw(3, 8, dtype=torch.float64)
    near = x.clone()
    near[0, 0] = torch.nextafter(near[0, 0], near[0, 0] + 1)
    near[1, 2] *= 1 + 1e-7
    check("dual_gram", x, near, kernel="ntk", depth=2, parallel=True)
    own = ops.dual_gram(x, x, kernel="ntk", depth=2).diagonal()
    other = ops.dual_gram(x, near, kernel="ntk", depth=2).diagonal()
    assert other[1] < own[1] and other[2] == own[2]


def test_forced_backend_and_gradients() -> None:
    x, y, v = draw(9, 6).requires_grad_(), draw(7, 6).requires_grad_(), draw(7, 2).requires_grad_()
    options = {"kernel": "ntk", "activation": "erf", "depth": 2}
    grads = []
    for backend in ("cuda-emulated", "reference"):
        with zb.use_backend(backend):
            total = (
                zb.dual_gram(x, y, **options).square().sum()
                + zb.dual_matvec(x, y, v, **options).square().sum()
            )
        grads.append(torch.autograd.grad(total, (x, y, v)))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
