"""Faults that users of comparable projects met, each as a small input with its right value.

The number in a test's name is the case's in the project's collection; the comment names one public report of it.
Cases 4 (more than 2**31 elements), 13, 14, 17 and 22 are in test_ops.py; 19 and 20 in test_loader.py and
test_packaging.py; 35 in test_data.py; 16 needs a GPU and is run by bench/gpu_check.sh.
"""

from __future__ import annotations

import copy
import io
import itertools
import multiprocessing
import pickle

import pytest
import torch
import torch.nn.functional as F
from compare import DTYPES

import zbkernels as zb

NAN, INF = float("nan"), float("inf")
FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_01_max_pool_keeps_nan_in_every_channel(dtype: torch.dtype, device: str) -> None:
    # tensorflow/tensorflow #125965: NaN in the vectorised body, the finite maximum in the scalar tail
    for channels, place, layout in itertools.product(range(1, 34), range(4), FORMATS):
        window = torch.tensor([1.0, 2.0, 3.0])
        window = torch.cat([window[:place], torch.tensor([NAN]), window[place:]]).view(1, 1, 2, 2)
        x = window.expand(1, channels, 2, 2).to(device, dtype).contiguous(memory_format=layout)
        w = torch.ones(channels, 1, 1, 1, device=device, dtype=dtype)
        assert zb.conv_relu_pool2d(x, w, groups=channels).isnan().all(), (channels, place, layout)
    x = torch.full((1, 5, 2, 2), NAN, device=device, dtype=dtype)
    w = torch.ones(5, 1, 1, 1, device=device, dtype=dtype)
    y, code, _ = torch.ops.zb._conv_relu_pool2d_forward(
        x, w, [1, 1], [0, 0], [1, 1], 5, pool="max", pool_kernel=[2, 2], pool_stride=[2, 2], pool_padding=[0, 0],
        ceil_mode=False, count_include_pad=True, negative_slope=0.0, need_code=True, units="",
    )  # fmt: skip
    assert y.isnan().all() and (code == 4).all()  # 1 + the last position


@pytest.mark.parametrize("train", [False, True])
def test_02_relu_keeps_nan(train: bool, device: str) -> None:
    # tensorflow/tensorflow #40072: the fused path turned NaN into 0
    x = torch.randn(2, 3, 8, 8, device=device)
    x[0, 1, 4, 4] = NAN
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=train)
    for layout in FORMATS:
        y = zb.conv_relu_pool2d(x.contiguous(memory_format=layout), w, padding=1, pool="none")
        assert y.isnan().sum() == 36 and y[0, :, 3:6, 3:6].isnan().all()
        y = zb.conv_relu_pool2d(x.contiguous(memory_format=layout), w, padding=1)
        assert y.isnan().sum() == 16 and y[0, :, 1:3, 1:3].isnan().all()
    one = torch.ones(1, 1, 1, 1, device=device)
    edge = torch.tensor([[[[INF, -INF]]]], device=device)
    assert zb.conv_relu_pool2d(edge, one, pool="none").flatten().tolist() == [INF, 0.0]
    compiled = torch.compile(lambda x: zb.conv_relu_pool2d(x, w, padding=1), backend="aot_eager")
    assert compiled(x).isnan().sum() == 16


@pytest.mark.parametrize("channels", [255, 256, 257, 512, 2048])
def test_05_channels_last_with_many_channels(channels: int, device: str) -> None:
    # pytorch/pytorch #34083: 257 channels passed a shared-memory limit
    x = torch.randn(2, channels, 28, 28, device=device).half()
    w = torch.ones(channels, 1, 1, 1, device=device).half()
    y = zb.conv_relu_pool2d(x, w, groups=channels)
    assert torch.equal(y, zb.conv_relu_pool2d(x.to(memory_format=torch.channels_last), w, groups=channels))
    assert torch.equal(y, F.max_pool2d(x.relu(), 2))


def test_05_many_rows_and_many_images(device: str) -> None:
    one = torch.ones(1, 1, 1, 1, device=device)
    tall = torch.ones(1, 1, 16777217, 2, device=device)
    assert zb.conv_relu_pool2d(tall, one, pool_kernel=1).sum() == tall.numel()
    many = torch.ones(65537, 1, 2, 2, device=device)  # past the 65535 blocks of a grid's y and z
    assert zb.conv_relu_pool2d(many, one).sum() == 65537


def test_07_layouts_in_and_out(device: str) -> None:
    # pytorch/pytorch #67239: the output was written as if contiguous although it was channels_last
    g = torch.Generator().manual_seed(0)
    x0 = torch.randn(2, 3, 6, 6, generator=g).to(device)
    w0 = torch.randn(5, 3, 3, 3, generator=g).to(device)
    wide = torch.randn(2, 3, 12, 7, generator=g).to(device)
    pairs = [
        (x0.contiguous(memory_format=a), w0.contiguous(memory_format=b)) for a in FORMATS for b in FORMATS
    ]
    pairs += [(wide[:, :, ::2, 1:], w0), (x0.transpose(2, 3), w0)]
    pairs += [(x0[:, :1].to(memory_format=torch.channels_last), w0[:, :1])]
    for x, w in pairs:
        results = []
        for a, b in ((x, w), (x.contiguous(), w.contiguous())):
            a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
            y, sig = zb.conv_relu_pool2d_nap(a, b)
            y.pow(2).sum().backward()
            results.append((y, sig, a.grad, b.grad))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    pixel = torch.randn(2, 5, 1, 1, generator=g).to(device)
    v = torch.randn(3, 5, 1, 1, generator=g).to(device)
    y = zb.conv_relu_pool2d(pixel, v, pool="none")
    torch.testing.assert_close(y, F.relu(F.conv2d(pixel, v)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_08_padding_of_the_max_pool_never_wins(dtype: torch.dtype, device: str) -> None:
    # pytorch/pytorch #41294: padded with 0 instead of -inf
    x = -torch.arange(1.0, 26.0).view(1, 1, 5, 5).to(device, dtype)
    one = torch.ones(1, 1, 1, 1, device=device, dtype=dtype)
    pool = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
    y = zb.conv_relu_pool2d(x, one, negative_slope=1.0, **pool)
    assert y[0, 0].tolist() == [[-1, -2, -4], [-6, -7, -9], [-16, -17, -19]]
    assert not zb.conv_relu_pool2d(x, one, **pool).any()
    with pytest.raises(ValueError, match="expected pool_padding of at most half of pool_kernel"):
        zb.conv_relu_pool2d(x, one, pool_kernel=2, pool_padding=2)
    for include in (True, False):
        y = zb.conv_relu_pool2d(x, one, negative_slope=1.0, pool="avg", count_include_pad=include, **pool)
        want = F.avg_pool2d(x.float(), 3, 2, 1, count_include_pad=include)
        torch.testing.assert_close(y.float(), want, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("channels", (1, 8))
def test_10_float32_is_not_tf32(channels: int, device: str) -> None:
    # triton-lang/triton #1800: dot on float32 operands used TF32 unless told otherwise
    x = torch.ones(1, 4096, 2, 2, device=device)
    w = torch.full((channels, 4096, 1, 1), 1 + 2**-12, device=device)
    assert (zb.conv_relu_pool2d(x, w) == 4097.0).all()
    assert (zb.conv_relu_pool2d_nap(x, w)[0] == 4097.0).all()
    assert (zb.linear_relu(x[0, :, 0, :1].t(), w.flatten(1)) == 4097.0).all()
    torch.backends.cudnn.allow_tf32 = True  # signatures are without it whatever torch allows
    try:
        assert (zb.conv_relu_pool2d_nap(x, w)[0] == 4097.0).all()
    finally:
        torch.backends.cudnn.allow_tf32 = False


def test_11_huge_dilation_of_a_single_position(device: str) -> None:
    # pytorch/pytorch #189664: the loop counter wrapped
    x = torch.randn(5, 10, 24, 24, device=device)
    w = torch.randn(3, 10, 1, 1, device=device)
    plain = zb.conv_relu_pool2d(x, w, ceil_mode=True)
    huge = zb.conv_relu_pool2d(x, w, dilation=2147483647, ceil_mode=True)
    assert torch.equal(plain, huge)
    meta = zb.conv_relu_pool2d(x.to("meta"), w.to("meta"), dilation=2147483647, ceil_mode=True)
    assert meta.shape == plain.shape
    with pytest.raises(ValueError, match="expected a padded input that holds the kernel"):
        zb.conv_relu_pool2d(x, torch.randn(3, 10, 2, 2, device=device), dilation=2147483647)


@pytest.mark.parametrize("units", [1, 7, 8, 10, 63, 64, 65, 70, 127, 128, 129])
def test_23_rows_do_not_share_words(units: int, device: str) -> None:
    # huggingface/sentence-transformers PR #3825: bits of row i+1 ended up in row i
    del_me = torch.full((1 << 16,), -1.0, device=device)
    del del_me  # garbage for the allocator to hand out
    rows = torch.zeros(3, units, device=device)
    rows[0, 63:64], rows[1, 64:65], rows[2] = 1, 1, 1
    words = zb.nap_pack(rows)
    if units == 70:
        assert words.tolist() == [[-9223372036854775808, 0], [0, 1], [-1, 63]]
    assert torch.equal(zb.nap_unpack(words, units), rows > 0)
    assert torch.equal(zb.nap_pack(zb.nap_unpack(words, units)), words)
    count = zb.nap_unpack(words, words.shape[1] * 64).sum(1)
    assert count.tolist() == [int(units > 63), int(units > 64), units]  # padding bits are 0
    assert zb.nap_hamming(words, torch.zeros_like(words[:1])).flatten().tolist() == count.tolist()
    if units == 70:
        assert zb.nap_hamming(words, words).tolist() == [[0, 2, 69], [2, 0, 69], [69, 69, 0]]


@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("queries", [0, 1, 19, 20, 21, 1000])
def test_25_more_neighbours_than_rows_are_refused_for_every_batch(
    queries: int, rows: int, device: str
) -> None:
    # facebookresearch/faiss #3830: right for 19 queries, zeros from 20 on
    g = torch.Generator().manual_seed(0)
    q, db = (torch.randint(-(2**63), 2**63 - 1, (n, 2), generator=g).to(device) for n in (queries, rows))
    for k in (0, 1, 20, 50):
        if k > rows:
            with pytest.raises(
                ValueError, match=f"nap_topk: expected 0 <= k <= M = {rows} rows of db, got {k}"
            ):
                zb.nap_topk(q, db, k)
            continue
        distances, ids = zb.nap_topk(q, db, k)
        assert distances.shape == ids.shape == (queries, k)
        table = zb.nap_hamming(q, db).long()
        assert torch.equal(distances.long(), table.sort(1).values[:, :k])
        assert torch.equal(table.gather(1, ids), distances.long())


def test_26_a_smaller_k_is_a_prefix_of_a_larger_one(device: str) -> None:
    # facebookresearch/faiss #808: among equal distances other ids came back for another k
    g = torch.Generator().manual_seed(0)
    db = torch.randint(0, 2**16, (8000, 1), generator=g).to(device)
    q = torch.randint(0, 2**16, (20, 1), generator=g).to(device)
    most, ids = zb.nap_topk(q, db, 1500)
    for k in (1, 10, 100, 129):
        few = zb.nap_topk(q, db, k)
        assert torch.equal(few[0], most[:, :k]) and torch.equal(few[1], ids[:, :k])
    order = torch.randperm(20, generator=g).to(device)
    assert torch.equal(zb.nap_topk(q[order], db, 10)[1], ids[order, :10])
    ahead = most[:, 1:] > most[:, :-1]
    assert (ahead | ((most[:, 1:] == most[:, :-1]) & (ids[:, 1:] > ids[:, :-1]))).all()
    same = torch.full((700, 3), -5, device=device)
    assert torch.equal(zb.nap_topk(same[:4], same, 300)[1], torch.arange(300, device=device).expand(4, 300))


def test_40_every_value_of_a_map_is_a_unit(device: str) -> None:
    # kupl/adapt #6: a channel's mean was counted as one neuron
    x = torch.randn(5, 3, 8, 8, device=device)
    x[1] = x[0]
    w = torch.randn(4, 3, 3, 3, device=device)
    results = []
    for layout in FORMATS:
        y, sig = zb.conv_relu_pool2d_nap(x.contiguous(memory_format=layout), w, padding=1, pool="none")
        assert sig.shape == (5, 4)
        assert torch.equal(zb.nap_pack(y), sig)
        results.append(sig)
    assert torch.equal(*results)
    on = zb.nap_unpack(sig, 256)
    agree = 256 - zb.nap_hamming(sig, sig)
    assert torch.equal(agree, (on[:, None] == on[None]).sum(-1))
    assert agree.diagonal().eq(256).all() and agree[0, 1] == 256
    sign, logdet = torch.linalg.slogdet(agree.double())
    assert not logdet.isnan() and sign >= 0


GRID = list(
    itertools.product((1, 2, 3, (2, 3)), (1, 2, 3, (1, 2)), (0, 1, (0, 1)), (1, 2), (False, True), (1, 2, 4))
)


def test_41_every_option_counts(device: str) -> None:
    # NeuralNetworkVerification/Marabou #614: padding was ignored without a word
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64, device=device)
    for kernel, stride, padding, dilation, ceil, groups in GRID:
        size = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        w = torch.randn(8, 4 // groups, *size, dtype=torch.float64, device=device)
        want = F.max_pool2d(
            F.relu(F.conv2d(x, w, None, stride, padding, dilation, groups)), 2, 1, 1, ceil_mode=ceil
        )
        got = zb.conv_relu_pool2d(
            x, w, stride, padding, dilation, groups, pool_stride=1, pool_padding=1, ceil_mode=ceil
        )
        torch.testing.assert_close(got, want)


def test_41_two_blocks_in_a_row(device: str) -> None:
    x = torch.ones(1, 1, 2, 2, device=device)
    y = zb.conv_relu_pool2d(x, torch.ones(2, 1, 2, 2, device=device), padding=1)  # 2 -> 3 -> 1
    y = zb.conv_relu_pool2d(y, torch.ones(2, 2, 1, 1, device=device), padding=1)  # 1 -> 3 -> 1
    assert y.shape == (1, 2, 1, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_44_the_sign_of_zero_is_no_bit(dtype: torch.dtype, device: str) -> None:
    # pytorch/pytorch #181533: packing must compare with 0, not read the sign bit
    tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    values = torch.tensor([-0.0, 0.0, tiny, -tiny, -NAN], dtype=torch.float64).to(device, dtype)
    for sign, on in ((1, [0, 0, 1, 0, 0]), (-1, [0, 0, 0, 1, 0])):
        w = torch.full((1, 1, 1, 1), float(sign), device=device, dtype=dtype)
        y, sig = zb.conv_relu_pool2d_nap(values.view(1, 1, 1, 5), w, pool="none")
        assert zb.nap_unpack(sig, 5)[0].int().tolist() == on
        assert torch.equal(zb.nap_pack((values * sign).view(1, 5)), sig)
        rows, bits = zb.linear_relu_nap(values.view(5, 1), w.view(1, 1))
        assert (bits & 1).flatten().tolist() == on
        assert torch.equal(rows.flatten()[:4], y.flatten()[:4]) and y.flatten()[4].isnan()
    pooled = zb.conv_relu_pool2d(values[:2].view(1, 1, 1, 2), w.abs(), pool_kernel=(1, 2))
    assert pooled.item() == 0


LAYERS = {
    "every option": lambda: zb.nn.ConvReLUPool2d(
        4, 6, (3, 2), stride=2, padding=(1, 2), dilation=(1, 2), groups=2, pool="avg", pool_kernel=3, pool_stride=2,
        pool_padding=1, ceil_mode=True, count_include_pad=False, negative_slope=0.1,
    ).to(memory_format=torch.channels_last),
    "max": lambda: zb.nn.ConvReLUPool2d(4, 6, 3),
    "linear": lambda: zb.nn.LinearReLU(16, 3, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("when", ["new", "used", "compiled"])
@pytest.mark.parametrize("name", LAYERS)
def test_43_layers_can_be_copied_pickled_and_saved(name: str, when: str) -> None:
    # pytorch/pytorch #56525, facebookresearch/ConvNeXt-V2 #27
    layer = LAYERS[name]()
    x = torch.randn(2, 4, 16, 16)
    used = torch.compile(layer, backend="aot_eager") if when == "compiled" else layer
    if when != "new":
        used(x).sum().backward()
        layer.zero_grad()
    before = layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    fresh = LAYERS[name]()
    fresh.load_state_dict(layer.state_dict())
    copies = (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
        fresh,
    )
    for other in copies:
        assert torch.equal(other(x), before)
        optimizer = torch.optim.SGD(other.parameters(), 0.1)
        other(x).pow(2).sum().backward()
        optimizer.step()
        assert not torch.equal(other(x), before)
        assert torch.equal(layer(x), before)
    assert all(
        type(v).__module__.startswith(("builtins", "torch", "collections")) for v in vars(layer).values()
    )


def _in_child(layer: torch.nn.Module, x: torch.Tensor, queue: multiprocessing.Queue) -> None:
    queue.put(layer(x).detach().numpy())


def test_43_layer_in_a_spawned_worker() -> None:
    layer, x = LAYERS["max"](), torch.randn(2, 4, 8, 8)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(layer, x, queue))
    child.start()
    got = queue.get(timeout=120)
    child.join()
    assert torch.equal(torch.from_numpy(got), layer(x).detach())


# --- found by trying to break this package -----------------------------------------------------------------------

BLANK = [  # C, K, kernel, stride, padding, size: the shapes that algorithms with fewer operations take
    (16, 16, 3, 1, 1, 12),
    (32, 48, 3, 1, 1, 17),
    (16, 32, 4, 1, 1, 19),
    (20, 24, 5, 1, 2, 15),
    (3, 64, 7, 2, 3, 40),
    (3, 64, 8, 2, 3, 41),
]


def _mostly_blank(channels: int, size: int, device: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    third = size // 3
    x = torch.zeros(3, channels, size, size)
    x[0, :, third : 2 * third, third : 2 * third] = torch.rand(channels, third, third, generator=g)
    x[2] = torch.randn(channels, size, size, generator=g).relu()
    x[2, :, 5], x[2, :, :, 7:9] = 0, -0.0
    return x.to(device)


@pytest.mark.parametrize("layout", FORMATS, ids=str)
@pytest.mark.parametrize("shape", BLANK, ids=str)
def test_a_blank_window_gives_exactly_zero(
    shape: tuple[int, ...], layout: torch.memory_format, device: str
) -> None:
    # A transform cancels there only up to rounding; that noise turned half of an image's blank border on.
    channels, out, kernel, stride, padding, size = shape
    x = _mostly_blank(channels, size, device)
    w = torch.randn(out, channels, kernel, kernel, generator=torch.Generator().manual_seed(1)).to(device)
    y = zb.conv_relu_pool2d(
        x.contiguous(memory_format=layout), w, stride, padding, pool="none", negative_slope=1.0
    )
    one = torch.ones(1, 1, kernel, kernel, device=device)
    live = F.conv2d((x != 0).float().amax(1, keepdim=True), one, None, stride, padding) > 0
    assert not y[~live.expand_as(y)].any()
    want = F.conv2d(x.double(), w.double(), None, stride, padding)
    assert (y - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("shape", BLANK, ids=str)
def test_gradient_of_a_mostly_blank_image(shape: tuple[int, ...], device: str) -> None:
    channels, out, kernel, stride, padding, size = shape
    w = torch.randn(out, channels, kernel, kernel, generator=torch.Generator().manual_seed(1)).to(device)
    x = _mostly_blank(channels, size, device).requires_grad_()
    zb.conv_relu_pool2d(x, w, stride, padding).sum().backward()
    exact = x.detach().double().requires_grad_()
    F.max_pool2d(F.relu(F.conv2d(exact, w.double(), None, stride, padding)), 2).sum().backward()
    assert (x.grad - exact.grad).norm() <= 1e-3 * exact.grad.norm()  # a near-tie may pick the other position


@pytest.mark.parametrize("units", ["relu", "output", "winner"])
@pytest.mark.parametrize("shape", BLANK, ids=str)
def test_a_pattern_does_not_change_with_the_contrast(shape: tuple[int, ...], units: str, device: str) -> None:
    channels, out, kernel, stride, padding, size = shape
    x = _mostly_blank(channels, size, device)
    w = torch.randn(out, channels, kernel, kernel, generator=torch.Generator().manual_seed(1)).to(device)
    pattern = zb.conv_relu_pool2d_nap(x, w, stride, padding, units=units)[1]
    for scale in (0.25, 0.1, 0.01):
        assert torch.equal(zb.conv_relu_pool2d_nap(x * scale, w, stride, padding, units=units)[1], pattern)


@pytest.mark.parametrize("pool", ("max", "avg", "none"))
def test_a_weight_of_any_strides_trains(pool: str, device: str) -> None:
    # torch's own convolution_backward fails on such a weight
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, 3, 6, generator=gen, dtype=torch.float64).to(
        device, memory_format=torch.channels_last
    )
    values = torch.randn(31, 2, 1, 3, generator=gen, dtype=torch.float64)
    weight = torch.empty_strided((31, 2, 1, 3), (6, 1, 186, 2), dtype=torch.float64, device=device).copy_(
        values
    )
    found = []
    for w in (weight.requires_grad_(), values.to(device).requires_grad_()):
        zb.conv_relu_pool2d(x, w, (2, 1), (2, 1), pool=pool).sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("op", ("conv_relu_pool2d", "linear_relu"))
def test_running_out_of_memory_is_named(op: str) -> None:
    x, weight = (
        (torch.zeros(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
        if "conv" in op
        else (torch.zeros(1, 8), torch.zeros(9, 8))
    )
    with pytest.raises(RuntimeError, match=r"(?s)out of memory: no tensor of shape \[1099511627776|allocate"):
        getattr(zb, op)(x.expand(2**40, *x.shape[1:]), weight)


def test_a_tensor_whose_memory_was_freed_is_refused() -> None:
    # FSDP frees storages between uses; reading one killed the process
    x = torch.randn(2, 3, 8, 8)
    sig = torch.zeros(2, 1, dtype=torch.int64)
    for t in (x, sig):
        t.untyped_storage().resize_(0)
    w = torch.randn(4, 3, 3, 3)
    for call in (
        lambda: zb.conv_relu_pool2d(x, w),
        lambda: zb.conv_relu_pool2d_nap(x, w),
        lambda: zb.linear_relu(x, torch.randn(4, 8)),
        lambda: zb.nap_pack(x),
        lambda: zb.nap_unpack(sig, 64),
        lambda: zb.nap_hamming(sig, sig),
        lambda: zb.nap_topk(sig, sig, 1),
        lambda: zb.nap_frequency(sig, 64),
        lambda: zb.nap_hash(sig),
        lambda: zb.nap_group(sig),
    ):
        with pytest.raises(
            RuntimeError, match=r"its storage was freed|not allocated|out of bounds for storage"
        ):
            call()


def test_a_word_with_a_zero_inside_is_refused() -> None:
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with torch.inference_mode():
        for words in ({"pool": "max\0x"}, {"units": "relu\0x"}, {"units": ""}):
            with pytest.raises((RuntimeError, ValueError)):
                torch.ops.zb.conv_relu_pool2d_nap(x, w, **words)
