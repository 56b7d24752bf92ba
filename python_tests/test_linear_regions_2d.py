"""Regions of networks of two inputs in the whole plane, logits along rays, and the experiment that draws both."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cut_runs import cut_at
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from zbkernels.experiments import direction_points, linear_regions_2d_claims, runner
from zbkernels.experiments.direction_points import (
    BOTH,
    DEGREES,
    REPEATS,
    count_fitted,
    marked,
    task,
    unit_vector,
)
from zbkernels.experiments.linear_regions_2d import EXPERIMENT
from zbkernels.experiments.piecewise import Array, HiddenLayer, hidden_layers
from zbkernels.experiments.plane_networks import whole_plane
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.random_networks import try_at_random
from zbkernels.experiments.ray_logits import LINE, homogeneity, logit_layer, logit_pieces
from zbkernels.experiments.region_planes import cut_plane
from zbkernels.experiments.region_shapes import (
    corners,
    feet,
    grid_check,
    half_planes,
    is_unbounded,
    whole_regions,
)
from zbkernels.models import Architecture, Linear, build
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3)
seeds = st.integers(0, 2**31)


def network(widths: list[int], bias: bool, seed: int) -> tuple[list[HiddenLayer], HiddenLayer]:
    """Hidden layers of the given widths over two inputs, and a logit."""
    random = np.random.default_rng(seed)
    *hidden, last = (
        HiddenLayer(random.normal(size=(outputs, inputs)), random.normal(size=outputs) * bias)
        for inputs, outputs in pairwise([2, *widths, 1])
    )
    return hidden, last


def logit_at(layers: list[HiddenLayer], last: HiddenLayer, points: Array) -> Array:
    for layer in layers:
        points = (points @ layer.weight.T + layer.bias).clip(min=0)
    return (points @ last.weight.T + last.bias)[:, 0]


# Along rays


@settings(max_examples=60, deadline=None)
@given(widths=shapes, bias=st.booleans(), seed=seeds)
def test_pieces_are_the_network(widths: list[int], bias: bool, seed: int) -> None:
    layers, last = network(widths, bias, seed)
    ray = np.random.default_rng(seed + 1).normal(size=2)
    pieces = logit_pieces(layers, last, ray, LINE)
    t = np.concatenate([np.linspace(-5, 5, 801), pieces.start[1:]])
    expected = logit_at(layers, last, t[:, None] * ray)
    np.testing.assert_allclose(pieces.at(t), expected, atol=1e-9 * np.abs(expected).max(initial=1))
    joints = pieces.start[1:]
    before, after = (
        pieces.slope[part] * joints + pieces.intercept[part] for part in (slice(-1), slice(1, None))
    )
    np.testing.assert_allclose(before, after, atol=1e-9 * np.abs(pieces.intercept).max(initial=1))
    assert 0 <= pieces.bends() <= len(pieces) - 1


def test_breakpoints_of_one_hidden_layer_are_where_its_units_are_zero() -> None:
    layers, last = network([25], True, 3)
    ray = np.array([0.6, -0.8])
    zeros = -layers[0].bias / (layers[0].weight @ ray)
    np.testing.assert_allclose(logit_pieces(layers, last, ray, LINE).start[1:], np.sort(zeros))
    on_ray = logit_pieces(layers, last, ray)
    np.testing.assert_allclose(on_ray.start[1:], np.sort(zeros[zeros > 0]))
    assert on_ray.bends() == (zeros > 0).sum()


@settings(max_examples=40, deadline=None)
@given(widths=st.lists(st.integers(1, 9), min_size=2, max_size=2), seed=seeds)
def test_breakpoints_of_two_hidden_layers_counted_by_hand(widths: list[int], seed: int) -> None:
    """Between the first layer's zeros a unit of the second is affine: its zero there, if it has one."""
    layers, last = network(widths, True, seed)
    ray = np.random.default_rng(seed + 1).normal(size=2)
    first = -layers[0].bias / (layers[0].weight @ ray)
    edges = [0.0, *sorted(first[first > 0]), np.inf]
    count = len(edges) - 2
    for low, high in pairwise(edges):
        on = layers[0].weight @ ray * (low + 1 if high == np.inf else (low + high) / 2) + layers[0].bias > 0
        slopes = layers[1].weight @ (layers[0].weight @ ray * on)
        constants = layers[1].weight @ (layers[0].bias * on) + layers[1].bias
        count += sum(
            slope != 0 and low < -at / slope < high for slope, at in zip(slopes, constants, strict=True)
        )
    assert len(logit_pieces(layers, last, ray)) - 1 == count


@settings(max_examples=40, deadline=None)
@given(widths=shapes, seed=seeds)
def test_a_zero_bias_logit_is_linear_on_each_side_of_the_origin(widths: list[int], seed: int) -> None:
    layers, last = network(widths, False, seed)
    ray = np.random.default_rng(seed + 1).normal(size=2)
    line = logit_pieces(layers, last, ray, LINE)
    assert len(line) <= 2
    assert (line.intercept == 0).all()
    assert len(logit_pieces(layers, last, ray)) == 1
    assert (
        count_fitted("Dir 1", logit_pieces(layers, last, unit_vector("Dir 1")).at(marked("Dir 1")[0].numpy()))
        < 12
    )


def model_of(bias: bool, seed: int = 0) -> nn.Sequential:
    return build(Architecture("a", (Linear(9), Linear(7))), (1, 1, 2), 2, bias=bias, seed=seed)


def test_homogeneity_as_computed() -> None:
    for seed in range(5):
        found = homogeneity(model_of(False, seed), unit_vector("Dir 1"))
        assert found["powers_of_two"] == 0
        assert found["others"] <= found["bound"] < 1e-5

    class Shifted(nn.Sequential):
        """No parameter more, and a constant added."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1e-3

    shifted = Shifted(*model_of(False))
    found = homogeneity(shifted, unit_vector("Dir 1"))
    assert found["powers_of_two"] > found["bound"]


def test_the_logit_is_output_1_less_output_0() -> None:
    model = model_of(True, 3)
    points = torch.randn(20, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    outputs = model.double()(points.double())
    found = logit_at(hidden_layers(model), logit_layer(model), points.flatten(1).double().numpy())
    np.testing.assert_allclose(found, (outputs[:, 1] - outputs[:, 0]).detach().numpy(), atol=1e-12)
    with pytest.raises(ValueError, match=r"logit_layer: expected a last layer .* with two outputs"):
        logit_layer(nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(ValueError, match="logit_pieces: expected one logit, got 3"):
        logit_pieces(
            [HiddenLayer(np.eye(2), np.zeros(2))], HiddenLayer(np.ones((3, 2)), np.zeros(3)), np.ones(2)
        )


# Regions of the whole plane


@pytest.mark.parametrize("neurons", [1, 2, 3, 7, 12])
def test_bounded_regions_of_an_arrangement_of_lines(neurons: int) -> None:
    """N lines in general position have 1 + N + C(N, 2) regions, C(N - 1, 2) of them bounded, whatever window one
    starts from."""
    layers, _ = network([neurons], True, 1)
    for half_side in (1e-2, 1.0, 1e3):
        found = whole_regions(layers, half_side)
        assert len(found.polygons) == 1 + neurons + comb(neurons, 2)
        assert found.bounded.sum() == comb(neurons - 1, 2)


@settings(max_examples=25, deadline=None)
@given(widths=shapes, bias=st.booleans(), seed=seeds)
def test_bounded_regions_are_those_that_no_window_cuts(widths: list[int], bias: bool, seed: int) -> None:
    layers, _ = network(widths, bias, seed)
    found = whole_regions(layers, 1.0)
    larger = cut_plane(layers, whole_plane(), 50 * found.half_side)
    cut = [np.abs(larger.outline(i)).max() > 49 * found.half_side for i in range(len(larger))]
    assert {bits.tobytes() for bits in larger.bits} == {bits.tobytes() for bits in found.polygons.bits}
    assert int(found.bounded.sum()) == len(larger) - sum(cut)
    if not bias:
        assert not found.bounded.any()


def test_half_planes_bound_the_region() -> None:
    layers, _ = network([6, 5], True, 8)
    found = whole_regions(layers, 1.0)
    centres = np.append(found.polygons.centres(), np.ones((len(found.polygons), 1)), axis=1)
    for index, bits in enumerate(found.polygons.bits):
        bounds = half_planes(layers, bits)
        inside = centres @ bounds.T >= -1e-12
        assert inside[index].all()
        assert inside.all(1).sum() == 1  # and no other region's middle
        if found.bounded[index]:  # its corners are the polygon's, and its edges' nearest points are on it
            reach = np.abs(found.polygons.outline(index)).max()
            assert np.abs(corners(bounds)).max() == pytest.approx(reach, rel=1e-6)


@pytest.mark.parametrize(
    ("bounds", "unbounded"),
    [
        ([[1, 0, 1], [-1, 0, 1]], True),  # a strip
        ([[1, 0, 1], [-1, 0, 1], [0, 1, 1]], True),  # half of one
        ([[1, 0, 1], [-1, 0, 1], [0, 1, 1], [0, -1, 1]], False),
        ([[0, 1, 0]], True),
        ([[0, 0, 1]], True),  # a unit that is always on
        ([[1, 0, 0], [0, 1, 0], [-1, -1, 1]], False),
        ([[1, 0, 0], [0, 1, 0], [-1, -1, 1], [0, 0, 3]], False),
        ([[1, 0, 0], [-1, 1, 0]], True),
    ],
)
def test_unbounded(bounds: list[list[float]], unbounded: bool) -> None:
    assert is_unbounded(np.array(bounds, dtype=float)) is unbounded


def test_lines_that_miss_the_window_are_found() -> None:
    """Parallel lines have no corner; the first window sees neither."""
    layers = [HiddenLayer(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([5.0, -80.0]))]
    found = whole_regions(layers, 1.0)
    assert len(found.polygons) == 3
    assert found.half_side > 40
    assert not found.bounded.any()
    assert feet(half_planes(layers, np.array([True, False]))).tolist() == [[-5.0, 0.0], [40.0, 0.0]]


def test_the_grid_agrees_and_would_tell() -> None:
    for bias in (True, False):
        layers, _ = network([7, 6], bias, 2)
        polygons = cut_plane(layers, whole_plane(), 2.0)
        found = grid_check(layers, polygons, 2.0, 80)
        assert (found["points"], found["differ"], found["centres_differ"]) == (6400, 0, 0)
        assert found["patterns"] == len(polygons) >= found["seen"] > len(polygons) / 3
        assert found["on_border"] < 200
    wrong = polygons.bits.copy()
    wrong[int(np.argmax(np.ptp(polygons.corners[:, :, 0], axis=1)))] ^= True
    found = grid_check(layers, replace(polygons, bits=wrong), 2.0, 80)
    assert found["differ"] > 0
    assert found["centres_differ"] == 1
    kept = replace(polygons, corners=polygons.corners[1:], sizes=polygons.sizes[1:], bits=polygons.bits[1:])
    assert grid_check(layers, kept, 2.0, 400)["differ"] > 0  # points that are in no polygon


# The points


def test_points_of_the_directions() -> None:
    for direction in DEGREES:
        at, labels = marked(direction)
        assert len(at) == len(labels) == 12
        data = task(f"{direction} alone")
        points = data.test.images.flatten(1).double().numpy()
        np.testing.assert_allclose(points, at.numpy()[:, None] * unit_vector(direction), atol=1e-6)
        assert data.test.labels.equal(labels)
        assert len(data.train) % REPEATS == 0
        trained = {tuple(point) for point in data.train.images.flatten(1).tolist()}
        assert {tuple(point) for point in data.test.images.flatten(1).tolist()} <= trained
        right = np.where(labels.numpy() == direction_points.POSITIVE, 2.0, -0.5)
        assert count_fitted(direction, right) == 12
        assert count_fitted(direction, np.where(np.arange(12) == 5, -right, right)) == 11
        assert count_fitted(direction, np.zeros(12)) == 0
    assert marked("Dir 1")[1].unique().tolist() == [0, 1]
    assert marked("Dir 2")[1].unique().tolist() == [0]
    assert len(task(BOTH).test) == 24


def test_random_networks_keep_one_sign_on_a_ray_without_biases() -> None:
    zero = try_at_random(300, 0, bias=False)
    assert zero["Dir 1"] == {"fit": 0, "most": 8}  # 8 of 12 points are of one class
    assert 90 < zero["Dir 2"]["fit"] < 210  # one sign in two
    biased = try_at_random(300, 0, bias=True)
    assert biased["Dir 1"]["most"] > 8


# The experiment


def quiet() -> Progress:
    return Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plane")
    return runner.run("linear-regions-2d", preset="smoke", out=out, progress=quiet())


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    return next(v.verdict for v in linear_regions_2d_claims.verdicts(metrics) if part in v.claim)


def test_smoke_run(finished: Path) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    text = (finished / "table.md").read_text()
    assert text.count("**holds**") == 9
    assert text.count(f"**{FAILS}**") == 1
    assert "an erratum" in text
    metrics = metrics_of(finished)
    assert verdict(metrics, "both kinds fail") == FAILS
    assert [len(network["along"]) for network in metrics["networks"]] == [1, 1, 1, 1, 2, 2]


def test_the_figure_has_its_panels(finished: Path) -> None:
    from matplotlib.image import imread

    pixels = (imread(finished / "figure.png")[..., :3] * 255).round().astype(np.int16)
    assert min(pixels.shape[:2]) > 1000
    for wanted in ((0xC2, 0x57, 0x1A), (0x1F, 0x6F, 0x8B)):  # both logits
        assert (np.abs(pixels - np.array(wanted, np.int16)).max(2) <= 12).sum() > 200
    assert (finished / "figure.png").stat().st_size < 500_000


def test_a_run_cut_off_gives_the_uncut_runs_metrics(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run("linear-regions-2d", preset="smoke", out=tmp_path, progress=cut_at(quiet(), 500))
    folder = runner.run("linear-regions-2d", preset="smoke", out=tmp_path, progress=quiet())
    assert metrics_of(folder) == metrics_of(finished)


def test_one_kind_alone(finished: Path, tmp_path: Path) -> None:
    metrics = metrics_of(finished)
    metrics["networks"] = [found for found in metrics["networks"] if found["variant"] == "without-bias"]
    del metrics["random"]["with-bias"]
    assert verdict(metrics, "zero-bias networks fail") == HOLDS
    assert verdict(metrics, "normal networks can") == verdict(metrics, "both kinds can") == NOT_TESTABLE
    assert "with bias" not in EXPERIMENT.table(metrics).split("## Regions")[1].split("Along")[0]
    EXPERIMENT.figure(metrics, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_verdicts_follow_the_metrics(finished: Path) -> None:
    metrics = metrics_of(finished)

    def changed(variant: str, make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        for found in copied["networks"]:
            if found["variant"] == variant:
                make(found)
        return copied

    def along(key: str, value: Any) -> Any:
        return lambda found: [entry.update({key: value}) for entry in found["along"].values()]

    def regions(key: str, value: int) -> Any:
        return lambda found: found.get("regions", {}).update({key: value})

    def grid(key: str, value: int) -> Any:
        return lambda found: found.get("regions", {"grid": {}})["grid"].update({key: value})

    assert verdict(changed("without-bias", along("fitted", 12)), "zero-bias networks fail") == FAILS
    assert verdict(changed("with-bias", along("fitted", 11)), "normal networks can") == FAILS
    neither = changed("with-bias", along("fitted", 11))
    for found in neither["networks"]:
        for entry in found["along"].values():
            entry["fitted"] = 11
    assert (verdict(neither, "both kinds can"), verdict(neither, "both kinds fail")) == (FAILS, HOLDS)
    one = changed("with-bias", along("fitted", 11))
    assert (verdict(one, "both kinds can"), verdict(one, "both kinds fail")) == (FAILS, FAILS)
    assert verdict(changed("without-bias", along("pieces", 2)), "unbounded regions of the zero-bias") == FAILS
    assert verdict(changed("with-bias", along("pieces", 1)), "traverse several") == FAILS
    assert (
        verdict(changed("without-bias", along("constant", 1e-9)), "linear function from the origin") == FAILS
    )
    assert (
        verdict(changed("without-bias", along("pieces_of_line", 3)), "linear function from the origin")
        == FAILS
    )
    assert verdict(changed("with-bias", along("differ", 1e-3)), "piecewise linear") == FAILS
    assert verdict(changed("without-bias", regions("bounded", 1)), "unbounded cones") == FAILS
    assert verdict(changed("with-bias", regions("bounded", 0)), "unbounded cones") == FAILS
    assert verdict(changed("with-bias", grid("differ", 1)), "a grid sees") == FAILS
    assert verdict(changed("with-bias", grid("patterns", 1)), "a grid sees") == FAILS
    lucky = copy.deepcopy(metrics)
    lucky["random"]["without-bias"]["Dir 1"]["fit"] = 1
    assert verdict(lucky, "zero-bias networks fail") == FAILS
