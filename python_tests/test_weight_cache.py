"""The CPU kernels' packed weights: kept while a weight stays the same, and never used once it has changed."""

import copy
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

import zbkernels as zb

C, K = 24, 40
X = torch.randn(2, C, 14, 14, generator=torch.Generator().manual_seed(1))


def weight_of(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(K, C, 3, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return zb.conv_relu_pool2d(X.to(weight.dtype), weight, padding=1)


def assert_right(weight: torch.Tensor) -> None:
    expected = F.max_pool2d(F.relu(F.conv2d(X.double(), weight.double(), padding=1)), 2)
    error = (run(weight).double() - expected).norm() / expected.norm()
    assert error < (1e-5 if weight.dtype == torch.float32 else 1e-2)


@pytest.fixture(autouse=True)
def empty_cache():
    run(weight_of(0))
    if not zb.last_kernel().startswith("cpu:"):
        pytest.skip("the CPU library is not loaded")
    zb.clear_weight_cache()
    yield
    zb.clear_weight_cache()


def test_a_second_call_finds_the_weight_packed():
    weight = weight_of(2)
    first, second = run(weight), run(weight)
    info = zb.weight_cache_info()
    assert (info.hits, info.misses, info.entries) == (1, 1, 1)
    assert info.bytes > weight.nbytes
    assert torch.equal(first, second)
    zb.clear_weight_cache()
    assert zb.weight_cache_info() == (0, 0, 0, 0)
    assert torch.equal(run(weight), first)


def change_in_place(weight):
    weight.mul_(-0.5)


def change_data(weight):
    weight.data[3] += 1.0


def change_by_numpy(weight):
    weight.numpy()[-1, -1, -1, -1] = 100.0


def change_by_dlpack(weight):
    torch.from_dlpack(weight)[0, 0] = -7.0


def change_in_inference_mode(weight):
    with torch.inference_mode():
        weight.add_(0.25)


def change_sign_of_zero(weight):
    weight[5] = 0.0


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_data,
        change_by_numpy,
        change_by_dlpack,
        change_in_inference_mode,
        change_sign_of_zero,
    ],
)
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_no_change_is_missed(change, precision):
    zb.set_conv_precision(precision)
    try:
        weight = weight_of(3)
        before = run(weight)
        change(weight)
        assert_right(weight)
        assert not torch.equal(run(weight), before)
        assert zb.weight_cache_info().entries == 1  # the old version has made room
    finally:
        zb.set_conv_precision("high")


def test_an_optimizer_step_between_two_evaluations():
    layer = zb.nn.ConvReLUPool2d(C, K, 3, padding=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(3):
        assert_right(layer.weight.detach())
        layer(X).square().mean().backward()
        optimizer.step()


def test_training_keeps_nothing():
    weight = weight_of(4).requires_grad_()
    zb.conv_relu_pool2d(X, weight, padding=1).sum().backward()
    assert zb.weight_cache_info().entries == 0


def test_copies_share_and_then_part():
    weight = weight_of(5)
    twin = copy.deepcopy(weight)
    assert torch.equal(run(weight), run(twin))
    assert zb.weight_cache_info().entries == 1
    twin.mul_(2)
    assert_right(twin)
    assert_right(weight)
    assert zb.weight_cache_info().entries == 2


def test_memory_formats_dtypes_and_precisions_have_entries_of_their_own():
    weight = weight_of(6)
    channels_last = weight.contiguous(memory_format=torch.channels_last)
    for version in (
        weight,
        channels_last,
        weight.bfloat16(),
        weight.half(),
        weight[:, :, :2],
        weight.double(),
    ):
        assert_right(version) if version.dtype != torch.float64 else run(version)
    with_gaps = torch.cat([weight, weight])[::2]
    assert_right(with_gaps)
    zb.set_conv_precision("highest")
    try:
        assert_right(weight)
    finally:
        zb.set_conv_precision("high")
    assert zb.weight_cache_info().entries == 6  # neither the slice nor the one with gaps is kept


def test_an_address_given_out_again():
    for seed in range(10, 20):
        weight = weight_of(seed)
        assert_right(weight)
        del weight  # the next one will often lie in the same memory


def test_many_threads_and_a_weight_that_changes():
    weights = [weight_of(seed) for seed in range(30, 34)]
    expected = [run(weight) for weight in weights]
    wrong = []

    def work(turn: int) -> None:
        torch.set_num_threads(1)
        for i in range(40):
            which = (i + turn) % len(weights)
            if i % 13 == 0:
                zb.clear_weight_cache()
            if not torch.equal(run(weights[which]), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    before = torch.get_num_threads()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    assert not wrong


@pytest.mark.parametrize("megabytes", ["0", "1", "256", "abc", "-1", "1e9", str(2**44)])
def test_the_limit(megabytes):
    """Packed, a weight of 48 -> 40 takes 0.3 to 0.5 MB: 1 MB holds two or three of them. No number: 256."""
    script = (
        "import torch, zbkernels as zb\n"
        "x = torch.randn(1, 48, 12, 12)\n"
        "weights = torch.randn(6, 40, 48, 3, 3)\n"
        "with torch.no_grad():\n"
        "    for weight in weights: zb.conv_relu_pool2d(x, weight, padding=1)\n"
        "info = zb.weight_cache_info(); print(info.entries, info.bytes)"
    )
    environment = {**os.environ, "ZBKERNELS_WEIGHT_CACHE_MB": megabytes}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    kept, used = map(int, run.stdout.split())
    assert kept in {"0": [0], "1": [2, 3]}.get(megabytes, [6])
    assert used <= (int(megabytes) if megabytes in ("0", "1") else 256) << 20
