"""No size is a cliff: by the kernel that runs, by the arithmetic of bench/sweep.py, and by time."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import bench_tools
import pytest
import torch

import zbkernels as zb
from zbkernels.benchmarking.cases import ConvCase


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    return bench_tools.load("sweep")


def algorithm(case: ConvCase) -> str:
    """ "winograd" or "direct", whatever else the kernel's name says."""
    x = torch.empty(case.n, case.c, case.h, case.w)
    weight = torch.empty(case.k, case.c // case.groups, case.kernel, case.kernel)
    pool = {"pool": case.pool, "pool_kernel": case.pool_kernel, "pool_stride": case.pool_stride}
    kernel = zb.explain(
        "conv_relu_pool2d",
        x,
        weight,
        case.stride,
        case.padding,
        1,
        case.groups,
        pool_padding=case.pool_padding,
        **pool,
    ).kernel
    assert kernel.startswith("cpu: ")
    return "winograd" if "winograd" in kernel else "direct"


def test_the_algorithm_changes_once_along_a_line(sweep: ModuleType) -> None:
    """As a size grows, Winograd begins to pay at one point and is not left again, but where its error forbids it."""
    seen = set()
    for line in sweep.lines():
        ran = [algorithm(case) for case in line.cases if case.c <= 1024]
        changes = sum(a != b for a, b in itertools.pairwise(ran))
        seen.update(ran)
        # A filter outgrows the tiles: direct, Winograd, direct again; of few channels there are tiles of 3x3 and 5x5.
        assert changes <= (4 if line.name.startswith("kernel") else 1), (line.name, ran)
        if changes and not line.name.startswith("kernel"):
            assert ran[-1] == "winograd", line.name
    assert seen == {"winograd", "direct"}


def test_a_cliff_is_found_and_a_smooth_line_is_none(sweep: ModuleType) -> None:
    line = sweep.line("size", range(8, 20), lambda size: sweep.block(1, 16, 32, size, 3))
    call = 1e-5
    smooth = [case.flops * 1e-10 + call for case in line.cases]
    assert not any(point.cliff for point in sweep.points(line, smooth, call))
    for factor in (1.7, 3.0):
        rough = list(smooth)
        rough[5] = (rough[5] - call) * factor + call
        found = sweep.points(line, rough, call)
        assert [point.size for point in found if point.cliff] == [13]
        assert found[5].factor == pytest.approx(factor) and found[5].step == pytest.approx(factor)
    later = [s if i < 6 else (s - call) * 2 + call for i, s in enumerate(smooth)]
    assert [p.size for p in sweep.points(line, later, call) if p.cliff] == [14, 15]  # a step up
    dearer = [s + (2e-4 if i < 4 else 0) for i, s in enumerate(smooth)]
    assert [p.size for p in sweep.points(line, dearer, call) if p.backwards > 1.5] == [10, 11]


@pytest.mark.parametrize(
    "name",
    [
        "size, 3 -> 32, 3x3",
        "size, 16 -> 32, 3x3",
        "size, 16 -> 32, 5x5",
        "width, 16 -> 32, 3x3, 14 rows",
        "channels in, -> 32, 3x3 on 8x8",
        "channels out, 24 ->, 3x3 on 8x8",
        "batch, 64 -> 64, 3x3 on 7x7",
    ],
)
def test_no_size_takes_longer_an_operation_than_its_neighbours(sweep: ModuleType, name: str) -> None:
    """The least of many short calls on one thread; what seems a cliff is measured again and again: a busy machine can't
    make one, since it only ever adds to a time."""

    def is_cliff(point: Any) -> bool:
        return point.factor > sweep.LIMIT

    line = next(line for line in sweep.lines() if line.name == name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = sweep.measure(line, rounds=3, turns=7, is_cliff=is_cliff)
    finally:
        torch.set_num_threads(threads)
    cliffs = [p for p in found if is_cliff(p)]
    assert not cliffs, "\n".join(f"{name}, {p.size}: {p.factor:.2f} of its neighbours' time" for p in cliffs)
