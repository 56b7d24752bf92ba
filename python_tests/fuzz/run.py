"""Hands problems out for a time or a number of them, and makes those that fail smaller."""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.ways import FAMILIES, Child, Way, data_of, key_of, problem, ways
from zbkernels import files

SMALLER_SECONDS = 30


class Fuzz:
    """A run: which problems were drawn, on what, and what failed. It can be stopped and taken up again."""

    def __init__(self, seed: int, families: list[str], names: list[str], out: Path, count: int = 0) -> None:
        known = ways()
        self.seed, self.families, self.out, self.count = seed, families, out, count
        self.ways = [known[name] for name in names or known]
        self.children = {way.process: Child(way) for way in self.ways}
        self.locks = {way.process: threading.Lock() for way in self.ways}
        self.lock = threading.Lock()
        self.used = {(way.name, family): 0.0 for way in self.ways for family in families}
        self.next = dict.fromkeys(self.used, 0)
        self.done = dict.fromkeys(self.used, 0)
        self.refused: collections.Counter[str] = collections.Counter()
        self.kernels: collections.Counter[str] = collections.Counter()
        self.keys: dict[str, set[bytes]] = {family: set() for family in families}
        self.failures: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.state = out / f"seed-{seed}-{'-'.join(families)}.json"
        self._resume()

    # --- keeping what was done

    def _resume(self) -> None:
        if not self.state.exists():
            return
        state = json.loads(self.state.read_text())
        for kept, into in (("next", self.next), ("done", self.done)):
            for name, number in state[kept].items():
                way, family = name.split("/")
                if (way, family) in into:
                    into[way, family] = number
        self.refused.update(state["refused"])
        self.kernels.update(state["kernels"])
        self.failures, self.seconds = state["failures"], state["seconds"]
        for family in self.families:
            self.keys[family] = set(map(bytes.fromhex, state["keys"][family]))

    def save(self) -> None:
        state = {
            "seed": self.seed,
            "next": {f"{way}/{family}": n for (way, family), n in self.next.items()},
            "done": {f"{way}/{family}": n for (way, family), n in self.done.items()},
            "keys": {family: [key.hex() for key in sorted(keys)] for family, keys in self.keys.items()},
            "distinct": {family: len(keys) for family, keys in self.keys.items()},
            "refused": self.refused,
            "kernels": self.kernels,
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
        }
        self.out.mkdir(parents=True, exist_ok=True)
        files.write_text(self.state, json.dumps(state))

    @staticmethod
    def _key(family: str, p: dict[str, Any]) -> bytes:
        return hashlib.blake2b(key_of(family, p).encode(), digest_size=8).digest()

    # --- running

    def run(self, seconds: float, jobs: int, say: Callable[[str], None] = print) -> None:
        end, began = time.monotonic() + seconds, time.monotonic()
        before = self.seconds
        self.said = began

        def work() -> None:
            while time.monotonic() < end and not self._enough():
                self._one()
                with self.lock:
                    self.seconds = before + time.monotonic() - began
                    if time.monotonic() > self.said + 15:
                        self.said = time.monotonic()
                        self.save()
                        say(self.line())

        workers = min(jobs, len(self.children))
        try:
            with ThreadPoolExecutor(workers) as pool:
                working = [pool.submit(work) for _ in range(workers)]
            for each in working:
                each.result()  # raises what ended it
        finally:
            self.save()
            for child in self.children.values():
                child.close()

    def _enough(self) -> bool:
        """Whether the first way has had ``count`` distinct problems of the first family."""
        return bool(self.count) and len(self.keys[self.families[0]]) >= self.count

    def _one(self) -> None:
        """The next problem, on the way that has had the least of its share."""
        with self.lock:
            free = [(w, f) for w in self.ways for f in self.families if not self.locks[w.process].locked()]
            if not free:
                time.sleep(0.001)
                return
            weight = {"conv": 3.0}
            way, family = min(
                free, key=lambda wf: self.used[wf[0].name, wf[1]] / wf[0].share / weight.get(wf[1], 1.0)
            )
            number = self.next[way.name, family]
            p = problem(self.seed, family, number)
            while FAMILIES[family].cost(p) > way.most:
                number += 1
                p = problem(self.seed, family, number)
            self.next[way.name, family] = number + 1
            self.done[way.name, family] += 1
            self.locks[way.process].acquire()
        try:
            self.children[way.process].start()
            start = time.monotonic()
            verdict = self.children[way.process].ask(
                family, p, way.backend, data_of(self.seed, family, number)
            )
            took = time.monotonic() - start
            if verdict["fault"]:
                self._failed(way, family, number, p, verdict["fault"])
        finally:
            self.locks[way.process].release()
        with self.lock:
            self.used[way.name, family] += took
            self.keys[family].add(self._key(family, p))
            if "refused" in verdict:
                self.refused[f"{way.name}/{family}"] += 1
            self.kernels.update(f"{family}: {kernel}" for kernel in verdict.get("kernels", ()))

    # --- what failed

    def _failed(self, way: Way, family: str, number: int, p: dict[str, Any], fault: str) -> None:
        ask = self.children[way.process].ask
        data = data_of(self.seed, family, number)
        small, words = minimised(family, p, lambda q: ask(family, q, way.backend, data)["fault"])
        failure = {
            "way": way.name,
            "family": family,
            "number": number,
            "fault": fault,
            "again": f'make fuzz SEED={self.seed} AGAIN="{family} {number} {way.name}"',
            "problem": p,
            "smaller": small,
            "smaller_fault": words,
            "data": data,
        }
        with self.lock:
            self.failures.append(failure)
        self.out.mkdir(parents=True, exist_ok=True)
        files.write_json(self.out / f"failure-{self.seed}-{family}-{number}-{way.name}.json", failure)
        print(
            f"\n{way.name}: {fault}\n  {failure['again']}\n  smaller: {json.dumps(small)}: {words}",
            flush=True,
        )

    def line(self) -> str:
        done = sum(self.done.values())
        parts = ", ".join(f"{family} {len(keys)}" for family, keys in self.keys.items())
        rate = done / self.seconds if self.seconds else 0.0
        failed = len(self.failures)
        return f"{self.seconds:6.0f} s  distinct: {parts}  checks: {done} ({rate:.1f}/s)  failures: {failed}"

    def table(self) -> str:
        lines = [
            f"  {way}, {family}: {n} ({self.refused[f'{way}/{family}']} refused)"
            for (way, family), n in self.done.items()
        ]
        return "\n".join([*lines, *(f"  {n:7} {kernel}" for kernel, n in self.kernels.most_common())])


def minimised(
    family: str,
    p: dict[str, Any],
    fails: Callable[[dict[str, Any]], str | None],
    seconds: float = SMALLER_SECONDS,
) -> tuple[dict[str, Any], str]:
    """A smaller problem that still fails, and how: one step after another while there is one."""
    end, words = time.monotonic() + seconds, fails(p) or "not when it was run again"
    for _ in itertools.count():
        for q in FAMILIES[family].smaller(p):
            if time.monotonic() > end:
                return p, words
            fault = fails(q)
            if fault and not fault.startswith(("ValueError", "TypeError")):
                p, words = q, fault
                break
        else:
            return p, words
    raise AssertionError
