"""The two result files and the short table that is printed last."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from gpu.process import ROOT, Part, Row

SCHEMA = 2
BACKENDS = ("cuda", "triton")  # those that a call on a card may be given to


@dataclasses.dataclass(frozen=True)
class BenchLine:
    """A bench row as the tables show it: ours in channels_last where there is such a form, as the competitors'."""

    name: str
    shape: str
    ms: float
    kernel: str
    ratios: dict[str, float]
    backends: dict[str, float]  # milliseconds of each by name, in the same run
    of_ceiling: float
    bound: str


def bench_line(row: dict[str, Any]) -> BenchLine:
    """From a row of ``zbkernels.benchmarking``, whose own ratios are over ``ours`` on contiguous tensors."""
    ours = "ours CL" if "ours CL" in row["times"] else "ours"
    ms = row["times"][ours]["median_ms"]
    ratios = {name: each["median_ms"] / ms for name, each in row["times"].items() if name not in row["ours"]}
    of_ceiling = row["of_ceiling"] * row["times"]["ours"]["median_ms"] / ms
    kernel = " / ".join(row["kernels"][ours])
    timed = {backend: row["times"].get(f"ours ({backend})") for backend in BACKENDS}
    backends = {backend: each["median_ms"] for backend, each in timed.items() if each}
    return BenchLine(row_name(row), row["shape"], ms, kernel, ratios, backends, of_ceiling, row["bound"])


def row_name(row: dict[str, Any]) -> str:
    """What a bench row is called in the tables."""
    return f"{row['suite']} {row['mode']} {row['name']}"


def bench_rows(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """All measured rows; the one with torch.compile stands for the one without."""
    return list({row_name(row): row for row in _data(parts, "bench")}.values())


def bench_lines(parts: Iterable[Part]) -> list[BenchLine]:
    """:func:`bench_rows` as the tables show them."""
    return [bench_line(row) for row in bench_rows(parts)]


def model_rows(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """All measured models, as :func:`bench_lines`."""
    return list({(row["model"], row["dtype"]): row for row in _data(parts, "model")}.values())


def _data(parts: Iterable[Part], kind: str) -> list[dict[str, Any]]:
    rows = [row for part in parts for row in part.rows]
    return [row.data[kind] for row in rows if isinstance(row.data, dict) and kind in row.data]


# --- files


def write(folder: pathlib.Path, stem: str, found: dict[str, Any], parts: Sequence[Part]) -> None:
    """``stem.json`` and ``stem.md``, each whole or not there."""
    report = {"schema": SCHEMA, "machine": found, "parts": [dataclasses.asdict(part) for part in parts]}
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".json": json.dumps(report, indent=1, sort_keys=True) + "\n", ".md": markdown(found, parts)}
    for ending, text in texts.items():
        temporary = folder / f".{stem}{ending}.{os.getpid()}"
        temporary.write_text(without_paths(text), encoding="utf-8")
        os.replace(temporary, folder / f"{stem}{ending}")


def without_paths(text: str) -> str:
    """The text without where this checkout and this user's files lie: it may be published."""
    for place, name in ((str(ROOT), "."), (sys.prefix, "<python>"), (os.path.expanduser("~"), "~")):
        if place not in ("/", "/usr", "/usr/local"):
            text = text.replace(place, name)
    return text


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[Part]]:
    """What :func:`write` wrote.

    Raises:
        ValueError: another schema.
    """
    report = json.loads(path.read_text(encoding="utf-8"))
    if report.get("schema") != SCHEMA:
        raise ValueError(f"{path.name}: expected schema {SCHEMA}, got {report.get('schema')!r}")
    parts = [Part(**{**part, "rows": [Row(**row) for row in part["rows"]]}) for part in report["parts"]]
    return report["machine"], parts


def markdown(found: dict[str, Any], parts: Sequence[Part]) -> str:
    """The report as a page: the machine, a line a part, what was measured, all rows, the ends of what failed."""
    lines = [f"# GPU check: {found['card'].get('name', 'no card')}", "", *head(found), ""]
    lines += table(
        ("part", "state", "seconds", ""),
        [(part.name, part.state, f"{part.seconds:.0f}", part.summary) for part in parts],
    )
    if bench_lines(parts):
        lines += ["", "## Ops", "", BENCH_NOTE, "", *table(*bench_cells(parts))]
    if model_rows(parts):
        lines += ["", "## Training step of the models", "", *table(*model_cells(parts))]
    for part in parts:
        if part.rows:
            rows = [(row.name, row.state, row.note) for row in part.rows]
            lines += ["", f"## {part.name}", "", *table(("row", "state", ""), rows)]
        if part.state == "failed":
            lines += ["", f"The end of the output of {part.name}:", "", "```", part.tail, "```"]
    return "\n".join(lines) + "\n"


BENCH_NOTE = (
    "Medians of interleaved runs. ms: ours on channels_last tensors where the op has images. A ratio above 1: ours "
    "is faster. eager has cuDNN autotuning and no TF32, compile is max-autotune. of ceiling: the floor set by the "
    "measured ceilings over our time, and which ceiling sets it. cuda and triton: each of our backends by name in the "
    "same run; their quotient is what the choice between them rests on."
)


def head(found: dict[str, Any]) -> list[str]:
    """The environment report."""
    card, smi = found["card"], found["smi"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    tools = [name for name, path in found["tools"].items() if path]
    lines = [
        f"- compute capability {card.get('capability', '-')}, {card.get('multiprocessors', '-')} multiprocessors, "
        f"{card.get('memory_gib', '-')} GiB, L2 {card.get('l2_mib', '-')} MiB, {found['cards']} cards",
        "- " + (", ".join(f"{name} {value}" for name, value in smi.items()) or "nvidia-smi said nothing"),
        f"- Python {found['python']}, torch {found['torch']}, CUDA {found['cuda']}, cuDNN {found['cudnn']}, "
        f"{found['cores']} cores",
        f"- packages: {packages or 'none'}; not installed: {', '.join(found['missing']) or 'none'}",
        f"- tools: {', '.join(tools) or 'none'}; nvcc: {found['nvcc_version'] or 'not found'}",
        f"- source: {found['commit'] or 'not a git checkout'}",
    ]
    if found["switches"]:
        lines.append(
            "- switches: " + " ".join(f"{name}={value}" for name, value in found["switches"].items())
        )
    return lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in rows]


def bench_cells(parts: Iterable[Part]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the ops' table."""
    lines = bench_lines(parts)
    others = list(dict.fromkeys(name for line in lines for name in line.ratios))
    backends = [f"{name}, ms" for name in BACKENDS]
    compared = ["row", "shape", "ms", *(f"x {name}" for name in others)]
    header = [*compared, *backends, f"{BACKENDS[0]} / {BACKENDS[1]}", "of ceiling", "kernel"]
    return header, [
        [
            line.name,
            line.shape,
            f"{line.ms:.3g}",
            *(f"{line.ratios[name]:.2f}" if name in line.ratios else "-" for name in others),
            *(f"{line.backends[name]:.3g}" if name in line.backends else "-" for name in BACKENDS),
            _quotient(*(line.backends.get(name) for name in BACKENDS)),
            f"{line.of_ceiling:.0%} {line.bound}",
            line.kernel,
        ]
        for line in lines
    ]


def _quotient(first: float | None, second: float | None) -> str:
    return f"{first / second:.2f}" if first and second else "-"


def model_cells(parts: Iterable[Part]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the models' table."""
    rows = model_rows(parts)
    others = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    header = ["model", "batch", "dtype", "fused, ms", *(f"x {name}" for name in others), "kernels"]
    return header, [
        [
            row["model"],
            str(row["batch"]),
            row["dtype"],
            f"{row['times']['fused']['median_ms']:.3g}",
            *(f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "-" for name in others),
            ", ".join(f"{layer} {kernel}" for layer, kernel in row["kernels"].items()),
        ]
        for row in rows
    ]


# --- the terminal


def short_table(parts: Sequence[Part]) -> str:
    """What was measured and what became of each part, in columns that fit a terminal."""
    blocks = []
    for header, rows in (bench_cells(parts), model_cells(parts)):
        if rows:
            drop = {"shape", "kernel", "kernels"}
            keep = [index for index, name in enumerate(header) if name not in drop]
            blocks.append(columns([[line[index] for index in keep] for line in (header, *rows)]))
    states = [[part.name, part.state, f"{part.seconds:.0f} s", part.summary[:90]] for part in parts]
    blocks.append(columns([["part", "state", "time", ""], *states]))
    return "\n\n".join(blocks)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Cells under one another."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
