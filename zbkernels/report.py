"""What every report shares: verdicts on claims, Markdown tables, redrawing a run from its metrics."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zbkernels.files import read_json

HOLDS = "holds"
WITHIN_SPREAD = "holds within the spread of the seeds"
FAILS = "does not hold"
NOT_TESTABLE = "not testable here"


class ReportError(Exception):
    """A folder holds nothing that can be reported; the message names it."""


@dataclass(frozen=True)
class Verdict:
    """One claim of a paper, one of the four verdicts, and the numbers behind it (or the reason for none)."""

    claim: str
    verdict: str
    measured: str


def judge(gap: float, tolerance: float, spread: float | None) -> str:
    """The verdict on "two numbers agree": within ``tolerance``, else within two standard deviations of the
    seeds.

    Args:
        gap: the difference of the two numbers; its sign does not matter.
        spread: standard deviation over the seeds in the same unit; None with fewer than two seeds.
    """
    if abs(gap) <= tolerance:
        return HOLDS
    if spread is not None and abs(gap) <= 2 * spread:
        return WITHIN_SPREAD
    return FAILS


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value, which has none."""
    return statistics.stdev(values) if len(values) > 1 else None


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table; the first column is text, the others are numbers and stand to the right."""
    lines = [_row(header), _row(["---", *["---:"] * (len(header) - 1)]), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    lines = [_row(["claim of the paper", "verdict", "measured"]), _row(["---"] * 3)]
    lines += [_row([v.claim, f"**{v.verdict}**", v.measured]) for v in verdicts]
    return "\n".join(lines) + "\n"


def rewrite(path: Path) -> str:
    """Write a finished run's table.md and figure.png again from its metrics; returns the table.

    Raises:
        ReportError: the metrics are no good, or make a table but no figure.
        OSError, ModuleNotFoundError: the files cannot be written; matplotlib is not installed.
    """
    from zbkernels.experiments import get
    from zbkernels.experiments.runner import write_report

    fault = "not the metrics of an experiment"
    try:
        metrics = read_json(path / "metrics.json")
        experiment = get(metrics["experiment"])
        table = experiment.table(metrics)
        fault = "table.md and figure.png cannot be made of it"
        write_report(experiment, path, metrics)
    except (OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # whatever a damaged file makes a report's arithmetic do
        raise ReportError(f"{path / 'metrics.json'}: {fault} ({type(error).__name__}: {error})") from error
    return table


def runs_in(folders: Sequence[Path]) -> list[Path]:
    """The folders of runs, finished or not, in and below ``folders``.

    Raises:
        ReportError: one of ``folders`` is none.
    """
    from zbkernels.reporting.runs import find

    for folder in folders:
        if not folder.is_dir():
            what = "a file, expected a folder" if folder.exists() else "no such folder"
            raise ReportError(f"{folder}: {what}")
    return list(find(folders))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
