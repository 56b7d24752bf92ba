"""``zb doctor``: what is built, loaded and used on this machine, and the mend for each fault.

A *fault* is what keeps the package from doing its job as well as this machine allows; it makes the exit code
1 only where an op could not run at all. What is absent by choice (no CUDA part beside a CPU torch) is none.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.console
import torch
from rich.markup import escape
from rich.table import Table

import zbkernels
from zbkernels import _loader
from zbkernels.console import Console
from zbkernels.ops._op import OPS, Op


@dataclass(frozen=True)
class Fault:
    """Something that is wrong here, and what mends it."""

    what: str
    mend: str
    fatal: bool = False  # an op cannot run


@dataclass(frozen=True)
class Device:
    """A device of this machine; ``note`` is "" where the compiled kernels can run on it."""

    name: str  # as torch writes it: "cpu", "cuda:0"
    title: str
    note: str = ""
    mend: str = ""


def main(console: rich.console.Console | None = None) -> int:
    """Prints the whole picture; returns 0 where every op runs, else 1."""
    console = console or Console(emoji=False)
    if not console.is_terminal:
        console.width = 200  # into a file or a pipe: no line broken
    found = devices()
    console.print(_table("Versions", versions()))
    console.print(_table("CPU", cpu_facts()))
    console.print(_libraries_table())
    console.print(_table("Devices", [(d.name, d.title + (f": {d.note}" if d.note else "")) for d in found]))
    kernels = {d.name: kernels_on(d.name) for d in found}
    console.print(_kernels_table(kernels))
    problems = faults(found, kernels)
    for fault in problems:
        console.print(f"[bold red]fault[/]  {escape(fault.what)}\n[bold]mend[/]   {escape(fault.mend)}\n")
    usable = not any(fault.fatal for fault in problems)
    console.print("[bold green]All ops run.[/]" if usable else "[bold red]Some ops do not run.[/]")
    return 0 if usable else 1


def versions() -> list[tuple[str, str]]:
    """What runs, and what the libraries were built with."""
    rows = [
        ("zbkernels", f"{zbkernels.__version__} in {Path(zbkernels.__file__).parent}"),
        ("torch", _loader.torch_build().removeprefix("torch ")),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
    ]
    rows += [(name, _version_of(name)) for name in ("numpy", "triton")]
    build = _build()
    if build:
        nvcc = f", nvcc {build['nvcc']} for {build['cuda_archs']}" if build.get("nvcc") else ""
        rows.append(("built with", f"torch {build['torch']}, {build['compiler']}{nvcc}"))
    return rows


def cpu_facts() -> list[tuple[str, str]]:
    """Features of the processor, and the instruction set the CPU kernels take."""
    rows = []
    if _loader.libraries()["_host"].loaded:
        from zbkernels import _host  # type: ignore[attr-defined]

        features = _host.cpu_features()
        rows.append(("has", " ".join(n for n, there in features.items() if there) or "-"))
        rows.append(("lacks", " ".join(n for n, there in features.items() if not there) or "-"))
    asked = os.environ.get("ZBKERNELS_CPU_CAPABILITY")
    used = _loader.cpu_capability() or "none: the CPU library is not loaded"
    rows.append(("kernels use", used + (f" (ZBKERNELS_CPU_CAPABILITY={asked})" if asked else "")))
    rows.append(("threads", str(torch.get_num_threads())))
    return rows


def devices() -> list[Device]:
    """The CPU, and each GPU with whether the compiled kernels have code for it."""
    found = [Device("cpu", platform.processor() or platform.machine())]
    if torch.version.cuda is None:
        return found
    try:
        count = torch.cuda.device_count()
        for index in range(count):
            major, minor = torch.cuda.get_device_capability(index)
            title = f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}"
            found.append(Device(f"cuda:{index}", title, *arch_mismatch(major, minor, _cuda_archs())))
        if count == 0:
            found.append(Device("cuda", "no GPU is visible"))
    except RuntimeError as error:  # a driver that is missing or too old says so when it is first asked
        text = str(error).splitlines()[0]
        found.append(Device("cuda", "not usable", text, "install or update the NVIDIA driver"))
    return found


def arch_mismatch(major: int, minor: int, archs: str) -> tuple[str, str]:
    """Whether code built for ``archs`` runs on a GPU of this capability: ("", ""), or (what is wrong, mend).

    ``archs`` is in CMake's notation, blanks between: "80-real" is machine code for 8.x from 8.0 on,
    "90a-real" for exactly 9.0, "120" machine code and PTX, "120-virtual" PTX alone. PTX is compiled by the
    driver for any newer GPU, unless its letter ties it to one.
    """
    if not archs:
        return "", ""
    have = 10 * major + minor
    for arch in archs.split():
        match = re.fullmatch(r"(\d+)([af]?)(-real|-virtual)?", arch)
        if match is None:
            continue
        number, letter, kind = int(match[1]), match[2], match[3]
        if letter == "a":
            fits = number == have
        else:
            machine_code = kind != "-virtual" and number // 10 == major and number % 10 <= minor
            fits = machine_code or (kind != "-real" and not letter and number <= have)
        if fits:
            return "", ""
    card = f"{have}a-real" if have == 90 else f"{have}-real"
    return (
        f"capability {major}.{minor} is not among the built architectures ({archs})",
        f'build for this GPU: ZBKERNELS_CUDA=1 ZBKERNELS_CUDA_ARCHS="{card}" {_loader.REBUILD}',
    )


def kernels_on(device: str) -> dict[str, str]:
    """For each public op the kernel that its first sample would take on ``device``, or why none does."""
    return {op.name: _kernel_of(op, device) for op in OPS.values() if op.public is not None}


def faults(found: list[Device], kernels: dict[str, dict[str, str]]) -> list[Fault]:
    """What is wrong here, the worst first."""
    problems = []
    for state in _loader.libraries().values():
        wanted = state.name != "_C_cuda" or any(d.name.startswith("cuda:") for d in found)
        if state.reason and wanted:
            problems.append(Fault(f"{state.name}: {state.reason}", state.mend))
    problems += [Fault(f"{d.name}: {d.note}", d.mend) for d in found if d.note]
    for device, table in kernels.items():
        stuck = [name for name, kernel in table.items() if kernel.startswith("none")]
        if stuck:
            mend = "report this with the output above"
            problems.append(Fault(f"no kernel runs on {device} for {', '.join(stuck)}", mend, fatal=True))
    return sorted(problems, key=lambda fault: not fault.fatal)


def _kernel_of(op: Op, device: str) -> str:
    if device == "cuda":
        return "-"
    try:
        sample = next(iter(op.samples(device)))
        return zbkernels.explain(op.name, *sample.args, **sample.kwargs).chosen
    except Exception as error:
        return f"none: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _build() -> dict[str, str]:
    return next((s.build for s in _loader.libraries().values() if s.build), {})


def _cuda_archs() -> str:
    return _loader.libraries()["_C_cuda"].build.get("cuda_archs", "")


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = _empty_table(title)
    table.add_column(style="bold", no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _libraries_table() -> Table:
    table = _empty_table("Libraries")
    table.add_column(style="bold", no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    for state in _loader.libraries().values():
        loaded = "[green]loaded[/]  " if state.loaded else ""
        table.add_row(state.name, loaded + escape(state.reason or state.path or ""))
        if state.mend:
            table.add_row("", f"[dim]{escape(state.mend)}[/]")
    return table


def _kernels_table(kernels: dict[str, dict[str, str]]) -> Table:
    table = _empty_table("Kernel that would run")
    table.show_header = True
    table.add_column("op", style="bold", no_wrap=True)
    columns = [device for device, row in kernels.items() if any(kernel != "-" for kernel in row.values())]
    for device in columns:
        table.add_column(device)
    for name in kernels["cpu"]:
        table.add_row(name, *(escape(kernels[device][name]) for device in columns))
    return table


def _empty_table(title: str) -> Table:
    options: dict[str, Any] = {"title": title, "title_justify": "left", "title_style": "bold cyan"}
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), **options)
