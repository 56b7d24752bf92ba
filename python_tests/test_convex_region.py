"""Theorem 3: sets, their combinations, the max-pool counterexample, Figure 2's networks; then the experiment."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from zbkernels.experiments import convex_region_claims, plane_drawing, plane_networks, runner
from zbkernels.experiments.combinations import (
    Groups,
    draw_sets,
    draw_weights,
    group,
    read_patterns,
    try_sets,
)
from zbkernels.experiments.pictures import encode
from zbkernels.experiments.pooled_pairs import counterexample, find_broken_pair, pooled_pairs
from zbkernels.experiments.progress import Progress
from zbkernels.models import Architecture, Linear, build
from zbkernels.nap import NotPiecewiseLinear, certify_hull, patterns
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

IMAGES = torch.rand(400, 1, 4, 4, generator=torch.Generator().manual_seed(5))


pytestmark = pytest.mark.usefixtures("one_thread")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(bias: bool, seed: int = 0) -> nn.Sequential:
    return build(Architecture("small", (Linear(5), Linear(4))), (1, 4, 4), 3, bias=bias, seed=seed)


def sets_of(model: nn.Module, vertices: int, count: int = 8) -> torch.Tensor:
    return draw_sets(group(*read_patterns(model, IMAGES, "relu")), vertices, count, generator())


def test_groups_hold_inputs_of_one_pattern_and_prediction() -> None:
    model = small(bias=False)
    signatures, predictions = read_patterns(model, IMAGES, "relu")
    groups = group(signatures, predictions)
    assert groups.order.sort().values.equal(torch.arange(len(IMAGES)))
    keys = torch.cat([signatures, predictions[:, None]], 1)
    assert len(groups.size) == len(keys.unique(dim=0))
    for first, size in zip(groups.first.tolist(), groups.size.tolist(), strict=True):
        assert len(keys[groups.order[first : first + size]].unique(dim=0)) == 1
    assert groups.at_least(1) == len(groups.size)
    assert groups.at_least(int(groups.size.max())) >= 1
    assert groups.at_least(int(groups.size.max()) + 1) == 0


def test_sets_have_different_members_of_one_group() -> None:
    groups = Groups(torch.tensor([4, 2, 0, 1, 3]), torch.tensor([0, 3]), torch.tensor([3, 2]))
    drawn = draw_sets(groups, 2, 6, generator())
    assert len(drawn) == 6
    members = [set(row) for row in drawn.tolist()]
    assert all(len(row) == 2 for row in members)
    assert all(row <= {4, 2, 0} or row <= {1, 3} for row in members)
    assert sum(row <= {1, 3} for row in members) == 3  # groups take turns
    assert {frozenset(row) for row in draw_sets(groups, 3, 2, generator()).tolist()} == {frozenset({0, 2, 4})}
    assert draw_sets(groups, 4, 2, generator()).shape == (0, 4)


def test_weights_of_each_kind() -> None:
    convex = draw_weights("convex", 500, 4, generator())
    assert convex.dtype == torch.float64
    assert (convex > 0).all()
    torch.testing.assert_close(convex.sum(1), torch.ones(500, dtype=torch.float64))
    assert convex.amax() > 0.9  # corners are reached
    scale = draw_weights("conic", 500, 4, generator()).sum(1)
    assert (scale.min() < 0.01, scale.max() > 100, scale.min() > 9e-4, scale.max() < 1.1e3) == (True,) * 4
    extreme = draw_weights("extreme", 500, 4, generator()).sum(1).log10().round()
    assert set(extreme.tolist()) == {-30.0, 30.0}


def test_a_zero_bias_network_keeps_pattern_and_class_on_cones() -> None:
    for seed in range(3):
        model = small(bias=False, seed=seed)
        found = try_sets(model, IMAGES, sets_of(model, 4), "winner", 200, generator())
        assert found["sets"] == found["certified"] == 8
        for kind in ("convex", "conic", "extreme"):
            exact = found[kind]["float64"]
            assert exact["points"] == 1600
            assert (exact["left"], exact["class"], exact["broken"], exact["broken_class"]) == (0, 0, 0, 0)
            assert found[kind]["float32"]["unexpected"] == 0


def test_a_biased_network_keeps_them_on_hulls_and_loses_cones() -> None:
    model = small(bias=True)
    found = try_sets(model, IMAGES, sets_of(model, 4), "winner", 200, generator())
    assert found["certified"] == 8
    assert found["convex"]["float64"]["broken"] == found["convex"]["float32"]["unexpected"] == 0
    assert found["conic"]["float64"]["broken"] > 4
    assert found["conic"]["float64"]["left"] > found["conic"]["float64"]["broken"]
    assert found["conic"]["float64"]["unexpected"] == 0  # nobody certified the cone


def test_inputs_of_different_patterns_are_found_to_break() -> None:
    """A set that is none must be told: else the counts above would mean nothing."""
    model = small(bias=False)
    signatures, _ = read_patterns(model, IMAGES, "relu")
    other = next(i for i in range(1, len(IMAGES)) if (signatures[i] != signatures[0]).any())
    found = try_sets(model, IMAGES, torch.tensor([[0, other]]), "winner", 200, generator())
    assert found["certified"] == 0
    assert 0 < found["convex"]["float64"]["left"] < 200
    assert found["convex"]["float64"]["broken"] == 1


def test_the_counterexample_to_appendix_a() -> None:
    example = counterexample()
    assert (example["same_bits"], example["same_winners"]) == (True, False)
    assert example["classes"][0] == example["classes"][-1] == 0
    assert example["classes"][len(example["classes"]) // 2] == 1
    middle = [row[len(row) // 2] for row in example["logits"]]
    assert middle == pytest.approx([0.55, 0.8])
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Flatten())
    ends = torch.tensor(example["inputs"]).view(2, 1, 1, 4)
    with pytest.raises(NotPiecewiseLinear, match="winner"):
        certify_hull(model, ends, units="relu")
    assert len(patterns(model, ends, units="winner").unique(dim=0)) == 2


def test_pooled_pairs_break_by_bits_and_hold_by_winners() -> None:
    broken = 0
    for seed in range(4):
        model = pooled_pairs(16, 3, 3, seed)
        by_bits = group(*read_patterns(model, IMAGES, "relu"))
        searched = find_broken_pair(model, IMAGES, by_bits, 150, generator())
        assert searched["tried"] == 150
        broken += searched["broken"]
        if searched["worst"] is not None:
            classes = searched["worst"]["classes"]
            assert classes[0] == classes[-1]
            assert len(set(classes)) > 1
        by_winners = group(*read_patterns(model, IMAGES, "winner"))
        sets = draw_sets(by_winners, 3, 8, generator())
        found = try_sets(model, IMAGES, sets, "winner", 100, generator())
        assert sum(found[kind]["float64"]["broken"] for kind in ("convex", "conic", "extreme")) == 0
    assert broken > 0


def triangle() -> dict[str, Any]:
    """Three lines around the origin, each half a unit from it."""
    angles = np.array([0.5, 2.6, 4.6])
    normals = np.stack([np.cos(angles), np.sin(angles)], 1)
    return {
        "hidden": [{"weight": normals.tolist(), "bias": [0.5, 0.5, 0.5]}],
        "classifier": {"weight": [[1.0, 0, 0], [0, 1.0, 0]], "bias": [0.0, 0.1]},
    }


def test_shapes_of_regions() -> None:
    network = triangle()
    shape = plane_networks.shape_of_regions(network)
    assert shape == {"regions": 7, "bounded": 1, "reach_origin": 1}
    network["hidden"][0]["bias"] = [0.0, 0.0, 0.0]
    assert plane_networks.shape_of_regions(network) == {"regions": 6, "bounded": 0, "reach_origin": 6}


def test_classes_of_the_drawn_network_are_the_models() -> None:
    sectors = plane_networks.points_in_sectors(60)
    for bias in (False, True):
        model = build(plane_networks.ARCHITECTURE, sectors.image_shape, 3, bias=bias, seed=2)
        points = sectors.test.images
        network = plane_networks.describe(model, points, sectors.test.labels)
        expected = model(points).argmax(1)
        found = plane_networks.classes_at(network, points.flatten(1).double().numpy())
        assert torch.from_numpy(found).equal(expected)


def test_convex_hull() -> None:
    points = np.array([[0, 0], [2, 0], [1, 0.2], [2, 2], [0, 2], [1, 1], [0, 1]], dtype=float)
    assert plane_drawing.convex_hull(points).tolist() == [[0, 0], [2, 0], [2, 2], [0, 2]]


# The experiment


def quiet() -> Progress:
    return Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("convex")
    return runner.run("convex-region", preset="smoke", out=out, progress=quiet())


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    return next(v.verdict for v in convex_region_claims.verdicts(metrics) if part in v.claim)


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    text = (finished / "table.md").read_text()
    assert "scikit-learn digits" in text
    assert [verdict(metrics, part) for part in ("Theorem 3", "conic", "winner", "unbounded cones from")] == [
        HOLDS
    ] * 4
    assert verdict(metrics, "Appendix A)") == FAILS
    assert verdict(metrics, "hardly exist") == FAILS
    assert verdict(metrics, "polytopes: a set's") == HOLDS


def test_a_finished_run_is_taken_from_its_units(finished: Path, metrics: dict[str, Any]) -> None:
    (finished / "metrics.json").unlink()
    (finished / "units" / "with-bias-fcn-6-seed0" / "model.safetensors").unlink()  # only results are read
    runner.run("convex-region", preset="smoke", out=finished.parent, progress=quiet())
    assert json.loads((finished / "metrics.json").read_text()) == metrics


def test_the_figure_has_its_panels(finished: Path) -> None:
    from matplotlib.image import imread

    pixels = (imread(finished / "figure.png")[..., :3] * 255).round().astype(np.int16)
    assert min(pixels.shape[:2]) > 700
    for wanted in ((0xC2, 0x57, 0x1A), (0x1F, 0x6F, 0x8B), (0xB3, 0x26, 0x1E)):  # conic, convex, what breaks
        assert (np.abs(pixels - np.array(wanted, np.int16)).max(2) <= 1).sum() > 20
    assert (finished / "figure.png").stat().st_size < 400_000


def test_the_figure_shows_what_there_is(metrics: dict[str, Any], tmp_path: Path) -> None:
    """One variant only, a pair that breaks, no set large enough to be shown."""
    from zbkernels.experiments.convex_region_figure import figure

    changed = copy.deepcopy(metrics)
    changed["drawn"] = [unit for unit in changed["drawn"] if unit["variant"] == "without-bias"]
    changed["networks"] = [unit for unit in changed["networks"] if unit["variant"] == "without-bias"]
    for unit in changed["networks"]:
        unit.pop("shown", None)
        if unit["pools"]:
            unit["searched"]["worst"] = {
                "pair": [encode(torch.zeros(1, 8, 8)), encode(torch.ones(1, 8, 8))],
                "shape": [1, 8, 8],
                "classes": [1] * 20 + [2] * 45,
            }
    figure(changed, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000
    assert verdict(changed, "hardly exist") == NOT_TESTABLE
    assert verdict(changed, "unbounded cones from") == NOT_TESTABLE


def test_verdicts_follow_the_counts(metrics: dict[str, Any]) -> None:
    def with_points(variant: str, kind: str, dtype: str, key: str, pools: bool = False) -> dict[str, Any]:
        changed = copy.deepcopy(metrics)
        for unit in changed["networks"]:
            if unit["variant"] == variant and unit["pools"] == pools:
                unit["tried"][-1]["sets"][0][kind][dtype][key] += 1
        return changed

    assert verdict(with_points("without-bias", "convex", "float64", "class"), "Theorem 3") == FAILS
    assert (
        verdict(with_points("without-bias", "convex", "float32", "left"), "Theorem 3") == HOLDS
    )  # by rounding
    assert verdict(with_points("without-bias", "convex", "float32", "unexpected"), "Theorem 3") == FAILS
    assert verdict(with_points("without-bias", "extreme", "float64", "left"), "conic") == FAILS
    assert verdict(with_points("without-bias", "conic", "float64", "left", pools=True), "winner") == FAILS
    assert verdict(with_points("with-bias", "convex", "float64", "broken"), "hardly exist") == HOLDS
    never = copy.deepcopy(metrics)
    for unit in never["networks"]:
        for entry in unit["tried"][0]["sets"]:
            entry["conic"]["float64"]["broken"] = 0
    assert verdict(never, "polytopes: a set's") == FAILS
    same = copy.deepcopy(metrics)
    same["counterexample"]["classes"] = [0] * 65
    assert verdict(same, "Appendix A)") == HOLDS
    assert verdict(metrics, "over 90 %") == NOT_TESTABLE
    accurate = copy.deepcopy(metrics)
    accurate["networks"][0]["accuracy"] = 91.0
    assert verdict(accurate, "over 90 %") == FAILS
    accurate["networks"][0]["tried"][0]["at_least"]["2"] = 0
    assert verdict(accurate, "over 90 %") == HOLDS
    bounded = copy.deepcopy(metrics)
    next(unit for unit in bounded["drawn"] if unit["variant"] == "without-bias")["bounded"] = 1
    assert verdict(bounded, "unbounded cones from") == FAILS
