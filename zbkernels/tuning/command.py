"""What ``zb tune`` shows: progress while it measures, then a table; and the cache as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from zbkernels import cards
from zbkernels.cards import Card
from zbkernels.tables import locked
from zbkernels.triton import results
from zbkernels.triton.config import Key
from zbkernels.triton.launch import cannot_run
from zbkernels.triton.results import Result
from zbkernels.tuning.tuner import Clock, Row, Tuner, TuningError, tune
from zbkernels.tuning.workloads import workloads


@dataclass(frozen=True)
class Machine:
    """The device that is tuned, and how time is taken on it."""

    device: str
    card: Card
    clock: Clock
    synchronize: Callable[[], None]


def find_machine() -> Machine:
    """The current CUDA device.

    Raises:
        TuningError: there is none, or Triton can't run on it.
    """
    if not torch.cuda.is_available():
        raise TuningError(
            f"tune: torch {torch.__version__} sees no CUDA device, and only on one is there a choice"
        )
    torch.cuda.init()
    device = torch.device("cuda", torch.cuda.current_device())
    reason = cannot_run("tune", torch.empty(0, device=device))
    card = cards.card_of(device)
    if reason is not None or card is None:
        raise TuningError(reason or f"tune: {device} has no name")
    from zbkernels.benchmarking.timing import CudaClock

    return Machine(str(device), card, CudaClock(), torch.cuda.synchronize)


def run(
    ops: Sequence[str] = (),
    *,
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    budget: float = float("inf"),
    dry_run: bool = False,
    force: bool = False,
    console: Console,
) -> list[Row]:
    """Tune, keep each result as it is found, and print the table; an interrupt prints what there is.

    Raises:
        TuningError: a wrong argument, no device, or one that failed.
        OSError: the cache can't be written.
    """
    from zbkernels.benchmarking.runner import Settings, environment

    machine = find_machine()
    card = machine.card
    try:
        calls = workloads(ops, shapes, dtypes, machine.device)
    except ValueError as error:
        raise TuningError(f"tune: {error}") from error
    if not dry_run:
        with locked(results.folder() / results.file_name(card)):
            pass  # a folder that can't be written is better known now than after the first kernel
    done = {} if force else {key: result.config for key, result in results.load(card).items()}
    rows: list[Row] = []
    console.print(
        f"{card.name}, compute capability {card.capability}: {len(calls)} calls",
        highlight=False,
        markup=False,
    )
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls ·"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=len(calls))

    def say(text: str) -> None:
        bar.update(task, description=escape(text[:100]))

    def on_row(row: Row) -> None:
        rows.append(row)
        bar.update(task, completed=[call.name for call in calls].index(row.workload) + 1)
        if not console.is_terminal and row.state != "cached":
            console.print(_in_words(row), highlight=False, markup=False, soft_wrap=True)

    tuner = Tuner(
        machine.clock,
        machine.synchronize,
        lambda key, result: results.save(card, {key: result}),
        say,
        deadline=time.monotonic() + budget,
    )
    try:
        with bar, environment(Settings(device=machine.device)):
            tune(calls, tuner, done=done, dry_run=dry_run, on_row=on_row)
    finally:
        show(rows, console)
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """The table of what was tuned, and a line for each candidate or call that was left out."""
    shown = [row for row in rows if row.key is not None]
    if shown:
        table = _table(
            "op", "dtype", "shape class", "state", "default ms", "best ms", "gain", "configuration"
        )
        for row in shown:
            cells = _times(row.result) if row.result else ["-", "-", "-", f"{row.candidates} candidates"]
            table.add_row(*map(escape, (*_names(row.key), row.state, *cells)))
        console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.state}: {row.workload}: {row.note}", highlight=False, markup=False)
        for candidate, reason in row.failures.items():
            console.print(f"left out: {row.workload}: {candidate}: {reason}", highlight=False, markup=False)
    counts = {
        state: sum(row.state == state for row in rows) for state in dict.fromkeys(r.state for r in rows)
    }
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing done")


def show_cache(console: Console) -> None:
    """What was tuned on every card whose results are here."""
    files = results.all_files()
    if not files:
        console.print(f"nothing is tuned: no results in {results.folder()}", highlight=False, markup=False)
    for path in files:
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)
        table = _table("op", "dtype", "shape class", "default ms", "best ms", "gain", "configuration")
        for key, result in sorted(results.read(path).items()):
            table.add_row(*map(escape, (*_names(key), *_times(result))))
        console.print(table)


def clear_cache(console: Console) -> None:
    """Delete the results of all cards."""
    files = results.clear()
    for path in files:
        console.print(f"deleted {path}", highlight=False, markup=False, soft_wrap=True)
    if not files:
        console.print(f"no results in {results.folder()}", highlight=False, markup=False)


def _names(key: Key | None) -> tuple[str, str, str]:
    return key or ("-", "-", "-")


def _times(result: Result) -> list[str]:
    return [f"{result.default_ms:.4g}", f"{result.ms:.4g}", f"{result.gain:.2f}x", str(result.config)]


def _in_words(row: Row) -> str:
    name = " ".join(row.key) if row.key else row.workload
    if row.result is None:
        return f"{name}: {row.state} {row.note}".rstrip()
    default, best, gain, chosen = _times(row.result)
    return f"{name}: {default} -> {best} ms, {gain}: {chosen}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name.endswith("ms") or name == "gain" else "left")
    return table
