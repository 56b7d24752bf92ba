"""Experiments end to end on small data: files, resuming, refusing, reporting, and the rules of the verdicts."""

from __future__ import annotations

import copy
import dataclasses
import errno
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import cut_at
from idx_files import write_idx_set
from rich.console import Console
from torch import nn

from zbkernels import experiments
from zbkernels.data import DataError, Dataset
from zbkernels.experiments import (
    ExperimentError,
    epoch_timing,
    runner,
    table1,
    table1_claims,
    table1_mnist,
    table1_row,
    units,
)
from zbkernels.experiments.base import Preset
from zbkernels.experiments.contrast import SCALARS, sweep, zero_image_probabilities
from zbkernels.experiments.progress import Progress, duration
from zbkernels.files import read_json, replacing, write_json
from zbkernels.models import ARCHITECTURES, build
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, ReportError, judge, rewrite, spread
from zbkernels.reporting import command
from zbkernels.train import TrainConfig, train

FILES = ["config.json", "figure.png", "metrics.json", "table.md"]
TABLE1 = ("table1-mnist", "table1-fashion")
TINY = Preset("tests only", "mnist", epochs=2, batch_size=16, seeds=(0, 1), train_images=48, test_images=20)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def tiny_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Adds a preset ``tiny`` to table1-mnist; returns the root of its data."""
    presets = {**table1_mnist.EXPERIMENT.presets, "tiny": TINY}
    monkeypatch.setattr(
        table1_mnist, "EXPERIMENT", dataclasses.replace(table1_mnist.EXPERIMENT, presets=presets)
    )
    root = tmp_path / "data"
    write_idx_set(root)
    return root


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def untimed(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics without the wall times, which alone may differ between two runs."""
    kept = copy.deepcopy(metrics)
    for unit in kept["units"]:
        unit.pop("train_seconds")
        for epoch in unit["epochs"]:
            epoch.pop("seconds")
    return kept


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("name", TABLE1)
def test_smoke_runs_without_any_data_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZBKERNELS_DATA", raising=False)
    folder = runner.run(name, preset="smoke", out=tmp_path, progress=quiet())
    assert folder == tmp_path / f"{name}-smoke"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == FILES
    metrics = metrics_of(folder)
    assert "digits" in metrics["data"]["title"]
    assert not metrics["data"]["as_in_paper"]
    without = next(unit for unit in metrics["units"] if unit["variant"] == "without-bias")
    assert without["form"] == "fused"
    assert [row["scalar"] for row in without["sweep"]] == list(SCALARS)
    flipped = [row for row in without["sweep"] if row["changed"]]
    assert all(row["changed"] <= 2 and row["largest_changed_margin"] < 1e-4 for row in flipped)
    assert without["zero_image"] == pytest.approx([0.1] * 10, abs=1e-12)
    text = (folder / "table.md").read_text()
    assert "scikit-learn digits" in text
    assert "Not the paper's data" in text
    assert "difference" not in text  # nothing is compared with the paper
    assert text.count("**not testable here**") == 7
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["preset"] == "smoke"
    assert config["environment"]["torch"] == torch.__version__
    assert config["environment"]["threads"] == torch.get_num_threads()


def test_the_figure_shows_something(tmp_path: Path) -> None:
    from matplotlib.image import imread

    folder = runner.run("table1-mnist", preset="smoke", out=tmp_path, progress=quiet())
    pixels = torch.from_numpy(imread(folder / "figure.png"))[..., :3]
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 1000
    colours = pixels.mul(255).round().to(torch.int32).flatten(0, 1).unique(dim=0)
    for wanted in ((0xC2, 0x57, 0x1A), (0x1F, 0x6F, 0x8B)):  # both networks are drawn
        assert (colours - torch.tensor(wanted)).abs().sum(1).min() <= 3


def test_a_finished_run_is_not_repeated_unless_forced(tiny_preset: Path, tmp_path: Path) -> None:
    arguments = {
        "preset": "tiny",
        "data": tiny_preset,
        "out": tmp_path / "out",
        "seeds": (0,),
        "form": "plain",
    }
    folder = runner.run("table1-mnist", progress=quiet(), **arguments)
    before = (folder / "metrics.json").stat().st_mtime_ns
    first = metrics_of(folder)
    runner.run(
        "table1-mnist", progress=quiet(), **{**arguments, "data": tmp_path / "gone"}
    )  # nothing is read
    assert (folder / "metrics.json").stat().st_mtime_ns == before
    runner.run("table1-mnist", progress=quiet(), force=True, **arguments)
    assert (folder / "metrics.json").stat().st_mtime_ns > before
    assert untimed(metrics_of(folder)) == untimed(first)
    assert metrics_of(folder)["units"][0]["train_seconds"] != first["units"][0]["train_seconds"]


def test_more_seeds_reuse_the_ones_that_are_there(tiny_preset: Path, tmp_path: Path) -> None:
    arguments = {"preset": "tiny", "data": tiny_preset, "out": tmp_path / "out"}
    folder = runner.run("table1-mnist", seeds=(0,), progress=quiet(), **arguments)
    seconds = {unit["variant"]: unit["train_seconds"] for unit in metrics_of(folder)["units"]}
    runner.run("table1-mnist", progress=quiet(), **arguments)
    units = metrics_of(folder)["units"]
    assert [(unit["variant"], unit["seed"]) for unit in units] == [
        ("with-bias", 0),
        ("with-bias", 1),
        ("without-bias", 0),
        ("without-bias", 1),
    ]
    assert all(unit["train_seconds"] == seconds[unit["variant"]] for unit in units if unit["seed"] == 0)
    text = (folder / "table.md").read_text()
    assert "2 seeds" in text
    assert "standard deviation" in text


@pytest.mark.parametrize("batch", [2, 4, 8, 11])
def test_a_cut_off_run_gives_the_uncut_runs_metrics(tiny_preset: Path, tmp_path: Path, batch: int) -> None:
    """Two networks of 2 epochs of 3 batches each: the cuts fall into every part of the run."""
    arguments = {"preset": "tiny", "data": tiny_preset, "seeds": (0,)}
    uncut = runner.run("table1-mnist", out=tmp_path / "uncut", progress=quiet(), **arguments)
    progress = cut_at(quiet(), batch)
    with pytest.raises(KeyboardInterrupt):
        runner.run("table1-mnist", out=tmp_path / "cut", progress=progress, **arguments)
    assert not (tmp_path / "cut" / "table1-mnist-tiny" / "metrics.json").exists()
    resumed = runner.run("table1-mnist", out=tmp_path / "cut", progress=quiet(), **arguments)
    assert untimed(metrics_of(resumed)) == untimed(metrics_of(uncut))


def test_other_settings_in_the_same_folder_are_refused(tiny_preset: Path, tmp_path: Path) -> None:
    arguments = {"preset": "tiny", "data": tiny_preset, "out": tmp_path / "out", "seeds": (0,)}
    runner.run("table1-mnist", form="plain", progress=quiet(), **arguments)
    with pytest.raises(
        ExperimentError, match=r"form: plain there, fused asked for\). Use another --out, or --force"
    ):
        runner.run("table1-mnist", form="fused", progress=quiet(), **arguments)
    runner.run("table1-mnist", form="fused", force=True, progress=quiet(), **arguments)


def test_other_data_in_the_same_folder_are_refused(tiny_preset: Path, tmp_path: Path) -> None:
    arguments = {"preset": "tiny", "out": tmp_path / "out"}
    runner.run("table1-mnist", seeds=(0,), data=tiny_preset, progress=quiet(), **arguments)
    labels = tiny_preset / "MNIST/raw/train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:8] + bytes(len(labels.read_bytes()) - 8))
    with pytest.raises(ExperimentError, match=r"other settings.*crc32"):
        runner.run("table1-mnist", seeds=(0, 1), data=tiny_preset, progress=quiet(), **arguments)


def test_two_processes_do_not_work_on_one_unit(tiny_preset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "table1-mnist-tiny" / "units" / "with-bias-seed0"
    with (
        units.locked(folder),
        pytest.raises(ExperimentError, match="another process is working on this unit"),
    ):
        runner.run("table1-mnist", preset="tiny", data=tiny_preset, out=tmp_path / "out", progress=quiet())


def test_a_run_of_one_kind_only_says_what_it_cannot_judge(tiny_preset: Path, tmp_path: Path) -> None:
    folder = runner.run(
        "table1-mnist",
        preset="tiny",
        data=tiny_preset,
        out=tmp_path,
        seeds=(0,),
        variants=("without-bias",),
        progress=quiet(),
    )
    text = (folder / "table.md").read_text()
    assert "with bias: ours" not in text
    assert "networks of one kind were not trained in this run" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preset": "huge"}, "table1-mnist has no preset 'huge'; it has smoke, quick, paper"),
        ({"device": "tpu"}, "device"),
        ({"device": "meta"}, "expected device auto, cpu or cuda"),
        ({"device": "cuda:99"}, "sees [0-9]+ CUDA devices"),
        ({"seeds": ()}, "got none"),
        ({"seeds": (1, 1)}, "different seeds from 0 to 4294967295, got 1,1"),
        ({"seeds": (1 << 32,)}, "different seeds from 0 to 4294967295, got 4294967296"),
        ({"seeds": (-1,)}, "got -1"),
        ({"variants": ("half-bias",)}, "no variant 'half-bias'; it has with-bias, without-bias"),
        ({"form": "molten"}, "unknown form 'molten'; known: fused, plain"),
        ({"precision": "float8"}, "unknown precision 'float8'; known: float32, bfloat16"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=message):
        runner.run("table1-mnist", out=tmp_path, progress=quiet(), **{"preset": "smoke", **change})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "plain"}, "directionality has no networks in a plain form"),
        ({"time_epochs": True}, "one form only, --time-epochs has nothing to compare"),
    ],
)
def test_what_an_experiment_would_ignore_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=message):
        runner.run("directionality", preset="smoke", out=tmp_path, progress=quiet(), **change)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    with pytest.raises(OSError, match="No space left") as told, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert told.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_lists_of_numbers_take_one_line_and_nothing_else_changes(tmp_path: Path) -> None:
    value = {
        "a": [1, -2.5, 1e-30, None],
        "b": [[1], [2, 3]],
        "c": ["x [\n 1,\n 2\n]", True],
        "d": [],
        "e": [[[]]],
    }
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert '"a": [1, -2.5, 1e-30, null],\n' in (tmp_path / "x.json").read_text()
    assert "    [2, 3]\n" in (tmp_path / "x.json").read_text()


def test_missing_data_leave_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="MNIST/raw: no such folder"):
        runner.run("table1-mnist", preset="quick", data=tmp_path, out=tmp_path / "out", progress=quiet())
    assert not list((tmp_path / "out").rglob("metrics.json"))


def test_close_names_are_suggested() -> None:
    with pytest.raises(ExperimentError, match="did you mean table1-mnist"):
        experiments.get("tabel1-mnist")
    with pytest.raises(ExperimentError, match="known: table1-mnist, table1-fashion"):
        experiments.get("zzz")


def test_presets_of_the_paper() -> None:
    """Section 2.5 and Appendix C: 20 epochs, batch 512 and 128, three repetitions, eleven scalars."""
    mnist, fashion = (experiments.get(name) for name in TABLE1)
    assert (mnist.presets["paper"].epochs, mnist.presets["paper"].batch_size) == (20, 512)
    assert (fashion.presets["paper"].epochs, fashion.presets["paper"].batch_size) == (20, 128)
    assert len(mnist.presets["paper"].seeds) == len(fashion.presets["paper"].seeds) == 3
    assert table1_row.LEARNING_RATE == 0.01
    assert SCALARS == (1, 0.25, 0.15, 0.125, 0.1, 0.075, 0.05, 0.025, 0.01, 0.001, 0.0001)


def test_report_draws_again_from_the_metrics(tmp_path: Path) -> None:
    folder = runner.run("table1-mnist", preset="smoke", out=tmp_path, progress=quiet())
    wanted = (folder / "table.md").read_text()
    (folder / "table.md").unlink()
    (folder / "figure.png").unlink()
    assert command.run([tmp_path], None, redraw=True) == tmp_path / "report.html"
    assert (folder / "table.md").read_text() == wanted
    assert (folder / "figure.png").stat().st_size > 10_000
    with pytest.raises(ReportError, match="no such folder"):
        command.run([tmp_path / "nowhere"], None, redraw=True)
    with pytest.raises(ReportError, match="no finished run"):
        command.run([folder / "units"], None, redraw=True)
    name = json.loads((folder / "metrics.json").read_text())["experiment"]
    for number, bad in enumerate(("{}", "[]", "cut of", json.dumps({"experiment": name, "scores": 3}))):
        other = tmp_path / f"{number} before the good one"
        other.mkdir()
        (other / "metrics.json").write_text(bad)
        with pytest.raises(ReportError, match="not the metrics of an experiment"):
            rewrite(other)
    (folder / "table.md").unlink()
    with pytest.raises(ReportError) as error:  # of all bad ones, and after the good one
        command.run([tmp_path], None, redraw=True)
    assert (folder / "table.md").read_text() == wanted
    assert all(f"{number} before the good one" in str(error.value) for number in range(4))


def test_the_sweep_counts_changed_predictions() -> None:
    """A network that always answers its bias once the image is dark enough."""
    images = torch.zeros(4, 1, 2, 2)
    images[:, 0, 0, 0] = torch.tensor([1.0, 1.0, 0.1, 1.0])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
        model[1].bias.copy_(torch.tensor([0.0, 0.05]))
    from zbkernels.data import Split

    rows = sweep(model, Split(images, torch.tensor([0, 0, 0, 1])), (1.0, 0.1, 0.01))
    assert [row["changed"] for row in rows] == [0, 1, 4]
    assert [row["accuracy"] for row in rows] == [75, 50, 25]
    assert rows[0]["largest_changed_margin"] is None
    assert rows[2]["largest_changed_margin"] == pytest.approx(0.95)
    assert rows[2]["commonest_share"] == 100
    probabilities = zero_image_probabilities(model, (1, 2, 2))
    assert probabilities == pytest.approx(torch.tensor([0.0, 0.05]).double().softmax(0).tolist())


def test_judging_two_numbers() -> None:
    assert judge(0.4, 1.0, None) == judge(-1.0, 1.0, 0.0) == HOLDS
    assert judge(-1.5, 1.0, 0.8) == WITHIN_SPREAD
    assert judge(1.5, 1.0, 0.7) == judge(1.5, 1.0, None) == FAILS
    assert spread([3.0]) is None
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5)


def invented_metrics(**changes: Any) -> dict[str, Any]:
    """Metrics in which every claim holds, with three seeds; ``changes`` go to single units."""
    biased = [88.0, 80, 70, 60, 50, 40, 30, 20, 10, 10, 10]

    def unit(variant: str, seed: int) -> dict[str, Any]:
        curve = biased if variant == "with-bias" else [88.3] * 11
        rows = [
            {"scalar": s, "accuracy": a + 0.1 * seed, "changed": 0, "largest_changed_margin": None}
            for s, a in zip(SCALARS, curve, strict=True)
        ]
        uniform = [0.1] * 10
        return {
            "variant": variant,
            "seed": seed,
            "form": "plain",
            "parameters": 10,
            "train_seconds": 1.0,
            "epochs": [{"train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 88.0}] * 2,
            "sweep": rows,
            "zero_image": [0.2, *[0.8 / 9] * 9] if variant == "with-bias" else uniform,
        }

    metrics = {
        "experiment": "table1-mnist",
        "preset": "paper",
        "scalars": list(SCALARS),
        "data": {
            "title": "MNIST",
            "train_images": 60000,
            "test_images": 10000,
            "note": "",
            "as_in_paper": True,
        },
        "architecture": {"name": "n", "layers": "fc"},
        "training": {
            "epochs": 2,
            "optimizer": "o",
            "lr": 1,
            "batch_size": 1,
            "loss": "l",
            "initialisation": "i",
        },
        "paper": {"with-bias": biased, "without-bias": [88.27] * 11},
        "units": [unit(variant, seed) for variant in units.VARIANTS for seed in range(3)],
    }
    for path, value in changes.items():
        variant, key = path.split("__")
        for chosen in metrics["units"]:
            if chosen["variant"].replace("-", "_") == variant:
                chosen[key] = value(chosen[key], chosen["seed"])
    return metrics


def verdict_on(metrics: dict[str, Any], part: str) -> str:
    (found,) = [verdict for verdict in table1_claims.verdicts(metrics) if part in verdict.claim]
    return found.verdict


def lower_by(points: float) -> Any:
    return lambda rows, seed: [{**row, "accuracy": row["accuracy"] - points} for row in rows]


def test_all_claims_hold_where_they_should() -> None:
    assert {verdict.verdict for verdict in table1_claims.verdicts(invented_metrics())} == {HOLDS}


@pytest.mark.parametrize(
    ("changes", "claim", "expected"),
    [
        ({"with_bias__sweep": lower_by(1.5)}, "scalar 1, with bias", FAILS),
        ({"with_bias__sweep": lower_by(1.5)}, "ten smaller scalars", FAILS),
        ({"without_bias__sweep": lower_by(2.0)}, "similar accuracies", FAILS),
        (
            {"without_bias__sweep": lambda rows, seed: lower_by(2.0 * seed)(rows, seed)},
            "similar accuracies",
            WITHIN_SPREAD,
        ),
        ({"with_bias__sweep": lambda rows, seed: lower_by(2.0 * seed)(rows, seed)}, "variances", FAILS),
        ({"with_bias__sweep": lambda rows, seed: list(reversed(rows))}, "declines", FAILS),
        (
            {
                "without_bias__sweep": lambda rows, s: [
                    {**r, "changed": 1, "largest_changed_margin": 1e-6} for r in rows
                ]
            },
            "predictions are the same",
            HOLDS,
        ),
        (
            {
                "without_bias__sweep": lambda rows, s: [
                    {**r, "changed": 1, "largest_changed_margin": 0.3} for r in rows
                ]
            },
            "predictions are the same",
            FAILS,
        ),
        (
            {"without_bias__epochs": lambda rows, s: [{**r, "test_loss": 1.2} for r in rows]},
            "Figure 5",
            FAILS,
        ),
        ({"without_bias__zero_image": lambda p, s: [0.2, *[0.8 / 9] * 9]}, "zero image", FAILS),
        ({"with_bias__zero_image": lambda p, s: [0.1] * 10}, "zero image", FAILS),
    ],
)
def test_a_claim_that_fails_is_reported_as_failing(
    changes: dict[str, Any], claim: str, expected: str
) -> None:
    assert verdict_on(invented_metrics(**changes), claim) == expected


def test_one_seed_has_no_variance() -> None:
    metrics = invented_metrics()
    metrics["units"] = [unit for unit in metrics["units"] if unit["seed"] == 0]
    assert verdict_on(metrics, "variances") == NOT_TESTABLE


def test_the_table_sets_paper_ours_and_difference_side_by_side() -> None:
    lines = table1_mnist.EXPERIMENT.table(invented_metrics()).splitlines()
    (paper,) = [line for line in lines if line.startswith("| with bias: paper")]
    (ours,) = [line for line in lines if line.startswith("| with bias: ours, 3 seeds")]
    (difference,) = [line for line in lines if line.startswith("| with bias: difference")]
    assert paper.split("|")[2:5] == [" 88.00 ", " 80.00 ", " 70.00 "]
    assert ours.split("|")[2:5] == [" 88.10 ", " 80.10 ", " 70.10 "]
    assert difference.split("|")[2:5] == [" +0.10 ", " +0.10 ", " +0.10 "]


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` traces, and compiles nothing: that takes seconds a shape."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def tiny_forms(root: Path, *names: str) -> tuple[Dataset, dict[tuple[str, str], nn.Module]]:
    data = table1.load_data(TINY, root)
    forms = {
        (form, "contiguous"): table1.new_model(
            table1_mnist.ROW, TINY, data, table1_row.KINDS[1], fused=form == "fused", seed=0
        )
        for form in names
    }
    return data, forms


def test_timing_epochs_of_each_form(tiny_preset: Path, traced_only: None) -> None:
    data, forms = tiny_forms(tiny_preset, *epoch_timing.FORMS)
    said: list[str] = []
    config = TrainConfig(20, 20)  # 48 images: the last batch is smaller
    timing = epoch_timing.time_forms(forms, data, config, say=said.append)
    assert [entry["form"] for entry in timing["rows"]] == ["fused", "plain", "compiled"]
    assert timing["epochs"] == 2 and timing["absent"] == {} and len(said) == 9
    assert said[0] == "fused layers, contiguous: first batches"  # before anything that takes time
    assert said[2].startswith("torch.compile of these, contiguous: compiling, minutes for a deep network")
    for entry in timing["rows"]:
        first, second = (epoch["seconds"] for epoch in entry["epochs"])
        assert first > 0 and second > 0 and entry["seconds"] == pytest.approx((first + second) / 2)
    assert [entry["kernel"] == "torch" for entry in timing["rows"]] == [False, True, True]
    # What was timed is the training itself: warming up left no trace.
    _, forms = tiny_forms(tiny_preset, "plain")
    history = train(forms["plain", "contiguous"], data, dataclasses.replace(config, epochs=2))
    for entry in timing["rows"]:
        after = [epoch["test_accuracy"] for epoch in entry["epochs"]]
        assert after == pytest.approx([epoch.test_accuracy for epoch in history], abs=5.1)  # one image of 20


def test_every_form_trains_on_the_same_mixtures(tiny_preset: Path) -> None:
    data, _ = tiny_forms(tiny_preset)
    forms = {  # twice the same network: what differs is what they were trained on
        ("plain", layout): tiny_forms(tiny_preset, "plain")[1]["plain", "contiguous"]
        for layout in ("contiguous", "channels_last")
    }
    config = TrainConfig(1, 16, 0.1, "sgd", mixup=1.0)
    epoch_timing.time_forms(forms, data, config, epochs=1)
    one, other = (list(model.parameters()) for model in forms.values())
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_forms_that_differ_are_not_timed(tiny_preset: Path) -> None:
    data, forms = tiny_forms(tiny_preset, "fused")
    architecture = ARCHITECTURES[table1_mnist.ROW.architecture]
    forms["plain", "contiguous"] = build(architecture, data.image_shape, 10, seed=1)
    with pytest.raises(ExperimentError, match="disagree on the loss"):
        epoch_timing.time_forms(forms, data, TrainConfig(1, 16))


def test_a_form_that_cannot_be_compiled_is_left_out(
    tiny_preset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Uncompiled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda model, **_: Uncompiled())
    data, forms = tiny_forms(tiny_preset, "fused", "compiled")
    timing = epoch_timing.time_forms(forms, data, TrainConfig(1, 16), epochs=1)
    assert [entry["form"] for entry in timing["rows"]] == ["fused"]
    shown = epoch_timing.table(timing)
    assert "Left out: torch.compile of these, contiguous: no compiler here" in shown and "One epoch" in shown


def test_times_go_into_metrics_and_table(tiny_preset: Path, tmp_path: Path, traced_only: None) -> None:
    arguments = {"preset": "tiny", "data": tiny_preset, "out": tmp_path / "out"}
    alone = runner.time_epochs_of("table1-mnist", progress=quiet(), **arguments)
    assert [row["form"] for row in alone["rows"]] == list(epoch_timing.FORMS)
    arguments["seeds"] = (0,)
    folder = runner.run("table1-mnist", progress=quiet(), **arguments)
    assert metrics_of(folder)["timing"] == alone
    folder = runner.run("table1-mnist", time_epochs=True, progress=quiet(), **arguments)
    assert metrics_of(folder)["timing"]["rows"][0]["seconds"] > 0
    text = (folder / "table.md").read_text()
    assert "## Time of one training epoch" in text and "2 epochs (48 images, batch 16" in text


def test_a_smoke_run_compiles_no_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes minutes; what the run does is said before it does it."""
    monkeypatch.setattr(torch, "compile", None)  # it is not called
    said: list[str] = []
    progress = quiet()
    monkeypatch.setattr(progress, "say", said.append)
    timing = runner.time_epochs_of("table1-cifar100", preset="smoke", out=tmp_path, progress=progress)
    assert {row["form"] for row in timing["rows"]} == {"fused", "plain"}
    assert "Left out: torch.compile of these: compiling a ResNet takes minutes" in epoch_timing.table(timing)
    assert "training images of scikit-learn digits" in said[0] and said[1].endswith("first batches")


def test_times_of_one_epoch_are_still_shown() -> None:
    """As results from before torch.compile and a second epoch were measured hold them."""
    row = {
        "form": "plain",
        "label": "plain torch layers, contiguous",
        "seconds": 2.0,
        "cpu": 1.9,
        "kernel": "torch",
    }
    timing = {
        "images": 10,
        "batch_size": 5,
        "turn": 20,
        "threads": 1,
        "device": "cpu",
        "torch": "2",
        "rows": [row],
    }
    shown = epoch_timing.table(timing)
    assert (
        "| plain torch layers, contiguous | 2.00 | 1.000 | 1.90 | torch |" in shown
        and "One epoch (10" in shown
    )


def test_progress_prints_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Console(width=200)) as progress:
        progress.expect(4)
        progress.batch_done()
        progress.epoch_done("epoch 1/4 [not markup]")
    printed = capsys.readouterr().out
    assert printed.startswith("epoch 1/4 [not markup] · about ")
    assert printed.endswith(" left\n")


def test_durations_are_readable() -> None:
    assert [duration(s) for s in (0.04, 9.96, 42, 75, 3600, 7265)] == [
        "0.0 s",
        "10.0 s",
        "42 s",
        "1 min 15 s",
        "1 h 0 min",
        "2 h 1 min",
    ]


def test_a_refused_run_takes_nothing_away(tmp_path: Path) -> None:
    folder = runner.run("table1-mnist", preset="smoke", out=tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(ExperimentError, match="holds a run with other settings"):
        runner.run("table1-mnist", preset="smoke", out=tmp_path, form="plain")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
