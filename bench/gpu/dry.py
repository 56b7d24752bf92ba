"""What ``--dry-run`` does: rehearses the parts' programs, and writes and reads both files from made-up parts."""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

from gpu import choices, report
from gpu.build import architecture
from gpu.parts import PARTS, limit_of
from gpu.process import GOOD, Part, Row, program, run_rows

NOT_TRIED = (
    "launches on a card, kernels of the CUDA library and of Triton, cuDNN, max-autotune, CUDA graphs and streams, "
    "compute-sanitizer, ncu, memory beyond 2^31 elements, and how long any of it takes"
)
MADE_UP = {"name": "Made-up Card", "capability": "9.0", "multiprocessors": 1, "memory_gib": 1.0}


def run(found: dict[str, Any], names: list[str], limit: float = 240.0) -> int:
    """Rehearse, say what was not tried; returns the exit status."""
    for name in names:
        spec = PARTS[name]
        seconds = limit_of(name, names, 290.0, 290.0)
        print(f"  {name:10} up to {seconds:3.0f} s  {spec.what}")
    if "build" in names:
        nvcc = found["nvcc_version"] or "no nvcc here: only a library brought along could be taken"
        print(f"  build would be for {architecture(found)} ({nvcc})")
    for tool in ("compute-sanitizer", "ncu"):
        print(f"  {tool}: {found['tools'][tool] or 'missing here: would be a row that says so'}")
    part = run_rows("rehearsal", program("rehearse", "--parts", *names), limit, {"CUDA_VISIBLE_DEVICES": ""})
    part.rows.append(_files())
    for row in part.rows:
        print(f"  {row.state:8} {row.name}: {row.note}", flush=True)
    bad = [row for row in part.rows if row.state not in GOOD]
    if bad:
        print(f"{part.tail}\ngpu_check: the dry run failed: {', '.join(row.name for row in bad)}")
        return 1
    print(f"gpu_check: the dry run passed. Not tried without a card: {NOT_TRIED}.")
    return 0


def _files() -> Row:
    """Both files from made-up parts of every state, written, read back, and shown as the short table."""
    found, parts = made_up()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            report.write(path, "dry", found, parts)
            again = report.read(path / "dry.json")
            assert again == (found, parts), "what was read back differs from what was written"
            page = (path / "dry.md").read_text(encoding="utf-8")
            made = choices.write(path, found, parts)
            assert made is not None and made.name == "choices-made-up-card-9.0.json"
            rows = json.loads(made.read_text(encoding="utf-8"))["rows"]
            assert [row["ms"] for row in rows] == [{"cuda": 3.0, "triton": 2.0}], rows
        for text in ("Made-up Card", "conv forward made-up", "1.50", "| cnn | 8 |", "the end"):
            assert text in page, f"{text!r} is missing in the Markdown"
        assert "conv forward made-up" in report.short_table(parts)
    except Exception as error:
        return Row("result files", "failed", f"{type(error).__name__}: {error}")
    return Row("result files", "passed", "written, read back the same, and shown; the table of choices too")


def made_up() -> tuple[dict[str, Any], list[Part]]:
    """A machine and parts with all that a report can hold."""
    found = {
        "python": "3.12.0",
        "torch": "2.11.0",
        "cuda": "13.0",
        "cudnn": 91000,
        "card": MADE_UP,
        "cards": 1,
        "cores": 1,
        "packages": {"numpy": "2.0", "pytest": ""},
        "missing": ["pytest"],
        "tools": {"nvcc": "", "compute-sanitizer": "", "ncu": "", "nvidia-smi": ""},
        "nvcc_version": "",
        "smi": {"driver_version": "1.2"},
        "commit": "",
        "switches": {"ZBKERNELS_CUDA": "1"},
    }
    time = {"median_ms": 2.0, "min_ms": 2.0, "spread": 0.0, "rounds": 1, "inner": 1}
    slow = {**time, "median_ms": 3.0}
    bench = {
        "suite": "conv",
        "op": "conv_relu_pool2d",
        "shape_class": "K1 C1 1x1 M2^0 max2 cl",
        "mode": "forward",
        "name": "made-up",
        "shape": "1x1",
        "dtype": "float32",
        "times": {
            "ours": slow,
            "ours CL": time,
            "ours (cuda)": slow,
            "ours (triton)": time,
            "eager CL": slow,
        },
        "ours": ["ours", "ours CL", "ours (cuda)", "ours (triton)"],
        "kernels": {"ours": ["cuda: a"], "ours CL": ["cuda: b"]},
        "of_ceiling": 0.5,
        "bound": "bytes",
    }
    model = {
        "model": "cnn",
        "batch": 8,
        "dtype": "float32",
        "times": {"fused": time, "eager CL": slow},
        "ratios": {"eager CL": 1.5},
        "kernels": {"conv1": "cuda: a"},
    }
    speed = [Row("conv forward made-up", "passed", "2 ms", {"bench": bench}), Row("late", "not reached")]
    return found, [
        Part("build", "skipped", "takes the library brought along"),
        Part("speed", "passed", "1 passed", 1.0, speed),
        Part("models", "passed", "1 passed", 1.0, [Row("cnn", "passed", "2 ms", {"model": model})]),
        Part("sanitizer", "skipped", "1 missing", 0.0, [Row("memcheck", "missing", "not found")]),
        Part("ops", "failed", "1 failed", 1.0, [Row("nap | pack", "failed", "differs")], tail="the end"),
    ]
