"""How a program does its rows one after the other and says so; ``process.py`` reads it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu.process import MARK


class Skip(Exception):
    """A row that cannot be done here; the message says why."""


class LeftOut(Exception):
    """A competitor that cannot be had; the message says why."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A row to do: ``do()`` returns a note, or a note and what the report keeps; it raises where it fails.

    ``seconds``: after these the process is killed, since a hung kernel listens to nothing else. ``optional``: a
    row that may be missing (a competitor's), however it ends.
    """

    name: str
    do: Callable[[], str | tuple[str, Any]]
    seconds: float = 20.0
    optional: bool = False


def say(message: dict[str, Any]) -> None:
    """One line for ``process.py``; to the real output, wherever a test tool has put ``sys.stdout``.

    A line of its own, even after a test tool's dots.
    """
    print("\n" + MARK + json.dumps(message), file=sys.__stdout__, flush=True)


def options(description: str) -> argparse.ArgumentParser:
    """The options that every program with rows takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--begin", type=int, default=0, help="the first row to do (those before it were done)"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="rows that begin later are left alone")
    return parser


def report_row(name: str, state: str, note: str = "", data: Any = None) -> None:
    """Say a row's outcome."""
    say({"row": {"name": name, "state": state, "note": note, "data": data}})


def run_tasks(tasks: Sequence[Task], chosen: argparse.Namespace) -> int:
    """Do the rows from ``--begin`` on; returns the program's exit status."""
    end = time.monotonic() + chosen.seconds
    say({"total": len(tasks)})
    failed = 0
    for index, task in enumerate(tasks):
        if index < chosen.begin:
            continue
        if time.monotonic() > end:
            report_row(task.name, "not reached")
            continue
        start = {"start": index, "name": task.name, "optional": task.optional, "limit": task.seconds}
        say({**start, "at": time.monotonic()})
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process without asking Python
        signal.setitimer(signal.ITIMER_REAL, task.seconds)
        state, note, data = outcome(task)
        if state == "failed":
            note = _with_dead_card(note, chosen.device)
        signal.setitimer(signal.ITIMER_REAL, 0)
        report_row(task.name, state, note, data)
        failed += state == "failed"
    say({"end": True})
    return 1 if failed else 0


def outcome(task: Task) -> tuple[str, str, Any]:
    """(state, note, data) of a row done here and now."""
    try:
        found = task.do()
    except Skip as reason:
        return "skipped", str(reason), None
    except LeftOut as reason:
        return "left out", str(reason), None
    except Exception as error:
        text = " ".join(str(error).split())[:400]
        name = "" if isinstance(error, AssertionError) and text else f"{type(error).__name__}: "
        print(f"{task.name}: {name}{text}", flush=True)
        return ("left out" if task.optional else "failed"), f"{name}{text}", None
    return ("passed", found, None) if isinstance(found, str) else ("passed", *found)


def _with_dead_card(note: str, device: str) -> str:
    """The note; but where the error has left the card unusable to this process, end it, row unfinished."""
    if device.startswith("cuda"):
        import torch

        try:
            torch.cuda.synchronize()
        except Exception:
            print(note, flush=True)
            sys.stdout.flush()
            os._exit(3)
    return note
