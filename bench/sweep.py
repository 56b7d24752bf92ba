"""Looks for cliffs: sizes at which a convolution takes longer an operation than the sizes next to them.

    python bench/sweep.py                      writes bench/results/sweep.md
    python bench/sweep.py LINE …               prints the lines whose names hold one of these words
    python bench/sweep.py --mode train --highest --channels-last     writes a file of its own for each such choice

One size of a block (conv, ReLU, 2x2 max pool; one thread) grows along a line while the others stay. A time is the
least of many short calls, interleaved over the line, so that what else the machine does hardly shows; a line with
a cliff is measured again before that is believed. bench/results/sweep.md says what the columns are.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch

import zbkernels as zb
from zbkernels.benchmarking.cases import ConvCase
from zbkernels.benchmarking.conv import TrainingStep, ours_block
from zbkernels.benchmarking.machine import cpu_name
from zbkernels.files import write_text

RESULTS = Path(__file__).resolve().parents[1] / "bench/results"
LIMIT = 1.5  # what makes a cliff
REACH = 2  # neighbours on each side
CHANNELS = [*range(1, 21), *range(22, 69, 2), 31, 33, 47, 49, 63, 65]


@dataclasses.dataclass(frozen=True)
class Line:
    """Blocks of which one size grows; ``sizes`` are its values, in order."""

    name: str
    sizes: tuple[int, ...]
    cases: tuple[ConvCase, ...]


@dataclasses.dataclass(frozen=True)
class Point:
    """What was measured at one size. A cost is a time an operation, without what any call costs by itself.

    ``factor``: its cost over the median of its neighbours', 0 where it has too few on one side. ``step``: its cost over
    that of the cheaper of the two sizes before. ``backwards``: its time over that of the faster of the two after.
    """

    size: int
    case: ConvCase
    ms: float
    factor: float
    step: float
    backwards: float

    @property
    def cliff(self) -> bool:
        return max(self.factor, self.step, self.backwards) > LIMIT


def line(name: str, sizes: Iterable[int], make: Callable[[int], ConvCase]) -> Line:
    sizes = tuple(sorted(set(sizes)))
    return Line(name, sizes, tuple(make(size) for size in sizes))


def block(
    n: int, c: int, k: int, size: int, kernel: int, stride: int = 1, pool: str = "max", width: int = 0
) -> ConvCase:
    return ConvCase("sweep", n, c, k, size, width or size, kernel, stride, kernel // 2, pool)


def lines() -> list[Line]:
    """The lines, by what grows along them."""
    return [*size_lines(), *channel_lines(), *batch_and_kernel_lines()]


def size_lines() -> list[Line]:
    found = []
    for c, k in ((3, 32), (16, 32), (64, 64)):
        for kernel, stride in ((1, 1), (3, 1), (5, 1), (3, 2), (7, 2)):
            name = f"size, {c} -> {k}, {kernel}x{kernel}" + (f" stride {stride}" if stride > 1 else "")
            sizes = range(4, 41)
            found.append(line(name, sizes, partial(_of_size, c, k, kernel, stride)))
    three = {"pool_kernel": 3, "pool_stride": 2, "pool_padding": 1}
    larger = [*range(40, 72, 3), *range(72, 240, 11)]
    return [
        *found,
        line("size, 32 -> 64, 3x3, no pool", range(4, 41), lambda s: block(2, 32, 64, s, 3, pool="none")),
        line(
            "size, 16 -> 32, 3x3, max 3 stride 2 pad 1",
            range(6, 41),
            lambda s: dataclasses.replace(block(2, 16, 32, s, 3), **three),
        ),
        line(
            "size, 16 -> 32, 5x5, no padding",
            range(8, 41),
            lambda s: dataclasses.replace(block(2, 16, 32, s, 5), padding=0),
        ),
        line("large size, 3 -> 64, 3x3", larger, lambda s: block(1, 3, 64, s, 3)),
        line("large size, 16 -> 32, 3x3", larger, lambda s: block(1, 16, 32, s, 3)),
        line("large size, 3 -> 64, 7x7 stride 2", larger, lambda s: block(1, 3, 64, s, 7, 2)),
        line("width, 3 -> 32, 3x3, 8 rows", range(480, 561, 5), lambda w: block(1, 3, 32, 8, 3, width=w)),
        line("width, 32 -> 32, 3x3, 8 rows", range(480, 561, 5), lambda w: block(1, 32, 32, 8, 3, width=w)),
        line("width, 16 -> 32, 3x3, 14 rows", range(4, 41), lambda w: block(8, 16, 32, 14, 3, width=w)),
        line("height, 16 -> 32, 3x3, 14 columns", range(4, 41), lambda h: block(8, 16, 32, h, 3, width=14)),
    ]


def _of_size(c: int, k: int, kernel: int, stride: int, size: int) -> ConvCase:
    return block(8, c, k, size, kernel, stride)


def channel_lines() -> list[Line]:
    found = []
    for kernel, size in ((1, 16), (3, 8), (3, 16), (5, 14)):
        what = f"{kernel}x{kernel} on {size}x{size}"
        found += [
            line(f"channels in, -> 32, {what}", CHANNELS, partial(_of_channels_in, kernel, size)),
            line(f"channels out, 24 ->, {what}", CHANNELS, partial(_of_channels_out, kernel, size)),
        ]
    many = [64, 96, 128, 160, 255, 256, 257, 384, 511, 512, 513, 768, 960, 1023, 1024, 1025, 1040, 1088]
    return [
        *found,
        line("channels out, 3 ->, 3x3 on 16x16", CHANNELS, lambda k: block(4, 3, k, 16, 3)),
        line("channels out, 3 ->, 7x7 stride 2 on 32x32", CHANNELS, lambda k: block(2, 3, k, 32, 7, 2)),
        line(
            "channels, depthwise, 3x3 on 16x16",
            CHANNELS,
            lambda c: dataclasses.replace(block(4, c, c, 16, 3), groups=c),
        ),
        line("channels in and out, 3x3 on 14x14", CHANNELS, lambda c: block(4, c, c, 14, 3)),
        line("many channels in, -> 64, 3x3 on 14x14", many, lambda c: block(1, c, 64, 14, 3)),
        line("many channels out, 64 ->, 3x3 on 14x14", many, lambda k: block(1, 64, k, 14, 3)),
    ]


def _of_channels_in(kernel: int, size: int, channels: int) -> ConvCase:
    return block(2048 // size**2, channels, 32, size, kernel)


def _of_channels_out(kernel: int, size: int, channels: int) -> ConvCase:
    return block(2048 // size**2, 24, channels, size, kernel)


def batch_and_kernel_lines() -> list[Line]:
    found = []
    for kernel, size in itertools.product((3, 5), (7, 14, 28)):
        name = f"batch, 64 -> 64, {kernel}x{kernel} on {size}x{size}"
        found.append(line(name, range(1, 18), partial(_of_batch, kernel, size)))
    for c, k in ((3, 32), (16, 32), (64, 64)):
        for stride in (1, 2):
            name = f"kernel, {c} -> {k} on 24x24" + (" stride 2" if stride > 1 else "")
            found.append(line(name, range(1, 12), partial(_of_kernel, c, k, stride)))
    return found


def _of_batch(kernel: int, size: int, n: int) -> ConvCase:
    return block(n, 64, 64, size, kernel)


def _of_kernel(c: int, k: int, stride: int, kernel: int) -> ConvCase:
    return block(2, c, k, 24, kernel, stride)


def call_of(case: ConvCase, mode: str, channels_last: bool) -> Callable[[], object]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(case.n, case.c, case.h, case.w, generator=gen).contiguous(memory_format=layout)
    weight = torch.randn(case.k, case.c // case.groups, case.kernel, case.kernel, generator=gen)
    if mode == "train":
        grad = torch.randn(case.n, case.k, *case.out_size, generator=gen).contiguous(memory_format=layout)
        return TrainingStep(lambda a, b: ours_block(case, a, b), x, weight, grad, True)

    def forward() -> object:
        with torch.inference_mode():
            return ours_block(case, x, weight)

    return forward


def least_times(calls: Sequence[Callable[[], object]], rounds: int, seconds: float = 0.002) -> list[float]:
    """The shortest of many calls of each, in seconds; every round gives each ``seconds``, or three calls."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            call()  # brings its own data into the caches
            until = time.perf_counter() + seconds
            for turn in itertools.count(1):
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                least[i] = min(least[i], now - start)
                if turn >= 3 and now >= until:
                    break
    return least


def points(of: Line, seconds: Sequence[float], call: float) -> list[Point]:
    """Each size beside its neighbours; ``call`` seconds of each are what a call costs by itself.

    What is within a half of these counts as one half, since a difference of two small times says nothing.
    """
    costs = [max(s - call, call / 2) / case.flops for s, case in zip(seconds, of.cases, strict=True)]
    found = []
    for i, (size, case) in enumerate(zip(of.sizes, of.cases, strict=True)):
        before, after = costs[max(0, i - REACH) : i], costs[i + 1 : i + 1 + REACH]
        inside = len(before) == len(after) == REACH
        factor = costs[i] / statistics.median(before + after) if inside else 0.0
        step = costs[i] / min(before, default=costs[i])
        backwards = seconds[i] / min(seconds[i + 1 : i + 1 + REACH], default=seconds[i])
        found.append(Point(size, case, seconds[i] * 1e3, factor, step, backwards))
    return found


def measure(
    of: Line,
    *,
    mode: str = "forward",
    channels_last: bool = False,
    rounds: int = 7,
    turns: int = 5,
    is_cliff: Callable[[Point], bool] = lambda point: point.cliff,
) -> list[Point]:
    """The points of a line; where one is a cliff, the least times of more turns there count too.

    Each turn has tensors of its own: where they happen to lie in memory makes some calls slower. A turn after the
    first times the cliffs and what they are judged by, twice as long as the turn before.
    """
    cases = (block(1, 1, 1, 2, 1), *of.cases)  # the first is what a call costs by itself
    seconds = [float("inf")] * len(cases)
    timed = list(range(len(cases)))
    for turn in range(turns):
        calls = [call_of(cases[i], mode, channels_last) for i in timed]
        for i, least in zip(timed, least_times(calls, rounds << turn), strict=True):
            seconds[i] = min(seconds[i], least)
        found = points(of, seconds[1:], seconds[0])
        cliffs = [i for i, point in enumerate(found, start=1) if is_cliff(point)]
        if not cliffs:
            break
        timed = [i for i in range(len(cases)) if i == 0 or any(abs(i - cliff) <= REACH for cliff in cliffs)]
    return found


HEADER = """# Sizes beside their neighbours

One thread of {cpu}, {capability}, torch {torch}; {what}. `python bench/sweep.py` writes this file.
Along a line one size of a block (convolution, ReLU, 2x2 max pool) grows and the others stay.

A cost is a time an operation of the direct convolution, without the time of a call on 2x2 numbers. A size is a cliff
where one of these is above {limit}:

- `beside`: its cost over the median cost of the two sizes before and the two after; 0, not judged, at the two first and
  the two last sizes of a line;
- `step`: its cost over that of the cheaper of the two sizes before;
- `backwards`: its time over that of the faster of the two sizes after: more work takes less time.

"""


def table(rows: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="LINE")
    parser.add_argument("--mode", choices=("forward", "train"), default="forward")
    parser.add_argument("--highest", action="store_true", help="direct sums only")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    zb.set_conv_precision("highest" if chosen.highest else "high")
    measures = {"beside": "factor", "step": "step", "backwards": "backwards"}
    cliffs = [["line", "size", "ms", *measures], ["---"] * 2 + ["---:"] * 4]
    worst = [["line", "sizes", "cliffs", *(f"most {name}" for name in measures)], ["---"] + ["---:"] * 5]
    for of in lines():
        if chosen.words and not any(word in of.name for word in chosen.words):
            continue
        found = measure(of, mode=chosen.mode, channels_last=chosen.channels_last, rounds=chosen.rounds)
        cells = {p: [f"{getattr(p, attribute):.2f}" for attribute in measures.values()] for p in found}
        most = [f"{max(getattr(p, attribute) for p in found):.2f}" for attribute in measures.values()]
        worst.append([of.name, str(len(found)), str(sum(p.cliff for p in found)), *most])
        cliffs += [[of.name, str(p.size), f"{p.ms:.4g}", *cells[p]] for p in found if p.cliff]
        print(table([worst[-1]]), end="", flush=True)
        for p in found if chosen.words else ():
            rate = f"{p.ms:9.4f} ms {p.case.flops / p.ms / 1e6:7.1f} GFLOP/s"
            print(f"  {p.size:4} {rate}  {' '.join(cells[p])}{'  cliff' * p.cliff}")
    what = ", ".join(
        [chosen.mode, "direct sums" if chosen.highest else "default precision"]
        + ["channels_last"] * chosen.channels_last
    )
    head = HEADER.format(
        cpu=cpu_name(), capability=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__,
        what=what, limit=LIMIT,
    )  # fmt: skip
    text = head + table(worst) + "\n## Cliffs\n\n" + (table(cliffs) if len(cliffs) > 2 else "None.\n")
    if chosen.words:
        print(table(cliffs))
    else:
        marks = ["train"] * (chosen.mode == "train") + ["highest"] * chosen.highest
        name = "-".join(["sweep", *marks, *(["channels-last"] * chosen.channels_last)])
        write_text(RESULTS / f"{name}.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
