"""Tries the candidates of each kernel that a call starts, times them interleaved, and keeps the fastest.

A call may start several kernels that choose: their keys are tuned one after the other, each with the ones before it
at their best. The result of every candidate is held against the default's error before it is timed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from zbkernels.benchmarking.check import Wrong, tolerance
from zbkernels.benchmarking.timing import interleave
from zbkernels.triton import config, launch
from zbkernels.triton.config import Config, Key
from zbkernels.triton.results import Result
from zbkernels.tuning.workloads import Prepared, Workload

Clock = Callable[[Callable[[], object], int], float]
LEAST_GAIN = 1.02  # the default stays where nothing is faster by more than what runs differ by


class TuningError(Exception):
    """Tuning cannot begin or go on; the message is for the user."""


class OutOfTime(Exception):
    """The budget is spent."""


@dataclasses.dataclass
class Row:
    """What became of one key, or (key None) of a call that has none or could not be looked at.

    ``state``: tuned, cached, failed, not reached, nothing to choose, or in a dry run would tune. ``failures``: the
    candidates that were left out, and why.
    """

    op: str
    workload: str
    key: Key | None
    state: str
    note: str = ""
    candidates: int = 0
    result: Result | None = None
    failures: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Tuner:
    """How candidates are tried and timed; what it needs of a card comes from outside.

    Args:
        clock: seconds per call, as ``interleave`` wants it.
        synchronize: waits for the device, and raises where a kernel has failed.
        keep: called with each result as soon as it is there.
        say: called with what is being tried.
    """

    clock: Clock
    synchronize: Callable[[], None]
    keep: Callable[[Key, Result], None]
    say: Callable[[str], None] = lambda text: None
    rounds: int = 7
    deadline: float = float("inf")

    def rows(self, workload: Workload, done: Mapping[Key, Config], *, dry_run: bool) -> Iterator[Row]:
        """Tune the keys of one call that are not ``done``; a row each, as it is finished."""
        try:
            prepared = workload.prepare()
            with launch.recording(), _this_thread_only(), config.overriding({}) as seen:
                prepared.call()
        except Exception as error:
            yield Row(workload.op, workload.name, None, "failed", one_line(error))
            return
        if not seen:
            yield Row(workload.op, workload.name, None, "nothing to choose")
        best = {key: done[key] for key in seen if key in done}
        allowed: float | None = None
        for key, candidates in dict(seen).items():
            row = Row(workload.op, workload.name, key, "would tune", candidates=len(candidates))
            if key in done:
                row.state = "cached"
            elif not dry_run:
                try:
                    if allowed is None:
                        allowed = self._allowed(prepared)
                    row.result = self._fastest(workload, prepared, key, candidates, best, allowed, row)
                except OutOfTime:
                    row.state = "not reached"
                except (Wrong, RuntimeError, ValueError, AssertionError) as error:
                    self._still_usable(f"{workload.name} with the default configuration", error)
                    row.state, row.note = "failed", f"the default: {one_line(error)}"
                else:
                    row.state = "tuned"
                    best[key] = row.result.config
                    self.keep(key, row.result)
            yield row

    def _allowed(self, prepared: Prepared) -> float:
        """The error that a candidate may have, from that of the defaults."""
        self._check_time()
        return tolerance(self._error(prepared, {}), prepared.documented)

    def _error(self, prepared: Prepared, configs: dict[Key, Config]) -> float:
        with _this_thread_only(), config.overriding(configs):
            result = prepared.call()
        self.synchronize()
        return prepared.error(result)

    def _fastest(
        self,
        workload: Workload,
        prepared: Prepared,
        key: Key,
        candidates: Sequence[Config],
        best: dict[Key, Config],
        allowed: float,
        row: Row,
    ) -> Result:
        calls: dict[str, Callable[[], Any]] = {}
        for number, candidate in enumerate(candidates):
            self._check_time()
            self.say(f"{workload.name}: {key[0]} {number + 1}/{len(candidates)}: {candidate}")
            forced = {**best, key: candidate}
            try:
                error = self._error(prepared, forced)
                if error > allowed:
                    raise Wrong(f"error {error:.2g}, allowed {allowed:.2g}")
            except Exception as fault:  # a compiler and a driver may raise anything
                if number == 0:
                    raise
                self._still_usable(f"{workload.name} with {candidate}", fault)
                row.failures[str(candidate)] = one_line(fault)
                continue
            calls[str(candidate)] = _forcing(prepared.call, forced)
        self._check_time()
        with _this_thread_only():
            times = interleave(calls, rounds=self.rounds, pause=0.0, min_sample=0.003, clock=self.clock)
        medians = {name: each.median * 1e3 for name, each in times.items()}
        default = str(candidates[0])
        fastest = min(medians, key=lambda name: medians[name])
        if medians[default] < LEAST_GAIN * medians[fastest]:
            fastest = default
        chosen = next(candidate for candidate in candidates if str(candidate) == fastest)
        return Result(chosen, medians[fastest], medians[default])

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _still_usable(self, what: str, fault: Exception) -> None:
        """Raise where a fault has left the device unusable to this process: nothing more can be measured."""
        try:
            self.synchronize()
        except Exception as error:
            raise TuningError(
                f"the device is unusable after {what} ({one_line(fault)}); what was tuned before is kept"
            ) from error


def tune(
    calls: Sequence[Workload],
    tuner: Tuner,
    *,
    done: Mapping[Key, Config] | None = None,
    dry_run: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
    on_workload: Callable[[Workload], None] = lambda workload: None,
) -> list[Row]:
    """Tune every key that the calls ask for, the budget allowing; a key that several calls share only once.

    Args:
        done: keys that need no tuning, and what was found for them; a row says so.
        dry_run: find the keys, start no kernel.
        on_row, on_workload: called with each row when it is finished, and with each call when it begins.

    Raises:
        TuningError: the device failed and can't be used any more.
    """
    rows: list[Row] = []
    known = dict(done or {})
    shown: set[Key | None] = set()
    for workload in calls:
        on_workload(workload)
        if time.monotonic() > tuner.deadline:
            rows.append(Row(workload.op, workload.name, None, "not reached"))
            on_row(rows[-1])
            continue
        for row in tuner.rows(workload, known, dry_run=dry_run):
            if row.key in shown and row.state in ("cached", "would tune"):
                continue  # an earlier call's row has it
            shown |= {row.key} - {None}
            if row.key is not None and row.result is not None:
                known[row.key] = row.result.config
            rows.append(row)
            on_row(row)
    return rows


def _forcing(call: Callable[[], Any], configs: dict[Key, Config]) -> Callable[[], Any]:
    def forced() -> Any:
        with config.overriding(configs):
            return call()

    return forced


@contextmanager
def _this_thread_only() -> Iterator[None]:
    """Backward passes run in the calling thread, where what is forced holds."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


def one_line(error: BaseException) -> str:
    """The first line of an error, with its type where that says more."""
    lines = str(error).strip().splitlines()
    text = lines[0][:160] if lines else ""
    return text if isinstance(error, Wrong) and text else f"{type(error).__name__}: {text}".rstrip(": ")
