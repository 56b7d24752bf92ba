"""What ``test_sanitizers.py`` runs in a process whose libraries are instrumented: ``python sanitized_program.py PART``.

``samples``: each op's samples in each dtype, and their gradients. ``index``: a NapIndex filled, asked, saved, loaded,
cut off and damaged. ``threads``: Python threads that call ops and one index at once. ``overflow`` and ``race`` are
faults that the sanitizer must see.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import zbkernels as zb
from zbkernels import _loader
from zbkernels.nap import NapIndex
from zbkernels.ops import OPS, Op, Sample

THREADS = 4


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def gradients(op: Op, sample: Sample) -> tuple[torch.Tensor, ...]:
    args = [a.detach().requires_grad_() if _floating(a) else a for a in sample.args]
    kwargs = {k: v.detach().requires_grad_() if _floating(v) else v for k, v in sample.kwargs.items()}
    y = tensors((op.public or op.overload)(*args, **kwargs))[0]
    asked = [t for t in (*args, *kwargs.values()) if _floating(t)]
    return torch.autograd.grad(y.sum(), asked, allow_unused=True) if y.requires_grad else ()


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def samples() -> None:
    calls = 0
    for op in OPS.values():
        for dtype in op.dtypes:
            for sample in op.samples("cpu", dtype):
                op.overload(*sample.args, **sample.kwargs)
                if op.public is not None and not op.name.startswith(("nap_", "dual_")):
                    gradients(op, sample)
                calls += 1
    zb.set_conv_precision("highest")
    for sample in OPS["conv_relu_pool2d"].samples():
        zb.conv_relu_pool2d(*sample.args, **sample.kwargs)
    zb.set_conv_precision("high")
    print(f"{calls} samples on {_loader.cpu_capability()}")


def filled(n: int = 3000, **options: Any) -> NapIndex:
    g = torch.Generator().manual_seed(n)
    rows = torch.randint(-(2**63), 2**63 - 1, (n // 3, 3), generator=g)[
        torch.randint(n // 3, (n,), generator=g)
    ]
    labels = [torch.randint(5, (n,), generator=g) for _ in range(2)]
    index = NapIndex(3, classes=5, predictions=True, example_ids=True, **options)
    for part in range(0, n, 700):
        index.insert(rows[part : part + 700], *(t[part : part + 700] for t in labels))
    return index


def index() -> None:
    torch.set_num_threads(3)  # an index has threads of its own
    some, other = filled(), filled(2000, start=5000)
    some.merge(other)
    rows = some.signatures()
    assert torch.equal(some.find(rows), torch.arange(len(some)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        some.save(path)
        for verify in (True, False):
            loaded = NapIndex.load(path, verify=verify)
            assert torch.equal(loaded.class_counts(), some.class_counts())
            loaded.insert(
                rows, torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows), dtype=torch.int64)
            )
            assert loaded.examples == some.examples + len(rows)
        data, refused = path.read_bytes(), 0
        for at in range(0, len(data), max(1, len(data) // 150)):
            for bad in (data[:at], data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]):
                path.write_bytes(bad)
                for verify in (True, False):
                    try:
                        damaged = NapIndex.load(path, verify=verify)
                        damaged.find(rows), damaged.counts(), damaged.labels(), damaged.example_ids(0)
                    except (ValueError, IndexError):
                        refused += 1
    print(f"{refused} damaged files were refused")


def _few(op: Op) -> Iterator[Callable[[], tuple[torch.Tensor, ...]]]:
    for number, sample in enumerate(op.samples()):
        if number % 4 == 0:
            yield lambda sample=sample: tensors(op.overload(*sample.args, **sample.kwargs))
            if op.public is not None and number % 8 == 0 and not op.name.startswith(("nap_", "dual_")):
                yield lambda sample=sample: gradients(op, sample)


def threads() -> None:
    torch.set_num_threads(1)  # torch's pool is not instrumented; ours is in this build (common/parallel.h)
    calls = [call for op in OPS.values() if "dual_solve" not in op.name for call in _few(op)]
    want = [call() for call in calls]
    shared, rows = filled(), filled().signatures()
    start = threading.Barrier(THREADS)

    def work(first: int) -> list[int]:
        start.wait(120)
        wrong = []
        for i in range(len(calls)):
            at = (i * (1 + 2 * (first % 2)) + first * 7) % len(calls)
            for a, b in zip(calls[at](), want[at], strict=True):
                if a is not None and not torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5)):
                    wrong.append(at)
            if i % 16 == 0:
                label = torch.full((100,), first, dtype=torch.int64)
                shared.insert(rows[:100] + first, label, label)
                shared.find(rows)
            if i % 64 == first:
                zb.clear_weight_cache()
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        wrong = [at for found in pool.map(work, range(THREADS)) for at in found]
    print(f"{THREADS} threads made {len(calls)} calls each, {len(wrong)} gave something else")
    assert not wrong


def _kept(size: int) -> Any:
    x, w = torch.randn(2, 3, size, size), torch.randn(8, 3, 3, 3)
    with _loader.keep_next_call() as buffer:
        y = torch.ops.zb.conv_relu_pool2d(x, w)
    return lambda to: _loader.kept_call_runner(False)(buffer, x.data_ptr(), w.data_ptr(), to), y


def overflow() -> None:
    """A kernel that is given less memory for its result than it needs."""
    run, y = _kept(40)
    short = torch.empty(y.numel() - 8)
    run(short.data_ptr())


def race() -> None:
    """Two threads whose kernels write to one tensor."""
    torch.set_num_threads(1)
    run, y = _kept(40)
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(60)
        for _ in range(20):
            run(y.data_ptr())

    team = [threading.Thread(target=work) for _ in range(2)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()


if __name__ == "__main__":
    assert _loader.libraries()["_C_cpu"].loaded and _loader.libraries()["_host"].loaded
    torch.manual_seed(0)
    {f.__name__: f for f in (samples, index, threads, overflow, race)}[sys.argv[1]]()
    sys.stdout.flush()
    os._exit(0)  # what Python leaves behind is not our concern
