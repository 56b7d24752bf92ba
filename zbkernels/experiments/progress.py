"""Progress of long work: a bar with the remaining time on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from zbkernels import distributed
from zbkernels.console import Console


class Progress:
    """Counts batches over all units of a run. Used as a context manager.

    Args:
        console: where to write; None: the standard output, on rank 0 alone where torchrun started several processes.
            On anything but a terminal no bar is drawn and finished epochs are printed.
    """

    def __init__(self, console: rich.console.Console | None = None) -> None:
        self.console = console or Console(quiet=not distributed.speaks(), emoji=False)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches ·"),
            TimeElapsedColumn(),
            TextColumn("· remaining"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
            speed_estimate_period=120,
        )
        self._task = self._bar.add_task("", total=0)
        self._total = 0
        self._done = 0
        self._entered = 0  # a run may hold others, which show the same bar
        self._last_line = (time.monotonic(), 0)  # when the last line was printed, and after how many batches

    def __enter__(self) -> Progress:
        self._entered += 1
        self._bar.start()  # of one that is shown already: nothing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if not self._entered:
            self._bar.stop()

    def expect(self, batches: int) -> None:
        """Add (or, negative, take away) work still to do."""
        self._total += batches
        self._bar.update(self._task, total=self._total)

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def batch_done(self) -> None:
        self._done += 1
        self._bar.advance(self._task)

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def epoch_done(self, text: str) -> None:
        """On a terminal the bar's description; elsewhere a line of its own, with the remaining time."""
        if self.console.is_terminal:
            self.describe(text)
            return
        then, batches = self._last_line
        now = time.monotonic()
        left = ""
        if self._done > batches:  # at the pace since the last line: other work on the machine comes and goes
            left = f" · about {duration((now - then) / (self._done - batches) * (self._total - self._done))} left"
        self._last_line = (now, self._done)
        self.say(text + left)


def duration(seconds: float) -> str:
    """``75`` -> ``1 min 15 s``; the two largest units that matter."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
