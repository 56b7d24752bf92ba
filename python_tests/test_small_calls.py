"""Small calls run again from a kept description: the same results, and nothing that wants to see the op misses it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import zbkernels as zb
from zbkernels import _loader
from zbkernels.ops import _small_calls

conv = importlib.import_module("zbkernels.ops.conv_relu_pool2d")
call_op = conv.call_op
pytestmark = pytest.mark.skipif(_loader.handle("_C_cpu") is None, reason="the CPU kernels are not built")


class Seen:
    """Counts the calls that the op ran."""

    calls = 0

    def __call__(self, *args: Any) -> torch.Tensor:
        self.calls += 1
        return call_op(*args)


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    _small_calls._kept.clear()
    seen = Seen()
    monkeypatch.setattr(conv, "call_op", seen)
    yield seen
    _small_calls._kept.clear()


def operands(
    dtype: torch.dtype = torch.float32, *, channels_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, weight = torch.randn(2, 3, 9, 8), torch.randn(64, 3, 3, 3)
    return x.to(dtype).contiguous(memory_format=layout), weight.to(dtype).contiguous(memory_format=layout)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"padding": 1, "stride": (2, 1), "negative_slope": 0.1},
    {"pool": "avg", "pool_kernel": 3, "pool_stride": 2, "pool_padding": 1, "count_include_pad": False},
    {"pool": "none", "padding": (1, 0), "dilation": 2},
    {"pool_kernel": (2, 3), "ceil_mode": True},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_calls_after_the_first_give_the_bits_and_strides_of_the_op(
    op: Seen, dtype: torch.dtype, channels_last: bool, arguments: dict[str, Any]
) -> None:
    for _ in range(3):
        x, weight = operands(dtype, channels_last=channels_last)
        y = zb.conv_relu_pool2d(x, weight, **arguments)
        assert op.calls == 1, "the first call alone goes through the op"
        kernel = zb.last_kernel()
        kept = dict(_small_calls._kept)
        _small_calls._kept.clear()
        expected = zb.conv_relu_pool2d(x, weight, **arguments)
        assert op.calls == 2 and zb.last_kernel() == kernel
        assert torch.equal(y, expected) and y.stride() == expected.stride() and y.dtype == dtype
        _small_calls._kept.update(kept)
        op.calls = 1


def test_unbatched_strided_and_offset_tensors_have_descriptions_of_their_own(op: Seen) -> None:
    x, weight = operands()
    views = [x[0], x[:, :, ::2], x.transpose(2, 3), x[:, :, 1:, 1:], x[:1].expand(5, 3, 9, 8)]
    first = [zb.conv_relu_pool2d(view, weight) for view in views]
    assert op.calls == len(views)
    for view, y in zip(views, first, strict=True):
        assert torch.equal(zb.conv_relu_pool2d(view, weight), y)
    assert op.calls == len(views)


def test_new_weights_and_the_precision_in_force_are_taken_up(op: Seen) -> None:
    x, weight = torch.randn(1, 16, 16, 16), torch.randn(32, 16, 3, 3)
    zb.conv_relu_pool2d(x, weight)
    assert "winograd" in zb.last_kernel()
    y = zb.conv_relu_pool2d(x, weight)
    weight.mul_(2)  # powers of two round nothing
    assert torch.equal(zb.conv_relu_pool2d(x, weight), 2 * y)
    zb.set_conv_precision("highest")
    try:
        zb.conv_relu_pool2d(x, weight)
        assert "direct" in zb.last_kernel()
    finally:
        zb.set_conv_precision("high")
    assert op.calls == 1


def test_what_is_equal_but_not_the_same_is_checked() -> None:
    x, weight = operands()
    for _ in range(2):
        zb.conv_relu_pool2d(x, weight, 1, padding=(1, 1), groups=1)
    for wrong in (
        {"stride": True},
        {"padding": (True, 1)},
        {"groups": True},
        {"groups": 1.0},
        {"dilation": 1.0},
    ):
        with pytest.raises((TypeError, ValueError), match="conv_relu_pool2d: expected"):
            zb.conv_relu_pool2d(x, weight, **{"stride": 1, "padding": (1, 1), "groups": 1, **wrong})
    with pytest.raises(TypeError, match="conv_relu_pool2d"):
        zb.conv_relu_pool2d(x.double(), weight)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage was freed"):
        zb.conv_relu_pool2d(x, weight, 1, padding=(1, 1), groups=1)


class Functions(TorchFunctionMode):
    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= "zb.conv_relu_pool2d" in str(func)
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= "zb.conv_relu_pool2d" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Dispatched])
def test_modes_see_the_op(mode: Callable[[], Any]) -> None:
    x, weight = operands()
    for _ in range(2):
        zb.conv_relu_pool2d(x, weight)
    with mode() as watching:
        zb.conv_relu_pool2d(x, weight)
    assert watching.found


def test_gradients_transforms_tracing_autocast_and_the_profiler_see_the_op() -> None:
    x, weight = operands()

    def layer(x: torch.Tensor) -> torch.Tensor:
        return zb.conv_relu_pool2d(x, weight)

    for _ in range(2):
        expected = layer(x)
    parameter = torch.nn.Parameter(weight)
    assert zb.conv_relu_pool2d(x, parameter).requires_grad
    with torch.no_grad():
        assert not zb.conv_relu_pool2d(x, parameter).requires_grad
    assert torch.equal(torch.func.vmap(layer)(x), expected)
    _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    assert tangent.abs().sum() > 0
    assert "zb.conv_relu_pool2d" in make_fx(layer)(x).code
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        layer(x)
    assert any(event.key == "zb::conv_relu_pool2d" for event in profile.key_averages())
    with zb.use_backend("reference"):
        layer(x)
        assert zb.last_kernel() == "reference"
    imaginary = torch.complex(x, -x).conj().imag  # marked as negative, not yet so in memory
    assert imaginary.is_neg() and torch.equal(layer(imaginary), layer(imaginary.resolve_neg()))


def test_inference_tensors_and_threads(op: Seen) -> None:
    x, weight = operands()
    expected = zb.conv_relu_pool2d(x, weight)
    with torch.inference_mode():
        assert zb.conv_relu_pool2d(x, weight).is_inference()
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.extend(zb.conv_relu_pool2d(x, weight) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200 and all(torch.equal(y, expected) for y in results)
    assert op.calls == 1


def test_few_descriptions_are_kept_and_none_of_large_or_empty_results(op: Seen) -> None:
    x, weight = operands()
    zb.conv_relu_pool2d(x[:0], weight)
    zb.conv_relu_pool2d(torch.randn(64, 3, 32, 32), weight)
    assert not _small_calls._kept
    for n in range(1100):
        zb.conv_relu_pool2d(torch.zeros(1, 1, 2 + n % 50, 2 + n // 50), torch.zeros(1, 1, 1, 1))
    assert 0 < len(_small_calls._kept) <= 1024
