"""A report as a table on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from zbkernels.files import write_text

TEXT_COLUMNS = ("row", "shape", "dtype", "best other")
COLUMNS = (
    "ours",
    "ours CL",
    "ours, two ops",
    "ours (cuda)",
    "ours (triton)",
    "eager",
    "eager CL",
    "compile",
    "compile CL",
    "numpy",
    "faiss",
    "onnxruntime",
    "openvino",
)


def save(report: dict[str, Any], folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    """Write ``stem.json`` (stable: sorted keys, numbers of 6 digits) and ``stem.md`` into ``folder``."""
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    report = _rounded(report)  # both from the same numbers: rounding twice may give another last digit
    write_text(paths[0], json.dumps(report, indent=1, sort_keys=True) + "\n")
    write_text(paths[1], markdown(report))
    return paths


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def tables(report: dict[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(title, header, lines of cells) for each suite and mode of the report, in the order of its rows."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["suite"], row["mode"]), []).append(row)
    for (suite, mode), rows in groups.items():
        present = {name for row in rows for name in (*row["times"], *row["absent"])}
        contestants = [name for name in COLUMNS if name in present] + sorted(present - set(COLUMNS))
        rate = "GB/s" if suite == "nap" else "GFLOP/s"
        images = ["images/s"] if suite == "models" else []
        header = ["row", "shape", "dtype", *contestants, "best other", "ratio", *images, rate, "of ceiling"]
        yield f"{suite} {mode} (ms, medians)", header, [_cells(row, contestants) for row in rows]


def _cells(row: dict[str, Any], contestants: list[str]) -> list[str]:
    cells = [row["name"], row["shape"], row["dtype"]]
    for name in contestants:
        if name in row["times"]:
            cells.append(f"{row['times'][name]['median_ms']:.3g}")
        else:
            cells.append(row["absent"].get(name, "-"))
    rate = row["gbytes_per_s"] if row["gflops"] is None else row["gflops"]
    ratio = ["-" if row["ratio"] is None else f"{row['ratio']:.2f}"]
    if row["suite"] == "models":
        ratio.append(_images_per_second(row))
    of_ceiling = f"{row['of_ceiling']:.0%} {row['bound']}"
    return [*cells, row["best_competitor"] or "-", *ratio, f"{rate:.3g}", of_ceiling]


def _images_per_second(row: dict[str, Any]) -> str:
    """Of `ours` and of the best competitor: ``900 / 450``."""
    batch = int(row["shape"].split("x")[0])
    times = (row["times"].get(name, {}).get("median_ms") for name in ("ours", row["best_competitor"]))
    return " / ".join("-" if ms is None else f"{1000 * batch / ms:.3g}" for ms in times)


def headline(report: dict[str, Any]) -> list[str]:
    """Lines above the tables: machine, versions, ceilings, switches."""
    ceilings = report["ceilings"]
    how = ceilings["how"]
    fma = ", ".join(
        f"{dtype} {value / 1e9:.0f} GFLOP/s ({how[f'fma {dtype}']})"
        for dtype, value in sorted(ceilings["flops"].items())
    )
    versions = sorted(report["versions"].items())
    lines = [
        f"Machine: {report['machine']}; Python {report['python']}; {report['date']}",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions),
        f"Measured ceilings: {fma}; {ceilings['bytes_per_second'] / 1e9:.1f} GB/s ({how['bytes']})",
    ]
    if ceilings.get("popcounts"):
        lines.append(
            f"Bits counted in the first cache: {ceilings['popcounts'] / 1e9:.1f} G words of 64 a second"
        )
    if report["device"] != "cpu":  # where a copy's rate and a read's differ, and each is a figure to know
        moved = ceilings["bandwidth"].items()
        lines.append("Bandwidth: " + ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in moved))
    loads = [row["load"] for row in report["rows"]]
    if loads and report["device"] == "cpu":
        busy = (
            "" if max(loads) <= report["cores"] + 1 else ": busy, trust the ratios only, small shapes least"
        )
        lines.append(f"Load average {min(loads):.1f} to {max(loads):.1f} on {report['cores']} cores{busy}")
    if report["environment"]:
        switches = sorted(report["environment"].items())
        lines.append("Switches: " + " ".join(f"{name}={value}" for name, value in switches))
    return lines


NOTES = (
    "ratio: the best competitor's median over that of `ours`; above 1 this package is faster. "
    "GFLOP/s counts the direct algorithm's operations. "
    "images/s: of `ours` / of the best competitor. "
    "of ceiling: the floor set by the measured ceilings over the time of `ours`, and which ceiling sets it."
)


def markdown(report: dict[str, Any]) -> str:
    """The report as a Markdown page."""
    parts = ["# Benchmark", *(f"- {line}" for line in headline(report)), "", NOTES]
    for title, header, lines in tables(report):
        parts += ["", f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        parts += ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]
    if report["failed"]:
        parts += ["", "## failed", "", *(f"- {item['row']}: {item['error']}" for item in report["failed"])]
    return "\n".join(parts) + "\n"


def show(report: dict[str, Any]) -> None:
    """Print the report: with rich where it is installed, else as plain columns."""
    try:
        from rich.table import Table

        from zbkernels.console import Console
    except ImportError:
        print(markdown(report))
        return
    console = Console(width=None if os.isatty(1) else 200, emoji=False)
    for text in headline(report):
        console.print(text, highlight=False, markup=False)
    for title, header, lines in tables(report):
        table = Table(title=title, title_justify="left")
        for name in header:
            table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right")
        for line in lines:
            style = "red" if _below_one(line[header.index("ratio")]) else None
            table.add_row(*line, style=style)
        console.print(table)
    for item in report["failed"]:
        console.print(f"failed: {item['row']}: {item['error']}", style="red", markup=False)
    console.print(NOTES, highlight=False, markup=False)


def _below_one(ratio: str) -> bool:
    return ratio != "-" and float(ratio) < 1.0
