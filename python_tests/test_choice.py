"""Which backend a public call takes where results were measured: tables that are made up, on a CPU as the card."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import zbkernels as zb
from zbkernels import cards, tables
from zbkernels.cards import Card
from zbkernels.ops import OPS, _backend, _choice
from zbkernels.ops._choice import Choices

CARD = Card("Made-up Card", "9.0")
CPU = torch.device("cpu")
CONV = "K4 C4 3x3 M2^7 max2"
FAST_REFERENCE = {"cpu": 3.0, "reference": 2.0}

pytestmark = pytest.mark.skipif(
    not zb._loader.libraries()["_C_cpu"].loaded,
    reason="the CPU library is one of the two kernels to choose from",
)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def w() -> torch.Tensor:
    return torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``measured(op, shape_class, ms)`` adds a row to the table of the CPU."""
    table = Choices(CARD, {})
    monkeypatch.setattr(_choice, "_tables", {CPU: table})

    def add(op: str, shape_class: str, ms: dict[str, float], dtype: str = "float32") -> None:
        table.rows[op, dtype, shape_class] = ms
        table._kept.clear()

    return add


def ran(call: Callable[[], Any]) -> str:
    call()
    return zb.last_kernel().split(":")[0]


def test_the_fastest_runs_in_its_class_only(measured: Callable, x: torch.Tensor, w: torch.Tensor) -> None:
    measured("conv_relu_pool2d", CONV, FAST_REFERENCE)
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"  # the choice that was kept
    assert ran(lambda: zb.conv_relu_pool2d(x[:1], w, padding=1)) == "cpu"
    assert ran(lambda: zb.conv_relu_pool2d(x.double(), w.double(), padding=1)) == "cpu"
    channels_last = x.to(memory_format=torch.channels_last)
    assert ran(lambda: zb.conv_relu_pool2d(channels_last, w, padding=1)) == "cpu"
    wt = w.clone().requires_grad_()
    assert ran(lambda: zb.conv_relu_pool2d(x, wt, padding=1)) == "cpu"
    with torch.no_grad():
        assert ran(lambda: zb.conv_relu_pool2d(x, wt, padding=1)) == "reference"


def test_a_choice_changes_no_result_and_trains(measured: Callable, x: torch.Tensor, w: torch.Tensor) -> None:
    w.requires_grad_()
    results = []
    for ms in ({}, FAST_REFERENCE):
        measured("conv_relu_pool2d", CONV + " train", ms)
        y = zb.conv_relu_pool2d(x, w, padding=1)
        results.append((y, *torch.autograd.grad(y.square().sum(), w)))
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.shape_class is not None])
def test_every_op_with_a_class_can_be_chosen_for(measured: Callable, name: str) -> None:
    op = OPS[name]
    sample = next(iter(op.samples("cpu")))
    args, kwargs = (op.normalise or (lambda *a, **k: (a, k)))(*sample.args, **sample.kwargs)
    dtype = str(sample.args[0].dtype).removeprefix("torch.")
    measured(name, op.shape_class(*args, **kwargs), FAST_REFERENCE, dtype)
    assert zb.explain(name, *sample.args, **sample.kwargs).chosen == "reference"
    assert ran(lambda: op.public(*sample.args, **sample.kwargs)) == "reference"


def test_a_choice_that_cannot_run_falls_to_the_next(
    measured: Callable, x: torch.Tensor, w: torch.Tensor
) -> None:
    measured("conv_relu_pool2d", CONV, {"cuda": 0.5, "triton": 0.1, **FAST_REFERENCE})
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"
    measured("conv_relu_pool2d", CONV, {"cuda": 0.5, "triton": 0.1, "cpu": 1.0})
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"
    measured(
        "conv_relu_pool2d", CONV, {"triton": 0.1, "reference": 1.0}
    )  # the default was not measured beside it
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"


def test_the_default_order_stays_where_the_gain_is_noise(
    measured: Callable, x: torch.Tensor, w: torch.Tensor
) -> None:
    measured("conv_relu_pool2d", CONV, {"cpu": 1.02, "reference": 1.0})
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"


def test_a_forced_backend_and_the_highest_precision_come_first(
    measured: Callable, x: torch.Tensor, w: torch.Tensor, highest_precision: None
) -> None:
    measured("conv_relu_pool2d", CONV, FAST_REFERENCE)
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"
    assert "'highest'" in str(zb.explain("conv_relu_pool2d", x, w, padding=1))
    zb.set_conv_precision("high")
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"
    with zb.use_backend("cpu"):
        assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"


class Marked(torch.Tensor):
    """A subclass without behaviour of its own."""


class Counting(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += "zb" in str(func)
        return func(*args, **(kwargs or {}))


def test_what_looks_at_the_op_sees_it(measured: Callable, x: torch.Tensor, w: torch.Tensor) -> None:
    measured("linear_relu", "O4 I8 M2^5", FAST_REFERENCE)
    rows, weight = torch.randn(32, 8), torch.randn(4, 8)
    assert ran(lambda: zb.linear_relu(rows, weight)) == "reference"
    assert ran(lambda: torch.compile(zb.linear_relu, backend="eager", fullgraph=True)(rows, weight)) == "cpu"
    with Counting() as counting:
        zb.linear_relu(rows, weight)
    assert counting.seen == 1
    assert ran(lambda: zb.linear_relu(rows.as_subclass(Marked), weight)) == "cpu"
    with FakeTensorMode() as mode:
        assert zb.linear_relu(mode.from_tensor(rows), mode.from_tensor(weight)).shape == (32, 4)

    class Layer(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return zb.linear_relu(a, b)

    for strict in (False, True):
        exported = torch.export.export(Layer(), (rows, weight), strict=strict)
        assert any("zb.linear_relu" in str(node.target) for node in exported.graph.nodes)
    batched = torch.func.vmap(zb.linear_relu, (0, None))(rows.expand(2, -1, -1), weight)
    torch.testing.assert_close(batched[0], zb.linear_relu(rows, weight))
    with forward_ad.dual_level():
        y = zb.linear_relu(forward_ad.make_dual(rows, torch.ones_like(rows)), weight)
        assert forward_ad.unpack_dual(y).tangent.abs().sum() > 0


def test_a_forced_kernel_gives_forward_mode_no_silent_zero() -> None:
    rows, weight = torch.randn(32, 8), torch.randn(4, 8)
    hidden = zb.ops._op.Kernel("outside", lambda *args, **kwargs: None)
    op = zb.ops._op.Op("some_op", "", torch.relu, list, kernels=(hidden,))
    with forward_ad.dual_level(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backend, "_wanted", "outside")
        assert _backend.forced_kernel(op, rows, weight) is hidden
        dual = forward_ad.make_dual(rows, torch.ones_like(rows))
        with pytest.raises(
            RuntimeError, match=r"forward-mode AD see through the op only with backend 'auto'"
        ):
            _backend.forced_kernel(op, dual, weight)


def test_a_pattern_depends_on_neither_batch_nor_layout_nor_training(w: torch.Tensor) -> None:
    def classes(name: str, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> set[str]:
        op = OPS[name]
        spread = op.normalise or (lambda *args, **kwargs: (args, kwargs))
        found = set()
        for args, kwargs in calls:
            args, kwargs = spread(*args, **kwargs)
            found.add(op.shape_class(*args, **kwargs))
        return found

    images = [torch.randn(n, 3, 8, 8) for n in (1, 2, 500)]
    images += [images[1].to(memory_format=torch.channels_last), images[0][0]]
    trained = w.clone().requires_grad_()
    calls = [((x, each), {"units": "output"}) for x in images for each in (w, trained)]
    assert len(classes("conv_relu_pool2d_nap", calls)) == 1
    rows = [torch.randn(n, 8) for n in (1, 2, 500)]
    weight = torch.randn(4, 8)
    calls = [((x, each), {}) for x in rows for each in (weight, weight.clone().requires_grad_())]
    assert len(classes("linear_relu_nap", calls)) == 1
    assert len(classes("linear_relu", calls)) == 6


def test_shape_classes_in_words() -> None:
    def name(op: str, *args: Any, **kwargs: Any) -> str:
        record = OPS[op]
        spread, given = record.normalise(*args, **kwargs) if record.normalise else (args, kwargs)
        return record.shape_class(*spread, **given)

    x, w = torch.empty(128, 64, 32, 32, device="meta"), torch.empty(128, 64, 3, 3, device="meta")
    assert name("conv_relu_pool2d", x, w, padding=1) == "K128 C64 3x3 M2^17 max2"
    assert name("conv_relu_pool2d", x, w, padding="same", pool="none") == "K128 C64 3x3 M2^17 nopool"
    cl = x.to(memory_format=torch.channels_last)
    assert name("conv_relu_pool2d", cl, w, padding=1) == "K128 C64 3x3 M2^17 max2 cl"
    assert name("conv_relu_pool2d_nap", cl, w, padding=1) == "K128 C64 3x3 M2^10 max2 relu"
    stem = torch.empty(8, 3, 224, 224, device="meta"), torch.empty(64, 3, 7, 7, device="meta")
    pool = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
    assert name("conv_relu_pool2d", *stem, stride=2, padding=3, **pool) == "K64 C4 7x7/2 M2^17 max3/2"
    depthwise = torch.empty(64, 1, 3, 5, device="meta")
    assert name("conv_relu_pool2d", x, depthwise, groups=64, dilation=2, pool="avg", pool_kernel=(2, 3)) == (
        "K64 C64 3x5 dilation2 depthwise M2^16 avg2x3"
    )
    assert name("linear_relu", torch.empty(4, 128, 784), torch.empty(200, 784)) == "O256 I1024 M2^9"
    assert name("nap_pack", torch.empty(4096, 16384)) == "N2^12 F2^14"
    assert name("nap_pack", torch.empty(0, 70)) == "N0 F2^6"
    assert name("nap_unpack", torch.empty(5, 2, dtype=torch.int64), 100) == "N2^2 F2^7"


def test_explain_gives_the_reason(measured: Callable, x: torch.Tensor, w: torch.Tensor) -> None:
    measured("conv_relu_pool2d", CONV, {"cpu": 2.8, "reference": 2.0})
    found = zb.explain("conv_relu_pool2d", x, w, padding=1)
    assert found.chosen == "reference"
    assert f"chosen: measured 1.40x faster than cpu on Made-up Card for '{CONV}'" in str(found)
    assert found.verdicts["cpu"] == "can run; measured, its time is 1.40 of the chosen one's"
    other = zb.explain("conv_relu_pool2d", x[:1], w, padding=1)
    assert other.chosen == "cpu" and "no measurement for 'K4 C4 3x3 M2^6 max2' on Made-up Card" in other.why
    measured("conv_relu_pool2d", CONV, {"cpu": 2.0, "reference": 2.8})
    assert "none is clearly faster" in zb.explain("conv_relu_pool2d", x, w, padding=1).why


def test_explain_of_a_kernel_that_was_not_measured(
    measured: Callable, x: torch.Tensor, w: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands above the chosen one in the default order, so that order is not why."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # Triton could run then; nothing is started here
    measured("conv_relu_pool2d", CONV, FAST_REFERENCE)
    found = zb.explain("conv_relu_pool2d", x, w, padding=1)
    assert found.chosen == "reference"
    assert found.verdicts["triton"] == "can run, but was not measured beside them"


@pytest.mark.parametrize("name", ("linear_relu", "linear_relu_nap", "conv_relu_pool2d"))
def test_explain_sees_the_dtype_of_autocast(
    measured: Callable, name: str, x: torch.Tensor, w: torch.Tensor
) -> None:
    op, args = OPS[name], (x, w) if name.startswith("conv") else (x.flatten(1), w.new_ones(5, 192))
    given, options = op.normalise(*args)
    measured(name, op.shape_class(*given, **options), FAST_REFERENCE, "bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        assert zb.explain(name, *args).chosen == "reference" == ran(lambda: op.public(*args))
    assert zb.explain(name, *args).chosen == "cpu" == ran(lambda: op.public(*args))


def test_a_card_without_a_table_keeps_the_default_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, x: torch.Tensor, w: torch.Tensor
) -> None:
    monkeypatch.setattr(cards, "card_of", lambda device: CARD)
    monkeypatch.setattr(_choice, "_tables", {})
    monkeypatch.setattr(_choice, "SHIPPED", tmp_path)
    assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"
    assert "chosen: no measurement for Made-up Card, default order" in str(
        zb.explain("conv_relu_pool2d", x, w)
    )


HEAD = {"format": 1, "card": "Made-up Card", "capability": "9.0"}
ROW = {"op": "conv_relu_pool2d", "dtype": "float32", "shape_class": CONV, "ms": FAST_REFERENCE}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**HEAD, "rows": [ROW]}), None),
        (json.dumps({**HEAD, "rows": [ROW]})[:-5], "Expecting"),
        ("", "Expecting value"),
        (json.dumps({**HEAD, "format": 2, "rows": [ROW]}), "format is 2, expected 1"),
        (json.dumps({**HEAD, "capability": "8.0", "rows": [ROW]}), "capability is '8.0'"),
        (
            json.dumps({**HEAD, "rows": [{**ROW, "ms": {"cpu": 0, "reference": 1}}]}),
            "expected a time above 0",
        ),
        (
            json.dumps({**HEAD, "rows": [{**ROW, "ms": {"cpu": 1, "triton": 10**400}}]}),
            "expected a time above 0",
        ),
        (
            json.dumps({**HEAD, "rows": [{**ROW, "ms": {"cpu": math.inf}}]}),
            "expected strict JSON, got Infinity",
        ),
        (json.dumps({**HEAD, "rows": [{**ROW, "ms": {"cpu": math.nan}}]}), "expected strict JSON, got NaN"),
        (
            json.dumps({**HEAD, "rows": [{**ROW, "ms": {"cpu": "1"}}]}),
            "expected a time in milliseconds, got '1'",
        ),
        (json.dumps({**HEAD, "rows": [{**ROW, "ms": 3}]}), "AttributeError"),
        (json.dumps({**HEAD, "rows": [{"op": "x"}]}), "KeyError"),
        (json.dumps({**HEAD, "rows": ["x"]}), "no list of rows"),
    ],
)
def test_a_table_is_read_or_ignored_with_a_warning(
    text: str, reason: str | None, monkeypatch: Any, tmp_path: Path, x: torch.Tensor, w: torch.Tensor
) -> None:
    monkeypatch.setattr(cards, "card_of", lambda device: CARD)
    monkeypatch.setattr(_choice, "_tables", {})
    monkeypatch.setattr(_choice, "SHIPPED", tmp_path)
    monkeypatch.setattr(tables, "_warned", set())
    path = tmp_path / "made-up-card-9.0.json"
    path.write_text(text)
    if reason is None:
        assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "reference"
        return
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"
        assert ran(lambda: zb.conv_relu_pool2d(x, w, padding=1)) == "cpu"
    assert len(caught) == 1 and str(path) in str(caught[0].message)


def test_every_shipped_table_can_be_read() -> None:
    for path in _choice.SHIPPED.glob("*.json"):
        head = json.loads(path.read_text())
        card = Card(head["card"], head["capability"])
        assert path.name == f"{card.slug}.json"
        assert _choice.load(path, card) is not None


def test_a_card_is_not_asked_for_before_cuda_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: pytest.fail("asked the driver"))
    monkeypatch.setattr(_choice, "_tables", {})
    with FakeTensorMode():
        x = torch.empty(4, 70, device="cuda")
        assert zb.nap_pack(x).shape == (4, 2)
    assert _choice._tables == {}  # a real tensor may come later
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA Made/Up 80GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    cards._card.cache_clear()
    assert cards.card_of(torch.device("cuda", 7)) == Card("NVIDIA Made/Up 80GB", "9.0")
    assert cards.card_of(torch.device("cuda", 7)).slug == "nvidia-made-up-80gb-9.0"
    cards._card.cache_clear()


def test_threads_that_start_over_at_once_agree(measured: Callable, x: torch.Tensor, monkeypatch: Any) -> None:
    """What one thread has just found may be cleared by another before it is used."""
    flat = x.flatten(1)
    measured("nap_pack", OPS["nap_pack"].shape_class(flat), FAST_REFERENCE)

    class Cleared(dict):  # by another thread, as soon as anything is kept
        def __setitem__(self, key: Any, value: Any) -> None:
            pass

    monkeypatch.setattr(_choice._tables[CPU], "_kept", Cleared())
    assert ran(lambda: zb.nap_pack(flat)) == "reference"


def test_choosing_is_cheap(measured: Callable, x: torch.Tensor, w: torch.Tensor) -> None:
    measured("nap_pack", "no such class", FAST_REFERENCE)
    op, flat = OPS["nap_pack"], x.flatten(1)
    _backend.choose_kernel(op, flat, None)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            _backend.choose_kernel(op, flat, None)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 10e-6  # about one; the bound is for a busy machine
