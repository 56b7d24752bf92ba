"""The dry run: everything that the parts' programs do short of a launch, on a CPU."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from gpu import process
from gpu.parts import PARTS, Machine
from gpu.process import BENCH, ROOT
from gpu.rows import Task, options, run_tasks

ALL_THERE = {
    "card": {"name": "a card", "capability": "9.0", "free_gib": 80.0},
    "missing": [],
    "tools": {"nvcc": "nvcc", "compute-sanitizer": "compute-sanitizer", "ncu": "ncu"},
    "nvcc_version": "",
}
ROOTS = {"torch": "torch", "zb": "zbkernels"}
PROGRAMS = ("load", "samples", "robust", "speed", "models", "graphs", "touch")


def tasks(names: Sequence[str]) -> list[Task]:
    """A row for each module that the named parts need."""
    modules = dict.fromkeys(module for name in names for module in PARTS[name].modules)
    rows = [Task("command lines", functools.partial(command_lines, names)), Task("names", known_names)]
    return rows + [Task(module, functools.partial(rehearse, module), 90.0) for module in modules]


def command_lines(names: Sequence[str]) -> str:
    """Let each part write what it would start, start nothing, and have our programs read their options."""
    machine = Machine(ALL_THERE, pathlib.Path(tempfile.gettempdir()), rebuild=False)
    started: list[Sequence[str]] = []

    def record(command: Sequence[str], limit: float, environment: Any = None) -> process.Output:
        started.append(command)
        return process.Output(0, [{"end": True}], [], 0.0)

    run, process.run = process.run, record
    try:
        for name in names:
            PARTS[name].run(machine, PARTS[name].limit)
    finally:
        process.run = run
    for command in started:
        module = next((word for word in command if word.startswith("gpu.") and word != "gpu.pytest_rows"), "")
        if module:
            arguments = command[command.index(module) + 1 :]
            importlib.import_module(module).parser().parse_args(arguments)
    return f"{len(started)} read"


def known_names() -> str:
    """Also what a rehearsal does not run asks torch and this package only for what they have.

    Raises:
        AssertionError: something has another name.
    """
    folders = (BENCH / "gpu", ROOT / "zbkernels" / "benchmarking")
    files = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    unknown = [
        f"{path.name}: {name}" for path in files for name in unknown_names(path.read_text(encoding="utf-8"))
    ]
    assert not unknown, ", ".join(unknown)
    return f"{len(files)} files"


def unknown_names(source: str) -> list[str]:
    """Dotted names of a module's source that begin at torch or zb and that are not there."""
    unknown = []
    for node in ast.walk(ast.parse(source)):
        dotted: list[str] = []
        while isinstance(node, ast.Attribute):
            dotted.insert(0, node.attr)
            node = node.value
        if not dotted or not isinstance(node, ast.Name) or node.id not in ROOTS:
            continue
        found: Any = importlib.import_module(ROOTS[node.id])
        for name in dotted:
            if not hasattr(found, name):
                unknown.append(".".join([node.id, *dotted]))
                break
            found = getattr(found, name)
    return unknown


def rehearse(name: str) -> str:
    """Import one module and, where it is a program, let it go through its rows."""
    if name == "pytest_rows" and importlib.util.find_spec("pytest") is None:
        return "pytest is not installed here: not imported"
    module = importlib.import_module(f"gpu.{name}")
    if name not in PROGRAMS:
        return "imports"
    import torch

    torch.set_num_threads(1)  # small work on a machine that is shared: threads would wait for one another
    run: Callable[[], str] = module.rehearse
    return run()


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    chosen = parser.parse_args(arguments)
    chosen.device = "cpu"
    return run_tasks(tasks(chosen.parts), chosen)


if __name__ == "__main__":
    sys.exit(main())
