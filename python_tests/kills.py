"""Kills (SIGKILL) what writes, at random moments, until it is done: ``python python_tests/kills.py --kills 200``.

Each job is a command that goes on where it was cut off. It is started, killed after a random part of the time that it
takes, and started again; after each kill what lies there must be readable, and no less than before; after some kills it
is left to end, and what it leaves must equal what an uncut run left, byte for byte but for times. Jobs run in forks of
this process, which has everything imported: most of a command's time would be imports.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbkernels import experiments
from zbkernels.experiments import Preset, table1_mnist
from zbkernels.files import read_json, read_sealed_json
from zbkernels.nap import NapIndex, Recording, record, recording
from zbkernels.tensor_file import load_tensors

# What differs between two runs that do the same: times, and when.
TIMES = {"seconds", "train_seconds", "started", "timing", "milliseconds"}
TINY = "tiny"  # a preset of table1-mnist that takes little more than its checkpoints do
PRESET = Preset("", "digits", epochs=6, batch_size=50, seeds=(0,), train_images=150, test_images=50)
KILLS_A_ROUND = 6  # then the command is left to end


class Lost(AssertionError):
    """A kill lost something, or changed a result."""


@dataclass(frozen=True)
class Job:
    """What writes into a folder, and goes on there.

    Attributes:
        work: does it, in a process of its own.
        look: reads all that lies there after a kill, and returns how much is done (never less than before).
        kept: of a whole run, what must be equal.
    """

    work: Callable[[Path], None]
    look: Callable[[Path], int]
    kept: Callable[[Path], dict[str, Any]]


# --- experiments --------------------------------------------------------------------------------------------------


def zb_run(*arguments: str) -> Job:
    def work(folder: Path) -> None:
        from zbkernels.cli import main

        sys.argv = ["zb", "run", *arguments, "--out", str(folder)]
        main()

    return Job(work, _look_at_run, _run_kept)


def _look_at_run(out: Path) -> int:
    """Every file under its own name is whole; counts finished epochs and units."""
    done = 0
    for path in sorted(out.rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".json":
            value = read_json(path)
            if path.name in ("result.json", "checkpoint.json") or path.name.startswith("watched-"):
                value = read_sealed_json(path)
            if path.name == "checkpoint.json":
                tensors, _ = load_tensors(path.parent / value["tensors"])
                if not tensors:
                    raise Lost(f"{path}: a checkpoint without tensors")
                done += len(value["meta"]["history"])
            done += 1000 * (path.name == "result.json") + 10**6 * (path.name == "metrics.json")
        elif path.suffix == ".safetensors" and path.name == "model.safetensors":
            load_tensors(path)
    return done


def _run_kept(out: Path) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name == "config.json":
            kept[name] = read_json(path)["settings"]
        elif path.suffix == ".json":
            value = read_json(path)
            value.pop("json_crc32", None)  # it covers times, too
            kept[name] = json.dumps(_untimed(value), sort_keys=True)
        elif path.name == "model.safetensors":
            kept[name] = path.read_bytes()
        elif path.is_file() and path.name != "lock":
            kept[name] = "there"
    return kept


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(each) for key, each in value.items() if key not in TIMES}
    return [_untimed(each) for each in value] if isinstance(value, list) else value


# --- recordings and indexes ---------------------------------------------------------------------------------------


def _record(folder: Path) -> None:
    recording._COMMIT_SECONDS = 0.0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 10))
    inputs = torch.randn(6000, 16, generator=torch.Generator().manual_seed(1))
    record(model, list(inputs.split(20)), out=folder, progress=False)


def _save_index(folder: Path) -> None:
    path = folder / "index.zbnap"
    folder.mkdir(exist_ok=True)
    index = NapIndex.load(path) if path.exists() else NapIndex(8, classes=10)
    for part in range(len(index) // 3000, 30):
        rows = torch.arange(3000 * part, 3000 * part + 3000)[:, None].expand(3000, 8).contiguous()
        index.insert(rows, torch.arange(3000) % 10)
        index.save(path)


def _look_at_recording(folder: Path) -> int:
    return len(Recording.load(folder, verify=True)) if (folder / "recording.json").exists() else 0


def _look_at_index(folder: Path) -> int:
    path = folder / "index.zbnap"
    return len(NapIndex.load(path)) if path.exists() else 0


def _bytes(folder: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


JOBS: dict[str, Job] = {
    "table1-mnist, checkpoints": zb_run("table1-mnist", "--preset", TINY),
    "loss-curves, of the same": zb_run("loss-curves", "--preset", "smoke"),
    "dual-activations, a sweep": zb_run("dual-activations", "--preset", "smoke"),
    "trained-kernels, a sweep": zb_run("trained-kernels", "--preset", "smoke"),
    "recording": Job(_record, _look_at_recording, _bytes),
    "index save": Job(_save_index, _look_at_index, _bytes),
}


# --- killing ------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    kills: int = 0  # while it ran
    within: int = 0  # of these, with something done already
    rounds: int = 0  # runs that were left to end after kills, and equal an uncut one
    seconds: float = 0.0  # of an uncut run


def run(name: str, kills: int, seed: int, work: Path, say: Callable[[str], None] = lambda _: None) -> Tally:
    """Kill the job so many times.

    Raises:
        Lost: something was lost, or a resumed run differs from the uncut one.
    """
    job, draw, tally = JOBS[name], random.Random(f"{seed} {name}"), Tally()
    whole = work / "whole"
    started = time.perf_counter()
    _end(job, whole, work)
    tally.seconds = time.perf_counter() - started
    expected = job.kept(whole)
    folder, before, here = work / "killed", 0, 0
    while tally.kills < kills:
        wait = tally.seconds * draw.random() ** (0.5 if here else 1)
        code = _run(job, folder, work / "said", wait)
        if code not in (0, -signal.SIGKILL):
            raise Lost(f"{name}: could not go on after {here} kills: {(work / 'said').read_text()[-2000:]}")
        done = job.look(folder) if folder.exists() else 0
        if done < before:
            raise Lost(f"{name}: {done} done after a kill, {before} before it")
        before = done
        killed = code != 0
        tally.kills += killed
        tally.within += killed and done > 0
        here += killed
        if not killed or here >= KILLS_A_ROUND or tally.kills == kills:
            _end(job, folder, work)
            found = job.kept(folder)
            if found != expected:
                names = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
                raise Lost(
                    f"{name}: after {here} kills these differ from an uncut run's: {', '.join(sorted(names)[:5])}"
                )
            shutil.rmtree(folder)
            tally.rounds += here > 0
            before = here = 0
    shutil.rmtree(whole)
    say(
        f"{name}: {tally.kills} kills, {tally.within} with something done, {tally.rounds} runs ended and equal; uncut "
        f"it takes {tally.seconds:.1f} s"
    )
    return tally


def _end(job: Job, folder: Path, work: Path) -> None:
    code = _run(job, folder, work / "said", 600)
    if code:
        raise Lost(f"ended with {code}: {(work / 'said').read_text()[-2000:]}")


def _run(job: Job, folder: Path, said: Path, wait: float) -> int:
    """Run the job for so many seconds at most; its exit code, -SIGKILL where it was killed then."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            with said.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            job.work(folder)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + wait
    ended = False
    try:
        while (left := deadline - time.monotonic()) > 0:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended = True
                return os.waitstatus_to_exitcode(status)
            time.sleep(min(left, 0.01))
    finally:  # an interrupt of this process does not reach the child, which has a session of its own
        if not ended:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def prepare() -> None:
    """Import what jobs need, and leave them one thread: a fork has the memory of its parent, not its threads."""
    for module in ("cli", "experiments.runner", "tuning", "nap.sources", "report"):
        importlib.import_module(f"zbkernels.{module}")
    for module in (*experiments.EXPERIMENTS.values(), "matplotlib.pyplot", "sklearn.datasets", "scipy.stats"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    add_tiny_preset()


def add_tiny_preset() -> None:
    presets = {**table1_mnist.EXPERIMENT.presets, TINY: PRESET}
    table1_mnist.EXPERIMENT = dataclasses.replace(table1_mnist.EXPERIMENT, presets=presets)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", action="append", choices=list(JOBS))
    arguments = parser.parse_args()
    prepare()
    names = arguments.job or list(JOBS)
    total = within = rounds = 0
    for index, name in enumerate(names):
        share = arguments.kills * (index + 1) // len(names) - arguments.kills * index // len(names)
        with tempfile.TemporaryDirectory() as work:
            tally = run(name, share, arguments.seed, Path(work), lambda text: print(text, flush=True))
        total, within, rounds = total + tally.kills, within + tally.within, rounds + tally.rounds
    print(
        f"{total} kills, seed {arguments.seed}: nothing lost; {within} with something done, {rounds} runs equal uncut "
        "ones"
    )


if __name__ == "__main__":
    main()
