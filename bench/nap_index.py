"""How fast a NapIndex takes signatures of 512 bits, and what it weighs, beside a Python dict and numpy.unique.

    python bench/nap_index.py                 writes bench/results/nap-index.md (10 million rows; some minutes, 8 GB)
    python bench/nap_index.py --rows 1000000  prints the table for fewer rows

Two streams, in batches of 100,000 rows: all distinct, and each of a tenth as many patterns ten times on average. Every
run is a fresh process; the contestants take turns, and the best of the rounds counts, since a busy machine only ever
adds time. Making a batch is not timed. Resident bytes are the growth of the process over the whole stream.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import resident

from zbkernels.benchmarking.machine import cpu_name
from zbkernels.files import write_text
from zbkernels.nap import NapIndex

TABLE = Path(__file__).resolve().parents[1] / "bench/results/nap-index.md"
WORDS, BATCH, CLASSES = 8, 100_000, 10
STREAMS = ("distinct", "repeated")
CONTESTANTS = {
    "NapIndex": "count, first id, majority label",
    "NapIndex, one thread": "count, first id, majority label",
    "dict of bytes": "count, first id",
    "numpy.unique": "count, first id; all rows at once",
}


def batches(stream: str, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(signatures int64 [n, 8], labels int64 [n]) of a stream."""
    draw = np.random.default_rng(0)
    base = draw.integers(-(2**63), 2**63 - 1, (BATCH, WORDS))
    labels = draw.integers(0, CLASSES, BATCH)
    for at in range(0, rows, BATCH):
        n = min(BATCH, rows - at)
        number = np.arange(at, at + n) if stream == "distinct" else draw.integers(0, max(1, rows // 10), n)
        some = base[number % BATCH]
        some[:, 0] ^= number  # two rows are equal where their numbers are
        some[:, 5] += number // BATCH
        yield some, labels[number % CLASSES]


class Dict:
    def __init__(self) -> None:
        self.found: dict[bytes, list[int]] = {}
        self.examples = 0

    def insert(self, rows: np.ndarray, labels: np.ndarray) -> None:
        found, number = self.found, self.examples
        for key in rows.view(f"V{8 * WORDS}").ravel().tolist():
            entry = found.get(key)
            if entry is None:
                found[key] = [1, number]
            else:
                entry[0] += 1
            number += 1
        self.examples = number

    def result(self) -> tuple[Any, Any]:
        counts = [entry[0] for entry in self.found.values()]
        return np.array(counts), np.array([entry[1] for entry in self.found.values()])


class Unique:
    """Rows as single values of 64 bytes, which sort faster than ``axis=0`` does."""

    def __init__(self, rows: int) -> None:
        self.all = np.zeros((rows, WORDS), np.int64)
        self.examples = 0

    def insert(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.all[self.examples : self.examples + len(rows)] = rows
        self.examples += len(rows)

    def result(self) -> tuple[Any, Any]:
        whole = self.all.view(f"V{8 * WORDS}").ravel()
        found, first, counts = np.unique(whole, return_index=True, return_counts=True)
        self.kept = found
        order = np.argsort(first)
        return counts[order], first[order]


class Index:
    def __init__(self) -> None:
        self.index = NapIndex(WORDS, classes=CLASSES)

    def insert(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.index.insert(rows, labels)

    def result(self) -> tuple[Any, Any]:
        return self.index.counts().numpy(), self.index.first_ids().numpy()


def run_here(contestant: str, stream: str, rows: int, threads: int) -> dict[str, float]:
    """Seconds, resident bytes at the end and at the peak, patterns; and sums that all contestants must share."""
    torch.set_num_threads(1 if contestant == "NapIndex, one thread" else threads)
    Index().insert(*next(batches(stream, BATCH)))  # what is loaded and started at the first call
    coming = batches(stream, rows)
    first_batch = next(coming)  # and what a stream itself holds
    before = resident("VmRSS")
    taken: Any = {"dict of bytes": Dict, "numpy.unique": lambda: Unique(rows)}.get(contestant, Index)()
    seconds = 0.0
    for some, labels in chain([first_batch], coming):
        start = time.perf_counter()
        taken.insert(some, labels)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    if contestant == "numpy.unique":
        counts, first = taken.result()
        seconds += time.perf_counter() - start
    grown, peak = resident("VmRSS") - before, resident("VmHWM") - before
    if contestant != "numpy.unique":
        counts, first = taken.result()
    return {
        "seconds": seconds,
        "resident": grown,
        "peak": peak,
        "patterns": len(counts),
        "check": zlib.crc32(first.astype(np.int64), zlib.crc32(counts.astype(np.int64))),
    }


def run(contestant: str, stream: str, rows: int, threads: int) -> dict[str, float]:
    """:func:`run_here` in a fresh process.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, __file__, "--rows", str(rows), "--threads", str(threads)]
    command += ["--one", contestant, "--stream", stream]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{contestant}, {stream}: {done.stderr}")
    return json.loads(done.stdout)


HEADER = """# Inserting into a NapIndex

{rows:,} signatures of 512 bits in batches of {batch:,}: `distinct` has no two alike, `repeated` ten of each on average.
Million rows a second, the best of {rounds} rounds in which the contestants took turns, a fresh process each; how many
times as fast as that contestant `NapIndex` is; and the memory resident at the end and at the peak, as a multiple of the
bytes of the distinct signatures (for `numpy.unique` the rows and the result; the others never hold the rows). All
agreed on counts and first ids. {threads} threads, Python {python}, numpy {numpy}, torch {torch}, {cpu}.
`python bench/nap_index.py` writes this file.

"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--stream", choices=STREAMS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        print(json.dumps(run_here(chosen.one, chosen.stream, chosen.rows, chosen.threads)))
        return 0
    lines = [
        ["stream", "contestant", "keeps", "million rows / s", "NapIndex is faster", "resident", "peak"],
        ["---"] * 3 + ["---:"] * 4,
    ]
    for stream in STREAMS:
        rounds = [
            {c: run(c, stream, chosen.rows, chosen.threads) for c in CONTESTANTS}
            for _ in range(chosen.rounds)
        ]
        best = {c: min((r[c] for r in rounds), key=lambda one: one["seconds"]) for c in CONTESTANTS}
        if len({one["check"] for r in rounds for one in r.values()}) != 1:
            raise RuntimeError(f"{stream}: the contestants do not agree: {best}")
        for contestant, keeps in CONTESTANTS.items():
            one = best[contestant]
            signatures = one["patterns"] * WORDS * 8
            rate = f"{chosen.rows / one['seconds'] / 1e6:.2f}"
            ratio = f"{one['seconds'] / best['NapIndex']['seconds']:.2f}"
            memory = [f"{one[key] / signatures:.2f}" for key in ("resident", "peak")]
            lines.append([stream, contestant, keeps, rate, ratio, *memory])
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    if chosen.rows == parser.get_default("rows"):
        head = HEADER.format(
            rows=chosen.rows, batch=BATCH, rounds=chosen.rounds, threads=chosen.threads, cpu=cpu_name(),
            python=platform.python_version(), numpy=np.__version__, torch=torch.__version__,
        )  # fmt: skip
        write_text(TABLE, head + text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
