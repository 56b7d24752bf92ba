"""Table 1's further rows, the table put together, training with multiplied images, and Figure 5's curves."""

from __future__ import annotations

import copy
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cifar_files import write_folder
from idx_files import write_idx_set
from image_folders import write_imagenette
from rich.console import Console

from zbkernels import experiments
from zbkernels.data import DataError
from zbkernels.data.cifar import CIFAR100
from zbkernels.experiments import (
    ExperimentError,
    augmentation_claims,
    loss_curves,
    loss_curves_claims,
    runner,
    table1,
    table1_cifar100,
    table1_claims,
    table1_imagenet,
)
from zbkernels.experiments.contrast import SCALARS
from zbkernels.experiments.input_gain import input_gain
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.stand_ins import load_or_stand_in
from zbkernels.experiments.table1_row import RowPreset, preset_architecture
from zbkernels.nap.sources import NapError, load_images, load_model
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, WITHIN_SPREAD, rewrite
from zbkernels.train import DivergedError

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = ("table1-mnist", "table1-fashion", "table1-cifar100", "table1-imagenet")
TINY = RowPreset(
    "tests only",
    "cifar-100",
    2,
    16,
    (0,),
    48,
    20,
    variants=("with-bias", "without-bias"),
    architecture="resnet18-w16",
)


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the preset ``smoke``: table1 with its four rows, then those that take from them."""
    out = tmp_path_factory.mktemp("smoke")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in ("table1", "loss-curves", "augmentation"):
        runner.run(name, preset="smoke", out=out, progress=quiet())
    torch.set_num_threads(before)
    return out


@pytest.fixture
def composite_root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write_idx_set(root, "MNIST")
    write_idx_set(root, "FashionMNIST")
    return root


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a preset ``tiny`` to table1-cifar100."""
    presets = {**table1_cifar100.EXPERIMENT.presets, "tiny": TINY}
    monkeypatch.setattr(table1_cifar100, "EXPERIMENT", replace(table1_cifar100.EXPERIMENT, presets=presets))


def test_every_run_leaves_its_files_and_draws_them_again(smoke: Path) -> None:
    names = ("table1", "loss-curves", "augmentation", *PARTS)
    folders = sorted(smoke / f"{name}-smoke" for name in names)
    assert sorted(path for path in smoke.iterdir() if path.is_dir()) == folders
    written = [
        ((folder / "table.md").read_text(), (folder / "figure.png").read_bytes()) for folder in folders
    ]
    assert [(rewrite(folder), (folder / "figure.png").read_bytes()) for folder in folders] == written


def test_the_whole_table_takes_its_rows_from_their_own_runs(smoke: Path) -> None:
    whole = metrics_of(smoke / "table1-smoke")
    assert [row["experiment"] for row in whole["rows"]] == list(PARTS)
    for row in whole["rows"]:
        assert row == metrics_of(smoke / f"{row['experiment']}-smoke")
        for kind in table1_claims.kinds_of(row):
            if not kind["bias"]:
                (unit,) = [unit for unit in row["units"] if unit["variant"] == kind["name"]]
                assert unit["form"] == "fused"
                assert all((r["largest_changed_margin"] or 0) < 1e-4 for r in unit["sweep"])
    text = (smoke / "table1-smoke" / "table.md").read_text()
    assert "resnet18-w16, without bias, Fixup: ours" in text and "with bias, batch norm: ours" in text
    assert ": paper" not in text and "difference" not in text  # digits are not compared
    kept = (smoke / "table1-cifar100-smoke" / "metrics.json").stat().st_mtime_ns
    runner.run("table1", preset="smoke", out=smoke, progress=quiet(), force=True)
    assert (smoke / "table1-cifar100-smoke" / "metrics.json").stat().st_mtime_ns == kept


def test_rows_train_in_bfloat16_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="loss-curves trains in float32 only, got bfloat16"):
        runner.run("loss-curves", preset="smoke", out=tmp_path, precision="bfloat16", progress=quiet())
    arguments = {"preset": "smoke", "out": tmp_path, "variants": ("without-bias",), "progress": quiet()}
    folder = runner.run("table1-mnist", precision="bfloat16", **arguments)
    assert "bfloat16" in (folder / "table.md").read_text()
    settings = json.loads((folder / "units/without-bias-seed0/settings.json").read_text())
    assert settings["precision"] == "bfloat16"
    with pytest.raises(ExperimentError, match="precision: bfloat16 there, float32 asked for"):
        runner.run("table1-mnist", **arguments)


def test_a_row_comes_whole(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="table1: rows come whole"):
        runner.run("table1", preset="smoke", out=tmp_path, variants=("with-bias",), progress=quiet())


def test_rows_without_data_are_left_out_with_the_reason(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "data", "MNIST")
    folder = runner.run(
        "table1", preset="quick", data=tmp_path / "data", out=tmp_path / "out", progress=quiet()
    )
    rows = {row["experiment"]: row for row in metrics_of(folder)["rows"]}
    assert "units" in rows["table1-mnist"]
    assert "FashionMNIST/raw: no such folder" in rows["table1-fashion"]["left_out"]
    assert (
        "FashionMNIST/raw: no such folder" in rows["table1-cifar100"]["left_out"]
    )  # nor the composite of it
    assert "imagenette2/train: no such folder" in rows["table1-imagenet"]["left_out"]
    text = (folder / "table.md").read_text()
    assert "MNIST, FCN: MNIST" in text and "ImageNet, ResNet50: left out: " in text


def test_presets_are_the_papers() -> None:
    """Appendix C: 40 epochs and batch 128, 100 and 256; SGD 0.9, 1e-4, cosine from 0.1, mixup 0.7."""
    for row, experiment, epochs, batch in (
        (table1_cifar100.ROW, table1_cifar100.EXPERIMENT, 40, 128),
        (table1_imagenet.ROW, table1_imagenet.EXPERIMENT, 100, 256),
    ):
        preset = experiment.presets["paper"]
        assert (preset.epochs, preset.batch_size, preset.seeds) == (epochs, batch, (0, 1, 2))
        assert (preset.data, row.epochs, preset_architecture(row, preset)) == (
            row.data,
            epochs,
            row.architecture,
        )
        data = experiments_data(row.data)
        config = row.recipe(preset, data, 3)
        assert (config.optimizer, config.momentum, config.weight_decay, config.seed) == ("sgd", 0.9, 1e-4, 3)
        assert (config.schedule, config.lr, config.mixup, config.scalar_lr) == ("cosine", 0.1, 0.7, 0.1)
    assert table1_cifar100.ROW.recipe(preset, experiments_data("cifar-100"), 0).crop == "crop-flip"
    assert table1_cifar100.ROW.recipe(preset, experiments_data("composite"), 0).crop == "none"


def experiments_data(name: str) -> Any:
    from zbkernels.data import load_digits

    return replace(load_digits(), name=name)


def test_cifar_100_is_read_where_it_is_and_the_composite_where_it_is_not(
    composite_root: Path, tmp_path: Path, tiny: None
) -> None:
    arguments = {"preset": "tiny", "data": composite_root, "progress": quiet()}
    folder = runner.run("table1-cifar100", out=tmp_path / "composite", **arguments)
    metrics, text = metrics_of(folder), (folder / "table.md").read_text()
    assert metrics["data"]["stand_in_for"] == "CIFAR-100"
    assert "A result about the colour composite, in the place of CIFAR-100" in text
    assert "Fixup: ours" in text and "Fixup: paper" not in text and "difference" not in text
    judged = [v for _, pair in table1_claims.pairs_of(metrics) for v in table1_claims.verdicts(pair)]
    assert [v.verdict for v in judged[:2]] == [NOT_TESTABLE] * 2
    similar = next(v for v in judged if "similar accuracies" in v.claim)
    assert similar.verdict != NOT_TESTABLE
    assert similar.claim.endswith("(here on the colour composite, not on CIFAR-100)")

    write_folder(composite_root, CIFAR100, images=60)
    folder = runner.run("table1-cifar100", out=tmp_path / "cifar", **arguments)
    metrics, text = metrics_of(folder), (folder / "table.md").read_text()
    assert metrics["data"]["stand_in_for"] is None and "CIFAR-100" in metrics["data"]["title"]
    assert not metrics["data"]["as_in_paper"]  # 48 images, a narrow network, 2 epochs
    assert (
        "Reduced: 48 training images; 20 test images; resnet18-w16 in place of resnet18; 2 of 40 epochs"
        in text
    )
    assert "Fixup: paper" in text and "difference" not in text and "composite" not in text
    (composite_root / CIFAR100.folder / "train").unlink()  # there and broken: not stood in for
    with pytest.raises(DataError, match="half unpacked"):
        load_or_stand_in("cifar-100", composite_root)


def test_imagenette_is_streamed_and_not_compared_with_imagenet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZBKERNELS_DATA_WORKERS", "0")
    write_imagenette(tmp_path / "data", train=2, test=1)
    tiny = RowPreset("tests only", "imagenette", 1, 3, (0,), architecture="resnet50-w8")
    presets = {**table1_imagenet.EXPERIMENT.presets, "tiny": tiny}
    monkeypatch.setattr(table1_imagenet, "EXPERIMENT", replace(table1_imagenet.EXPERIMENT, presets=presets))
    folder = runner.run(
        "table1-imagenet",
        preset="tiny",
        data=tmp_path / "data",
        out=tmp_path / "out",
        variants=("without-bias",),
        progress=quiet(),
    )
    metrics, text = metrics_of(folder), (folder / "table.md").read_text()
    assert [unit["variant"] for unit in metrics["units"]] == ["without-bias"]
    assert len(metrics["units"][0]["sweep"]) == 11
    assert "A result about Imagenette, in the place of ImageNet" in text
    assert "random crops of random sizes and flips" in text and "mixup 0.7" in text
    assert "Fixup: ours" in text and "Fixup: paper" not in text and "difference" not in text


def test_a_diverged_network_is_part_of_the_result(
    composite_root: Path, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_fast(preset: Any, data: Any, seed: int) -> Any:
        return replace(table1_cifar100.sgd(preset, data, seed), lr=1e30)

    kinds = ("without-bias", "without-bias-plain")
    monkeypatch.setattr(table1_cifar100, "ROW", replace(table1_cifar100.ROW, recipe=too_fast))
    with pytest.raises(DivergedError, match="the loss is nan at epoch 1"):
        runner.run(
            "table1-cifar100",
            preset="tiny",
            data=composite_root,
            out=tmp_path,
            variants=kinds[:1],
            progress=quiet(),
        )
    calm = replace(
        table1_cifar100.ROW,
        recipe=lambda preset, data, seed: replace(too_fast(preset, data, seed), lr=1e30),
        kinds=tuple(replace(kind, may_diverge=True) for kind in table1_cifar100.ROW.kinds),
    )
    monkeypatch.setattr(table1_cifar100, "ROW", calm)
    context = context_of(tmp_path / "calm", composite_root, kinds)
    metrics = table1.run(calm, context)
    assert metrics["units"] == []
    assert [(d["variant"], d["seed"]) for d in metrics["diverged"]] == [(kind, 0) for kind in kinds]
    assert "expected a finite number" in metrics["diverged"][0]["message"]


def context_of(folder: Path, root: Path, variants: tuple[str, ...]) -> Any:
    from zbkernels.experiments.base import RunContext, RunSettings

    settings = RunSettings("table1-cifar100", "tiny", (0,), "cpu", variants, "fused")
    return RunContext(settings, TINY, folder, root, torch.device("cpu"), quiet())


def test_augmented_networks_stand_beside_table_1s(smoke: Path) -> None:
    metrics = metrics_of(smoke / "augmentation-smoke")
    fcn, cnn = metrics["parts"]
    for part, name in ((fcn, "table1-mnist"), (cnn, "table1-fashion")):
        row = metrics_of(smoke / f"{name}-smoke")
        assert part["plain"]["experiment"] == name
        assert [u["sweep"] for u in part["plain"]["units"]] == [u["sweep"] for u in row["units"]]
        for augmented, plain in zip(part["augmented"]["units"], part["plain"]["units"], strict=True):
            assert augmented["variant"] == plain["variant"]
            assert augmented["sweep"] != plain["sweep"]
    settings = json.loads(
        (smoke / "augmentation-smoke/mnist/units/with-bias-seed0/settings.json").read_text()
    )
    assert settings["contrasts"] == list(SCALARS)
    text = (smoke / "augmentation-smoke" / "table.md").read_text()
    assert "an epoch keeps" in text and text.count("| with bias, augmented, 1 seed |") == 2


def part_of(with_bias: float, without: float, **changes: float) -> dict[str, Any]:
    """Invented accuracies, two seeds 0.2 apart; ``changes`` gives the biased ones at single scalars."""

    def unit(variant: str, seed: int, value: float, at: dict[float, float]) -> dict[str, Any]:
        rows = [
            {
                "scalar": s,
                "accuracy": at.get(s, value) + 0.2 * seed,
                "changed": 0,
                "largest_changed_margin": None,
            }
            for s in SCALARS
        ]
        return {"variant": variant, "seed": seed, "sweep": rows}

    at = {float(key.removeprefix("at_").replace("_", ".")): value for key, value in changes.items()}
    units = [unit("with-bias", seed, with_bias, at) for seed in (0, 1)]
    units += [unit("without-bias", seed, without, {}) for seed in (0, 1)]
    data = {"as_in_paper": True, "title": "MNIST"}
    augmented = {"scalars": list(SCALARS), "units": units, "data": data}
    plain = {"scalars": list(SCALARS), "units": [unit("without-bias", 0, 88.0, {})]}
    return {"augmented": augmented, "plain": plain}


def mean_of(part: dict[str, Any], variant: str) -> float:
    return sum(augmentation_claims.accuracies(part["augmented"], variant)[0.01])


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (part_of(85, 86, at_0_001=12, at_0_0001=10), (HOLDS, HOLDS, HOLDS)),
        (part_of(85, 86), (FAILS, HOLDS, HOLDS)),
        (part_of(85, 86, at_0_001=60, at_0_0001=10), (FAILS, HOLDS, HOLDS)),
        (part_of(90, 86, at_0_001=12, at_0_0001=10), (HOLDS, FAILS, FAILS)),
        (part_of(85, 86, at_0_01=40, at_0_001=12, at_0_0001=10), (HOLDS, FAILS, HOLDS)),
        (part_of(88, 88), (FAILS, HOLDS, FAILS)),
    ],
)
def test_sentences_about_augmentation_are_judged_by_the_numbers(part: dict[str, Any], expected: Any) -> None:
    found = augmentation_claims.verdicts(part)
    assert tuple(v.verdict for v in found[:3]) == expected
    assert found[3].verdict == HOLDS
    if expected[1] == FAILS:
        better = mean_of(part, "with-bias") > mean_of(part, "without-bias")
        assert f"; {'better' if better else 'worse'} than comparable at " in found[1].measured
    lacking = augmentation_claims.verdicts({**part, "plain": None})
    assert lacking[2].verdict == NOT_TESTABLE
    part = copy.deepcopy(part)
    part["augmented"]["data"]["as_in_paper"] = False
    assert {v.verdict for v in augmentation_claims.verdicts(part)[:3]} == {NOT_TESTABLE}


def test_loss_curves_are_those_of_table_1(smoke: Path) -> None:
    metrics = metrics_of(smoke / "loss-curves-smoke")
    assert [panel["panel"] for panel in metrics["panels"]] == ["5a", "5b", "5c", "5d"]
    row = metrics_of(smoke / "table1-mnist-smoke")
    (biased,) = [unit for unit in row["units"] if unit["variant"] == "with-bias"]
    panel = metrics["panels"][0]
    assert panel["curves"]["with-bias"]["test_loss"] == [[epoch["test_loss"] for epoch in biased["epochs"]]]
    assert len(metrics["panels"][2]["curves"]["without-bias"]["train_loss"][0]) == 2
    assert (smoke / "loss-curves-smoke/units/without-bias-seed0/result.json").exists()


def test_a_finished_paper_run_is_taken_before_a_smaller_one(smoke: Path, tmp_path: Path) -> None:
    """As the committed results are, put beside as <name>-paper: with seeds of their own, and no units."""
    for name in PARTS[:2]:
        folder = tmp_path / f"{name}-paper"
        folder.mkdir()
        metrics = {**metrics_of(smoke / f"{name}-smoke"), "preset": "paper"}
        (folder / "metrics.json").write_text(json.dumps(metrics))
    context = replace(context_of(tmp_path / "loss-curves-reduced", tmp_path / "no data", ()), preset=TINY)
    from zbkernels.experiments.parts import run_best_part

    assert run_best_part(context, "table1-mnist", "quick")["preset"] == "paper"
    with pytest.raises(DataError):
        run_best_part(
            context, "table1-cifar100", "tiny" if "tiny" in table1_cifar100.EXPERIMENT.presets else "quick"
        )


def panel_of(with_bias: list[list[float]], without: list[list[float]], **data: Any) -> dict[str, Any]:
    about = {"title": "MNIST", "as_in_paper": True, "stand_in_for": None, "stand_in": None, **data}
    return {
        "panel": "5a",
        "data": about,
        "seeds": {"with-bias": list(range(len(with_bias))), "without-bias": list(range(len(without)))},
        "curves": {
            "with-bias": {"train_loss": with_bias, "test_loss": with_bias},
            "without-bias": {"train_loss": without, "test_loss": without},
        },
    }


def test_distances_by_hand() -> None:
    panel = panel_of([[2.0, 1.0], [2.2, 1.4]], [[2.1, 1.3], [2.1, 1.5]])
    found = loss_curves_claims.distance(panel, "train_loss")
    # means 2.1, 1.2 and 2.1, 1.4: apart by 0 and 0.2, which is 1/6 of 1.2 and, over the standard error
    # sqrt(0.08 / 2 + 0.02 / 2), 0.894
    assert found.gap.relative == pytest.approx(1 / 6)
    assert found.gap.epoch == 2
    assert found.gap.in_errors == found.gap.above == pytest.approx(0.2 / math.sqrt(0.05))
    assert found.same_seed == pytest.approx((0.3 + 0.1 / 1.4) / 2)
    assert found.same_kind == pytest.approx((0.4 + 0.2 / 1.3) / 2)
    alone = loss_curves_claims.distance(panel_of([[2.0]], [[2.2]]), "test_loss")
    assert (alone.gap.in_errors, alone.gap.above, alone.same_kind) == (None, None, None)
    assert alone.gap.relative == alone.same_seed == pytest.approx(0.1)


def test_more_seeds_make_the_yardstick_finer() -> None:
    """The means of two kinds that differ by one deviation of single networks: many seeds tell them apart."""
    for pairs, expected in ((1, WITHIN_SPREAD), (8, FAILS)):
        panel = panel_of([[1.0], [1.2]] * pairs, [[1.14], [1.34]] * pairs)
        assert loss_curves_claims.verdict(panel).verdict == expected
        assert loss_curves_claims.distance(panel, "test_loss").same_kind is not None


def test_table_1_and_figure_5_judge_the_same_curves_alike(smoke: Path) -> None:
    metrics = metrics_of(smoke / "table1-mnist-smoke")
    metrics["data"]["as_in_paper"] = True
    units = metrics["units"]
    for seed, shift in ((1, 0.3), (2, -0.3)):
        units += [
            {
                **unit,
                "seed": seed,
                "epochs": [
                    {
                        **epoch,
                        "train_loss": epoch["train_loss"] * (1 + shift),
                        "test_loss": epoch["test_loss"] + shift,
                    }
                    for epoch in unit["epochs"]
                ],
            }
            for unit in units[:2]
        ]
    for factor, expected in ((1.0, None), (1.1, WITHIN_SPREAD), (3.0, FAILS)):
        for unit in units:
            if unit["variant"] == "without-bias":
                for epoch in unit["epochs"]:
                    epoch["train_loss"] *= factor
        panel = loss_curves._panel("5a", metrics)
        of_table = next(v for v in table1_claims.verdicts(metrics) if "Figure 5" in v.claim)
        of_curves = loss_curves_claims.verdict(panel)
        assert (of_table.verdict, of_table.measured) == (of_curves.verdict, of_curves.measured)
        assert expected in (None, of_table.verdict)


@pytest.mark.parametrize(
    ("panel", "expected"),
    [
        (panel_of([[2.0, 1.0]], [[2.0, 1.04]]), HOLDS),
        (panel_of([[2.0, 1.0]], [[2.0, 1.2]]), FAILS),
        (panel_of([[2.0, 1.0], [2.0, 1.4]], [[2.0, 1.2], [2.0, 1.4]]), WITHIN_SPREAD),
        (panel_of([[2.0, 1.0], [2.0, 1.01]], [[2.0, 1.2], [2.0, 1.21]]), FAILS),
        (panel_of([[2.0, 1.0]], []), NOT_TESTABLE),
        (panel_of([[2.0]], [[2.0]], as_in_paper=False), NOT_TESTABLE),
        (
            panel_of(
                [[2.0]], [[2.0]], as_in_paper=False, stand_in_for="CIFAR-10", stand_in="the colour composite"
            ),
            HOLDS,
        ),
    ],
)
def test_almost_identical_is_a_number(panel: dict[str, Any], expected: str) -> None:
    verdict = loss_curves_claims.verdict(panel)
    assert verdict.verdict == expected
    assert ("not on CIFAR-10" in verdict.claim) == (panel["data"]["stand_in_for"] is not None)


def test_each_kind_with_bias_is_set_beside_one_without() -> None:
    """ImageNet's three lines are two pairs, and each pair's claims are as if there were no third line."""
    kinds = [
        {"name": kind.name, "label": kind.label, "bias": kind.bias, "beside": kind.beside}
        for kind in table1_imagenet.ROW.kinds[:3]
    ]
    units = [{"variant": kind["name"], "seed": 0, "mark": kind["name"]} for kind in kinds]
    metrics = {
        "kinds": kinds,
        "units": units,
        "paper": {k: list(v) for k, v in table1_imagenet.ROW.paper.items()},
    }
    pairs = table1_claims.pairs_of(metrics)
    assert [title for title, _ in pairs] == [
        "with bias, batch norm, beside without bias, Fixup",
        "with bias, Fixup, beside without bias, Fixup",
    ]
    assert [[u["mark"] for u in pair["units"]] for _, pair in pairs] == [
        ["with-bias-bn", "without-bias"],
        ["with-bias", "without-bias"],
    ]
    assert all({u["variant"] for u in pair["units"]} == {"with-bias", "without-bias"} for _, pair in pairs)
    (alone,) = table1_claims.pairs_of({**metrics, "units": units[2:]})
    assert [u["variant"] for u in alone[1]["units"]] == ["without-bias"]


def test_images_come_to_mean_square_one(composite_root: Path) -> None:
    data = load_or_stand_in("cifar-100", composite_root)
    gain = input_gain(data)
    assert (gain * data.train.images).square().mean().item() == pytest.approx(1, rel=0.1)
    assert float(f"{gain:.2g}") == gain
    kind = table1_cifar100.ROW.kinds[1]
    model = table1.new_model(table1_cifar100.ROW, TINY, data, kind, fused=True, seed=0)
    bare = table1.new_model(
        replace(table1_cifar100.ROW, mean_square_one=False), TINY, data, kind, fused=True, seed=0
    )
    with torch.no_grad():
        for network in (model.network, bare):
            network.fc.weight.fill_(0.1)  # Fixup starts it at 0
        images = data.test.images[:4]
        torch.testing.assert_close(model(images), bare(gain * images))
        assert model(images).abs().sum() > 0


@pytest.mark.parametrize("part", PARTS)
def test_trained_networks_of_every_row_load_by_their_folder(smoke: Path, part: str) -> None:
    """With the gain before them, where the row has one: the accuracy is the one that was measured."""
    run = metrics_of(smoke / f"{part}-smoke")
    images = load_images("digits:test", None).first(run["data"]["test_images"])
    for unit in run["units"]:
        folder = smoke / f"{part}-smoke" / "units" / f"{unit['variant']}-seed{unit['seed']}"
        model = load_model(str(folder), images, None, torch.device("cpu"))
        with torch.no_grad():
            right = (model(images.images).argmax(1) == images.labels).float().mean()
        assert 100 * right.item() == pytest.approx(unit["sweep"][0]["accuracy"], abs=1.01), (
            folder
        )  # a near-tie
        gain = json.loads((folder / "settings.json").read_text()).get("input_gain")
        assert (
            (gain is not None) == hasattr(model, "gain") == (part in ("table1-cifar100", "table1-imagenet"))
        )
        assert gain is None or model.gain.gain == gain


def test_a_gain_that_is_lost_is_told(smoke: Path, tmp_path: Path) -> None:
    folder = smoke / "table1-cifar100-smoke/units/without-bias-seed0"
    images = load_images("digits:test", None).first(2)
    shutil.copy(folder / "model.safetensors", tmp_path / "a.safetensors")
    with pytest.raises(
        NapError, match=r"a\.safetensors: the weights are of a network that sees multiplied images"
    ):
        load_model(str(tmp_path / "a.safetensors"), images, "resnet18-w16", torch.device("cpu"))
    settings = json.loads((folder / "settings.json").read_text())
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "input_gain": "2"}))
    with pytest.raises(NapError, match=r"expected input_gain in its settings.json to be a number, got '2'"):
        load_model(str(tmp_path / "a.safetensors"), images, None, torch.device("cpu"))


@pytest.mark.parametrize("run", ["table1-mnist", "loss-curves"])
def test_one_epoch_is_drawn_and_no_legend_lies_on_the_curves(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda canvas, *_, **__: drawn.append(canvas))
    metrics = metrics_of(smoke / f"{run}-smoke")
    for epochs in (None, 1):
        if epochs:
            for unit in metrics.get("units", ()):
                unit["epochs"] = unit["epochs"][:1]
            for panel in metrics.get("panels", ()):
                panel["curves"] = {
                    variant: {key: [curve[:1] for curve in curves] for key, curves in kinds.items()}
                    for variant, kinds in panel["curves"].items()
                }
            for each in metrics.get("panels", [metrics]):
                each["training"]["epochs"] = 1
        experiments.get(run).figure(metrics, tmp_path / "figure.png")
        canvas = drawn[-1]
        canvas.draw_without_rendering()
        for axes in canvas.axes:
            legends = [axes.get_legend(), *canvas.legends]
            boxes = [legend.get_window_extent() for legend in legends if legend is not None]
            assert boxes and not any(box.overlaps(axes.get_window_extent()) for box in boxes)
            if axes.get_xlabel() == "epoch":
                assert all(tick == int(tick) for tick in axes.get_xticks())
                for line in axes.get_lines():
                    assert (line.get_marker() == "o") == (epochs == 1)
                    assert epochs is None or list(axes.get_xticks()) == [1]


def test_names_are_known() -> None:
    for name in ("table1-cifar100", "table1-imagenet", "table1", "loss-curves", "augmentation"):
        experiment = experiments.get(name)
        assert {"smoke", "paper"} <= set(experiment.presets)
