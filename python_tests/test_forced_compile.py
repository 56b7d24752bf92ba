"""torch.compile under a forced backend: one node in the graph, no break, the kernel that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import zbkernels as zb
from zbkernels import _loader

BACKENDS = [
    "reference",
    pytest.param(
        "cuda-emulated",
        marks=pytest.mark.skipif(
            not _loader.emulated_path().exists(), reason="the emulated library is not built"
        ),
    ),
]


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y, sig = zb.conv_relu_pool2d_nap(zb.conv_relu_pool2d(x, w, padding=1), w, padding=1)
    hidden, _ = zb.linear_relu_nap(zb.linear_relu(y.flatten(1), v), v[:, :8])
    bits = zb.nap_unpack(zb.nap_pack(hidden), 8)
    return (hidden * bits).sum() + (sig != 0).sum()


def inputs(train: bool) -> tuple[torch.Tensor, ...]:
    gen = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, generator=gen) for shape in ((2, 4, 8, 8), (4, 4, 3, 3), (8, 16))]
    return tuple(t.requires_grad_(train) for t in made)


def values(function: Callable[..., torch.Tensor], train: bool) -> list[torch.Tensor]:
    given = inputs(train)
    result = function(*given)
    return [result.detach(), *(torch.autograd.grad(result, given) if train else ())]


@pytest.mark.parametrize("train", (False, True), ids=("forward", "train"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forced_backend_compiles_without_a_break(backend: str, train: bool) -> None:
    targets: list[str] = []

    def look(graph: torch.fx.GraphModule, example: Any) -> Any:
        targets.extend(str(node.target) for module in graph.modules() for node in module.graph.nodes)
        return graph

    torch._dynamo.reset()
    with zb.use_backend(backend):
        want = values(block, train)
        for compiler in (look, "aot_eager"):
            torch._dynamo.reset()
            got = values(torch.compile(block, fullgraph=True, backend=compiler), train)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b)
        assert zb.last_kernel().split(":")[0] == backend
    for name in ("_conv_relu_pool2d_forward_on", "_linear_relu_on", "_nap_pack_on", "_nap_unpack_on"):
        assert any(name in target for target in targets), targets


def test_a_forced_backend_that_cannot_run_says_so_when_the_graph_runs() -> None:
    torch._dynamo.reset()
    with (
        zb.use_backend("triton"),
        pytest.raises(Exception, match="nap_pack: backend 'triton' can't run this call"),
    ):
        torch.compile(zb.nap_pack, fullgraph=True, backend="aot_eager")(torch.randn(2, 70))


@pytest.mark.parametrize("need_sig", (False, True))
def test_the_ops_by_backend_keep_their_promises(need_sig: bool) -> None:
    x, w, v = inputs(False)
    test = {"test_utils": ("test_schema", "test_faketensor")}
    torch.library.opcheck(
        torch.ops.zb._linear_relu_on.default, ("reference", x[0, 0], v[:, :8], 0.5, need_sig), **test
    )
    conv = ("reference", x, w, [1, 1], [1, 1], [1, 1], 1)
    pool = {"pool": "max", "pool_kernel": [2, 2], "pool_stride": [2, 2], "pool_padding": [0, 0]}
    pool |= {"ceil_mode": False, "count_include_pad": True, "negative_slope": 0.0}
    units = {"need_code": True, "units": "relu" if need_sig else ""}
    forward = torch.ops.zb._conv_relu_pool2d_forward_on.default
    torch.library.opcheck(forward, conv, {**pool, **units}, **test)
    y, code, _ = forward(*conv, **pool, **units)
    torch.library.opcheck(
        torch.ops.zb._conv_relu_pool2d_backward_on.default,
        ("reference", torch.ones_like(y), x, w, code, *conv[3:]),
        {**pool, "need_x": True, "need_weight": need_sig},
        **test,
    )


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sig = zb.nap_pack(x)
        nearest = zb.nap_topk(sig, sig, 2)[1] + zb.nap_hamming(sig, sig)
        return block(x, w, v) + nearest.sum() + zb.nap_frequency(sig, 70).sum()


def exported(args: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    return torch.export.export(Block(), args).module()


def made_fx(args: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    return make_fx(Block())(*args)


def traced(args: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    return torch.jit.trace(Block(), args, check_trace=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("trace", (exported, made_fx, traced))
@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_a_forced_backend_is_traced_as_ops(trace: Callable[..., Any], backend: str) -> None:
    """Its kernels must not run on what a tracer passes through, or their results would be constants of the trace."""
    args = inputs(False)
    others = tuple(2 - 3 * t for t in args)
    with zb.use_backend(backend):
        graph = trace(args)
        torch.testing.assert_close(graph(*others), Block()(*others))
    listing = str(graph.graph)
    for name in ("_conv_relu_pool2d_forward_on", "_linear_relu_on", "_nap_topk_on", "_nap_frequency_on"):
        assert name in listing


def test_a_forced_backend_takes_fake_tensors() -> None:
    with FakeTensorMode() as mode:
        x, w, _ = (mode.from_tensor(t) for t in inputs(False))
    with zb.use_backend("reference"):
        assert zb.conv_relu_pool2d(x, w, padding=1).shape == (2, 4, 4, 4)


def test_a_forced_backend_refuses_forward_mode_within_a_mode_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an op it would give a tangent of zero."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # Triton could run then; nothing is started here
    x, w, _ = inputs(False)
    with (
        forward_ad.dual_level(),
        FlopCounterMode(display=False),
        zb.use_backend("triton"),
        pytest.raises(RuntimeError, match="see through the op only with backend 'auto'"),
    ):
        zb.conv_relu_pool2d(forward_ad.make_dual(x, x), w)
