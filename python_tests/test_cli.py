"""The command line: what it prints, how it fails (one line, no traceback), and what it imports."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from idx_files import write_idx_set
from rich.console import Console
from typer.testing import CliRunner, Result

from zbkernels import __version__
from zbkernels.cli import app

pytestmark = pytest.mark.usefixtures("one_thread")


def zb(*arguments: str, **environment: str | None) -> Result:
    return CliRunner().invoke(
        app, list(arguments), env={"ZBKERNELS_DATA": None, "COLUMNS": "200", **environment}
    )


def one_line_error(result: Result) -> str:
    """The message of a command that failed as it should."""
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("zb:")]
    assert len(lines) == 1
    assert "Traceback" not in result.output
    return lines[0]


def test_help_and_version() -> None:
    assert zb("--version").output.strip() == __version__
    shown = zb("--help").output
    for command in ("list", "run", "time", "report", "bench", "doctor", "demo"):
        assert command in shown
    assert "--preset" in zb("run", "--help").output


def test_list_names_every_experiment_and_preset() -> None:
    shown = zb("list").output
    for word in ("table1-mnist", "table1-fashion", "smoke", "quick", "paper"):
        assert word in shown


def test_run_then_report(tmp_path: Path) -> None:
    result = zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "| with bias: paper | 88.12 |" in result.output
    folder = tmp_path / "table1-mnist-smoke"
    assert str(folder / "figure.png") in result.output
    again = zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path))
    assert "finished already; --force repeats it" in again.output
    shown = zb("report", str(folder))
    assert shown.exit_code == 0
    assert "| with bias: paper | 88.12 |" in shown.output


def test_time_shows_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    shown = zb("time", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert "fused layers, contiguous: epoch 2/2 in " in shown.output
    assert "| torch.compile of these, contiguous |" in shown.output
    assert [path.name for path in (tmp_path / "table1-mnist-smoke").iterdir()] == ["timing.json"]
    assert "no preset 'long'" in one_line_error(zb("time", "table1-mnist", "--preset", "long"))


def test_errors_are_one_clear_line(tmp_path: Path) -> None:
    assert "did you mean table1-mnist" in one_line_error(zb("run", "tabel1-mnist"))
    assert "pass --data DIR or set ZBKERNELS_DATA" in one_line_error(zb("run", "table1-mnist"))
    message = one_line_error(
        zb("run", "table1-mnist", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    )
    assert "Get the four .gz files from https://" in message
    wrong_line = zb("run", "table1-mnist", "--seeds", "0,x")
    assert wrong_line.exit_code == 2 and "got '0,x'" in wrong_line.output
    assert "has no preset 'big'" in one_line_error(zb("run", "table1-mnist", "--preset", "big"))
    assert "no such folder" in one_line_error(zb("report", str(tmp_path / "nowhere")))
    assert "no finished run" in one_line_error(zb("report", str(tmp_path)))


def test_a_broken_data_file_is_one_line_too(tmp_path: Path) -> None:
    raw = write_idx_set(tmp_path)
    path = raw / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-3])
    message = one_line_error(
        zb("run", "table1-mnist", "--out", str(tmp_path / "out"), ZBKERNELS_DATA=str(tmp_path))
    )
    assert str(path) in message
    assert "truncated" in message


def test_an_output_folder_that_cannot_be_made_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = one_line_error(
        zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path / "file" / "out"))
    )
    assert "Not a directory" in message


def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = one_line_error(zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path)))
    assert "pip install 'zbkernels[experiments]'" in message


def test_an_interrupt_keeps_what_is_done_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zbkernels.experiments.progress import Progress

    def interrupted(self: Progress) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "batch_done", interrupted)
        result = zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "the same command goes on from there" in result.output
    assert zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path)).exit_code == 0


def test_demo_shows_its_tables_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zbkernels import demo

    monkeypatch.setattr(demo, "TRAINING", dataclasses.replace(demo.TRAINING, epochs=8))
    monkeypatch.setattr(
        demo, "_show_speed", lambda console: None
    )  # `pytest bench` measures; it takes its time
    monkeypatch.setattr("zbkernels.cli._console", Console(width=160))
    result = zb("demo", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines()]
    rows = [row for row in cells if len(row) == 4]  # scalar, with bias, without bias, predictions changed
    with_bias, without, changed = ([float(row[column]) for row in rows] for column in (1, 2, 3))
    assert len(rows) == 11
    assert max(without) - min(without) < 0.6  # two images at most
    assert without[0] > 90
    assert with_bias[-1] < 50
    assert max(changed) <= 2
    assert "A black image, without bias: every class has probability 0.100" in result.output
    assert "images share one pattern" in result.output
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from zbkernels.cli import app\n"
        "heavy = {'matplotlib', 'sklearn', 'scipy', 'triton', 'onnxruntime', 'openvino', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_a_killed_run_goes_on_and_ends_like_an_uncut_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from zbkernels.cli import main; main()", "run", "table1-mnist"]
    command += ["--preset", "smoke", "--out"]
    # As many threads as in here: another number may sum in another order.
    killed = subprocess.Popen(
        [*command, str(tmp_path / "killed")],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    checkpoint = tmp_path / "killed/table1-mnist-smoke/units/with-bias-seed0/checkpoint.json"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    def metrics(folder: Path) -> dict:
        result = zb("run", "table1-mnist", "--preset", "smoke", "--out", str(folder))
        assert result.exit_code == 0, result.output
        found = json.loads((folder / "table1-mnist-smoke/metrics.json").read_text())
        for unit in found["units"]:
            del unit["train_seconds"]
            for epoch in unit["epochs"]:
                del epoch["seconds"]
        return found

    assert metrics(tmp_path / "killed") == metrics(tmp_path / "uncut")


def test_output_into_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    zb("run", "table1-mnist", "--preset", "smoke", "--out", str(tmp_path))
    folder = tmp_path / "table1-mnist-smoke"
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-c", "from zbkernels.cli import main; main()", "report", str(folder)]
    process = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert process.stderr == ""


def test_doctor_and_bench_are_reachable() -> None:
    shown = zb("doctor")
    assert shown.exit_code in (0, 1)
    assert "torch" in shown.output
    helped = subprocess.run(
        [sys.executable, "-c", "from zbkernels.cli import main; main()", "bench", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert helped.returncode == 0
    assert "--suite" in helped.stdout
