"""The Triton kernels in Triton's interpreter, on CPU tensors. Run in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1, set before triton is imported", allow_module_level=True)
pytest.importorskip("triton")

from compare import outputs
from exact import (
    DTYPE_IDS,
    DTYPES,
    check_backward,
    check_forward,
    conv_ops,
    exact_sample,
    expected_forward,
    same,
    samples_of,
    train_step,
)

import zbkernels as zb
from zbkernels.ops import OPS
from zbkernels.ops._geometry import Geometry
from zbkernels.triton import (
    conv_relu_pool,
    linear_relu,
    nap_frequency,
    nap_group,
    nap_hamming,
    nap_hash,
    nap_pack,
    nap_topk,
    nap_unpack,
)
from zbkernels.triton.config import Config
from zbkernels.triton.target import SM_90, assuming

# NumPy, which the interpreter computes with, warns of every NaN and overflow that the cases are made of.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# A window costs the interpreter some milliseconds a position and filter tap: these run in float32 alone. Half precision
# has such shapes in smaller cases (test_triton_interpret_tiles).
FLOAT32_ONLY = (
    "large window",
    "slope, large window",
    "stem",
    "17 channels",
    "33 channels",
    "overlapping pool",
    "kernel larger than the image",
)
HALVES = {"f16": 0, "bf16": 1}  # the two half precisions share the forward samples, every second one each


def sample_cases(op: str) -> list[object]:
    """One pytest parameter for each sample and dtype."""
    cases: list[object] = []
    for dtype, name in zip(DTYPES, DTYPE_IDS, strict=True):
        for number, label in enumerate(samples_of(op, dtype)):
            base = label.split(", units=")[0]
            if op.startswith("_conv") and name != "f32" and base in FLOAT32_ONLY:
                continue
            if op == "_conv_relu_pool2d_forward" and HALVES.get(name, number % 2) != number % 2:
                continue
            cases.append(pytest.param(dtype, label, id=f"{name}-{label}"))
    return cases


@pytest.mark.parametrize(
    "op",
    ("_conv_relu_pool2d_forward", "_conv_relu_pool2d_backward", "linear_relu"),
    ids=lambda op: op.strip("_"),
)
def test_every_kind_of_sample_is_run(op: str) -> None:
    """In at least one dtype, by its name: a sample that nobody runs would go unseen."""
    run = {case.values[1] for case in sample_cases(op)}
    for dtype in DTYPES:
        assert samples_of(op, dtype).keys() <= run


@pytest.mark.parametrize("dtype, label", sample_cases("_conv_relu_pool2d_forward"))
def test_conv_forward(dtype: torch.dtype, label: str) -> None:
    sample = exact_sample("_conv_relu_pool2d_forward", dtype, label)
    check_forward(conv_relu_pool.forward, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("dtype, label", sample_cases("_conv_relu_pool2d_backward"))
def test_conv_backward(dtype: torch.dtype, label: str) -> None:
    check_backward(conv_relu_pool.backward, dtype, label)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("slope", (0.0, 0.25))
@pytest.mark.parametrize("pool", ("max", "avg", "none"))
def test_expanded_gradient_is_exact(dtype: torch.dtype, slope: float, pool: str) -> None:
    """Through a 1x1 depthwise convolution of ones grad_x is the expanded gradient itself. Windows overlap, gradients
    are whole numbers (multiples of a window's size for the average), so every sum is exact."""
    gen = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, (2, 3, 9, 8), generator=gen).to(dtype)
    x[1, 2, 4, 4] = float("nan")
    ones = torch.ones(3, 1, 1, 1, dtype=dtype)
    window = {"pool_kernel": (2, 2), "pool_stride": (1, 2), "pool_padding": (1, 0)}
    g = Geometry.of("test", groups=3, pool=pool, negative_slope=slope, **window)
    y, code, _ = expected_forward(x, ones, g, True, "")
    grad = 4 * torch.randint(-3, 4, y.shape, generator=gen).to(dtype)
    flags = {"need_x": True, "need_weight": False}
    got, _ = conv_relu_pool.backward(grad, x, ones, code, *g.conv_args(), **g.pool_kwargs(), **flags)
    want, _ = conv_ops.backward_reference(grad.double(), x.double(), ones.double(), code, g, True, False)
    same(got.double(), want)


def test_gradient_of_infinity_is_zero_behind_a_dead_unit() -> None:
    x = -torch.ones(1, 1, 4, 4)
    ones = torch.ones(1, 1, 1, 1)
    for pool in ("max", "avg", "none"):
        g = Geometry.of("test", pool=pool)
        y, code, _ = expected_forward(x, ones, g, True, "")
        grad = torch.full_like(y, float("inf"))
        grad_x, _ = conv_relu_pool.backward(
            grad, x, ones, code, *g.conv_args(), **g.pool_kwargs(), need_x=True, need_weight=False
        )
        same(grad_x, torch.zeros_like(x))


@pytest.mark.parametrize("size", ((9, 9), (10, 10), (18, 18)), ids=("map 49", "map 64", "map 256"))
@pytest.mark.parametrize(
    "pool, units",
    [(pool, units) for pool in ("max", "avg", "none") for units in ("relu", "output")] + [("max", "winner")],
)
@pytest.mark.parametrize("channels_last", (False, True), ids=("nchw", "nhwc"))
def test_signatures(size: tuple[int, int], pool: str, units: str, channels_last: bool) -> None:
    """Planes that end within a word, at its end, and after several; with bits from the kernel and from the map."""
    gen = torch.Generator().manual_seed(4)
    x = torch.randint(-2, 3, (2, 1, *size), generator=gen).float()
    x[1, 0, 3, 3] = float("nan")
    weight = torch.randint(-2, 3, (16, 1, 3, 3), generator=gen).float()
    if channels_last:
        # one channel has no layout of its own; two of them, one of zeros, do
        x = torch.cat([x, torch.zeros_like(x)], 1).to(memory_format=torch.channels_last)
        weight = torch.cat([weight, torch.ones_like(weight)], 1)
    g = Geometry.of("test", stride=2 if size == (18, 18) else 1, pool=pool)
    check_forward(
        conv_relu_pool.forward, x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units=units
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("groups", (1, 2))
def test_conv_through_dot_in_each_dtype(dtype: torch.dtype, groups: int) -> None:
    """Enough output channels for tl.dot (float64 keeps its own sums), over several blocks of taps."""
    gen = torch.Generator().manual_seed(5)
    x = torch.randint(-2, 3, (2, 6, 6, 7), generator=gen).to(dtype)
    weight = torch.randint(-1, 2, (18 * groups, 6 // groups, 3, 3), generator=gen).to(dtype)
    g = Geometry.of("test", 1, 1, (2, 1), groups, pool_kernel=(2, 1))
    check_forward(
        conv_relu_pool.forward, x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=True, units="output"
    )


@pytest.mark.parametrize("slope, size", ((0.0, (16, 16)), (0.5, (11, 12))))
def test_window_of_more_than_255_codes(slope: float, size: tuple[int, int]) -> None:
    gen = torch.Generator().manual_seed(6)
    x = torch.randint(-3, 0, (2, 1, *size), generator=gen).float()
    x[0, 0, -1, -1] = 2  # the last position wins
    g = Geometry.of("test", pool_kernel=size, negative_slope=slope)
    one = torch.ones(1, 1, 1, 1)
    y, code, _ = conv_relu_pool.forward(x, one, *g.conv_args(), **g.pool_kwargs(), need_code=True, units="")
    assert code.dtype == torch.int32
    last = size[0] * size[1] - 1
    assert code[0].item() == (1 + last if slope == 0 else 1 + 2 * last)
    want = expected_forward(x, one, g, True, "")
    same(y, want[0])
    same(code, want[1])


def test_real_numbers_stay_within_float32_rounding() -> None:
    gen = torch.Generator().manual_seed(7)
    x, weight = torch.randn(2, 20, 6, 6, generator=gen), torch.randn(16, 20, 3, 3, generator=gen)
    g = Geometry.of("test", pool="none")
    y, _, _ = conv_relu_pool.forward(x, weight, *g.conv_args(), **g.pool_kwargs(), need_code=False, units="")
    wide = F.relu(F.conv2d(x.double(), weight.double()))
    bound = F.conv2d(x.abs().double(), weight.abs().double())
    assert ((y - wide).abs() <= 180 * 2**-24 * bound).all()


@pytest.mark.parametrize("op", ("linear_relu", "linear_relu_nap"))
@pytest.mark.parametrize("dtype, label", sample_cases("linear_relu"))
def test_linear(op: str, dtype: torch.dtype, label: str) -> None:
    x, weight, *rest = exact_sample("linear_relu", dtype, label).args
    slope = rest[0] if rest else 0.0
    y, sig = linear_relu.forward(x, weight, slope, need_sig=op == "linear_relu_nap")
    pre = (x.double() @ weight.double().t()).to(dtype)
    want = F.relu(pre) if slope == 0 else pre if slope == 1 else F.leaky_relu(pre, slope)
    same(y, want)
    assert y.is_contiguous()
    if op == "linear_relu_nap":
        words = OPS["nap_pack"].reference(y.reshape(y.shape[:-1].numel(), weight.shape[0]))
        same(sig, words.reshape(*y.shape[:-1], words.shape[-1]))
    else:
        assert sig.shape == (0,)


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bool), ids=(*DTYPE_IDS, "bool"))
def test_nap_pack(dtype: torch.dtype) -> None:
    for sample in OPS["nap_pack"].samples("cpu", torch.float32 if dtype == torch.bool else dtype):
        x = sample.args[0] > 0 if dtype == torch.bool else sample.args[0]
        got = nap_pack.forward(x)
        want = OPS["nap_pack"].reference(x)
        assert torch.equal(got, want), sample.label


def test_nap_pack_walks_any_strides() -> None:
    x = torch.randn(3, 4, 5, 6, 7, generator=torch.Generator().manual_seed(8))
    for order in ((0, 4, 3, 2, 1), (1, 0, 3, 4, 2), (4, 1, 2, 3, 0), (0, 2, 1, 4, 3)):
        view = x.permute(order)
        assert torch.equal(nap_pack.forward(view), OPS["nap_pack"].reference(view))


def test_nap_pack_words() -> None:
    """Units in word order, padding bits 0."""
    x = torch.zeros(3, 70)
    x[0, 63], x[1, 64], x[2] = 1, 1, 1
    assert nap_pack.forward(x).tolist() == [[-(2**63), 0], [0, 1], [-1, 63]]


def test_nap_unpack() -> None:
    for sample in OPS["nap_unpack"].samples():
        got, want = nap_unpack.forward(*sample.args), OPS["nap_unpack"].reference(*sample.args)
        assert torch.equal(got, want), sample.label


def check_samples(name: str, every: int = 1) -> None:
    for sample in list(OPS[name].samples())[::every]:
        with zb.use_backend("triton"):
            got = outputs(getattr(zb, name)(*sample.args))
        for ours, want in zip(got, outputs(OPS[name].reference(*sample.args)), strict=True):
            assert torch.equal(ours, want), sample.label
            assert ours.dtype == want.dtype and ours.stride() == want.stride(), sample.label


@pytest.mark.parametrize("name", ("nap_hash", "nap_hamming", "nap_topk", "nap_group", "nap_frequency"))
def test_signature_ops(name: str) -> None:
    check_samples(name)
    sample = next(iter(OPS[name].samples()))
    with zb.use_backend("triton"):
        assert zb.explain(name, *sample.args).chosen == "triton"


def small_blocks(monkeypatch: pytest.MonkeyPatch, module: Any, **constants: int) -> None:
    monkeypatch.setattr(module, "choose", lambda *args: Config(constants))


def signatures(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(shape[0]))


@pytest.mark.parametrize("words", (2, 3))
def test_hamming_over_many_tiles(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, nap_hamming, BLOCK_N=2, BLOCK_M=4)
    a, b = signatures(5, words), signatures(9, words)
    assert torch.equal(nap_hamming.forward(a, b), OPS["nap_hamming"].reference(a, b))


@pytest.mark.parametrize("k", (1, 5, 8, 33))
@pytest.mark.parametrize("ties", (False, True))
def test_topk_over_many_tiles_and_splits(k: int, ties: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits shorter than k, a last one of one row, and two launches for the queries."""
    small_blocks(monkeypatch, nap_topk, BLOCK_N=2, BLOCK_M=4)
    monkeypatch.setattr(nap_topk, "_LEAST_TILES", 2)
    monkeypatch.setattr(nap_topk, "_QUERIES", 3)
    q, db = signatures(4, 2), signatures(33, 2)
    if ties:
        q, db = q & 1, db & 1
    for got, want in zip(nap_topk.forward(q, db, k), OPS["nap_topk"].reference(q, db, k), strict=True):
        assert torch.equal(got, want)


def test_topk_with_keys_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nap_topk, "_NARROW_BITS", 0)
    check_samples("nap_topk", every=3)


@pytest.mark.parametrize("words", (4, 5))
def test_hashes_and_groups_over_many_blocks(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that cut rows both ways; equal rows in several blocks, and rows that differ in one word only."""
    small_blocks(monkeypatch, nap_hash, BLOCK_N=4, BLOCK_W=2)
    small_blocks(monkeypatch, nap_group, BLOCK_N=4, BLOCK_W=2)
    sig = signatures(11, words)
    sig[5:9] = sig[2]
    sig[6, words - 1] ^= 1
    assert torch.equal(nap_hash.forward(sig), OPS["nap_hash"].reference(sig))
    for got, want in zip(nap_group.forward(sig), OPS["nap_group"].reference(sig), strict=True):
        assert torch.equal(got, want)


def test_neighbours_of_one_hash_are_told_apart() -> None:
    rows = signatures(4, 3)[[0, 0, 1, 1]]
    hashes = torch.tensor([5, 5, 5, 6])
    begins = nap_group.compare_neighbours(rows, torch.tensor([1, 0, 2, 3]), hashes)
    assert begins.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize("rows", (1, 8, 9, 33))
def test_frequency_over_many_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, nap_frequency, BLOCK_ROWS=2, BLOCK_WORDS=2)
    sig = signatures(rows, 3)
    assert torch.equal(nap_frequency.forward(sig, 130), OPS["nap_frequency"].reference(sig, 130))


def test_frequency_of_parts_as_long_as_bytes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """255 fours of a unit that is always on, and a second part of one row."""
    small_blocks(monkeypatch, nap_frequency, BLOCK_ROWS=1, BLOCK_WORDS=1)
    monkeypatch.setattr(nap_frequency, "_PROGRAMS_A_PROCESSOR", 1)
    one = dataclasses.replace(SM_90, processors=1)
    sig = torch.full((4 * 255 + 1, 1), -(2**63) + 1)
    with assuming(one):
        assert nap_frequency.forward(sig, 64).tolist() == [1021, *[0] * 62, 1021]


@pytest.mark.parametrize("make_grad", ("cat", "sum", "permute"))
def test_public_op_trains_with_gradients_of_any_layout(make_grad: str) -> None:
    got = train_step("triton", make_grad)
    assert zb.last_kernel().startswith("triton")
    for ours, theirs in zip(got, train_step("reference", make_grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_results_repeat_bit_for_bit() -> None:
    for ours, again in zip(train_step("triton", "cat"), train_step("triton", "cat"), strict=True):
        assert torch.equal(ours, again)


def test_can_run_gives_reasons() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 1, 1)
    assert conv_relu_pool.can_run(x, weight) is None
    assert linear_relu.can_run(torch.randn(2, 3), torch.randn(4, 3), 0.0, need_sig=True) is None
    assert nap_pack.can_run(torch.zeros(2, 3, dtype=torch.bool)) is None
    assert nap_unpack.can_run(torch.zeros(2, 3, dtype=torch.int64), 130) is None
    assert "torch.int64 is none of" in conv_relu_pool.can_run(x.long(), weight.long())
    assert "counts it in 32 bits" in conv_relu_pool.can_run(x, weight, (1, 1), (2**31, 0))
    assert "counts it in 32 bits" in conv_relu_pool.can_run(x[..., :1].expand(1, 1, 4, 2**31), weight)
    assert "filter" in conv_relu_pool.can_run(x, weight.expand(1, 2**31, 1, 1))
    assert "torch.float32 is none of" in nap_unpack.can_run(torch.zeros(2, 3), 130)
    sig = torch.zeros(2, 3, dtype=torch.int64)
    assert nap_hamming.can_run(sig, sig) is None
    assert nap_topk.can_run(sig, sig, 1) is nap_topk.can_run(sig, sig, 2) is None
    assert nap_frequency.can_run(sig, 130) is None
    assert nap_hash.can_run(sig) is nap_group.can_run(sig) is None
    assert "nap_group: torch.int32 is none of torch.int64" in nap_group.can_run(sig.int())
    assert "nap_frequency: torch.int32 is none of torch.int64" in nap_frequency.can_run(sig.int(), 130)
    meta = torch.empty(2, 3, device="meta")
    assert "one device" in nap_hamming.can_run(sig, meta) and "one device" in nap_topk.can_run(sig, meta, 1)
    assert "meta" in nap_pack.can_run(meta)
    assert "one device" in linear_relu.can_run(torch.randn(2, 3), meta)


def test_can_run_accepts_a_huge_dilation_of_one_position() -> None:
    x, weight = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 1, 1)
    assert conv_relu_pool.can_run(x, weight, (1, 1), (0, 0), (2**31 - 1, 2**31 - 1)) is None


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.public is not None], ids=lambda op: op.name)
def test_tensors_that_torch_only_marks_as_negative(op: Any) -> None:
    """A kernel outside the dispatcher has nobody who would negate them first; in the backward neither."""
    sample = exact_sample(op.name, op.dtypes[0], next(iter(samples_of(op.name, op.dtypes[0]))))
    tensors = [a for a in sample.args if isinstance(a, torch.Tensor)]
    rest = sample.args[len(tensors) :]
    trains = op.name in ("conv_relu_pool2d", "linear_relu")
    results = []
    for change in (torch._neg_view, torch.neg):
        given = [change(t.detach().clone()).requires_grad_(trains) for t in tensors]
        with zb.use_backend("triton"):
            result = outputs(op.public(*given, *rest, **sample.kwargs))
        grads = torch.autograd.grad(result[0], given, change(torch.ones_like(result[0]))) if trains else ()
        results.append((*result, *grads))
    for got, want in zip(*results, strict=True):
        same(got, want)
