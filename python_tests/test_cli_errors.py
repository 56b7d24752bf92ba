"""Every error of `zb` is one line on stderr with the mend, and a fitting exit code; --debug has the trace."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_folders import finished, told
from typer.testing import CliRunner, Result

from zbkernels import files
from zbkernels.cli import app

pytestmark = pytest.mark.usefixtures("one_thread")


def zb(*arguments: object) -> Result:
    environment = {"ZBKERNELS_DATA": None, "COLUMNS": "80"}
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment, prog_name="zb")


def one_line(result: Result, code: int = 1) -> str:
    """The message of a command that failed as it should: one line, on stderr alone."""
    assert result.exit_code == code, (result.exit_code, result.output)
    assert result.stderr.startswith("zb: ") and result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("rnu", "did you mean 'run'? see `zb --help`"),
        ("run", "missing argument 'name'; see `zb run --help`"),
        ("run table1-mnist --prset quick", "--preset"),
        ("run table1-mnist --preset", "requires an argument"),
        ("run table1-mnist extra", "(extra); see `zb run --help`"),
        ("time table1-mnist --seed x", "'--seed': "),
        ("time table1-mnist --seed -1", "'--seed': "),
        ("demo --seed 1.5", "'--seed': "),
        ("tune --budget soon", "'--budget': "),
        ("run table1-mnist --preset smoke --seeds 0,x", "'--seeds': expected whole numbers"),
        ("nap certify m digits --pick x", "'--pick': expected image numbers"),
        ("nap", ""),
        ("nap recrod", "did you mean 'record'? see `zb nap --help`"),
        ("nap record model digits", "missing option '--out'; see `zb nap record --help`"),
        ("nap record m digits --out o --batch 0", "'--batch': "),
        ("check-invariance resnet9 --count 0", "'--count': "),
        ("list --all", "no such option: --all; see `zb list --help`"),
        ("bench --suite nothing", "--suite: invalid choice: 'nothing'"),
        ("bench --threads many", "--threads: invalid int value: 'many'; see `zb bench --help`"),
        ("bench --suite conv --shapes nothing", "nothing"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(
    line: str, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = zb(*line.split())
    if not wanted:  # a group alone shows its help
        assert result.exit_code == 2 and "certify" in result.output
        return
    said = one_line(
        result, 2
    ).lower()  # the words around a name are the parser's, which change with its release
    assert (wanted in said and "--help`" in said) or line.endswith("--shapes nothing")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("run tabel1-mnist", "did you mean table1-mnist"),
        ("run zzz", "known: table1-mnist"),
        ("run table1-mnist --preset papper", "did you mean paper? it has smoke, quick, paper"),
        ("run table1-mnist --preset smoke --device tpu", "expected auto, cpu or cuda[:index]"),
        ("run table1-mnist --preset smoke --device cuda:99", "CUDA devices"),
        ("run table1-mnist --preset smoke --seeds 1,1", "expected different seeds"),
        ("run table1-mnist --preset smoke --variant none", "it has with-bias, without-bias"),
        ("run table1-mnist --preset smoke --form new", "known: fused, plain"),
        ("run table1-mnist --preset smoke --precision int8", "known: float32, bfloat16"),
        ("run table1-mnist --preset smoke --engine cloud", "known: in-process, ray"),
        ("run table1-mnist --preset smoke --address here", "expected with --engine ray"),
        ("run table1-mnist --preset smoke --checkpoint x", "takes no --checkpoint; zero-image does"),
        ("run table1-mnist", "pass --data DIR or set ZBKERNELS_DATA"),
        ("run table1-mnist --data nowhere", "nowhere"),
        ("run table1-mnist --preset smoke --out FILE", "a file stands where a folder is needed"),
        ("time tabel1-mnist", "did you mean table1-mnist"),
        ("time regions", "one form only"),
        ("report nowhere", "no such folder"),
        ("report FILE", "a file, expected a folder"),
        ("report EMPTY", "no finished run"),
        ("demo --out FILE", "a file stands where a folder is needed"),
        ("tune nothing", "unknown op nothing"),
        ("nap record nowhere digits --out o", "nowhere"),
        ("nap record FILE digits --out o", "FILE"),
        ("nap record EMPTY digits --out o", "no model.safetensors"),
        ("nap record torch.nn:Flatten nothing.npy --out o", "there is no such file"),
        ("nap record torch.nn:Flatten digits:both --out o", "expected digits:train or digits:test"),
        ("nap stats nowhere", "nowhere"),
        ("nap stats FILE", "FILE"),
        ("nap stats EMPTY", "EMPTY"),
        ("nap nearest nowhere FILE digits", "nowhere"),
        ("nap certify FILE digits", "FILE"),
        ("nap certify torch.nn:Flatten digits --pick 9999999", "9999999"),
        ("nap record layers.pt mnist:train --out o", "layers.pt: expected a trained network's folder"),
        ("nap certify layers.pt mnist", "layers.pt: expected a trained network's folder"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_1(
    line: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("not what is expected")
    Path("EMPTY").mkdir()
    result = zb(*line.split())
    if line.startswith("tune") and "CUDA" in result.stderr:
        wanted = "CUDA"
    assert wanted in one_line(result)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("nothing", "nothing"),
        ("resnet9 --shape 3,x", "3,x"),
        ("resnet9 --shape 3,32,32 --scalars 1,y", "1,y"),
        ("resnet9 --shape 3,32,32 --dtype int7", "int7"),
        ("resnet9 --images nowhere.npy", "no such file"),
    ],
)
def test_what_cannot_be_told_of_invariance_is_one_line_and_2(line: str, wanted: str) -> None:
    assert wanted in one_line(zb("check-invariance", *line.split()), 2)


def _raising(error: BaseException) -> Callable[..., None]:
    def replaced(*arguments: object, **options: object) -> None:
        raise error

    return replaced


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "x/table.md"),
            "x/table.md: No space left on device; free",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "x"),
            "x: Permission denied; change its permissions",
        ),
        (OSError(errno.EROFS, "Read-only file system", "x"), "x: Read-only file system; choose an --out"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
            "x: No such file or directory; check",
        ),
        (OSError("a message\nof its own"), "a message of its own"),
        (MemoryError(), "out of memory; a smaller batch"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory (CUDA out of memory. Tried",
        ),
        (
            ModuleNotFoundError("No module named 'ray'", name="ray"),
            "ray is not installed: pip install 'zbkernels[ray]'",
        ),
    ],
)
def test_the_systems_errors_have_their_mend(
    error: Exception, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "run")
    monkeypatch.setattr("zbkernels.reporting.command.write_page", _raising(error))
    assert wanted in one_line(zb("report", run))


def test_a_full_disk_is_one_line_and_leaves_no_half_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "run")
    (run / "report.html").write_text("the page from before")
    monkeypatch.setattr(files.os, "fsync", _raising(OSError(errno.ENOSPC, "No space left on device")))
    assert f"{run / 'report.html'}: No space left on device; free some space" in one_line(
        zb("report", run, "--no-redraw")
    )
    assert (run / "report.html").read_text() == "the page from before"
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json",
        "figure.png",
        "metrics.json",
        "report.html",
    ]


def test_a_fault_of_ours_is_one_line_too_and_the_trace_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    run = finished(tmp_path / "run")
    monkeypatch.setattr("zbkernels.reporting.command.write_page", _raising(ZeroDivisionError("by\nnothing")))
    said = one_line(zb("report", run), 70)
    assert "ZeroDivisionError in command.py:" in said and "`zb --debug ...` shows the trace" in said
    shown = zb("--debug", "report", run)
    assert shown.exit_code == 70 and "Traceback" in shown.stderr and said.splitlines()[0] in shown.stderr
    one_line(zb("report", run), 70)  # --debug holds for its own call


def test_debug_shows_the_trace_of_a_users_error_with_the_same_code() -> None:
    shown = zb("--debug", "report", "nowhere")
    assert shown.exit_code == 1 and "Traceback" in shown.stderr
    assert shown.stderr.endswith("zb: nowhere: no such folder\n")


@pytest.mark.parametrize("line", ["list", "--help", "run --help", "check-invariance fcn-mnist", "report RUN"])
def test_a_reader_that_has_gone_is_141(line: str, tmp_path: Path) -> None:
    """As with `zb list | true`: tables and help, which rich prints, and plain text."""
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN/config.json").write_text('{"settings": {}}')
    read, write = os.pipe()
    os.close(read)
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "zbkernels", *line.split()]
    try:
        done = subprocess.run(
            command,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_every_console_leaves_a_reader_that_has_gone_to_the_command() -> None:
    """Rich's own console ends the process."""
    package = Path(files.__file__).parent
    makes = re.compile(r"from rich\.console import .*\bConsole\b|(?<!\.)\brich\.console\.Console\(\S")
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"(?<![\w.])Console\(", text.replace("class Console(", "")):
            assert "from zbkernels.console import Console" in text and not makes.search(text), path


def test_ctrl_c_while_python_runs_text_is_130_too(tmp_path: Path) -> None:
    """As in an import that makes a dataclass: Python would end the process by the signal."""
    (tmp_path / "stopped.py").write_text(
        "import sys\nfrom zbkernels import stopping\n"
        "try:\n    exec('raise KeyboardInterrupt')\n"
        "except KeyboardInterrupt as stop:\n    sys.exit(stopping.exit_code(stop))\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run([sys.executable, "-m", "stopped"], env={**os.environ, "PYTHONPATH": path})
    assert ran.returncode == 130


def test_ctrl_c_is_one_line_and_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zbkernels", "run", "table1-mnist", "--preset", "smoke", "--seeds"]
    command += [",".join(map(str, range(40))), "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "ZBKERNELS_DATA": ""}
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a suite in the background ignores it
    )
    begun = tmp_path / "table1-mnist-smoke/units"
    deadline = time.monotonic() + 120
    while not begun.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 130, said
    assert said == "zb: stopped; finished epochs are kept, and the same command goes on from there\n"
