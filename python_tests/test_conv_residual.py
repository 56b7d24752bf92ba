"""``conv_relu_pool2d`` with a residual: each kernel, gradients, transforms, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import zbkernels as zb
from zbkernels.nap import Units
from zbkernels.ops import OPS, _small_calls


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def operands(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and residual of a block that keeps its size."""
    return (
        drawn(2, 3, 6, 5, dtype=dtype),
        drawn(4, 3, 3, 3, dtype=dtype, seed=1),
        drawn(2, 4, 6, 5, dtype=dtype, seed=2),
    )


def fused(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return zb.conv_relu_pool2d(x, w, padding=1, residual=r, **{"pool": "none", **kwargs})


def steps(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(x, w, padding=1) + r)


# --- values ---------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape),
    "one value": lambda t: t[:1, :1, :1, :1].expand(t.shape),
}
# N, C, K, size, filter, groups: each kernel of the CPU, whole blocks of channels and cut ones.
SHAPES = {
    "winograd": (3, 16, 40, 12, 3, 1),
    "winograd, several images": (20, 16, 32, 4, 3, 1),
    "winograd, first layer": (2, 3, 64, 9, 3, 1),
    "1x1": (2, 24, 33, 11, 1, 1),
    "1x1, many rows": (1, 24, 64, 70, 1, 1),
    "few pixels": (1, 256, 128, 4, 3, 1),
    "depthwise": (2, 32, 32, 9, 3, 32),
    "groups": (2, 6, 4, 40, 3, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_kernel_adds_residuals_of_any_layout(shape: str, layout: str) -> None:
    """In whole numbers sums are exact (but for Winograd's), so that the steps one by one give the same bits."""
    n, c, k, size, r, groups = SHAPES[shape]

    def whole(*shape: int, seed: int) -> torch.Tensor:
        return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()

    x, w = whole(n, c, size, size, seed=0), whole(k, c // groups, r, r, seed=1)
    pre = F.conv2d(x, w, padding=r // 2, groups=groups)
    residual = LAYOUTS[layout](40 * whole(n, k, size, size, seed=2))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            a = x.to(dtype).contiguous(memory_format=memory_format)
            for pool, slope, training in (("none", 0.0, False), ("none", 0.5, True), ("max", 0.0, True)):
                a = a.detach().requires_grad_(training)
                kwargs = {"padding": r // 2, "groups": groups, "pool": pool, "negative_slope": slope}
                got = zb.conv_relu_pool2d(a, w.to(dtype), **kwargs, residual=residual.to(dtype)).detach()
                value = pre.to(dtype) + residual.to(dtype)
                value = F.leaky_relu(value, slope) if slope else F.relu(value)
                want = F.max_pool2d(value, 2) if pool == "max" else value
                exact = dtype == torch.float64 or "winograd" not in zb.last_kernel()
                loose = 2e-2 if dtype == torch.bfloat16 else 1e-5
                bound = 0.0 if exact and dtype != torch.bfloat16 else loose * float(want.abs().max())
                assert got.is_contiguous(memory_format=memory_format)
                torch.testing.assert_close(got, want, rtol=0, atol=bound)


def test_a_signature_is_of_the_sum() -> None:
    x, w, r = operands(torch.float32)
    for pool in ("none", "max"):
        y, sig = zb.conv_relu_pool2d_nap(x, w, padding=1, pool=pool, residual=r)
        assert torch.equal(sig, zb.nap_pack(steps(x, w, r).flatten(1)))
        assert torch.equal(y, fused(x, w, r, pool=pool)) or pool == "max"


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 17, 33]),
    st.sampled_from([1, 3, 8, 16]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.booleans(),
)
def test_any_size(k: int, c: int, h: int, w: int, r: int, last: bool, training: bool) -> None:
    x, weight = drawn(2, c, h, w, dtype=torch.float32), drawn(k, c, r, r, dtype=torch.float32, seed=1)
    pre = F.conv2d(x.double(), weight.double(), padding=r - 1)
    residual = drawn(*pre.shape, dtype=torch.float32, seed=2)
    if last:
        x, residual = (t.contiguous(memory_format=torch.channels_last) for t in (x, residual))
    y = zb.conv_relu_pool2d(
        x.requires_grad_(training), weight, padding=r - 1, pool="none", residual=residual
    ).detach()
    want = F.relu(pre + residual)
    assert (y - want).norm() <= 1e-5 * (pre.norm() + residual.norm())


def test_nan_and_inf_of_either_side() -> None:
    x, w, r = operands(torch.float32)
    x[0, 0, 1, 1], r[1, 2, 3, 3], r[0, 0, 5, 4], r[1, 0, 0, 0] = (
        float("inf"),
        float("nan"),
        -float("inf"),
        float("inf"),
    )
    for convert in LAYOUTS["contiguous"], LAYOUTS["channels_last"]:
        got, want = fused(convert(x), w, convert(r)), steps(x, w, r)
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())


def test_unbatched_and_empty() -> None:
    x, w, r = operands(torch.float32)
    torch.testing.assert_close(fused(x[0], w, r[0]), fused(x, w, r)[0])
    assert fused(x[:0], w, r[:0]).shape == (0, 4, 6, 5)


# --- gradients and transforms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("pool", ["none", "max", "avg"])
def test_gradients_of_all_three(pool: str, slope: float, highest_precision: None) -> None:
    inputs = tuple(t.requires_grad_() for t in operands())

    def function(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return fused(x, w, r, pool=pool, negative_slope=slope)

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True, check_batched_grad=pool == "none")
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_only_some_gradients_wanted(wanted: tuple[int, ...], last: bool) -> None:
    inputs = [t.clone() for t in operands()]
    if last:
        inputs = [t.contiguous(memory_format=torch.channels_last) for t in inputs]
    for i in wanted:
        inputs[i].requires_grad_()
    chosen = [inputs[i] for i in wanted]
    grad = drawn(2, 4, 6, 5, seed=5)
    got = torch.autograd.grad(fused(*inputs), chosen, grad)
    want = torch.autograd.grad(steps(*inputs), chosen, grad)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("direct", [False, True], ids=["zb", "torch.ops.zb"])
def test_transforms(direct: bool) -> None:
    x, w, r = operands()
    many = torch.stack([r, -r, 2 * r])

    def function(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        if direct:
            return torch.ops.zb.conv_relu_pool2d(x, w, 1, 1, residual=r, pool="none")
        return fused(x, w, r)

    func = torch.func
    both = torch.stack([x, -x, x / 2])
    for transform in (
        lambda f: func.vmap(f, (None, None, 0))(x, w, many),
        lambda f: func.vmap(f, (0, None, None))(both, w, r),
        lambda f: func.vmap(f, (0, None, 0))(both, w, many),
        lambda f: func.vmap(lambda x, r: f(x, w, r), (0, 1))(both[0], many[0].transpose(0, 1)),
        lambda f: func.vmap(f, (0, 0, 0))(both, torch.stack([w, w, -w]), many),
        lambda f: func.grad(lambda r: f(x, w, r).pow(2).sum())(r),
        lambda f: func.vmap(func.grad(lambda r: f(x, w, r).pow(2).sum()))(many),
        lambda f: func.jvp(lambda r: f(x, w, r), (r,), (r + 1,))[1],
    ):
        torch.testing.assert_close(transform(function), transform(steps))


def test_forward_mode_gives_no_silent_zero() -> None:
    import torch.autograd.forward_ad as forward

    x, w, r = operands()
    with forward.dual_level():
        for f in (fused, lambda x, w, r: torch.ops.zb.conv_relu_pool2d(x, w, 1, 1, residual=r, pool="none")):
            tangent = forward.unpack_dual(f(x, w, forward.make_dual(r, torch.ones_like(r)))).tangent
            torch.testing.assert_close(tangent, (steps(x, w, r) > 0).double())


def test_autocast_takes_the_residual_along() -> None:
    x, w, r = operands(torch.float32)
    r.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        for y in (fused(x, w, r), torch.ops.zb.conv_relu_pool2d(x, w, 1, 1, residual=r, pool="none")):
            assert y.dtype == torch.bfloat16
        assert zb.conv_relu_pool2d_nap(x, w, padding=1, residual=r)[0].dtype == torch.bfloat16
    y.sum().backward()
    assert r.grad.dtype == torch.float32 and r.grad.sum() == (y > 0).sum()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = zb.nn.ConvReLUPool2d(3, 3, 3, padding=1, pool="none")
        self.second = zb.nn.ConvReLUPool2d(3, 3, 3, padding=1, pool="none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x), residual=x)


def test_compile_and_export() -> None:
    torch._dynamo.reset()
    block, x = Block(), drawn(2, 3, 8, 8, dtype=torch.float32)
    want = F.relu(F.conv2d(block.first(x), block.second.weight, padding=1) + x)
    torch.testing.assert_close(block(x), want, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    for got, expected in zip(
        torch.autograd.grad(compiled(x).sum(), (x, *block.parameters())),
        torch.autograd.grad(block(x).sum(), (x, *block.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)
    x = x.detach()
    program = torch.export.export(block, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    wide = drawn(5, 3, 8, 8, dtype=torch.float32, seed=4)
    torch.testing.assert_close(program.module()(wide), block(wide))


# --- what else meets a residual ---------------------------------------------------------------------------------------


def test_small_calls_are_run_again_with_other_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, r = operands(torch.float32)
    monkeypatch.setattr(_small_calls, "_kept", {})
    with torch.no_grad():
        for residual in (
            r,
            -r,
            None,
            r + 1,
            r.contiguous(memory_format=torch.channels_last),
            r.transpose(2, 3).contiguous().transpose(2, 3),
        ):
            want = F.conv2d(x, w, padding=1) if residual is None else F.conv2d(x, w, padding=1) + residual
            for _ in range(2):
                got = zb.conv_relu_pool2d(x, w, padding=1, pool="none", residual=residual)
                torch.testing.assert_close(got, F.relu(want), rtol=1e-5, atol=1e-5)
    if zb.explain("conv_relu_pool2d", x, w).chosen == "cpu":
        assert len(_small_calls._kept) == 4  # without one, and three layouts of one


def test_explain_and_forced_reference() -> None:
    x, w, r = operands(torch.float32)
    with torch.no_grad():
        y = fused(x, w, r)
    told = zb.explain("conv_relu_pool2d", x, w, padding=1, pool="none", residual=r)
    assert told.kernel in ("", zb.last_kernel())
    with zb.use_backend("reference"):
        torch.testing.assert_close(fused(x, w, r), y, rtol=1e-5, atol=1e-5)
        assert torch.compile(fused, fullgraph=True, backend="aot_eager")(x, w, r).shape == y.shape
    with pytest.raises(ValueError, match="expected residual of the un-pooled map's shape"):
        zb.explain("conv_relu_pool2d", x, w, residual=r)


def test_a_watched_block_goes_by_its_steps() -> None:
    """Units of a sum are met as ReLUs; those of the op itself with a residual are refused by name."""
    block, x = Block(), drawn(2, 3, 8, 8, dtype=torch.float32)
    units = Units(block, lambda site, call: call.run())
    with torch.no_grad(), units:
        y = block(x)
    torch.testing.assert_close(y, block(x), rtol=1e-5, atol=1e-5)
    assert [site.kind for site in units.sites] == ["conv_relu_pool", "relu"] and not units.unsupported

    class Direct(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.zb.conv_relu_pool2d(x, self.first.weight, 1, 1, residual=x, pool="none")

    with pytest.raises(NotImplementedError, match=r"expected no residual in a call of torch\.ops\.zb"):
        zb.nap.find_units(Direct(), x)


BAD = [
    (
        lambda r: r[:, :3],
        ValueError,
        r"map's shape \[2, 4, 6, 5\] \(nothing is broadcast\), got \[2, 3, 6, 5\]",
    ),
    (lambda r: r[:1], ValueError, r"got \[1, 4, 6, 5\]"),
    (lambda r: r[0], ValueError, r"got \[4, 6, 5\]"),
    (lambda r: r.double(), TypeError, "expected residual of x's dtype torch.float32, got torch.float64"),
    (lambda r: r.to("meta"), ValueError, "expected x and residual on one device, got cpu and meta"),
    (lambda r: r.to_sparse(), TypeError, "expected residual to be a dense"),
    (lambda r: r.numpy(), TypeError, "expected residual to be a tensor or None, got ndarray"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_a_bad_residual_is_named(change: Any, error: type[Exception], text: str) -> None:
    x, w, r = operands(torch.float32)
    for name in ("conv_relu_pool2d", "conv_relu_pool2d_nap"):
        with pytest.raises(error, match=f"{name}: .*{text}"):
            OPS[name].public(x, w, padding=1, pool="none", residual=change(r))
        if isinstance(change(r), torch.Tensor):
            units = {"units": "relu"} if name.endswith("_nap") else {}
            with (
                torch.inference_mode(),
                pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError)),
            ):
                OPS[name].overload(x, w, 1, 1, residual=change(r), pool="none", **units)
