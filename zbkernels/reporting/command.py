"""The command behind ``zb report``: writes tables and figures again, then the page of all runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from zbkernels.distributed import speaks
from zbkernels.report import FAILS, HOLDS, WITHIN_SPREAD, ReportError, rewrite, runs_in
from zbkernels.reporting.page import write_page
from zbkernels.reporting.runs import DAMAGED, Run, read


def run(folders: Sequence[Path], out: Path | None, redraw: bool) -> Path:
    """Write the page of all runs in and below ``folders``; print one run's table, or a line for each of several.

    Args:
        out: the page; None: ``report.html`` in the first folder.
        redraw: write each finished run's ``table.md`` and ``figure.png`` again first. Where that cannot be done (a
            folder that may not be written, no matplotlib), the page says so and has what is there.

    Raises:
        ReportError: there are no runs; or, after the page is written, some are damaged.
        OSError: the page cannot be written.
    """
    found = runs_in(folders)
    if not found:
        raise ReportError(
            f"{', '.join(map(str, folders))}: no finished run here or below, and none that was begun "
            "(`zb run NAME --out DIR` leaves some)"
        )
    page = folders[0] / "report.html" if out is None else out
    if page.is_dir():
        raise ReportError(f"{page}: a folder, expected the name of the page to write")
    runs = []
    for folder in found:
        runs.append(_read(folder, redraw))
        if speaks() and len(found) > 1:
            _print(_line(runs[-1]))
    write_page(runs, page)
    if speaks():
        _say(runs, page)
    damaged = [f"{run.folder}: {run.notes[0]}" for run in runs if run.state == DAMAGED]
    if damaged:
        raise ReportError(
            f"{len(damaged)} of {len(runs)} runs {'is' if len(damaged) == 1 else 'are'} damaged, and shown as such: "
            + "; ".join(damaged)
        )
    return page


def _read(folder: Path, redraw: bool) -> Run:
    note, refused = "", ""
    if redraw and os.path.isfile(folder / "metrics.json"):
        try:
            rewrite(folder)
        except ReportError as error:
            refused = f"Not drawn again: {' '.join(str(error).split())[:300]}."
        except ModuleNotFoundError as error:
            note = f"Not drawn again: {error.name} is not installed (pip install 'zbkernels[experiments]')."
        except OSError as error:
            note = f"Not written again: {error.strerror or error}."
    run = read(folder)
    if refused and run.state != DAMAGED:  # a damaged one says why itself
        note = refused
    if note:
        run.notes.append(note)
    return run


def _line(run: Run) -> str:
    table = run.table or ""
    hold = sum(table.count(f"| **{verdict}** |") for verdict in (HOLDS, WITHIN_SPREAD))
    tested = hold + table.count(f"| **{FAILS}** |")
    claims = f", {hold} of {tested} claims hold" if tested else ""
    if tested and run.badge:
        claims += f" ({run.badge})"
    return f"{run.folder}: {run.state}{claims}"


def _say(runs: Sequence[Run], page: Path) -> None:
    if len(runs) == 1:
        _print(runs[0].table or "\n".join(runs[0].notes))
        _print("  ".join(str(path) for path in (runs[0].folder / "table.md", *runs[0].figures[:1])))
    _print(str(page))


def _print(text: str) -> None:
    """What the output's encoding lacks, such as half of a surrogate pair, is printed as its escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
