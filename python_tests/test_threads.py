"""Threads: torch's own and no others, for any number the same bits, from several Python threads, after a fork.

What forks, or counts the threads of a process, runs in a fresh one: the tests' own has used its threads already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import zbkernels as zb

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, forks")

# Name: (x, weight, arguments, what the kernel's name holds).
CONV: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "winograd 3x3": ((5, 20, 17, 15), (40, 20, 3, 3), {"padding": 1}, "winograd"),
    "winograd 5x5": ((3, 16, 14, 14), (33, 16, 5, 5), {"padding": 2}, "winograd"),
    "winograd 7x7 stride 2": ((2, 3, 40, 40), (64, 3, 7, 7), {"padding": 3, "stride": 2}, "winograd"),
    "winograd, one image": ((1, 32, 31, 33), (48, 32, 3, 3), {"padding": 1, "pool": "none"}, "winograd"),
    "winograd, average": (
        (3, 16, 19, 18),
        (32, 16, 3, 3),
        {"pool": "avg", "negative_slope": 0.1},
        "winograd",
    ),
    "winograd, few channels": ((5, 3, 21, 19), (70, 3, 3, 3), {"padding": 1}, "winograd"),
    "winograd, few channels, one image": ((1, 1, 40, 40), (18, 1, 5, 5), {"pool": "none"}, "winograd"),
    "direct": ((5, 3, 21, 19), (33, 3, 3, 5), {"padding": 1}, "direct"),
    "direct, one image": ((1, 7, 40, 40), (18, 7, 5, 3), {"pool": "none"}, "direct"),
    "direct, overlapping": (
        (4, 4, 24, 24),
        (9, 4, 3, 3),
        {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1},
        "direct",
    ),
    "direct, grouped": ((3, 24, 15, 15), (24, 2, 3, 3), {"groups": 12, "padding": 1}, "direct"),
    "depthwise": ((3, 24, 15, 15), (24, 1, 3, 3), {"groups": 24, "padding": 1}, "depthwise"),
}


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    x, weight, kwargs, _ = CONV[name]
    gen = torch.Generator().manual_seed(0)
    return torch.randn(x, generator=gen), torch.randn(weight, generator=gen), kwargs


def conv_step(name: str) -> list[torch.Tensor]:
    """y, patterns and the gradients of one block; these in whole numbers where torch's own convolution makes them.

    torch cuts such sums by the number of threads, and whole numbers are exact in any order.
    """
    x, weight, kwargs = inputs(name)
    with torch.no_grad():
        found = [zb.conv_relu_pool2d(x, weight, **kwargs), *zb.conv_relu_pool2d_nap(x, weight, **kwargs)]
    gradients = backward(x, weight, kwargs)
    if "aten" in zb.last_kernel():
        gradients = backward((x * 2).round(), (weight * 2).round(), {**kwargs, "negative_slope": 0.0})
    return [*found, *gradients]


def backward(x: torch.Tensor, weight: torch.Tensor, kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    x.requires_grad_()
    weight.requires_grad_()
    y = zb.conv_relu_pool2d(x, weight, **kwargs)
    return torch.autograd.grad(y, (x, weight), torch.ones_like(y))


def linear_step() -> list[torch.Tensor]:
    """Whole numbers: torch's matrix products may be cut differently, and are exact so."""
    gen = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-3, 4, s, generator=gen).float() for s in ((70, 130), (200, 130)))
    x.requires_grad_()
    weight.requires_grad_()
    y, sig = zb.linear_relu_nap(x, weight)
    y.sum().backward()
    return [y.detach(), sig, x.grad, weight.grad]


def pattern_step() -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 1000, generator=gen)
    sig = zb.nap_pack(rows)
    found = [sig, zb.nap_unpack(sig, 1000), zb.nap_hamming(sig, sig), zb.nap_frequency(sig, 1000)]
    few = sig & 3
    return [*found, *zb.nap_topk(sig[:50], sig, 7), zb.nap_hash(sig), *zb.nap_group(few[:, :2])]


STEPS = {
    **{name: lambda name=name: conv_step(name) for name in CONV},
    "linear": linear_step,
    "nap": pattern_step,
}


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.int32) if t.dtype == torch.float32 else t


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(got, want, strict=True))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CONV)
def test_the_shapes_run_on_the_kernels_they_are_named_for(name: str) -> None:
    x, weight, kwargs = inputs(name)
    zb.conv_relu_pool2d(x, weight, **kwargs)
    assert CONV[name][3] in zb.last_kernel()


@pytest.mark.parametrize("name", STEPS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    found = []
    for threads in (1, 2, 3, 4, 1):
        torch.set_num_threads(threads)
        found.append(STEPS[name]())
    for other in found[1:]:
        for number, (a, b) in enumerate(zip(other, found[0], strict=True)):
            assert torch.equal(bits(a), bits(b)), f"result {number}"


def test_several_python_threads_at_once() -> None:
    """Eight threads that begin together, each in an order of its own, get what one gets alone."""
    torch.set_num_threads(2)
    want = {name: step() for name, step in STEPS.items()}
    names, start = list(STEPS), threading.Barrier(8)

    def work(first: int) -> list[str]:
        start.wait(60)
        turns = [names[(first + i * (1 + first % 3)) % len(names)] for i in range(2 * len(names))]
        return [name for name in turns if not same(STEPS[name](), want[name])]

    with ThreadPoolExecutor(8) as pool:
        wrong = [name for found in pool.map(work, range(8)) for name in found]
    assert not wrong


def test_python_threads_keep_their_own_last_kernel() -> None:
    start = threading.Barrier(4)

    def work(name: str) -> bool:
        x, weight, kwargs = inputs(name)
        start.wait(60)
        for _ in range(30):
            zb.conv_relu_pool2d(x, weight, **kwargs)
            if CONV[name][3] not in zb.last_kernel():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, ["winograd 3x3", "direct", "winograd 5x5", "depthwise"]))


# --- in a fresh process -----------------------------------------------------------------------------------------

HEAD = """
import os, sys, threading, time
import torch, torch.nn.functional as F
import zbkernels as zb

x, weight = torch.randn(4, 16, 24, 24), torch.randn(32, 16, 3, 3)
first, edge = torch.randn(4, 3, 24, 24), torch.randn(33, 3, 3, 3)

def ours():
    for a, b in ((x, weight), (first, edge)):
        b = b.clone().requires_grad_()
        y = zb.conv_relu_pool2d(a, b, padding=1)
        y.sum().backward()
    sig = zb.nap_pack(y.detach())
    zb.nap_topk(sig, sig, 2)
    return zb.linear_relu(y.detach().flatten(1), torch.ones(300, y[0].numel())).sum().item()

def torchs():
    b = weight.clone().requires_grad_()
    F.conv2d(x, b, padding=1).relu().sum().backward()
    return (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()

def threads():
    return len(os.listdir("/proc/self/task"))

def in_child(work, seconds):
    '''"done", "hung" or "failed": what becomes of work() in a forked child.'''
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "done" if status == 0 else "failed"
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hung"
"""


def fresh(body: str, timeout: float = 120, **environment: str) -> str:
    """What a new Python process prints that runs HEAD and ``body``."""
    code = textwrap.dedent(HEAD) + textwrap.dedent(body)
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("threads", (1, 2, 4))
def test_no_thread_beside_torchs(threads: int) -> None:
    """After torch's own ops have started what they start, ours start nothing; and alone they start no more."""
    after_torch = fresh(
        f"torch.set_num_threads({threads}); torchs(); a = threads(); ours(); print(a, threads())"
    )
    before, after = map(int, after_torch.split())
    assert before == after
    alone = int(fresh(f"torch.set_num_threads({threads}); ours(); print(threads())"))
    assert alone <= before
    if threads == 1:
        assert alone == int(fresh("print(threads())"))


def test_omp_num_threads_holds() -> None:
    body = "print(torch.get_num_threads()); torchs(); print(threads()); ours(); print(threads())"
    for threads in ("1", "2"):
        allowed, before, after = fresh(body, OMP_NUM_THREADS=threads).split()
        assert allowed == threads and before == after


def test_as_many_threads_work_as_are_allowed() -> None:
    """By the time that each thread of the process was on a core."""
    body = """
        def worked():
            of = {}
            for task in os.listdir("/proc/self/task"):
                of[task] = int(open(f"/proc/self/task/{task}/schedstat").read().split()[0])
            return of

        big = torch.randn(16, 16, 32, 32)
        for allowed in (1, 2, 1):
            torch.set_num_threads(allowed)
            zb.conv_relu_pool2d(big, weight)
            before = worked()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                zb.conv_relu_pool2d(big, weight)
            after = worked()
            print(sum(after[t] - before.get(t, 0) > 20e6 for t in after))
    """
    assert fresh(body).split() == ["1", "2", "1"]


def test_a_python_thread_obeys_what_another_has_set() -> None:
    body = """
        torch.set_num_threads(1)
        a = threads()
        found = []
        def work():
            ours()
            found.append(threads())
        t = threading.Thread(target=work)
        t.start()
        t.join()
        print(found[0] - a)
    """
    assert fresh(body) == "1"  # that thread itself


def test_several_python_threads_start_what_torchs_ops_start() -> None:
    """Each Python thread has a team of its own under OpenMP: ours is the one that torch's ops have."""
    body = """
        torch.set_num_threads(2)
        both, rest = threading.Barrier(4), threading.Barrier(4)
        def work():
            for op in ops:
                op()
                both.wait(60)
                if threading.current_thread() is team[0]:
                    print(threads())
                rest.wait(60)
        ops = (torchs, ours, ours)
        team = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in team]
        [t.join() for t in team]
    """
    after_torch, *after_ours = map(int, fresh(body).split())
    assert all(n <= after_torch for n in after_ours)


# --- data loaders -----------------------------------------------------------------------------------------------


class Rows(Dataset):
    """Each item: threads that torch allows, threads of the process before and after our ops, and whether y is right."""

    def __init__(self) -> None:
        self.want = zb.conv_relu_pool2d(*inputs("winograd 3x3")[:2], padding=1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int, int, bool]:
        before = len(os.listdir("/proc/self/task"))
        y = zb.conv_relu_pool2d(*inputs("winograd 3x3")[:2], padding=1)
        zb.nap_pack(zb.conv_relu_pool2d(*inputs("direct")[:2]))
        # No tensor is handed over: torch starts a thread for that.
        return torch.get_num_threads(), before, len(os.listdir("/proc/self/task")), torch.equal(y, self.want)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("start", ("fork", "spawn"))
def test_workers_of_a_data_loader(start: str) -> None:
    """They work, though this process has long used its threads; torch allows each of them one."""
    torch.set_num_threads(2)
    loader = DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context=start, timeout=120)
    for allowed, before, after, right in loader:
        assert allowed == 1 and before == after and right


# --- fork -------------------------------------------------------------------------------------------------------


def test_a_fork_before_any_threaded_op() -> None:
    body = """
        torch.set_num_threads(2)
        print(in_child(ours, 60))
        ours()
    """
    assert fresh(body) == "done"


def test_a_fork_after_a_threaded_op_is_as_with_torchs_own() -> None:
    """docs/decisions.md, "After fork": the pool of threads did not come along, for torch's ops neither."""
    body = """
        torch.set_num_threads(2)
        {op}()
        print(in_child({op}, 3))
    """
    assert fresh(body.format(op="ours")) == fresh(body.format(op="torchs")) == "hung"


@pytest.mark.parametrize("where", ("parent", "child"))
def test_a_fork_after_a_threaded_op_with_one_thread(where: str) -> None:
    body = """
        torch.set_num_threads(2)
        want = ours()
        def alone():
            torch.set_num_threads(1)
            assert ours() == want
        if {parent}:
            torch.set_num_threads(1)
        print(in_child(ours if {parent} else alone, 60))
    """
    assert fresh(body.format(parent=where == "parent")) == "done"


def test_a_process_of_one_thread_may_fork_at_any_time() -> None:
    body = """
        torch.set_num_threads(1)
        want = ours()
        print(in_child(lambda: ours() == want or os._exit(2), 60))
        assert ours() == want
    """
    assert fresh(body) == "done"
