"""bench/gpu_check.sh without a card: the dry run, and that what fails, hangs or refuses costs its own row alone."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

import zbkernels as zb
from zbkernels.benchmarking.shape_class import class_of
from zbkernels.cards import Card
from zbkernels.ops import OPS, _choice

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from gpu import (  # noqa: E402
    build,
    calls,
    card,
    check,
    choices,
    dry,
    models,
    parts,
    probe,
    process,
    profiler,
    rehearse,
    report,
    robust,
    rows,
    samples,
    sanitizer,
    speed,
)

FOUND, MADE_UP_PARTS = dry.made_up()


def script(*arguments: str, root: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    line = [str(root / "bench" / "gpu_check.sh"), *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=250, check=False)


# --- the dry run


def test_dry_run_goes_through_every_part() -> None:
    before = sorted(os.listdir(ROOT / "bench" / "results"))
    done = script("--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in parts.PARTS:
        assert f"  {name} " in done.stdout
    modules = ("samples", "robust", "speed", "models", "graphs", "touch", "choices", "command lines", "names")
    for module in (*modules, "result files"):
        assert f"passed   {module}: " in done.stdout
    assert "Not tried without a card: launches on a card" in done.stdout
    assert sorted(os.listdir(ROOT / "bench" / "results")) == before


@pytest.mark.parametrize(
    ("file", "right", "wrong", "part"),
    [
        ("robust.py", "dilation=2**31 - 1, pool_kernel=1", "dilatation=2**31 - 1, pool_kernel=1", "robust"),
        ("sanitizer.py", '"--few"', '"--fewer"', "sanitizer"),
        ("report.py", "part.summary)", "part.summry)", "build"),
    ],
)
def test_dry_run_finds_a_slip_in_any_part(
    file: str, right: str, wrong: str, part: str, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(
        ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    path = tmp_path / "bench" / "gpu" / file
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    done = script("--dry-run", "--only", part, root=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the dry run failed" in done.stdout


def test_without_a_card_nothing_is_run(tmp_path: pathlib.Path) -> None:
    done = script("--out", str(tmp_path))
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr and "Nothing was run" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_torch_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(probe, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(probe.probe, "__defaults__", (0.5,))
    assert check.main([]) == 2
    assert "the driver may be hung" in capsys.readouterr().err
    monkeypatch.setattr(probe, "PROBE", "import no_such_torch")
    monkeypatch.setattr(probe.probe, "__defaults__", (60.0,))
    assert check.main([]) == 2
    assert "No module named 'no_such_torch'" in capsys.readouterr().err


# --- rows in a process of their own

FAULTY = """
import argparse, os, signal, sys, time
from gpu.rows import LeftOut, Skip, Task, options, run_tasks

def wrong(): raise ValueError("no such thing")
def skip(): raise Skip("not here")
def left_out(): raise LeftOut("refused")
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def hang(): print("waiting", flush=True); time.sleep(60)

tasks = [Task("first", lambda: ("1 ms", {"kept": 1})), Task("wrong", wrong), Task("crash", crash),
         Task("skip", skip), Task("hang", hang, 1.0), Task("slow rival", hang, 1.0, optional=True),
         Task("no rival", left_out, optional=True), Task("last", lambda: "done")]
sys.exit(run_tasks(tasks, options("a faulty part").parse_args(["--device", "cpu", *sys.argv[1:]])))
"""


@pytest.fixture
def faulty(tmp_path: pathlib.Path) -> list[str]:
    (tmp_path / "faulty.py").write_text(FAULTY)
    return [sys.executable, str(tmp_path / "faulty.py")]


def test_a_crash_and_a_hang_cost_a_row_each(faulty: list[str]) -> None:
    part = process.run_rows("faulty", faulty, 60.0)
    states = {row.name: row.state for row in part.rows}
    assert states == {
        "first": "passed",
        "wrong": "failed",
        "crash": "failed",
        "skip": "skipped",
        "hang": "timed out",
        "slow rival": "left out",
        "no rival": "left out",
        "last": "passed",
    }
    notes = {row.name: row.note for row in part.rows}
    assert notes["wrong"] == "ValueError: no such thing" and "SIGSEGV" in notes["crash"]
    assert notes["hang"] == "no answer within the row's time; waiting"
    assert part.rows[0].data == {"kept": 1}
    assert part.state == "failed" and part.summary.startswith("2 passed, 2 failed")


def test_a_part_ends_at_its_limit_with_all_its_children(tmp_path: pathlib.Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen(['sh', '-c', 'sleep 4; touch {tmp_path}/alive']); "
    code += "print('begun', flush=True); import time; time.sleep(60)"
    start = time.monotonic()
    part = process.run_rows("load", [sys.executable, "-c", code], 2.0)
    assert time.monotonic() - start < 15
    assert [(row.name, row.state) for row in part.rows] == [("load", "timed out")] and part.state == "failed"
    assert "begun" in part.rows[0].note
    time.sleep(3)
    assert not (tmp_path / "alive").exists()


def test_rows_that_the_time_did_not_reach_are_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import sys, time\nfrom gpu.rows import Task, options, run_tasks\n"
        "tasks = [Task('a', lambda: 'done'), Task('b', lambda: time.sleep(30) or 'done', 60.0), Task('c', str)]\n"
        "sys.exit(run_tasks(tasks, options('').parse_args(['--device', 'cpu', *sys.argv[1:]])))\n"
    )
    part = process.run_rows("slow", [sys.executable, str(tmp_path / "slow.py")], 3.0)
    assert [(row.name, row.state) for row in part.rows] == [
        ("a", "passed"),
        ("b", "not reached"),
        ("the rest", "not reached"),
    ]
    assert part.state == "passed"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["/no/such/program"], "could not start"),
        ([sys.executable, "-c", "raise SystemExit('broken')"], "exit status 1: broken"),
    ],
)
def test_a_program_that_does_not_begin_is_a_failed_part(command: list[str], text: str) -> None:
    part = process.run_rows("load", command, 30.0)
    assert part.state == "failed" and text in part.rows[0].note


def test_a_card_that_is_lost_to_the_process_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert rows._with_dead_card("differs", "cuda") == "differs"
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"left with {status}"))
    with pytest.raises(pytest.fail.Exception, match="left with 3"):
        rows._with_dead_card("differs", "cuda")


def test_pytest_tells_of_each_test(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, signal, pytest\n"
        "def test_a(): print('noise')\n"
        "def test_b(): assert 1 == 2\n"
        "def test_c(): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "@pytest.mark.skip\ndef test_d(): pass\n"
        "def test_e(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "gpu.pytest_rows"]
    command += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--rootdir", str(tmp_path), str(tmp_path)]
    part = process.run_rows("tests", command, 100.0)
    assert [(row.name, row.state) for row in part.rows] == [
        ("test_some.py::test_b", "failed"),
        ("test_some.py::test_c", "failed"),
        ("test_some.py", "passed"),
    ]
    assert "assert 1 == 2" in part.rows[0].note and "SIGSEGV" in part.rows[1].note
    assert part.rows[2].note == "1 skipped, 1 passed"  # after the crash; what came before it has no summary


# --- tools that may be missing or refuse


def tool(folder: pathlib.Path, text: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def says(*messages: dict[str, Any]) -> str:
    return "\n".join(f"echo '{process.MARK}{json.dumps(message)}'" for message in messages)


def row(name: str, state: str = "passed") -> dict[str, Any]:
    return {"row": {"name": name, "state": state, "note": "", "data": None}}


def test_a_sanitizer_that_is_missing_or_refuses_is_no_failure(tmp_path: pathlib.Path) -> None:
    part = sanitizer.sanitizer("", 30.0)
    assert {(each.name, each.state) for each in part.rows} == {(name, "missing") for name in sanitizer.CHECKS}
    assert part.state == "skipped" and "3 missing" in part.summary
    refusal = tool(tmp_path, "echo '========= Error: Device not supported'; exit 1")
    part = sanitizer.sanitizer(refusal, 30.0)
    assert part.state == "skipped" and [each.state for each in part.rows] == ["refused"] * 3
    assert "exit status 1: Error: Device not supported" in part.rows[0].note


def test_a_sanitizer_that_hangs_leaves_time_for_the_others(tmp_path: pathlib.Path) -> None:
    hang = says({"total": 2}, row("ready")) + "\nsleep 60"
    part = sanitizer.sanitizer(tool(tmp_path, hang), 4.0)
    assert part.seconds < 15 and [each.state for each in part.rows] == ["not reached"] * 3


OURS = "=========     at void zb::nap::pack_rows<float>(const float *, long)+0x120"
FRAME = "=========         Host Frame: zb::nap::pack(at::Tensor const&)+0x40 [0x1a] in _C_cuda.so"
TORCHS = "=========     at void at::native::fill<float>(int)+0x10"


@pytest.mark.parametrize(
    ("lines", "state", "text"),
    [
        (["========= COMPUTE-SANITIZER"], "passed", "no fault in 2 ops"),
        (
            ["========= Invalid __global__ read of size 4 bytes", OURS, FRAME],
            "failed",
            "1 places in our kernels",
        ),
        (["========= Uninitialized __global__ memory read", TORCHS, FRAME], "passed", "no fault in 2 ops"),
        (
            ["========= Error: Race reported between Write access at _ZN2zb3nap4packEv+0xf0 in a.cu:1", OURS],
            "failed",
            "2 places",
        ),
    ],
)
def test_faults_count_where_they_are_ours(lines: list[str], state: str, text: str) -> None:
    messages = [row("ready"), row("nap_pack float32"), row("linear_relu float32"), {"end": True}]
    judged = sanitizer.judge("memcheck", process.Output(0, messages, lines, 1.0))
    assert judged.state == state and text in judged.note


def test_a_program_that_fails_under_the_sanitizer_fails_the_row() -> None:
    messages = [row("ready"), row("nap_pack float32", "failed"), {"end": True}]
    assert sanitizer.judge("memcheck", process.Output(1, messages, [], 1.0)).state == "failed"
    messages = [
        row("ready"),
        {"start": 1, "name": "nap_pack float32", "optional": False, "limit": 9, "at": 0},
    ]
    crashed = sanitizer.judge("memcheck", process.Output(-11, messages, ["the last words"], 1.0))
    assert crashed.state == "failed" and "SIGSEGV at nap_pack float32: the last words" in crashed.note


NCU = [
    "==PROF== Connected to process 1",
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
    '"0","void zb::nap::(anonymous namespace)::pack<float>(const float *)","gpu__time_duration.sum","ns","1,234"',
    '"0","void zb::nap::(anonymous namespace)::pack<float>(const float *)","launch__registers_per_thread","","32"',
    '"0","void zb::nap::(anonymous namespace)::pack<float>(const float *)",'
    '"sm__throughput.avg.pct_of_peak_sustained_elapsed","%","12.5"',
    '"1","void zb::linear_relu::tiles<float>(int)","gpu__time_duration.sum","ns","n/a"',
    "==PROF== Disconnected",
]


def test_a_profiler_gives_a_row_a_kernel_or_a_reason(tmp_path: pathlib.Path) -> None:
    (measured,) = profiler.judge(process.Output(0, [row("ready")], NCU, 1.0))
    assert measured.name == "zb::nap::<unnamed>::pack<float>"
    assert measured.note == "1.2 us, 12% of the multiprocessors, 32 registers"
    refusal = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU counters"
    refused = profiler.profiler(tool(tmp_path, f"echo '{refusal}'; exit 1"), 20.0)
    assert refused.state == "skipped" and "ERR_NVGPUCTRPERM" in refused.rows[0].note
    missing = profiler.profiler("", 20.0)
    assert (missing.state, missing.rows[0].state) == ("skipped", "missing")
    nothing = profiler.judge(process.Output(0, [row("ready"), {"end": True}], [], 1.0))
    assert nothing[0].state == "not reached"


def test_packages_that_are_missing_are_rows() -> None:
    found = {**FOUND, "missing": ["pytest", "triton"]}
    machine = parts.Machine(found, pathlib.Path())
    for run, name in ((parts.tests_part, "pytest"), (parts.triton_part, "triton")):
        part = run(machine, 30.0)
        assert part.state == "skipped" and part.rows[0].note == f"{name} is not installed"


# --- the whole


def with_parts(monkeypatch: pytest.MonkeyPatch, **runs: Any) -> None:
    specs = {name: parts.Spec(run, 30, 1, name) for name, run in runs.items()}
    for module in (check, parts):
        monkeypatch.setattr(module, "PARTS", specs)
    monkeypatch.setattr(check, "probe", lambda: FOUND)


def test_a_part_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: Any, faulty: list[str]
) -> None:
    kept: list[list[str]] = []

    def broken(machine: parts.Machine, limit: float) -> process.Part:
        raise KeyError("a slip in the check")

    def last(machine: parts.Machine, limit: float) -> process.Part:
        kept.append(sorted(os.listdir(tmp_path / "out")))
        assert limit <= 30
        return dataclasses.replace(MADE_UP_PARTS[1], name="last")

    with_parts(
        monkeypatch,
        broken=broken,
        crashing=lambda machine, limit: process.run_rows("crashing", faulty, limit),
        last=last,
    )
    assert check.main(["--out", str(tmp_path / "out"), "--budget", "60"]) == 1
    assert kept == [
        ["gpu-check-made-up-card.json", "gpu-check-made-up-card.md"]
    ]  # already, after the parts before
    found, again = report.read(tmp_path / "out" / "gpu-check-made-up-card.json")
    assert found == FOUND
    assert [(part.name, part.state) for part in again] == [
        ("broken", "failed"),
        ("crashing", "failed"),
        ("last", "passed"),
    ]
    page = (tmp_path / "out" / "gpu-check-made-up-card.md").read_text()
    assert "# GPU check: Made-up Card" in page and "KeyError: 'a slip in the check'" in page
    said = capsys.readouterr().out
    table = said[said.index("row ") :]  # the short table is last
    assert table.index("conv forward made-up") < table.index("crashing") < table.index("s in all")


def test_only_runs_the_parts_named(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    ran = []

    def part(name: str) -> Any:
        return lambda machine, limit: ran.append((name, limit)) or process.Part(name, "passed", "")

    with_parts(monkeypatch, one=part("one"), two=part("two"), three=part("three"))
    assert check.main(["--only", "three", "one", "--out", str(tmp_path), "--budget", "200"]) == 0
    assert [name for name, _ in ran] == ["one", "three"]
    assert all(99 < limit <= 100 for _, limit in ran)  # a share of the budget each, where few are run
    assert check.main(["--only", "one", "two", "--out", str(tmp_path), "--budget", "3"]) == 0
    assert len(ran) == 2  # the budget was spent


def test_each_part_leaves_time_for_those_after_it() -> None:
    names = list(parts.PARTS)
    left = 290.0
    for name in names:  # the worst case: every part takes all that it may
        limit = parts.limit_of(name, names, left, 290.0)
        assert limit >= parts.PARTS[name].kept, name
        left -= limit
    assert left >= 0


def test_a_library_that_holds_the_cards_code_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(process, "ROOT", tmp_path)
    (tmp_path / "zbkernels").mkdir()
    library = tmp_path / "zbkernels" / "_C_cuda.so"
    part = build.build(FOUND, tmp_path, 5.0, rebuild=False)
    assert part.state == "failed" and part.summary.startswith(
        "no nvcc here, and no library was brought along"
    )
    library.write_bytes(b'\x7fELF..zbkernels-build-info:{"cuda_archs": "80-real;90a-real"}\0..')
    part = build.build(FOUND, tmp_path, 5.0, rebuild=False)
    assert part.state == "skipped" and "80-real, 90a-real" in part.summary
    library.write_bytes(b'\x7fELF..zbkernels-build-info:{"cuda_archs": "80-real"}\0..')
    part = build.build(FOUND, tmp_path, 5.0, rebuild=False)
    assert part.state == "failed" and "code for 80-real only" in part.summary and "90a-real" in part.summary
    found = {**FOUND, "tools": {"nvcc": "/usr/bin/nvcc"}, "missing": ["pybind11"]}
    (tmp_path / "setup.py").write_text(
        "import os, pybind11\nprint(os.environ['ZBKERNELS_CUDA_ARCHS'], pybind11.get_include())"
    )
    part = build.build(found, tmp_path, 60.0, rebuild=False)
    assert part.state == "passed" and "90a-real" in part.tail and "torch" in part.tail


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("90a-real", "9.0", True),
        ("90a-real", "10.0", False),
        ("80-real", "8.6", True),
        ("86-real", "8.0", False),
        ("80-real", "9.0", False),
        ("80-virtual", "12.0", True),
        ("80", "9.0", True),
        ("100-real", "10.3", True),
        ("native", "9.0", False),
    ],
)
def test_which_card_runs_what_code(name: str, capability: str, runs: bool) -> None:
    assert build.runs_on(name, capability) is runs


# --- the checks find faults


def test_samples_find_a_planted_fault() -> None:
    op = OPS["nap_pack"]
    sample = next(sample for sample in op.samples("cpu", torch.float32) if sample.label == "70 units")
    assert samples.check(op, sample, torch.float32, "reference") == ""
    right = zb.nap_pack

    def flipped(x: torch.Tensor) -> torch.Tensor:
        return right(x) ^ (x.dtype == torch.float32)  # wrong on the backend under test alone

    broken = dataclasses.replace(op, public=flipped)
    assert samples.check(broken, sample, torch.float32, "reference") == "10 of 10 values differ"
    with pytest.raises(AssertionError, match=r"samples differ: .*70 units: 10 of 10 values differ"):
        samples.all_samples(broken, torch.float32, "cpu", "reference", False)
    note, _ = samples.all_samples(op, torch.float32, "cpu", "reference", False, time.monotonic())
    assert note.startswith("1 samples, ") and note.endswith(" not reached in time")
    with pytest.raises(rows.Skip, match="tensors are on cpu"):
        samples.all_samples(op, torch.float32, "cpu", "cuda", True)


def test_samples_keep_strides_and_special_values() -> None:
    base = torch.tensor([9.0, 0.3, float("nan"), -float("inf"), -100.0, 1.2])
    made = samples.whole_numbers(base[1:].as_strided((2, 2), (0, 2)))
    assert made.stride() == (0, 2) and made.storage_offset() == 1
    assert made[0, 0] == 1.0 and made[0, 1] == -float("inf")
    assert base[1] == pytest.approx(0.3)  # the sample itself is left alone
    near = samples.compare(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]).double(), torch.float32, 1e-6)
    assert near == "1 of 2 values differ"
    nan = torch.tensor([float("nan")])
    assert samples.compare(nan, nan.double(), torch.float32, 1e-6) == ""


class NotCaptured(card.Rehearsal):
    """As if the kernel had gone to another stream than the one that was captured: a replay does nothing."""

    def capture(self, call: Any) -> Any:
        return (lambda: None), call()


def test_the_checks_of_graphs_waiting_and_devices_find_what_they_are_for() -> None:
    stand_in = card.Rehearsal()
    good = next(call for call in calls.calls("cpu") if call.name == "conv_relu_pool2d")
    right = good.run(*good.inputs)
    ran: list[torch.Tensor] = []

    def waiting(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stand_in.wait()
        return good.run(x, w)

    def drifting(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ran.append(x)
        return (right[0] + len(ran),)

    with pytest.raises(AssertionError, match=r"output 0: .* values differ"):
        robust.graph_16(NotCaptured(), good)
    with pytest.raises(AssertionError, match="the call waited for the device"):
        robust.no_waiting(stand_in, dataclasses.replace(good, run=waiting))
    for check_of in (robust.other_card, robust.threads_16, robust.two_streams_16, robust.side_stream_16):
        with pytest.raises(AssertionError, match=r"output 0: .* values differ"):
            check_of(stand_in, dataclasses.replace(good, run=drifting))
    with pytest.raises(AssertionError, match="was not refused"):
        robust.mixed_devices(stand_in, dataclasses.replace(good, run=lambda x, w: right))


def test_models_that_part_are_found() -> None:
    found = models.forms("fcn-mnist", "cpu", None, compiled=False)
    data = models.batches(4, 8, models.IMAGE, "cpu")
    models.together(found, data, 0.02)
    with torch.no_grad():
        next(found[0].model.parameters()).mul_(1.5)
    with pytest.raises(AssertionError, match="losses apart by"):
        models.together(found, data, 0.02)


def test_a_report_names_no_folder_of_its_user(tmp_path: pathlib.Path) -> None:
    tail = f"File {ROOT}/bench/gpu/load.py, {sys.prefix}/lib, {os.path.expanduser('~')}/x"
    part = process.Part("load", "failed", tail, tail=tail)
    report.write(tmp_path, "paths", FOUND, [part])
    for ending in ("json", "md"):
        text = (tmp_path / f"paths.{ending}").read_text()
        assert "File ./bench/gpu/load.py" in text
        assert all(place not in text for place in (str(ROOT), sys.prefix, os.path.expanduser("~")))


def test_names_that_torch_does_not_have_are_found() -> None:
    assert rehearse.unknown_names("import torch\ntorch.cuda.synchronize()\nx.torch.y") == []
    assert rehearse.unknown_names("import torch\ntorch.cuda.syncronize()") == ["torch.cuda.syncronize"]
    assert rehearse.unknown_names("import zbkernels as zb\nzb.nap_pac(x)") == ["zb.nap_pac"]


# --- what the tables say


def test_ratios_are_over_ours_in_the_competitors_layout() -> None:
    line = report.bench_lines(MADE_UP_PARTS)[0]
    assert (line.ms, line.kernel) == (2.0, "cuda: b")
    assert line.ratios == {"eager CL": 1.5}
    assert line.of_ceiling == pytest.approx(0.75)  # 0.5 was that of `ours`, which takes 3 ms
    bench = MADE_UP_PARTS[1].rows[0].data["bench"]
    compiled = {
        **bench,
        "times": {**bench["times"], "compile CL": {**bench["times"]["ours"], "median_ms": 1.0}},
    }
    later = process.Part(
        "speed", "passed", "", rows=[process.Row("again", "passed", "", {"bench": compiled})]
    )
    (line,) = report.bench_lines([*MADE_UP_PARTS, later])
    assert line.ratios == {"eager CL": 1.5, "compile CL": 0.5}  # the row with torch.compile stands for both


def test_backends_stand_beside_each_other() -> None:
    (line,) = report.bench_lines(MADE_UP_PARTS)
    assert line.backends == {"cuda": 3.0, "triton": 2.0}
    header, (cells,) = report.bench_cells(MADE_UP_PARTS)
    shown = dict(zip(header, cells, strict=True))
    assert (shown["cuda, ms"], shown["triton, ms"], shown["cuda / triton"]) == ("3", "2", "1.50")


def bench_part(*changes: dict[str, Any]) -> process.Part:
    bench = MADE_UP_PARTS[1].rows[0].data["bench"]
    made = [process.Row("made up", "passed", "", {"bench": {**bench, **change}}) for change in changes]
    return process.Part("speed", "passed", "", rows=made)


def test_the_table_of_choices_is_what_the_package_reads(tmp_path: pathlib.Path) -> None:
    case = next(case for case in speed.chosen_cases() if case.name == "fcn1")
    cpu_card = Card(FOUND["card"]["name"], FOUND["card"]["capability"])
    times = MADE_UP_PARTS[1].rows[0].data["bench"]["times"]
    bench = {"op": case.op, "shape_class": class_of(case), "suite": "linear"}
    twice = {"ours (cuda)": {"median_ms": 12.0}, "ours (triton)": {"median_ms": 2.0}}
    part = bench_part(
        {**bench, "name": "a", "times": times},
        {**bench, "name": "b", "times": {**times, **twice}},
        {**bench, "name": "c", "shape_class": "cuda alone", "times": {"ours (cuda)": times["ours"]}},
    )
    path = choices.write(tmp_path, FOUND, [part])
    assert path is not None and path.name == f"choices-{cpu_card.slug}.json"
    table = _choice.load(path, cpu_card)
    assert table is not None
    assert table.rows == {("linear_relu", "float32", class_of(case)): {"cuda": 6.0, "triton": 2.0}}
    assert OPS[case.op].shape_class(torch.empty(512, 784), torch.empty(256, 784)) == class_of(case)
    assert choices.write(tmp_path, FOUND, [process.Part("ops", "passed", "")]) is None


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090 / Ti", "A100-SXM4"])
def test_a_card_has_one_slug(name: str) -> None:
    assert choices.slug(name, "9.0") == Card(name, "9.0").slug


def test_every_row_of_the_card_is_in_the_suites() -> None:
    cases = speed.chosen_cases()
    names = {(case.suite, case.mode, case.name) for case in cases}
    assert len(names) == len(cases) and set(speed.COMPILED) <= names
    assert {case.dtype for case in cases} == {"float32", "float16", "bfloat16", "int64"}
    assert {case.name for case in cases if getattr(case, "n", 0) == 512 and case.suite == "conv"} >= set(
        speed.FILLING
    )
