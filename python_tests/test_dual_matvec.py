"""``zb.dual_matvec``: what test_ops.py does not ask of every op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zbkernels as zb
from zbkernels.ops import dual_matvec as public
from zbkernels.ops._op import OPS

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


OPTIONS = {"kernel": "ntk", "depth": 2, "b_std": 0.3}


@pytest.mark.parametrize("direct", [False, True], ids=["zb", "torch.ops.zb"])
@pytest.mark.parametrize("activation", ["relu", "erf", "sigmoid"])
def test_values_and_gradients_are_those_of_the_matrix(activation: str, direct: bool) -> None:
    op = torch.ops.zb.dual_matvec if direct else zb.dual_matvec
    x, y, v = draw(5, 4).requires_grad_(), draw(3, 4, seed=1).requires_grad_(), draw(3, 2, seed=2)
    v.requires_grad_()
    r = draw(5, 2, seed=3)
    options = {**OPTIONS, "activation": activation}
    got, want = op(x, y, v, **options), zb.dual_gram(x, y, **options) @ v
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(t, (x, y, v), r) for t in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of the reference so small that a few rows fill several."""
    module = __import__("sys").modules["zbkernels.ops.dual_matvec"]
    monkeypatch.setattr(module, "tile_rows", lambda device: 4)


def test_over_tiles(small_tiles: None) -> None:
    """Values, gradients and equal rows where the reference takes several tiles."""
    x, y = draw(11, 5), draw(9, 5, seed=1)
    x[10] = x[1]  # in another tile
    y[0], y[8] = x[1], x[1]
    x, y, v = x.requires_grad_(), y.requires_grad_(), draw(9, 2, seed=2).requires_grad_()
    with zb.use_backend("reference"):
        got = zb.dual_matvec(x, y, v, **OPTIONS)
    want = zb.dual_gram(x, y, **OPTIONS) @ v
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(got[10], got[1])
    r = draw(11, 2, seed=3)
    for a, b in zip(*(torch.autograd.grad(t, (x, y, v), r) for t in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_gradient_of_a_gradient_over_tiles(small_tiles: None) -> None:
    x, y, v = draw(5, 3).requires_grad_(), draw(6, 3, seed=1), draw(6, 1, seed=2).requires_grad_()
    function = lambda x, v: zb.dual_matvec(x, y, v, **OPTIONS)  # noqa: E731
    assert torch.autograd.gradgradcheck(function, (x, v), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equal_rows_have_equal_results(dtype: torch.dtype) -> None:
    """Bit for bit, and as exact as others are: in float32 the angle of equal rows is 0, not sqrt(eps)."""
    x = draw(300, 9, dtype=dtype)
    x[37], x[299] = x[2], x[2]
    v = draw(300, 2, seed=1, dtype=dtype)
    got = zb.dual_matvec(x, x, v, kernel="ntk", depth=3)
    assert torch.equal(got[37], got[2]) and torch.equal(got[299], got[2])
    unit = torch.zeros(300, 1, dtype=dtype)
    unit[37] = 1
    column = zb.dual_matvec(x, x, unit, kernel="ntk", depth=3)[:, 0].double()
    exact = zb.dual_gram(x.double(), x.double(), kernel="ntk", depth=3)[:, 37]
    error = (column - exact).abs()[[2, 37, 299]].max() / exact[37]
    assert error < 32 * torch.finfo(dtype).eps


def test_the_transpose_is_the_op_with_the_inputs_exchanged() -> None:
    x, y, v = draw(7, 4), draw(6, 4, seed=1), draw(6, 2, seed=2).requires_grad_()
    r = draw(7, 2, seed=3)
    (got,) = torch.autograd.grad(zb.dual_matvec(x, y, v, **OPTIONS), v, r)
    assert torch.equal(got, zb.dual_matvec(y, x, r, **OPTIONS))


def test_transforms_and_forward_mode() -> None:
    x, y, v = draw(3, 4), draw(2, 4, seed=1), draw(2, 2, seed=2)
    for op in (zb.dual_matvec, torch.ops.zb.dual_matvec):
        func = torch.func
        want = zb.dual_gram(x, y) @ v
        torch.testing.assert_close(func.jvp(lambda v: op(x, y, v), (v,), (v,))[1], want)  # noqa: B023
        torch.testing.assert_close(func.jvp(lambda x: op(x, y, v), (x,), (x,))[1], want)  # noqa: B023
        got = func.grad(lambda v: op(x, y, v).sum())(v)  # noqa: B023
        torch.testing.assert_close(got, zb.dual_gram(x, y).sum(0)[:, None].expand(2, 2))
        rows = func.vmap(lambda row: op(row[None], y, v)[0])(x)  # noqa: B023
        torch.testing.assert_close(rows, want)


def test_a_forced_backend_gives_no_silent_zero_tangent() -> None:
    x, v = draw(3, 4), draw(3, 2, seed=2)
    record = OPS["dual_matvec"]
    for kernel in record.kernels:
        if kernel.name == "reference" or kernel.can_run(x, x, 2) is not None:
            continue
        with zb.use_backend(kernel.name), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(v, v)
            if not kernel.registered:
                with pytest.raises(RuntimeError, match="forward-mode AD see through"):
                    zb.dual_matvec(x, x, dual)


def test_compile_without_graph_break() -> None:
    x, v = draw(6, 4).requires_grad_(), draw(6, 2, seed=1)

    def loss(x: Tensor) -> Tensor:
        return zb.dual_matvec(x, x, v, **OPTIONS).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), loss(x))
    got, want = (torch.autograd.grad(f(x), x)[0] for f in (compiled, loss))
    torch.testing.assert_close(got, want)


def test_autocast_keeps_float32() -> None:
    x, v = draw(6, 4, dtype=torch.float32).requires_grad_(), draw(6, 2, dtype=torch.float32, seed=1)
    want = zb.dual_matvec(x, x, v, **OPTIONS)
    (slope,) = torch.autograd.grad(want.sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = zb.dual_matvec(x, x, v, **OPTIONS)
        assert got.dtype == torch.float32 and torch.equal(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("v", "options", "error", "text"),
    [
        (draw(3, 2), {"kernel": "gp"}, ValueError, "expected kernel to be 'nngp' or 'ntk', got 'gp'"),
        (draw(3), {}, ValueError, r"expected v of shape \[3, p\], a row for each of x2's, got \[3\]"),
        (draw(4, 2), {}, ValueError, r"expected v of shape \[3, p\], a row for each of x2's, got \[4, 2\]"),
        (draw(3, 2).float(), {}, TypeError, "expected v of x1's dtype torch.float64, got torch.float32"),
        ([1.0], {}, TypeError, "expected v to be a tensor, got list"),
        (draw(3, 2), {"depth": -1}, ValueError, "expected depth to be an int >= 0"),
        (draw(3, 2), {"activation": "swish2"}, ValueError, "expected activation to be one of relu"),
    ],
)
def test_bad_arguments(v: object, options: dict, error: type[Exception], text: str) -> None:
    x = draw(3, 4)
    with pytest.raises(error, match=f"^dual_matvec: {text}"):
        public(x, x, v, **options)
