"""Several processes train as one does: the same draws, the gradient of the whole batch, and one writer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rank_program
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_folders import write_imagenette

from zbkernels import distributed
from zbkernels.distributed import DistributedError, Team


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The program in one process and in two: folders, exit codes, and what the two said."""
    base = tmp_path_factory.mktemp("ranks")
    images = write_imagenette(base)
    one, two = base / "one", base / "two"
    one.mkdir()
    two.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, rank_program.__file__, two, images],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    threads = torch.get_num_threads()
    rank_program.main(one, images)
    torch.set_num_threads(threads)
    said = [process.communicate(timeout=200)[0] for process in processes]
    return {
        "folder": two,
        "said": said,
        "codes": [process.returncode for process in processes],
        "alone": json.loads((one / "rank0.json").read_text()),
        "ranks": [json.loads((two / f"rank{rank}.json").read_text()) for rank in range(2)],
    }


@pytest.mark.parametrize("name", ["in memory", "streamed"])
def test_two_processes_train_as_one(ran: dict[str, Any], name: str) -> None:
    """Mixup, contrasts and crops draw for the whole batch, whose last one has an image for one rank alone."""
    (first, second), expected = (rank[name] for rank in ran["ranks"]), ran["alone"][name]
    assert first == second
    assert first["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)
    for epoch, right in zip(first["history"], expected["history"], strict=True):
        assert epoch == pytest.approx(right, rel=1e-5)
    for row, right in zip(first["sweep"], expected["sweep"], strict=True):
        for key, value in right.items():
            assert row[key] == (value and pytest.approx(value, rel=1e-4))
    # The checkpoints of the last epoch and of the one before, as one process leaves them.
    left = sorted(path.name for path in (ran["folder"] / name).iterdir())
    of_epochs = ["epoch-0002.safetensors", "epoch-0003.safetensors"]
    assert left == ["checkpoint-before.json", "checkpoint.json", *of_epochs]


def test_some_predictions_change_with_the_scalar(ran: dict[str, Any]) -> None:
    """Or the comparison above would compare no margins."""
    assert ran["alone"]["in memory"]["sweep"][2]["changed"] > 0


def test_where_ranks_cannot_go_on_each_is_told(ran: dict[str, Any]) -> None:
    expected = {
        "dropout": r"rank 1: expected the same random numbers \(dropout draws its own\) as on rank 0, \d+, got \d+",
        "other data": r"rank 1: expected as many images as on rank 0, \(40, 24\), got \(41, 24\)",
        "other folders": r"rank 1: expected a checkpoint of as many epochs \(the folder must .* as on rank 0, 1, got 0",
        "decided by rank 0": r"FileNotFoundError: .*nowhere of 0",
    }
    for rank in ran["ranks"]:
        assert rank["agreed"] == "rank 0"
        assert rank["refused"].keys() == expected.keys()
        for name, said in expected.items():
            assert re.search(said, rank["refused"][name])
    assert not (ran["folder"] / "of rank 1").exists()


def test_a_rank_that_dies_ends_the_others_with_a_message(ran: dict[str, Any]) -> None:
    assert ran["codes"] == [1, 7]
    assert "rank 0 of 2: another rank has ended or does not answer" in ran["said"][0]
    assert "the same command goes on from the last checkpoint" in ran["said"][0]


def test_torchrun_runs_an_experiment(tmp_path: Path) -> None:
    """The command line under torchrun: one table, one set of files, one lock."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "zbkernels"]
    command += ["run", "table1-mnist", "--preset", "smoke", "--seeds", "0", "--variant", "without-bias"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--out", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# table1-mnist, preset smoke") == 1
    assert done.stdout.count("epoch 3/3") == 1
    folder = tmp_path / "table1-mnist-smoke"
    unit = folder / "units/without-bias-seed0"
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "figure.png",
        "metrics.json",
        "table.md",
        "units",
    }
    assert {path.name for path in unit.iterdir()} == {
        "lock",
        "model.safetensors",
        "result.json",
        "settings.json",
    }
    assert json.loads((folder / "config.json").read_text())["environment"]["ranks"] == 2
    assert len(json.loads((folder / "metrics.json").read_text())["units"][0]["epochs"]) == 3


# The team itself.


@given(count=st.integers(0, 200), size=st.integers(1, 9))
def test_shares_are_a_partition(count: int, size: int) -> None:
    rows = list(range(count))
    shares = [rows[Team(rank, size).share(count)] for rank in range(size)]
    assert [row for share in shares for row in share] == rows
    each = -(-count // size)
    assert all(len(share) <= each for share in shares)
    assert [len(share) for share in shares] == sorted((len(share) for share in shares), reverse=True)


def test_one_process_communicates_with_nobody() -> None:
    alone, value = Team(), torch.tensor([1.0, 2.0])
    assert alone.first
    assert alone.sum(value) is alone.max(value) is alone.gather(value, 2) is value
    assert torch.equal(alone.mean(value), value)
    assert alone.agree(lambda: 3) == 3
    alone.check_same("anything", 1)
    model = torch.nn.Linear(1, 1)
    assert alone.parallel(model) is model
    with distributed.joined("cpu") as device:
        assert device == torch.device("cpu")
        assert distributed.team() == alone


def test_cards_are_given_out_by_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", ""),
        ("MASTER_PORT", ""),
    ):
        monkeypatch.setenv(name, value)
    assert distributed.launched()
    assert not distributed.speaks()
    with pytest.raises(
        DistributedError, match="expected --device cuda under torchrun, one card for each rank, got cuda:0"
    ):
        distributed.joined("cuda:0").__enter__()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DistributedError, match="a CUDA device for local rank 1, got 1 devices"):
        distributed.joined("cuda").__enter__()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert distributed._own_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not distributed.launched()
