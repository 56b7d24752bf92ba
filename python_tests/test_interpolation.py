"""Pairs of one pattern: all are counted, what lies between them is looked at, and verdicts follow the numbers."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from cifar_files import write_folder
from cut_runs import cut_at
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import write_idx_set
from rich.console import Console
from torch import nn

from zbkernels.experiments import (
    interpolation,
    interpolation_claims,
    interpolation_report,
    interpolation_strips,
    pairs,
    pictures,
    runner,
)
from zbkernels.experiments.interpolation import InterpolationPreset, Network
from zbkernels.experiments.pairs import Groups, Reader, between, count_pairs, look_again_exactly, look_between
from zbkernels.experiments.progress import Progress
from zbkernels.models import Architecture, build
from zbkernels.models.rows import Linear
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE, rewrite

FILES = ["config.json", "figure.png", "metrics.json", "table.md"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Adds a preset ``tiny`` with both image sets; returns the root of its data."""
    preset = InterpolationPreset(
        "tests only",
        "mnist",
        2,
        16,
        (0,),
        64,
        40,
        second=Network("cifar-10", 1, 32),
        pairs=5,
        points=20,
    )
    changed = dataclasses.replace(
        interpolation.EXPERIMENT, presets={**interpolation.EXPERIMENT.presets, "tiny": preset}
    )
    monkeypatch.setattr(interpolation, "EXPERIMENT", changed)
    root = tmp_path / "data"
    write_idx_set(root, "MNIST")
    write_idx_set(root, "FashionMNIST")
    return root


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def network(hidden: tuple[int, ...], *, bias: bool, seed: int = 0, inputs: int = 6) -> nn.Module:
    """Images [N, 1, 1, inputs], three classes, float64."""
    architecture = Architecture("small", tuple(Linear(width) for width in hidden))
    return build(architecture, (1, 1, inputs), 3, bias=bias, seed=seed).double()


def patterns_by_hand(model: nn.Module, images: torch.Tensor) -> list[tuple[Any, ...]]:
    """Of each image alone: the bits of every hidden unit, then the prediction."""
    keys = []
    linear = [module for module in model if hasattr(module, "weight")]
    for image in images:
        x, bits = image.flatten(), []
        for layer in linear[:-1]:
            z = layer.weight @ x + (0 if getattr(layer, "bias", None) is None else layer.bias)
            bits += (z > 0).tolist()
            x = z.clamp_min(0)
        last = linear[-1]
        logits = last.weight @ x + (0 if last.bias is None else last.bias)
        keys.append((*bits, int(logits.argmax())))
    return keys


@given(rows=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1), st.booleans()), max_size=30))
@settings(max_examples=60, deadline=None)
def test_all_pairs_are_counted(rows: list[tuple[int, int, bool]]) -> None:
    sig = torch.tensor([[a, -a] for a, _, _ in rows], dtype=torch.int64).reshape(-1, 2)
    predicted = torch.tensor([b for _, b, _ in rows], dtype=torch.int64)
    among = torch.tensor([c for _, _, c in rows], dtype=torch.bool)
    groups = Groups.of(sig, predicted)
    equal = [(i, j) for i, j in combinations(range(len(rows)), 2) if rows[i][:2] == rows[j][:2]]
    assert groups.pairs() == len(equal)
    assert groups.pairs(among) == sum(rows[i][2] and rows[j][2] for i, j in equal)
    everything = groups.sample(10_000, torch.Generator())
    assert sorted(tuple(pair) for pair in everything.tolist()) == equal
    some = groups.sample(3, torch.Generator().manual_seed(1)).tolist()
    assert len(some) == min(3, len(equal)) == len({tuple(pair) for pair in some})
    assert all(tuple(pair) in equal for pair in some)


def test_every_pair_is_drawn_as_often_as_any_other() -> None:
    """Large groups hold more pairs: of 6, 3 and 1, one in ten is the small group's."""
    groups = Groups.of(torch.tensor([7, 7, 7, 7, 8, 8, 8, 9, 9, 5]))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([groups.sample(2, generator) for _ in range(500)])
    often = torch.unique(drawn, dim=0, return_counts=True)[1]
    assert len(often) == 10
    assert often.min() > 60 and often.max() < 140  # 100 expected, standard deviation 9


@pytest.mark.parametrize("bias", [False, True])
def test_counts_agree_with_a_network_looked_at_by_hand(bias: bool) -> None:
    model = network((4, 3), bias=bias)
    images = torch.rand(60, 1, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(60) % 3
    keys = patterns_by_hand(model, images)
    right = [key[-1] == label for key, label in zip(keys, labels.tolist(), strict=True)]
    same = [(i, j) for i, j in combinations(range(60), 2) if keys[i] == keys[j]]
    counted = count_pairs(model, images, labels)
    assert counted["pairs"] == len(same) > 20
    assert counted["patterns"] == len({key[:-1] for key in keys})
    assert counted["right"] == sum(right[i] and right[j] for i, j in same)
    assert counted["wrong"] == sum(not right[i] and not right[j] for i, j in same)
    assert counted["images_in_pairs"] == len({row for pair in same for row in pair})
    assert counted["largest_group"] == max(keys.count(key) for key in keys)
    assert counted["same_prediction"] == sum(
        keys[i][-1] == keys[j][-1] for i, j in combinations(range(60), 2)
    )
    assert counted["accuracy"] == pytest.approx(100 * sum(right) / 60)


def test_interpolations_are_evenly_between_and_neither_end() -> None:
    a, b = torch.zeros(2, 1, 1, 1), torch.tensor([1.0, 8.0]).reshape(2, 1, 1, 1)
    x = between(a, b, 3)
    assert x.shape == (2, 3, 1, 1, 1)
    assert x.flatten(1).tolist() == [[0.75, 0.5, 0.25], [6.0, 4.0, 2.0]]


@given(seed=st.integers(0, 10_000), depth=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_theorem_2_in_float64(seed: int, depth: int) -> None:
    """Without bias every conic combination keeps prediction and pattern, with bias every convex one."""
    images = torch.rand(300, 1, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for bias in (False, True):
        model = network((4,) * depth, bias=bias, seed=seed)
        same = Groups.of(*Reader(model, images[:1])(images)).sample(20, torch.Generator().manual_seed(seed))
        assert len(same)
        convex = look_between(model, images, same, 50)
        assert (convex["pairs_broken"], convex["points_broken"], convex["broken"]) == (0, 0, [])
        if not bias:
            conic = look_between(model, images, same, 50, conic=True)
            assert (conic["pairs_broken"], conic["most_bits"], conic["worst_share"]) == (0, 0, 0)


def test_a_broken_pair_is_found_and_measured() -> None:
    """One unit, x0 - x1, on for the first image and off from the middle of the way on."""
    model = network((1,), bias=False, inputs=2)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, -1.0]]))
        model[2].weight.copy_(torch.tensor([[-1.0], [0.0], [1.0]]))
    images = torch.tensor([[2.0, 1.0], [1.0, 2.0], [4.0, 1.0]], dtype=torch.float64).reshape(3, 1, 1, 2)
    look = look_between(model, images, torch.tensor([[0, 1], [0, 2]]), 9)
    assert look == {
        "pairs": 2,
        "points": 9,
        "pairs_broken": 1,
        "prediction_broken": 1,
        "points_broken": 5,  # λ = 0.1 … 0.5
        "points_predicted_otherwise": 5,
        "worst_share": pytest.approx(100 * 5 / 9),
        "most_bits": 1,
        "broken": [0],
    }
    again = look_again_exactly(model, images, torch.tensor([[0, 1], [0, 2]]), 9)
    assert again == {"pairs": 2, "unequal": 1, "pairs_broken": 0, "points_broken": 0}
    nothing = torch.empty(0, 2, dtype=torch.int64)
    assert look_between(model, images, nothing, 9)["pairs_broken"] == 0
    assert look_again_exactly(model, images, nothing, 9)["pairs"] == 0


def test_darker_combinations_break_pairs_of_a_network_with_bias() -> None:
    model = network((6,), bias=True, seed=2).float()
    images = torch.rand(300, 1, 1, 6, generator=torch.Generator().manual_seed(0))
    same = Groups.of(*Reader(model, images[:1])(images)).sample(20, torch.Generator().manual_seed(0))
    assert look_between(model, images, same, 45)["pairs_broken"] == 0
    look = look_between(model, images, same, 45, conic=True)
    assert look["pairs_broken"] > 10
    assert 0 < look["points_broken"] <= 40 * len(same)  # one combination of nine is as bright as the images
    again = look_again_exactly(model, images, same[look["broken"]], 45, conic=True)
    assert again["pairs_broken"] + again["unequal"] == look["pairs_broken"]
    assert again["pairs_broken"] > 10


def test_pairs_of_a_chunk_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network((4,), bias=False)
    images = torch.rand(50, 1, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = Groups.of(torch.zeros(50, dtype=torch.int64)).sample(30, torch.Generator().manual_seed(1))
    together = look_between(model, images, drawn, 10)
    assert 0 < together["pairs_broken"] < 30
    monkeypatch.setattr(pairs, "LOOK_BATCH", 1)
    assert look_between(model, images, drawn, 10) == together


def test_pictures_come_back_as_they_were() -> None:
    image = torch.randint(0, 256, (3, 5, 4), generator=torch.Generator().manual_seed(0)) / 255
    assert torch.equal(pictures.decode(pictures.encode(image), (3, 5, 4)), image)
    with pytest.raises(ValueError, match=r"expected an image of shape \[3, 4, 4\], got 60 values"):
        pictures.decode(pictures.encode(image), (3, 4, 4))


def test_smoke_runs_without_any_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZBKERNELS_DATA", raising=False)
    folder = runner.run("interpolation", preset="smoke", out=tmp_path, progress=quiet())
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    (part,) = metrics["sets"]
    assert "digits" in part["data"]["title"] and not part["data"]["as_in_paper"]
    assert {unit["variant"]: unit["form"] for unit in part["units"]} == {
        "with-bias": "plain",
        "without-bias": "fused",
    }
    for check in interpolation_claims.checks_of(metrics, "without-bias", kind="same pattern"):
        assert check["pairs"] == 20
        assert check["in_float64"]["pairs_broken"] == 0
    for check in interpolation_claims.checks_of(metrics, "without-bias", kind="other pattern"):
        assert check["pairs_broken"] == check["pairs"]  # their patterns differ at the far end at least
    assert len(part["strips"]["wrong"]) == interpolation_strips.STRIPS
    for kind in ("right", "wrong"):
        for strip in part["strips"][kind]:
            assert not strip["broken"]
            assert [label == strip["predicted"] for label in strip["labels"]] == [kind == "right"] * 2
    text = (folder / "table.md").read_text()
    assert text.count("**not testable here**") == 2  # the two accuracies
    wanted = text, (folder / "figure.png").read_bytes()
    assert rewrite(folder) == wanted[0]
    assert (folder / "figure.png").read_bytes() == wanted[1]


def test_the_composite_is_named_and_never_compared_with_cifar(tiny: Path, tmp_path: Path) -> None:
    folder = runner.run("interpolation", preset="tiny", data=tiny, out=tmp_path, progress=quiet())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [part["data"]["name"] for part in metrics["sets"]] == ["mnist", "composite-10"]
    assert metrics["sets"][1]["data"]["image_shape"] == [3, 32, 32]
    assert all("strips" not in unit for part in metrics["sets"] for unit in part["units"])
    text = (folder / "table.md").read_text()
    assert "colour composite of Fashion-MNIST (re-encoded) and MNIST" in text
    assert "not CIFAR, nor any image set of the paper" in text
    (cifar,) = [v for v in interpolation_claims.verdicts(metrics) if "CIFAR" in v.claim]
    assert cifar.verdict == NOT_TESTABLE
    assert cifar.measured.startswith("CIFAR-10 was not read in this run; in its place: colour composite of")
    assert "| composite-10, without bias | - |" in text


def test_cifar_10_is_used_where_it_is(tiny: Path, tmp_path: Path) -> None:
    write_folder(tiny)
    folder = runner.run("interpolation", preset="tiny", data=tiny, out=tmp_path, progress=quiet())
    metrics, text = json.loads((folder / "metrics.json").read_text()), (folder / "table.md").read_text()
    assert [part["data"]["name"] for part in metrics["sets"]] == ["mnist", "cifar-10"]
    assert "composite" not in text
    assert "| cifar-10, without bias | - |" in text  # the first images only: not compared
    metrics["sets"][1]["data"]["as_in_paper"] = True
    assert "| cifar-10, without bias | 29.60 |" in interpolation_report.table(metrics)
    (cifar,) = [v for v in interpolation_claims.verdicts(metrics) if "CIFAR" in v.claim]
    assert cifar.verdict != NOT_TESTABLE


@pytest.mark.parametrize("batch", [1, 5, 9])
def test_a_cut_off_run_gives_the_uncut_runs_metrics(tiny: Path, tmp_path: Path, batch: int) -> None:
    """Networks of 2 epochs of 4 batches, then of 1 of 2: the cuts fall into different ones."""
    arguments: dict[str, Any] = {"preset": "tiny", "data": tiny, "variants": ("without-bias",), "seeds": (3,)}
    uncut = runner.run("interpolation", out=tmp_path / "uncut", progress=quiet(), **arguments)
    progress = cut_at(quiet(), batch)
    with pytest.raises(KeyboardInterrupt):
        runner.run("interpolation", out=tmp_path / "cut", progress=progress, **arguments)
    assert not (tmp_path / "cut/interpolation-tiny/metrics.json").exists()
    resumed = runner.run("interpolation", out=tmp_path / "cut", progress=quiet(), **arguments)
    assert untimed(resumed) == untimed(uncut)


def untimed(folder: Path) -> Any:
    metrics = json.loads((folder / "metrics.json").read_text())
    for part in metrics["sets"]:
        for unit in part["units"]:
            unit.pop("train_seconds")
            for epoch in unit["epochs"]:
                epoch.pop("seconds")
    return metrics


def test_a_run_of_biased_networks_only_draws_and_says_what_it_cannot_judge(
    tiny: Path, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"preset": "tiny", "data": tiny, "progress": quiet()}
    folder = runner.run("interpolation", out=tmp_path, variants=("with-bias",), **arguments)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [part["strips"] for part in metrics["sets"]] == [None, None]
    assert verdict_on(metrics, "Theorem 2, Appendix A") == NOT_TESTABLE
    assert (folder / "figure.png").stat().st_size > 1000


def invented(change: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """Metrics of MNIST and the composite in which every claim holds but that about networks with bias."""

    def check(split: str, kind: str, combination: str, broken: int) -> dict[str, Any]:
        look = {
            "split": split,
            "kind": kind,
            "combination": combination,
            "pairs": 10,
            "points": 100,
            "pairs_broken": broken,
            "prediction_broken": broken,
            "points_broken": 50 * broken,
            "points_predicted_otherwise": 20 * broken,
            "worst_share": 50.0 if broken else 0.0,
            "most_bits": 3 if broken else 0,
        }
        if kind == "same pattern":
            look["in_float64"] = {
                "pairs": broken,
                "unequal": 0,
                "pairs_broken": broken,
                "points_broken": 50 * broken,
            }
        return look

    def unit(variant: str, seed: int, accuracy: float) -> dict[str, Any]:
        counts = {
            "images": 1000,
            "accuracy": accuracy + seed,
            "patterns": 500,
            "pairs": 900,
            "right": 300,
            "wrong": 400,
            "largest_group": 9,
            "images_in_pairs": 400,
            "same_prediction": 50_000,
        }
        return {
            "variant": variant,
            "seed": seed,
            "splits": {"train": counts, "test": dict(counts)},
            "checks": [
                check(split, kind, combination, broken)
                for split in ("train", "test")
                for kind, combination, broken in (
                    ("same pattern", "convex", 0),
                    ("same pattern", "conic", 10 if variant == "with-bias" else 0),
                    ("other pattern", "convex", 10),
                )
            ],
        }

    def part(name: str, accuracy: float) -> dict[str, Any]:
        return {
            "data": {
                "name": name,
                "title": name.upper(),
                "note": "",
                "train_images": 1000,
                "test_images": 1000,
                "image_shape": [1, 2, 2],
                "classes": ["a", "b"],
                "as_in_paper": name == "mnist",
            },
            "epochs": 2,
            "batch_size": 640,
            "units": [unit(v, seed, accuracy) for v in ("with-bias", "without-bias") for seed in (0, 1)],
            "strips": None,
        }

    metrics = {
        "experiment": "interpolation",
        "preset": "paper",
        "architecture": {"name": "30-units", "layers": "fc(30)"},
        "training": {"optimizer": "o", "lr": 0.01, "loss": "l", "initialisation": "i"},
        "points": 100,
        "paper": {"mnist": 32.27, "cifar-10": 29.6},
        "sets": [part("mnist", 32.0), part("composite-10", 28.0)],
    }
    metrics = copy.deepcopy(metrics)
    change(metrics)
    return metrics


def verdict_on(metrics: dict[str, Any], part: str) -> str:
    (found,) = [verdict for verdict in interpolation_claims.verdicts(metrics) if part in verdict.claim]
    return found.verdict


def each_check(
    change: dict[str, Any], variant: str, kind: str = "same pattern", combination: str = "convex"
) -> Callable[[dict[str, Any]], None]:
    def apply(metrics: dict[str, Any]) -> None:
        for check in interpolation_claims.checks_of(metrics, variant, kind=kind, combination=combination):
            check.update(copy.deepcopy(change))

    return apply


BROKEN = {"pairs_broken": 1, "points_broken": 2, "most_bits": 1}
IN_BOTH = {**BROKEN, "in_float64": {"pairs": 1, "unequal": 0, "pairs_broken": 1, "points_broken": 2}}
BY_ROUNDING = {**BROKEN, "in_float64": {"pairs": 1, "unequal": 1, "pairs_broken": 0, "points_broken": 0}}
TOO_MANY = {**BY_ROUNDING, "pairs_broken": 2}


def all_accuracies(value: float) -> Callable[[dict[str, Any]], None]:
    def apply(metrics: dict[str, Any]) -> None:
        for unit in metrics["sets"][0]["units"]:
            unit["splits"]["test"]["accuracy"] = value

    return apply


def all_counts(key: str, value: int) -> Callable[[dict[str, Any]], None]:
    def apply(metrics: dict[str, Any]) -> None:
        for part in metrics["sets"]:
            for unit in part["units"]:
                unit["splits"]["test"][key] = value

    return apply


@pytest.mark.parametrize(
    ("change", "claim", "expected"),
    [
        (lambda _: None, "32.27 % on MNIST", HOLDS),
        (lambda _: None, "29.6 % on CIFAR-10", NOT_TESTABLE),
        (lambda _: None, "easily found", HOLDS),
        (lambda _: None, "Theorem 2, Appendix A", HOLDS),
        (lambda _: None, "Figures 7 and 8", HOLDS),
        (lambda _: None, "more stringent", HOLDS),
        (lambda _: None, "hardly exist", FAILS),
        (lambda _: None, "Lemma 1", HOLDS),
        (all_accuracies(35.0), "32.27 % on MNIST", FAILS),
        (all_counts("pairs", 3), "easily found", FAILS),
        (all_counts("right", 0), "Figures 7 and 8", FAILS),
        (all_counts("pairs", 49_000), "more stringent", FAILS),
        (each_check(IN_BOTH, "without-bias"), "Theorem 2, Appendix A", FAILS),
        (each_check(BY_ROUNDING, "without-bias"), "Theorem 2, Appendix A", HOLDS),
        (each_check(TOO_MANY, "without-bias"), "Theorem 2, Appendix A", FAILS),
        (each_check(IN_BOTH, "with-bias"), "hardly exist", HOLDS),
        (each_check(BY_ROUNDING, "with-bias"), "hardly exist", FAILS),
        (each_check(IN_BOTH, "without-bias", combination="conic"), "Lemma 1", FAILS),
        (each_check(BY_ROUNDING, "with-bias", combination="conic"), "Lemma 1", FAILS),
        (each_check({"pairs": 0}, "without-bias"), "Theorem 2, Appendix A", NOT_TESTABLE),
    ],
)
def test_verdicts_follow_the_numbers(
    change: Callable[[dict[str, Any]], None], claim: str, expected: str
) -> None:
    assert verdict_on(invented(change), claim) == expected


def test_the_table_says_what_rounding_did() -> None:
    text = interpolation_report.table(invented(each_check(BY_ROUNDING, "without-bias")))
    assert "16 of 8 pairs differ" in text and "flipped by float32's rounding" in text
    assert "| mnist, without bias | 32.27 | 32.50 | +0.23 | 0.71 | 2 |" in text
    assert "| composite-10, without bias | - | 28.50 | - | 0.71 | 2 |" in text


def test_strips_show_many_predictions_and_labels() -> None:
    predicted = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    labels = torch.tensor([3, 3, 4, 5, 3, 3, 3, 3])
    drawn = torch.tensor([[0, 1], [0, 1], [2, 3], [4, 5], [6, 7], [0, 2]])
    chosen = interpolation_strips.varied(drawn, predicted, labels).tolist()
    assert chosen[:3] == [[0, 1], [4, 5], [6, 7]]  # three predictions first
    assert chosen[3] == [2, 3]  # then labels not yet shown
    assert len(chosen) == interpolation_strips.STRIPS


def test_the_kept_results_make_the_kept_table() -> None:
    folder = Path(__file__).parents[1] / "docs/results/interpolation"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert interpolation_report.table(metrics) == (folder / "table.md").read_text()
