"""``zb.dual_gram``: what test_ops.py does not ask of every op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zbkernels as zb
from zbkernels.infinite import nngp, ntk

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("direct", [False, True], ids=["zb", "torch.ops.zb"])
@pytest.mark.parametrize("activation", ["relu", "erf", "sigmoid"])
def test_values_and_gradients_are_those_of_the_kernels(activation: str, direct: bool) -> None:
    op = torch.ops.zb.dual_gram if direct else zb.dual_gram
    x, y, r = draw(5, 4).requires_grad_(), draw(3, 4, seed=1).requires_grad_(), draw(5, 3, seed=2)
    options = {"activation": activation, "depth": 2, "b_std": 0.3}
    for got, want in (
        (op(x, y, **options), nngp(x, y, **options)),
        (op(x, y, kernel="ntk", **options), ntk(x, y, **options)),
        (op(x, y, kernel="ntk", train="first", **options), ntk(x, y, train="first", **options)),
    ):
        assert torch.equal(got, want)
        for a, b in zip(
            torch.autograd.grad(got, (x, y), r), torch.autograd.grad(want, (x, y), r), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kernel", ["nngp", "ntk"])
def test_one_tensor_for_both(kernel: str) -> None:
    """Symmetric bit for bit, with a gradient or without; the gradient is that of both places."""
    x = draw(37, 11, dtype=torch.float32)
    K = zb.dual_gram(x, x, kernel=kernel, depth=3)
    assert torch.equal(K, K.t())
    assert torch.equal(K, zb.dual_gram(x, x.view_as(x), kernel=kernel, depth=3))
    leaf = x.double().requires_grad_()
    r = draw(37, 37, seed=3)
    with_grad = zb.dual_gram(leaf, leaf, kernel=kernel, depth=3)
    assert torch.equal(with_grad, with_grad.t())
    (got,) = torch.autograd.grad(with_grad, leaf, r, retain_graph=True)
    a, b = leaf.detach().clone().requires_grad_(), leaf.detach().clone().requires_grad_()
    parts = torch.autograd.grad(zb.dual_gram(a, b, kernel=kernel, depth=3), (a, b), r)
    torch.testing.assert_close(got, parts[0] + parts[1])


def test_a_gradient_wanted_for_one_side_only() -> None:
    x, y = draw(5, 4).requires_grad_(), draw(3, 4, seed=1)
    (g,) = torch.autograd.grad(zb.dual_gram(x, y, kernel="ntk").sum(), x)
    (h,) = torch.autograd.grad(zb.dual_gram(y, x, kernel="ntk").sum(), x)
    torch.testing.assert_close(g, h)


def test_transforms_and_forward_mode() -> None:
    x, y = draw(3, 4), draw(2, 4, seed=1)
    for op in (zb.dual_gram, torch.ops.zb.dual_gram):
        func = torch.func
        want = nngp(x, y)
        torch.testing.assert_close(func.jvp(lambda x: op(x, y), (x,), (x,))[1], want)  # noqa: B023
        got = func.grad(lambda x: op(x, y, kernel="ntk").sum())(x)  # noqa: B023
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(got, torch.autograd.grad(ntk(leaf, y).sum(), leaf)[0])
        rows = func.vmap(lambda row: op(row[None], y)[0])(x)  # noqa: B023
        torch.testing.assert_close(rows, want)


def test_compile_without_graph_break() -> None:
    x, y = draw(6, 4).requires_grad_(), draw(3, 4, seed=1)

    def loss(x: Tensor) -> Tensor:
        return zb.dual_gram(x, y, kernel="ntk", depth=2).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), loss(x))
    got, want = (torch.autograd.grad(f(x), x)[0] for f in (compiled, loss))
    torch.testing.assert_close(got, want)


def test_autocast_keeps_float32_and_half_is_refused() -> None:
    x = draw(6, 4, dtype=torch.float32).requires_grad_()
    want = zb.dual_gram(x, x, kernel="ntk", depth=2)
    (slope,) = torch.autograd.grad(want.sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = zb.dual_gram(x, x, kernel="ntk", depth=2)
        assert got.dtype == torch.float32 and torch.equal(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], slope, rtol=1e-6, atol=1e-6)
    with pytest.raises(
        TypeError, match=r"dual_gram: expected x1 of dtype float32 or float64, got torch.bfloat16"
    ):
        zb.dual_gram(x.bfloat16(), x)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kernel": "gp"}, ValueError, "expected kernel to be 'nngp' or 'ntk', got 'gp'"),
        ({"activation": torch.relu}, TypeError, "expected activation to be a name"),
        ({"activation": "swish2"}, ValueError, "expected activation to be one of relu"),
        ({"train": "first"}, ValueError, "expected train='all' for kernel='nngp'"),
        ({"kernel": "ntk", "train": "last"}, ValueError, "expected train to be 'all' or 'first'"),
        ({"depth": -1}, ValueError, "expected depth to be an int >= 0"),
    ],
)
def test_bad_options(options: dict, error: type[Exception], text: str) -> None:
    x = draw(3, 4)
    with pytest.raises(error, match=f"^dual_gram: {text}"):
        zb.dual_gram(x, x, **options)


def test_a_negative_view_is_not_the_same_tensor() -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with zb.use_backend("reference"):
        assert zb.dual_gram(torch._neg_view(x), x).equal(zb.dual_gram(-x, x))
        v = torch.ones(5, 1)
        assert zb.dual_matvec(torch._neg_view(x), x, v).equal(zb.dual_matvec(-x, x, v))
