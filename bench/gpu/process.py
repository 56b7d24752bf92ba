"""Runs one program of a part: in a process group of its own, within a time limit, row by row.

A program prints what it does as lines that begin with :data:`MARK` (``rows.py`` is the other end), so a crash or
a hang costs the row that was being worked on: the program is started again at the row after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

BENCH = pathlib.Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
MARK = (
    "GPU-CHECK "  # then JSON: {"total": n}, {"start": i, ...}, {"row": {...}}, {"done": i} or {"end": true}
)

GOOD = ("passed", "skipped", "missing", "refused", "left out", "not reached")
START_SECONDS = 8.0  # what a fresh process costs before its first row: importing torch, waking the card


@dataclasses.dataclass
class Row:
    """One thing that was checked or measured.

    ``state``: passed, failed, timed out, skipped, missing (a tool is not there), refused (a tool does not take
    this device), left out (a competitor that could not be had), or not reached (the time was over).
    """

    name: str
    state: str
    note: str = ""
    data: Any = None


@dataclasses.dataclass
class Part:
    """One part's outcome; it failed where one of its rows did."""

    name: str
    state: str
    summary: str
    seconds: float = 0.0
    rows: list[Row] = dataclasses.field(default_factory=list)
    tail: str = ""
    data: Any = None


@dataclasses.dataclass
class Output:
    """What a process left: ``status`` None where it was stopped at its limit."""

    status: int | None
    messages: list[dict[str, Any]]
    lines: list[str]
    seconds: float

    @property
    def last_line(self) -> str:
        """The last that was printed in words."""
        return self.lines[-1].strip() if self.lines else ""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.status == -signal.SIGALRM:
            return "no answer within the row's time"
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def program(name: str, *arguments: str) -> list[str]:
    """The command line of one of this folder's programs."""
    return [sys.executable, "-m", f"gpu.{name}", *arguments]


def run(command: Sequence[str], limit: float, environment: dict[str, str] | None = None) -> Output:
    """Run a command to its end or to the limit, then with all its children to theirs."""
    path = [str(BENCH), str(ROOT), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Output(127, [], [f"could not start: {error}"], 0.0)
        try:
            status: int | None = process.wait(timeout=max(1.0, limit))
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):  # its children too, also where it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        lines = log.read().splitlines()
    messages = [message for line in lines if (message := _message(line)) is not None]
    plain = [line for line in lines if line.strip() and not line.startswith(MARK)]
    return Output(status, messages, plain, time.monotonic() - start)


def _message(line: str) -> dict[str, Any] | None:
    if not line.startswith(MARK):
        return None
    try:
        return json.loads(line.removeprefix(MARK))
    except ValueError:  # a line cut off by the process's end
        return None


def read_rows(output: Output) -> tuple[list[Row], dict[str, Any] | None, bool]:
    """(finished rows, the start message of the one that was not finished, whether the end was reached)."""
    rows: list[Row] = []
    begun: dict[str, Any] | None = None
    for message in output.messages:
        if "start" in message:
            begun = message
        elif "row" in message:
            rows.append(Row(**message["row"]))
        if "row" in message or "done" in message:
            begun = None
    return rows, begun, any("end" in message for message in output.messages)


def run_rows(
    name: str, command: Sequence[str], limit: float, environment: dict[str, str] | None = None
) -> Part:
    """Run a program as a part, starting it again after each row that it died of, until all rows have been.

    The program takes ``--begin ROW`` and ``--seconds LIMIT``, as those that use ``rows.py`` do.
    """
    part = Part(name, "passed", "")
    begin, total = 0, None
    while True:
        left = limit - part.seconds
        extra = ["--begin", str(begin), "--seconds", f"{left - 2:.0f}"]
        output = run([*command, *extra], left, environment)
        part.seconds += output.seconds
        part.tail = "\n".join([*part.tail.splitlines(), *output.lines][-60:])
        rows, begun, ended = read_rows(output)
        part.rows += rows
        total = next((m["total"] for m in output.messages if "total" in m), total)
        if begun is not None:
            part.rows.append(_unfinished(begun, output))
        elif not ended:  # before its first row, or between two: starting it again would not help
            state = "timed out" if output.status is None else "failed"
            part.rows.append(Row(name, state, f"{output.ending}: {output.last_line}"))
        if begun is None:
            break
        begin = begun["start"] + 1
        if begin >= (total or 0):
            break
        if limit - part.seconds < START_SECONDS:
            part.rows.append(Row("the rest", "not reached", f"{(total or 0) - begin} rows"))
            break
    settle(part)
    return part


def _unfinished(begun: dict[str, Any], output: Output) -> Row:
    """The row that a process died of, or was busy with when the part's time was over."""
    hung = output.status is None and time.monotonic() - begun["at"] >= begun["limit"]
    if begun["optional"]:
        state = "left out"
    elif output.status is None:
        state = "timed out" if hung else "not reached"
    else:
        state = "timed out" if output.status == -signal.SIGALRM else "failed"
    return Row(begun["name"], state, "; ".join(filter(None, (output.ending, output.last_line))))


def settle(part: Part) -> None:
    """State and summary of a part from its rows."""
    counts: dict[str, int] = {}
    for row in part.rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    bad = [row for row in part.rows if row.state not in GOOD]
    part.state = "failed" if bad else "passed" if counts.get("passed") else "skipped"
    part.summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    if bad:
        part.summary += f"; first: {bad[0].name}: {bad[0].note}"[:200]
    elif part.state == "skipped" and part.rows:
        part.summary += f": {part.rows[0].note}"[:200]
