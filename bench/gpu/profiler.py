"""Nsight Compute over one call of each op: how busy each of our kernels keeps the card."""

from __future__ import annotations

import csv

from gpu import process
from gpu.process import Output, Part, Row, program, read_rows, settle

METRICS = {
    "gpu__time_duration.sum": "ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "% of the multiprocessors",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "% of the memory",
    "launch__registers_per_thread": "registers",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "% of the warps",
}


def profiler(tool: str, limit: float) -> Part:
    """A row for each of our kernels; a profiler that is not there or refuses the device is said."""
    part = Part("profiler", "passed", "")
    if not tool:
        part.rows = [Row("ncu", "missing", "ncu was not found")]
    else:
        output = process.run(command(tool, limit), limit)
        part.seconds, part.tail = output.seconds, "\n".join(output.lines[-60:])
        part.rows = judge(output)
    settle(part)
    return part


def command(tool: str, limit: float) -> list[str]:
    """Only our kernels are replayed, and of the program's two calls each is seen."""
    line = [tool, "--csv", "--print-units", "base", "--target-processes", "application-only"]
    line += ["--kernel-name-base", "mangled", "--kernel-name", "regex:N2zb", "--metrics", ",".join(METRICS)]
    return [*line, *program("touch", "--seconds", f"{limit * 0.7:.0f}")]


def judge(output: Output) -> list[Row]:
    """The kernels' rows, or one that says why there are none."""
    kernels = parse(output.lines)
    if kernels:
        return [Row(name, "passed", in_words(values), values) for name, values in kernels.items()]
    rows, _, _ = read_rows(output)
    said = next((line for line in output.lines if line.startswith("==ERROR==")), "")
    if said or not any(row.name == "ready" and row.state == "passed" for row in rows):
        note = said.removeprefix("==ERROR==").strip() or output.last_line
        return [Row("ncu", "refused", f"{output.ending}: {note}"[:240])]
    bad = [row for row in rows if row.state == "failed"]
    if bad:
        return [Row("ncu", "failed", f"{bad[0].name}: {bad[0].note}"[:240])]
    return [Row("ncu", "not reached", f"no kernel of ours was profiled; {output.ending}")]


def parse(lines: list[str]) -> dict[str, dict[str, float]]:
    """Metrics of each kernel by its name, of its last launch, from ncu's table: a line a launch and metric."""
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    found: dict[str, dict[str, float]] = {}
    for record in csv.DictReader(lines[start:] if start is not None else []):
        name, metric = record.get("Kernel Name"), record.get("Metric Name")
        if not name or metric not in METRICS:
            continue
        try:
            value = float((record.get("Metric Value") or "").replace(",", ""))
        except ValueError:  # "n/a" where the card has no such counter
            continue
        name = name.replace("(anonymous namespace)", "<unnamed>").removeprefix("void ")
        found.setdefault(name.partition("(")[0][:80], {})[metric] = value
    return found


def in_words(values: dict[str, float]) -> str:
    """``12.3 us, 45% of the multiprocessors, ...``"""
    words = []
    for metric, unit in METRICS.items():
        if metric in values:
            value = values[metric]
            words.append(
                f"{value / 1e3:.1f} us" if unit == "ns" else f"{value:.0f} {unit}".replace(" %", "%")
            )
    return ", ".join(words)
