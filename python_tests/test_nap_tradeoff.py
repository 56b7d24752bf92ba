"""Pairs against accuracy: counted on the way, resumed where a run was cut off, and judged by what was counted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import cut_at
from idx_files import write_idx_set
from rich.console import Console

from zbkernels.experiments import (
    nap_tradeoff,
    nap_tradeoff_claims,
    nap_tradeoff_report,
    runner,
)
from zbkernels.experiments.nap_tradeoff import TradeoffPreset, Training
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, rewrite

FILES = ["config.json", "figure.png", "metrics.json", "table.md"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Adds a preset ``tiny`` of two networks, 3 epochs of 2 batches each; returns the root of its data."""
    preset = TradeoffPreset(
        "tests only",
        "mnist",
        3,
        24,
        (0,),
        48,
        20,
        hidden=((5,), (4, 3)),
        trainings=(Training("Adam", "adam", 0.01, 24, (1, 2, 3)),),
    )
    changed = dataclasses.replace(
        nap_tradeoff.EXPERIMENT, presets={**nap_tradeoff.EXPERIMENT.presets, "tiny": preset}
    )
    monkeypatch.setattr(nap_tradeoff, "EXPERIMENT", changed)
    root = tmp_path / "data"
    write_idx_set(root, "MNIST")
    return root


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def untimed(folder: Path) -> Any:
    metrics = json.loads((folder / "metrics.json").read_text())
    for unit in metrics["units"]:
        unit.pop("train_seconds")
        for epoch in unit["epochs"]:
            epoch.pop("seconds")
    return metrics


def test_smoke_runs_without_any_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZBKERNELS_DATA", raising=False)
    folder = runner.run("nap-tradeoff", preset="smoke", out=tmp_path, progress=quiet())
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [unit["hidden"] for unit in metrics["units"]] == [[12], [64]]
    for unit in metrics["units"]:
        assert [counted["epoch"] for counted in unit["watched"]] == [1, 4]
        last = unit["watched"][-1]
        assert last["test"]["accuracy"] == pytest.approx(
            unit["epochs"][-1]["test_accuracy"]
        )  # of the same network
        assert last["train"]["images"] == 1437
    small, large = (unit["watched"][-1]["train"]["pairs"] for unit in metrics["units"])
    assert small > 10 * large
    text = (folder / "table.md").read_text()
    assert text.count("**not testable here**") == 3  # the paper's accuracies are MNIST's
    assert "Not the paper's data" in text
    assert rewrite(folder) == text


@pytest.mark.parametrize("batch", [2, 3, 6, 9])
def test_a_cut_off_run_gives_the_uncut_runs_metrics(tiny: Path, tmp_path: Path, batch: int) -> None:
    arguments: dict[str, Any] = {"preset": "tiny", "data": tiny}
    uncut = runner.run("nap-tradeoff", out=tmp_path / "uncut", progress=quiet(), **arguments)
    progress = cut_at(quiet(), batch)
    with pytest.raises(KeyboardInterrupt):
        runner.run("nap-tradeoff", out=tmp_path / "cut", progress=progress, **arguments)
    resumed = runner.run("nap-tradeoff", out=tmp_path / "cut", progress=quiet(), **arguments)
    assert untimed(resumed) == untimed(uncut)


def test_a_run_cut_off_while_counting_counts_when_it_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of epoch 2 is there and its count is not: the weights are still those of epoch 2."""
    arguments: dict[str, Any] = {"preset": "tiny", "data": tiny}
    uncut = runner.run("nap-tradeoff", out=tmp_path / "uncut", progress=quiet(), **arguments)
    calls, real = 0, nap_tradeoff.count_pairs

    def cut(*of: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 4:  # each count is of two splits
            raise KeyboardInterrupt
        return real(*of)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(nap_tradeoff, "count_pairs", cut)
        runner.run("nap-tradeoff", out=tmp_path / "cut", progress=quiet(), **arguments)
    unit = tmp_path / "cut/nap-tradeoff-tiny/units/5-Adam-seed0"
    assert [path.name for path in unit.glob("watched-*")] == ["watched-0001.json"]
    resumed = runner.run("nap-tradeoff", out=tmp_path / "cut", progress=quiet(), **arguments)
    assert untimed(resumed) == untimed(uncut)


def test_identical_images_are_told() -> None:
    images = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    assert nap_tradeoff._identical_pairs(images) == 0
    images[3] = images[1]
    images[4] = images[1]
    assert nap_tradeoff._identical_pairs(images) == 3
    images[4, 0, 2, 2] = 1 - images[4, 0, 2, 2].round()  # the last pixel counts too
    assert nap_tradeoff._identical_pairs(images) == 1


# hidden, training, epoch -> (test accuracy, pairs of training images); the paper's story in full
STORY = {
    ((30,), "Adadelta", 1): (30.0, 900),
    ((30,), "Adadelta", 5): (80.0, 40),
    ((64,), "Adadelta", 1): (32.0, 50),
    ((64,), "Adadelta", 5): (79.0, 4),
    ((256,), "Adadelta", 1): (78.0, 0),
    ((256,), "Adadelta", 5): (95.0, 0),
}


def invented(changes: dict[Any, tuple[float, int]] | None = None, as_in_paper: bool = True) -> dict[str, Any]:
    story = {**STORY, **(changes or {})}

    def counted(accuracy: float, pairs: int) -> dict[str, Any]:
        return {
            "accuracy": accuracy,
            "pairs": pairs,
            "patterns": 5,
            "right": pairs // 2,
            "images_in_pairs": min(2 * pairs, 60_000),
        }

    found: dict[Any, dict[str, Any]] = {}
    for (hidden, training, epoch), (accuracy, pairs) in story.items():
        for seed in (0, 1):
            unit = found.setdefault(
                (hidden, training, seed),
                {
                    "hidden": list(hidden),
                    "training": training,
                    "seed": seed,
                    "train_seconds": 1.0,
                    "watched": [],
                },
            )
            seen = {"train": counted(accuracy + 1, pairs), "test": counted(accuracy, pairs // 30)}
            unit["watched"].append({"epoch": epoch, **seen})
    return {
        "experiment": "nap-tradeoff",
        "preset": "paper",
        "data": {
            "title": "MNIST",
            "note": "",
            "train_images": 60_000,
            "test_images": 10_000,
            "identical_pairs": {"train": 0, "test": 0},
            "as_in_paper": as_in_paper,
        },
        "trainings": [{"name": "Adadelta", "text": "Adadelta: as ever"}, {"name": "Adam", "text": "Adam"}],
        "units": list(found.values()),
    }


def verdict_on(metrics: dict[str, Any], part: str) -> tuple[str, str]:
    (found,) = [verdict for verdict in nap_tradeoff_claims.verdicts(metrics) if part in verdict.claim]
    return found.verdict, found.measured


def test_the_papers_story_would_hold() -> None:
    assert {verdict.verdict for verdict in nap_tradeoff_claims.verdicts(invented())} == {HOLDS}


@pytest.mark.parametrize(
    ("changes", "claim", "expected", "said"),
    [
        ({((256,), "Adadelta", 5): (95.0, 3)}, "over 90 %", FAILS, "3 still with 256 units at 95.00 %"),
        ({((256,), "Adadelta", 5): (89.9, 3)}, "over 90 %", NOT_TESTABLE, "no network"),
        (
            {((30,), "Adadelta", 1): (30.0, 0), ((64,), "Adadelta", 1): (32.0, 0)},
            "about 30 %",
            FAILS,
            "0 of 4",
        ),
        (
            {((30,), "Adadelta", 5): (90.0, 0), ((64,), "Adadelta", 5): (79.0, 0)},
            "around 80 %",
            FAILS,
            "0 of 4",
        ),
        ({((64,), "Adadelta", 5): (79.0, 41)}, "more neurons", FAILS, "so at 1 of 2"),
        (
            {((30,), "Adadelta", 5): (80.0, 901)},
            "costs pairs",
            FAILS,
            "more in 1 of 2 cases (30 units, Adadelta: 900",
        ),
    ],
)
def test_verdicts_follow_the_counts(
    changes: dict[Any, tuple[float, int]], claim: str, expected: str, said: str
) -> None:
    verdict, measured = verdict_on(invented(changes), claim)
    assert verdict == expected
    assert said in measured


def test_other_data_and_single_networks_judge_less() -> None:
    verdicts = nap_tradeoff_claims.verdicts(invented(as_in_paper=False))
    assert [verdict.verdict for verdict in verdicts] == [NOT_TESTABLE] * 3 + [HOLDS] * 2
    alone = invented()
    alone["units"] = [unit for unit in alone["units"] if unit["hidden"] == [256]]
    assert verdict_on(alone, "more neurons")[0] == NOT_TESTABLE
    assert verdict_on(alone, "costs pairs")[0] == NOT_TESTABLE


def test_the_table_sets_the_papers_words_beside_the_counts() -> None:
    text = nap_tradeoff_report.table(invented())
    assert "| about 30 % (here 25 to 37 %) | many | 4 | 0 | 50 to 900 | 1 to 30 |" in text
    assert "| over 90 % (here 90 to 100 %) | none | 2 | 2 | 0 | 0 |" in text
    assert "| 64 units, Adadelta, epoch 5 | 79.00 | 5 | 4 | 2 | 8 | 0 |" in text


def test_the_figure_shows_every_network(tmp_path: Path) -> None:
    from matplotlib.image import imread

    nap_tradeoff_report.figure(invented(), tmp_path / "figure.png")
    pixels = torch.from_numpy(imread(tmp_path / "figure.png"))[..., :3]
    colours = pixels.mul(255).round().to(torch.int32).flatten(0, 1).unique(dim=0)
    for colour in nap_tradeoff_report._COLOURS[:3]:
        wanted = torch.tensor([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        assert (colours - wanted).abs().sum(1).min() <= 3


def test_the_papers_preset_reaches_every_accuracy_it_speaks_of() -> None:
    """All 60,000 images, the paper's optimizer and batch (Appendix C), and networks small and large."""
    preset = nap_tradeoff.EXPERIMENT.presets["paper"]
    assert isinstance(preset, TradeoffPreset)
    assert (preset.data, preset.train_images, preset.test_images) == ("mnist", None, None)
    papers = preset.trainings[0]
    assert (papers.optimizer, papers.lr, papers.batch_size, papers.epochs) == ("adadelta", 0.01, 512, 20)
    assert (30,) in preset.hidden and len(preset.seeds) == 3


def test_the_kept_results_make_the_kept_table() -> None:
    folder = Path(__file__).parents[1] / "docs/results/nap-tradeoff"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert nap_tradeoff_report.table(metrics) == (folder / "table.md").read_text()
