"""Checks and measures this package on whatever CUDA card is there, within a fixed time; see gpu_check.sh.

Every part runs in processes of its own, within a time limit, and the two result files are written again after
each, so that a crash, a hang or a machine taken away costs a row and not the report. It asks for torch alone:
what else is missing is said and gone without.

Exit status: 0 all parts that ran passed, 1 one did not, 2 there is no CUDA device and nothing was run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from gpu import choices, dry, report
from gpu.parts import PARTS, Machine, limit_of
from gpu.probe import probe
from gpu.process import BENCH, Part


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = options().parse_args(arguments)
    begin = time.monotonic()
    try:
        found = probe()
    except RuntimeError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    card = found["card"].get("name")
    print(f"gpu_check: {card or 'no CUDA device'}", *report.head(found), sep="\n", flush=True)
    names = [name for name in PARTS if name in chosen.only]
    if chosen.dry_run:
        return dry.run(found, names)
    if card is None:
        kind = f"is built for CUDA {found['cuda']} but sees no card" if found["cuda"] else "is a CPU build"
        print(f"gpu_check: no CUDA device: torch {found['torch']} {kind}. Nothing was run.", file=sys.stderr)
        return 2
    folder = chosen.out or pathlib.Path(os.environ.get("OUT") or BENCH / "results")
    stem = chosen.stem or "gpu-check-" + "-".join(card.lower().replace("/", " ").split())
    parts = run_parts(found, names, chosen, begin, folder, stem)
    print(f"\n{report.short_table(parts)}\n")
    print(f"gpu_check: {folder / stem}.json, .md; {time.monotonic() - begin:.0f} s in all")
    return 0 if all(part.state in ("passed", "skipped") for part in parts) else 1


def run_parts(
    found: dict[str, Any],
    names: list[str],
    chosen: argparse.Namespace,
    begin: float,
    folder: pathlib.Path,
    stem: str,
) -> list[Part]:
    """The parts in order; both files are kept after each."""
    parts: list[Part] = []
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(found, pathlib.Path(scratch), chosen.rebuild)
        for name in names:
            limit = limit_of(name, names, chosen.budget - (time.monotonic() - begin), chosen.budget)
            parts.append(run_part(name, machine, limit))
            part = parts[-1]
            print(f"[{part.seconds:4.0f} s] {name}: {part.state}: {part.summary}", flush=True)
            report.write(folder, stem, found, parts)
            choices.write(folder, found, parts)
    return parts


def run_part(name: str, machine: Machine, limit: float) -> Part:
    """One part; a fault in the check itself costs that part alone."""
    if limit < 5:
        return Part(name, "skipped", "the budget is spent")
    try:
        return PARTS[name].run(machine, limit)
    except Exception as error:
        return Part(name, "failed", f"the check itself: {type(error).__name__}: {error}")


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PART", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--budget", type=float, default=290.0, help="seconds for everything (default 290)")
    parser.add_argument("--out", type=pathlib.Path, help="default: $OUT, else bench/results")
    parser.add_argument("--stem", default="", help="name of the files (default: gpu-check-<card>)")
    parser.add_argument("--rebuild", action="store_true", help="build even where a library was brought along")
    parser.add_argument("--dry-run", action="store_true", help="everything but the launch, on any machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
