"""What breaks from outside: kills, signals, full and read-only disks, clocks, two processes at once, flipped bits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import kills
import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from zbkernels import checkpoint as checkpoints
from zbkernels import cli, locks, stopping, tables
from zbkernels.checkpoint import CheckpointError
from zbkernels.cli import app
from zbkernels.experiments import ExperimentError, runner, table1_mnist, units
from zbkernels.experiments.engine import RAY, Engine
from zbkernels.experiments.progress import Progress
from zbkernels.files import replacing, write_json
from zbkernels.nap import NapIndex, Recording, record

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    presets = {**table1_mnist.EXPERIMENT.presets, kills.TINY: kills.PRESET}
    monkeypatch.setattr(
        table1_mnist, "EXPERIMENT", dataclasses.replace(table1_mnist.EXPERIMENT, presets=presets)
    )


def run(out: Path, **options: Any) -> Path:
    options = {"preset": kills.TINY, "progress": Progress(Console(quiet=True)), **options}
    return runner.run("table1-mnist", out=out, **options)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("uncut")
    with pytest.MonkeyPatch.context() as patch:
        presets = {**table1_mnist.EXPERIMENT.presets, kills.TINY: kills.PRESET}
        patch.setattr(
            table1_mnist, "EXPERIMENT", dataclasses.replace(table1_mnist.EXPERIMENT, presets=presets)
        )
        run(out)
    return kills._run_kept(out)


def zb(*arguments: object) -> tuple[int, str]:
    """(exit code, the one line of the error, or "")"""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "500"})
    lines = [line for line in result.output.splitlines() if line.startswith("zb:")]
    assert "Traceback" not in result.output and len(lines) == (result.exit_code != 0), result.output
    return result.exit_code, "".join(lines)


# --- kills and signals --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_kills_at_random_moments_lose_nothing() -> None:
    """A slice of `make faults`, whose counts docs/robustness-faults.md has."""
    command = [sys.executable, str(HERE / "kills.py"), "--kills", "9", "--seed", "3"]
    for job in ("table1-mnist, checkpoints", "recording", "index save"):
        command += ["--job", job]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("9 kills, seed 3: nothing lost")


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, of which nothing is left after the test."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=_environment(), start_new_session=True, **options
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(path: Path, process: subprocess.Popen[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "300"}


_RUN_TINY = """
import signal, sys, kills
signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
kills.add_tiny_preset()
sys.argv = ["zb", "run", "table1-mnist", "--preset", kills.TINY, "--out", sys.argv[1]]
from zbkernels.cli import main
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_with_one_line_and_it_goes_on(
    tmp_path: Path, uncut: dict[str, Any], number: signal.Signals, code: int
) -> None:
    checkpoint = tmp_path / "table1-mnist-tiny/units/with-bias-seed0/checkpoint.json"
    with started(
        [sys.executable, "-c", _RUN_TINY, str(tmp_path)], stderr=subprocess.PIPE, cwd=HERE
    ) as process:
        _wait_for(checkpoint, process, 200)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert said == "zb: stopped; finished epochs are kept, and the same command goes on from there\n"
    run(tmp_path)
    assert kills._run_kept(tmp_path) == uncut


def test_an_interrupt_before_a_command_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stop, code in ((KeyboardInterrupt, 130), (stopping.Terminated, 143)):
        monkeypatch.setattr(stopping, "heed_sigterm", lambda: None)
        monkeypatch.setattr(cli, "app", Mock(side_effect=stop))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code, capsys.readouterr().err) == (code, "zb: stopped\n")
    monkeypatch.undo()
    monkeypatch.setattr("zbkernels.experiments.get", Mock(side_effect=KeyboardInterrupt))
    assert zb("list") == (130, "zb: stopped")  # and while a command imports what it needs


def forked(work: Callable[[], None]) -> int:
    """The id of a process that does the work, of files and signals alone, and ends."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def test_what_killed_writers_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    def half() -> None:
        with replacing(tmp_path / "a.json") as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(half), 0)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a-") and left.read_text() == "half"
    with replacing(tmp_path / "a.json") as mine:  # beside another process's, which lives
        kept = tmp_path / mine.name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
        kept.touch()
        assert not left.exists() and mine.exists()
        mine.write_text("{}")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", kept.name}


# --- disks --------------------------------------------------------------------------------------------------------


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Files that would become longer fail as on a full disk (EFBIG instead of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_that_cannot_be_written_leave_a_run_that_goes_on(tmp_path: Path, uncut: dict[str, Any]) -> None:
    """From nothing at all, over settings, checkpoints and models, to tables and figures."""
    failed = set()
    for size in (0, 100, 600, 3000, 30_000):
        with longest_file(size):
            code, line = zb("run", "table1-mnist", "--preset", kills.TINY, "--out", tmp_path)
        if code:
            assert code == 1 and str(tmp_path) in line and "File too large" in line, line
            failed.add(Path(re.findall(rf"{tmp_path}[\w./-]*", line)[-1]).suffix)
    assert {".json", ".safetensors"} <= failed
    run(tmp_path)
    assert kills._run_kept(tmp_path) == uncut
    assert not list(tmp_path.rglob(".*"))


def test_an_index_and_a_recording_that_cannot_be_written(tmp_path: Path) -> None:
    index = NapIndex(8)
    index.insert(torch.arange(500)[:, None].expand(500, 8).contiguous())
    index.save(tmp_path / "a.zbnap")
    before = (tmp_path / "a.zbnap").read_bytes()
    index.insert(torch.arange(500, 900)[:, None].expand(400, 8).contiguous())
    with longest_file(10_000), pytest.raises(OSError, match=r"File too large.*a\.zbnap"):
        index.save(tmp_path / "a.zbnap")
    assert (tmp_path / "a.zbnap").read_bytes() == before
    model = nn.Sequential(nn.Linear(4, 200), nn.ReLU())
    batches = [torch.randn(50, 4) for _ in range(10)]
    with longest_file(6000), pytest.raises(OSError, match="File too large"):
        record(model, batches, out=tmp_path / "rec", progress=False)
    assert not Recording.load(tmp_path / "rec", verify=True).complete
    again = record(model, batches, out=tmp_path / "rec", progress=False)
    assert torch.equal(again.signatures, record(model, batches, progress=False).signatures)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(tmp_path: Path, uncut: dict[str, Any]) -> None:
    small = tmp_path / "small"
    with mounted(small, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        filler = small / "filler"
        codes = []
        for left in (8_000, 30_000, 60_000):
            room = os.statvfs(small)
            filler.unlink(missing_ok=True)
            filler.write_bytes(b"\1" * max(0, room.f_bsize * room.f_blocks - left - _used(small)))
            code, line = zb("run", "table1-mnist", "--preset", kills.TINY, "--out", small / "out")
            codes.append(code)
            if code:
                assert code == 1 and "No space left on device" in line and str(small / "out") in line, line
        assert codes[0] == 1
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        run(small / "out")
        assert kills._run_kept(small / "out") == uncut


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_folder_that_can_only_be_read(tmp_path: Path) -> None:
    folder = run(tmp_path / "out")
    seen = tmp_path / "seen"
    with mounted(seen, "--bind", str(tmp_path / "out")):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(seen)], check=True)
        finished = ("run", "table1-mnist", "--preset", kills.TINY, "--out", seen)
        assert zb(*finished) == (0, "")  # it is shown: nothing is to be written
        for command in ((*finished, "--seeds", "1"), (*finished, "--force"), ("report", seen / folder.name)):
            code, line = zb(*command)
            assert code == 1 and "Read-only file system" in line and str(seen) in line, line


# --- clocks -------------------------------------------------------------------------------------------------------


def test_clocks_that_jump_change_nothing(
    tmp_path: Path, uncut: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back to 1980 within the run, files from 2100, and forward before it goes on."""
    now = [315_532_800.0]

    def jumping() -> float:
        now[0] = 315_532_800.0 if now[0] > 4e9 else 4.2e9
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    progress = Progress(Console(quiet=True))
    progress.batch_done = _interrupt_at(10)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=progress)
    for path in tmp_path.rglob("*"):
        os.utime(path, (4.2e9, 4.2e9))
    run(tmp_path)
    found = kills._run_kept(tmp_path)
    assert found == uncut
    metrics = json.loads((tmp_path / "table1-mnist-tiny/metrics.json").read_text())
    assert all(0 < epoch["seconds"] < 1000 for unit in metrics["units"] for epoch in unit["epochs"])


def _interrupt_at(batch: int) -> Any:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if done == batch:
            raise KeyboardInterrupt

    return step


def test_nothing_goes_by_the_wall_clock() -> None:
    """Durations come from clocks that never jump; nothing asks how old a file is."""
    wall = re.compile(r"time\.time\(|datetime\.now\(\)|st_[mca]time|getmtime|from time import time\b")
    package = HERE.parent / "zbkernels"
    found = [str(path) for path in package.rglob("*.py") if wall.search(path.read_text(encoding="utf-8"))]
    assert found == []


# --- two at once --------------------------------------------------------------------------------------------------


@contextmanager
def holding(lock: Path) -> Iterator[int]:
    """Another process holds the lock, and is killed in the end."""
    ready, held = os.pipe()

    def hold() -> None:
        with locks.locked(lock):
            os.write(held, b"1")
            signal.pause()

    child = forked(hold)
    assert os.read(ready, 1) == b"1"
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(held)


def test_a_second_run_in_one_folder_is_refused_with_the_firsts_process(
    tmp_path: Path, uncut: dict[str, Any]
) -> None:
    folder = tmp_path / "table1-mnist-tiny"
    command = ("run", "table1-mnist", "--preset", kills.TINY, "--out", tmp_path)
    with holding(folder / "lock") as holder:
        code, line = zb(*command)
        assert code == 1
        assert f"{folder}: another run is going on there (process {holder} on " in line
        assert "wait for it to end, or use another --out" in line
        assert zb(*command, "--force")[0] == 1  # nor is what it writes thrown away
        assert sorted(path.name for path in folder.iterdir()) == ["lock"]
    assert (folder / "lock").exists()  # it was killed: the file is left, and no longer a lock
    run(tmp_path)
    assert kills._run_kept(tmp_path) == uncut
    assert not (folder / "lock").exists()


def test_a_unit_and_a_recording_name_the_process_too(tmp_path: Path) -> None:
    with holding(tmp_path / "u/lock") as holder:
        with (
            pytest.raises(ExperimentError, match=rf"working on this unit \(process {holder} on "),
            units.locked(tmp_path / "u"),
        ):
            raise AssertionError("locked twice")
        with pytest.raises(Exception, match=rf"recording there \(process {holder} on "):
            record(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [torch.zeros(1, 2)], out=tmp_path / "u")


def test_a_file_that_is_no_lock_holds_nobody_up(tmp_path: Path) -> None:
    for text in ("process 1 on nowhere\n", "\x1b[31m" * 100, ""):
        (tmp_path / "lock").write_text(text)
        with locks.locked(tmp_path / "lock"):
            assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
        assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("wait", [False, True])
def test_many_who_want_one_lock_have_it_one_after_another(tmp_path: Path, wait: bool) -> None:
    """The file goes with its holder, so that who opened it before must look again."""

    def often() -> None:
        had = 0
        while had < 100:
            try:
                with locks.locked(tmp_path / "lock", wait=wait):
                    (tmp_path / "inside").mkdir()
                    (tmp_path / "inside").rmdir()
                    had += 1
            except locks.Busy:
                time.sleep(0.0002)
        (tmp_path / f"done-{os.getpid()}").touch()

    several = [forked(often) for _ in range(3)]
    for process in several:
        os.waitpid(process, 0)
    assert {path.name for path in tmp_path.iterdir()} == {f"done-{process}" for process in several}


def test_a_tables_lock_is_waited_for_and_needs_no_room(tmp_path: Path) -> None:
    table = tmp_path / "deep/a.json"
    with holding(tmp_path / "deep/a.json.lock") as holder:
        had, said = os.pipe()

        def want() -> None:
            with tables.locked(table):
                os.write(said, b"1")

        child = forked(want)
        assert select.select([had], [], [], 0.2) == ([], [], [])
        os.kill(holder, signal.SIGKILL)
        assert os.read(had, 1) == b"1"
        os.waitpid(child, 0)
    with longest_file(0), tables.locked(table):  # as where a full disk is to be cleared
        pass
    assert (tmp_path / "deep/a.json.lock").exists()
    os.close(had)
    os.close(said)


# --- flipped bits -------------------------------------------------------------------------------------------------


def _checkpointed(folder: Path, epochs: int) -> list[torch.Tensor]:
    torch.manual_seed(epochs)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, epochs + 1):
        model(torch.randn(3, 6)).sum().backward()
        optimizer.step()
        checkpoints.save(
            folder, step=step, model=model, optimizer=optimizer, rng={}, meta={"history": [step] * step}
        )
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("file", ["checkpoint.json", "epoch-0002.safetensors"])
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_found(tmp_path: Path, file: str) -> None:
    """Then the one before is taken, and that is said; where it is the only one, the run is refused."""
    for epochs in (2, 1):
        folder = tmp_path / str(epochs)
        weights = _checkpointed(folder, epochs)
        path = folder / file.replace("0002", f"{epochs:04d}")
        good = path.read_bytes()
        told = 0
        for place in range(0, len(good), 2):
            bad = bytearray(good)
            bad[place] ^= 1 << (place * 5) % 8
            path.write_bytes(bytes(bad))
            try:
                found = checkpoints.load(folder)
            except CheckpointError as error:
                assert epochs == 1 and str(path if path.suffix == ".json" else path.name) in str(error)
                assert "--force" in str(error)
                told += 1
                continue
            assert found is not None
            if found.damage is not None:
                assert epochs == 2 and len(found.meta["meta"]["history"]) == 1
                assert str(folder / "checkpoint.json") in found.damage
                told += 1
                continue
            # White space, or a bit that does not count: then everything is what was saved.
            for saved, name in zip(weights, ("model.weight", "model.bias"), strict=True):
                assert torch.equal(found.tensors[name], saved)
            assert found.meta["meta"]["history"] == [*range(epochs, epochs + 1)] * epochs
        assert told > 0.4 * len(good)


def _save(folder: Path, step: int) -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(step)
    optimizer = torch.optim.SGD(model.parameters())
    checkpoints.save(folder, step=step, model=model, optimizer=optimizer, rng={}, meta={"step": step})


def _loaded(folder: Path) -> tuple[int, bool]:
    """(the step that is loaded, whether the last was damaged)"""
    found = checkpoints.load(folder)
    assert found is not None
    step = found.meta["meta"]["step"]
    assert torch.equal(found.tensors["model.weight"], torch.full((2, 2), float(step)))
    return step, found.damage is not None


def _index_damaged(folder: Path, step: int) -> None:
    (folder / "checkpoint.json").write_text("{")


def _index_gone(folder: Path, step: int) -> None:
    (folder / "checkpoint.json").unlink()


def _tensors_damaged(folder: Path, step: int) -> None:
    (folder / f"epoch-{step:04d}.safetensors").write_bytes(b"no tensors")


@pytest.mark.parametrize("damage", [_index_damaged, _index_gone, _tensors_damaged])
@pytest.mark.parametrize("then", [2, 3])  # the epoch is trained again, or had gone on in memory
def test_damage_takes_no_checkpoint_but_its_own(
    tmp_path: Path, damage: Callable[[Path, int], None], then: int
) -> None:
    """What is loaded after it, and what is kept by the next save, which may be damaged in turn."""
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    damage(tmp_path, 2)
    assert _loaded(tmp_path) == (1, True)
    _save(tmp_path, then)
    assert _loaded(tmp_path) == (then, False)
    if (
        damage is _tensors_damaged and then == 3
    ):  # its index is whole: that it is worth nothing is not looked at
        return
    damage(tmp_path, then)
    assert _loaded(tmp_path) == (1, True)
    (tmp_path / "epoch-0001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: the checkpoint cannot be read .*--force"):
        checkpoints.load(tmp_path)


def test_a_removed_checkpoint_is_none_however_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink
    for allowed in range(5):
        folder = tmp_path / str(allowed)
        _save(folder, 1)
        _save(folder, 2)
        left = allowed

        def counted(path: Path, missing_ok: bool = False) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", counted)
            with contextlib.suppress(KeyboardInterrupt):
                checkpoints.remove(folder)
        if allowed < 2:
            assert _loaded(folder) == (2, False)
        else:
            assert checkpoints.load(folder) is None
    assert not list(folder.iterdir())


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, uncut: dict[str, Any]
) -> None:
    progress = Progress(Console(quiet=True))
    progress.batch_done = _interrupt_at(10)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=progress)
    (unit,) = (tmp_path / "table1-mnist-tiny/units").iterdir()
    newest = sorted(unit.glob("epoch-*.safetensors"))[-1]
    data = bytearray(newest.read_bytes())
    data[-100] ^= 4
    newest.write_bytes(bytes(data))
    said: list[str] = []
    progress = Progress(Console(quiet=True))
    progress.say = said.append  # type: ignore[method-assign]
    run(tmp_path, progress=progress)
    assert any("the file is damaged); going on from the one before" in line for line in said)
    assert kills._run_kept(tmp_path) == uncut


@pytest.mark.parametrize("name", ["config.json", "metrics.json"])
def test_a_finished_runs_file_that_is_damaged_is_made_again(
    tmp_path: Path, uncut: dict[str, Any], name: str
) -> None:
    folder = run(tmp_path)
    (folder / name).write_text('{"settings": ')
    run(tmp_path)
    assert kills._run_kept(tmp_path) == uncut


def test_a_finished_units_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    folder = run(tmp_path)
    (folder / "metrics.json").unlink()
    path = folder / "units/with-bias-seed0/result.json"
    text = path.read_text()
    assert '"test_accuracy": ' in text
    path.write_text(text.replace('"parameters": ', '"parameters": 1', 1))
    with pytest.raises(
        ExperimentError, match=rf"{re.escape(str(path))}: cannot be read .*damaged.* delete it"
    ):
        run(tmp_path)
    path.unlink()
    run(tmp_path)


# --- workers ------------------------------------------------------------------------------------------------------


def _dies_while_told_to(context: Any, item: str) -> dict[str, Any]:
    if (context.folder / "die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    write_json(context.folder / f"{item}.json", {})
    return {"item": item}


def test_a_ray_worker_that_is_killed_ends_the_sweep_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent)]))
    monkeypatch.setenv("RAY_TASK_MAX_RETRIES", "0")
    settings = runner.settings_for(table1_mnist.EXPERIMENT, kills.TINY, "cpu", None, None, "fused")
    context = runner.RunContext(
        settings, kills.PRESET, tmp_path, None, torch.device("cpu"), Progress(Console(quiet=True))
    )
    (tmp_path / "die").touch()
    with pytest.raises(ExperimentError) as caught:
        list(Engine(RAY).map(context, _dies_while_told_to, ["a"]))
    if "Ray did not start" in str(caught.value):
        pytest.skip(f"the machine is too busy for Ray: {caught.value}")
    assert re.search(r"the worker of a has ended .*same command goes on", str(caught.value))
    (tmp_path / "die").unlink()
    assert list(Engine(RAY).map(context, _dies_while_told_to, ["a"])) == [("a", {"item": "a"})]


def test_a_torchrun_job_whose_rank_is_killed_ends_with_a_line_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "zbkernels", "run", "table1-mnist", "--preset", "smoke", "--seeds", "0"]
    command += ["--variant", "without-bias", "--out", str(tmp_path)]
    lock = tmp_path / "table1-mnist-smoke/lock"
    checkpoint = tmp_path / "table1-mnist-smoke/units/without-bias-seed0/checkpoint.json"
    with started(command, stderr=subprocess.STDOUT) as process:
        _wait_for(checkpoint, process, 300)
        holder = re.search(r"process (\d+)", lock.read_text())
        assert holder is not None
        os.kill(int(holder[1]), signal.SIGKILL)  # rank 0
        said, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "another rank has ended or does not answer" in said or "signal 9 (SIGKILL)" in said.replace(
        "Signal", "signal"
    )
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on after epoch" in done.stdout and "# table1-mnist, preset smoke" in done.stdout
