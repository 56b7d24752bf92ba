"""The command behind ``zb bench``; ``python -m zbkernels.benchmarking`` needs no extra package."""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

from zbkernels.benchmarking import table
from zbkernels.benchmarking.cases import SUITES, select
from zbkernels.benchmarking.runner import Settings, run

# What holds each library to an instruction set. ONNX Runtime has no such switch and sits such a run out.
CAPABILITIES = {
    "avx2": {
        "ZBKERNELS_CPU_CAPABILITY": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def bench(
    suite: str = "all",
    *,
    shapes: Sequence[str] = (),
    modes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    threads: int = 0,
    device: str = "cpu",
    rounds: int = 0,
    quick: bool = False,
    out: pathlib.Path | None = None,
    stem: str = "bench",
    machine: str = "",
    show: bool = True,
) -> dict[str, Any]:
    """Run a suite, print the table and, with ``out``, keep ``stem.json`` and ``stem.md`` there.

    The files are rewritten after every row, so a run cut off keeps what it had. ``machine`` replaces the
    report's own line about the machine.

    Raises:
        ValueError: an unknown suite, shape, mode or dtype, or a device that torch does not see.
    """
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"bench: device {device} asked for, but torch {torch.__version__} sees no CUDA device"
        )
    suites = list(SUITES) if suite == "all" else [suite]
    cases = select(suites, shapes=shapes, modes=modes, dtypes=dtypes, quick=quick, device=device)
    settings = Settings.of(quick=quick, device=device, threads=threads, rounds=rounds)

    def keep(report: dict[str, Any]) -> None:
        if machine:
            report["machine"] = machine
        if out is not None:
            table.save(report, out, stem)

    report = run(cases, settings, on_row=keep, say=lambda text: print(text, file=sys.stderr, flush=True))
    if show:
        table.show(report)
    return report


class _OneLine(argparse.ArgumentParser):
    """A wrong argument is one line, as in the other commands of ``zb``."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"zb: {message}; see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    """The command line; ``zb bench`` has the same options."""
    options = _OneLine(prog="zb bench", description="The ops against the best competitors.")
    options.add_argument("--suite", default="all", choices=[*SUITES, "all"])
    options.add_argument("--shapes", default="", help="names, separated by commas (default: all)")
    options.add_argument("--modes", default="", help="forward, train, nap, pack, unpack, hamming, topk, ...")
    options.add_argument("--dtypes", default="", help="float32, bfloat16, ... (default: all)")
    options.add_argument("--threads", type=int, default=0, help="0: torch's own count")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    options.add_argument("--rounds", type=int, default=0, help="samples of each contestant")
    options.add_argument("--quick", action="store_true", help="a few rows in about a minute")
    options.add_argument("--capability", default="", choices=["", *CAPABILITIES], help="hold everyone to it")
    options.add_argument("--out", type=pathlib.Path, help="folder for the JSON and Markdown files")
    options.add_argument("--stem", default="bench", help="their name without the ending")
    options.add_argument("--machine", default="", help="the machine in words, for the report")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (1 where a row failed, 2 for a wrong argument)."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser().parse_args(arguments)
    switches = CAPABILITIES.get(chosen.capability, {})
    if any(os.environ.get(name) != value for name, value in switches.items()):
        # The libraries read their switches once, when they load: a fresh process is needed.
        # So is a fresh Inductor cache: its key does not hold the instruction set, and code written for AVX-512
        # but compiled for AVX2 was seen to leave half of its output unwritten.
        command = [sys.executable, "-m", "zbkernels.benchmarking", *arguments]
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, **switches, "TORCHINDUCTOR_CACHE_DIR": cache}
            return subprocess.run(command, env=environment, check=False).returncode
    try:
        report = bench(
            chosen.suite,
            shapes=_names(chosen.shapes),
            modes=_names(chosen.modes),
            dtypes=_names(chosen.dtypes),
            threads=chosen.threads,
            device=chosen.device,
            rounds=chosen.rounds,
            quick=chosen.quick,
            out=chosen.out,
            stem=chosen.stem,
            machine=chosen.machine,
        )
    except ValueError as error:
        print(f"zb: {error}", file=sys.stderr)
        return 2
    return 1 if report["failed"] else 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
