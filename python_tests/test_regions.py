"""Counting activation patterns: against dense sampling, arrangements of lines, and each other; then the experiment."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import zbkernels as zb
from zbkernels.experiments import regions, regions_claims, runner, units
from zbkernels.experiments.piecewise import Array, HiddenLayer, hidden_layers, patterns_at
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.region_counts import count_regions, restricted
from zbkernels.experiments.region_lines import Intervals, sweep_circle, sweep_lines
from zbkernels.experiments.region_planes import Plane, Polygons, cut_plane
from zbkernels.models import Architecture, Linear, build
from zbkernels.nap import patterns
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

WHOLE = Plane(np.zeros(2), np.array([1.0, 0.0]), np.array([0.0, 1.0]))


pytestmark = pytest.mark.usefixtures("one_thread")


def network(widths: list[int], bias: bool, seed: int) -> list[HiddenLayer]:
    random = np.random.default_rng(seed)
    return [
        HiddenLayer(
            random.normal(size=(outputs, inputs)) * (2 / inputs) ** 0.5,
            random.uniform(-1, 1, outputs) if bias else np.zeros(outputs),
        )
        for inputs, outputs in pairwise(widths)
    ]


def inside(found: Intervals) -> Array:
    """A value of t in each interval."""
    lows, highs = np.nan_to_num(found.start, neginf=-1e9), np.nan_to_num(found.end, posinf=1e9)
    return (lows + highs) / 2


def distinct(bits: np.ndarray) -> int:
    return len(np.unique(bits, axis=0))


shapes = st.lists(st.integers(1, 9), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None)
@given(widths=shapes, bias=st.booleans(), seed=st.integers(0, 2**31))
def test_intervals_of_a_line_are_its_patterns(widths: list[int], bias: bool, seed: int) -> None:
    layers = network(widths, bias, seed)
    start, direction = np.random.default_rng(seed + 1).normal(size=(2, 1, widths[0]))
    found = sweep_lines(layers, start, direction)
    assert (patterns_at(layers, start + inside(found)[:, None] * direction) == found.bits).all()
    assert distinct(found.bits) == len(found.bits)  # each pattern in one interval
    assert (found.start[1:] == found.end[:-1]).all()
    assert (found.start[0], found.end[-1]) == (-np.inf, np.inf)
    ts = np.tan(np.linspace(-1.5, 1.5, 4001))[:, None]
    sampled = {row.tobytes() for row in patterns_at(layers, start + ts * direction)}
    assert sampled <= {row.tobytes() for row in found.bits}


def test_one_hidden_layer_has_a_pattern_more_than_neurons_on_a_line() -> None:
    layers = network([5, 40], True, 0)
    random = np.random.default_rng(0)
    found = sweep_lines(layers, random.normal(size=(7, 5)), random.normal(size=(7, 5)))
    assert found.counts(7).tolist() == [41] * 7
    short = sweep_lines(layers, random.normal(size=(7, 5)), random.normal(size=(7, 5)), (0.0, 1e-6))
    assert short.counts(7).max() <= 2


@settings(max_examples=40, deadline=None)
@given(widths=shapes, seed=st.integers(0, 2**31))
def test_a_zero_bias_network_has_two_patterns_at_most_through_the_origin(
    widths: list[int], seed: int
) -> None:
    direction = np.random.default_rng(seed).normal(size=(1, widths[0]))
    found = sweep_lines(network(widths, False, seed), np.zeros_like(direction), direction)
    assert found.counts(1)[0] <= 2


def test_a_unit_fed_by_one_unit_adds_no_breakpoint() -> None:
    """Its zero is that of the unit before it, and rounding must not part them."""
    random = np.random.default_rng(3)
    for _ in range(200):
        layers = [
            HiddenLayer(random.normal(size=(1, 6)), np.zeros(1)),
            HiddenLayer(random.normal(size=(3, 1)), np.zeros(3)),
        ]
        start, direction = random.normal(size=(2, 1, 6))
        assert sweep_lines(layers, start, direction).counts(1)[0] == 2


@pytest.mark.parametrize("neurons", [1, 2, 6, 15])
def test_one_hidden_layer_cuts_a_plane_as_lines_do(neurons: int) -> None:
    """An arrangement of N lines in general position has 1 + N + N(N - 1)/2 regions; through one point, 2N."""
    assert len(cut_plane(network([2, neurons], True, 1), WHOLE, 1e5)) == 1 + neurons + comb(neurons, 2)
    assert len(cut_plane(network([2, neurons], False, 1), WHOLE, 3.0)) == 2 * neurons


@settings(max_examples=40, deadline=None)
@given(widths=shapes, bias=st.booleans(), seed=st.integers(0, 2**31))
def test_polygons_of_a_plane_are_its_patterns(widths: list[int], bias: bool, seed: int) -> None:
    widths = [widths[0] + 1, *widths[1:]]
    layers = network(widths, bias, seed)
    points = np.random.default_rng(seed + 1).normal(size=(3, widths[0]))
    plane = Plane.through(*points)
    found = cut_plane(layers, plane, 4.0)
    assert distinct(found.bits) == len(found)
    assert (patterns_at(layers, plane.points(found.centres())) == found.bits).all()
    assert sum(area(found, index) for index in range(len(found))) == pytest.approx(64, rel=1e-9)
    random = np.random.default_rng(seed + 2)
    sampled = {row.tobytes() for row in patterns_at(layers, plane.points(random.uniform(-4, 4, (3000, 2))))}
    assert sampled <= {row.tobytes() for row in found.bits}


def area(found: Polygons, index: int) -> float:
    x, y = found.outline(index).T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) / 2)


@settings(max_examples=40, deadline=None)
@given(widths=shapes, seed=st.integers(0, 2**31))
def test_zero_bias_regions_are_cones(widths: list[int], seed: int) -> None:
    """As many in any window around the origin, and along a circle around it."""
    widths = [widths[0] + 1, *widths[1:]]
    layers = network(widths, False, seed)
    one, other = np.random.default_rng(seed + 1).normal(size=(2, widths[0]))
    plane = Plane.through(np.zeros(widths[0]), one, other)
    count = len(cut_plane(layers, plane, 4.0))
    assert count == len(cut_plane(layers, plane, 4e-5)) == sweep_circle(layers, one, other)


def test_the_network_on_a_plane_is_a_network_of_two_inputs() -> None:
    layers = network([7, 6, 5], True, 2)
    plane = Plane.through(*np.random.default_rng(2).normal(size=(3, 7)))
    coordinates = np.random.default_rng(3).normal(size=(50, 2))
    expected = patterns_at(layers, plane.points(coordinates))
    assert (patterns_at(restricted(layers, plane), coordinates) == expected).all()


@pytest.mark.parametrize("bias", [False, True])
def test_hidden_layers_have_the_patterns_of_the_model(bias: bool) -> None:
    model = build(Architecture("a", (Linear(9), Linear(5))), (1, 4, 4), 3, bias=bias, seed=1)
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    packed = patterns(model.double(), x.double())
    bits = torch.cat([zb.nap_unpack(packed[:, :1], 9), zb.nap_unpack(packed[:, 1:], 5)], 1)
    found = patterns_at(hidden_layers(model), x.double().flatten(1).numpy())
    assert (torch.from_numpy(found) == bits).all()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(zb.nn.LinearReLU(2, 2, negative_slope=0.1), nn.Linear(2, 2)),
    ],
)
def test_other_models_are_refused(model: nn.Sequential) -> None:
    with pytest.raises(ValueError, match="hidden_layers: expected"):
        hidden_layers(model)


def test_bad_arguments_are_named() -> None:
    layers = network([3, 4], True, 0)
    with pytest.raises(ValueError, match=r"sweep_lines: expected starts .* of shape \[L, 3\], got"):
        sweep_lines(layers, np.zeros((2, 4)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="sweep_lines: expected an interval"):
        sweep_lines(layers, np.zeros((2, 3)), np.ones((2, 3)), (1.0, 1.0))
    with pytest.raises(ValueError, match="sweep_circle: expected a network without biases"):
        sweep_circle(layers, np.array([1.0, 0, 0]), np.array([0.0, 1, 0]))
    with pytest.raises(ValueError, match="three points that are not on one line"):
        Plane.through(np.zeros(3), np.ones(3), 2 * np.ones(3))
    with pytest.raises(ValueError, match="half_side to be positive"):
        cut_plane(layers, Plane(np.zeros(3), np.eye(3)[0], np.eye(3)[1]), 0.0)


def test_counts_of_a_model() -> None:
    model = build(Architecture("a", (Linear(6),)), (1, 3, 3), 4, bias=False, seed=0)
    images = torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    counts = count_regions(model, images, lines=5, planes=2, seed=0)
    assert counts["lines"]["through the origin"] == {"mean": 2.0, "least": 2, "most": 2, "counted": 5}
    assert counts["lines"]["random"] == {"mean": 7.0, "least": 7, "most": 7, "counted": 5}
    planes = counts["planes"]
    assert planes["through the origin"] == planes["swept"] == planes["shrunk"] == [12, 12]
    assert all(12 < count <= 1 + 6 + 15 for count in planes["off the origin"])
    assert count_regions(model, images, lines=5, planes=2, seed=0) == counts


# The experiment


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def run(out: Path, **arguments: Any) -> Path:
    return runner.run("regions", preset="smoke", out=out, progress=quiet(), **arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("regions"))


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def test_smoke_run(finished: Path) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    text = (finished / "table.md").read_text()
    assert text.count("**holds**") + text.count(f"**{FAILS}**") == 8
    assert "scikit-learn digits" in text
    metrics = metrics_of(finished)
    assert len(metrics["untrained"]) == 8
    assert [seen["epoch"] for seen in metrics["trained"][0]["watched"]] == [0, 1, 2]
    single = [u for u in metrics["untrained"] if u["depth"] == 1 and u["variant"] == "without-bias"]
    assert [u["counts"]["planes"]["swept"] for u in single] == [[16], [32]]


def test_the_figure_has_its_panels(finished: Path) -> None:
    from matplotlib.image import imread

    pixels = (imread(finished / "figure.png")[..., :3] * 255).round().astype(np.int16)
    assert min(pixels.shape[:2]) > 700
    for wanted in ((0xC2, 0x57, 0x1A), (0x1F, 0x6F, 0x8B)):  # both networks
        assert (np.abs(pixels - np.array(wanted, np.int16)).max(2) <= 12).sum() > 20
    assert (finished / "figure.png").stat().st_size < 400_000


def test_a_run_cut_off_goes_on_where_it_was(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut while a trained network is counted after its first epoch: nothing that was kept is done again."""
    calls: list[int] = []
    count = regions.count_regions

    def fail_late(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if (
            len(calls) == 10
        ):  # 8 untrained networks, then the first trained one before and after its first epoch
            raise KeyboardInterrupt
        return count(*arguments, **named)

    monkeypatch.setattr(regions, "count_regions", fail_late)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    folder = next((tmp_path / "regions-smoke" / "units").glob("trained-*"))
    assert [path.name for path in folder.glob("watched-*")] == ["watched-0000.json"]
    calls.clear()
    monkeypatch.setattr(regions, "count_regions", lambda *a, **n: (calls.append(1), count(*a, **n))[1])
    assert metrics_of(run(tmp_path)) == metrics_of(finished)
    assert len(calls) == 4 * 3 - 1


def test_watching_does_not_change_the_training(tmp_path: Path) -> None:
    """Stops on the way leave the same network as none."""
    from zbkernels.data import load_digits
    from zbkernels.experiments.base import Preset, RunContext, RunSettings
    from zbkernels.train import TrainConfig

    data = load_digits().subset(200, 50)
    preset = Preset("", "digits", 3, 32, (0,))
    context = RunContext(
        RunSettings("x", "x", (0,), "cpu", (), "plain"), preset, tmp_path, None, torch.device("cpu"), quiet()
    )
    results = []
    for name, stops in (("watched", (0, 2)), ("plain", ())):
        unit = units.Unit(
            name=name,
            label=name,
            settings={},
            config=TrainConfig(3, 32, 1e-3, "adam", 0),
            new_model=lambda: build(Architecture("a", (Linear(4),)), (1, 8, 8), 10, seed=0),
            measure=lambda model, history: {
                "weights": model[-1].weight.tolist(),
                "accuracies": [epoch.test_accuracy for epoch in history],
            },
            watch=(lambda model, epoch: {"first": model[-1].weight[0, 0].item()}) if stops else None,
            watch_after=stops,
        )
        results.append(units.train_unit(context, data, unit))
    watched = results[0].pop("watched")
    assert results[0] == results[1]
    assert [seen["epoch"] for seen in watched] == [0, 2]
    assert watched[0]["first"] != watched[1]["first"] != results[0]["weights"][0][0]


def verdict(metrics: dict[str, Any], part: str) -> str:
    return next(v.verdict for v in regions_claims.verdicts(metrics) if part in v.claim)


def change(metrics: dict[str, Any], variant: str, make: Any) -> dict[str, Any]:
    """The metrics with ``make(counts, unit)`` applied to each untrained network of a variant."""
    changed = copy.deepcopy(metrics)
    for unit in changed["untrained"]:
        if unit["variant"] == variant:
            make(unit["counts"], unit)
    return changed


def test_verdicts_follow_the_counts(finished: Path) -> None:
    metrics = metrics_of(finished)
    assert verdict(metrics, "cones") == HOLDS
    assert verdict(metrics, "two along a line through the origin") == HOLDS

    def third(counts: dict[str, Any], unit: dict[str, Any]) -> None:
        counts["lines"]["through the origin"]["most"] = 3

    def not_cones(counts: dict[str, Any], unit: dict[str, Any]) -> None:
        counts["planes"]["shrunk"][0] -= 1

    def squared(counts: dict[str, Any], unit: dict[str, Any]) -> None:
        counts["planes"]["through the origin"] = [unit["neurons"] ** 2]

    def exponential(counts: dict[str, Any], unit: dict[str, Any]) -> None:
        counts["planes"]["through the origin"] = [2 ** unit["neurons"]]
        counts["lines"]["through images"]["mean"] = 2 ** unit["neurons"]

    def deeper(counts: dict[str, Any], unit: dict[str, Any]) -> None:
        counts["planes"]["through the origin"] = [10 ** unit["depth"]]

    assert verdict(change(metrics, "without-bias", third), "two along a line") == FAILS
    assert verdict(change(metrics, "without-bias", not_cones), "cones") == FAILS
    assert verdict(change(metrics, "without-bias", squared), "along a circle") == FAILS
    assert verdict(change(metrics, "with-bias", exponential), "grow linearly") == FAILS
    assert verdict(change(metrics, "with-bias", exponential), "are few") == FAILS
    assert verdict(change(metrics, "with-bias", exponential), "Off the origin") == FAILS
    one_seed = change(metrics, "with-bias", deeper)
    assert verdict(one_seed, "not the depth") == NOT_TESTABLE
    several = copy.deepcopy(one_seed)
    several["untrained"] += [{**unit, "seed": 1} for unit in one_seed["untrained"]]
    assert verdict(several, "not the depth") == FAILS


def test_one_variant_alone_is_not_judged_on_the_other(tmp_path: Path) -> None:
    folder = run(tmp_path, variants=("without-bias",))
    metrics = metrics_of(folder)
    assert verdict(metrics, "grow linearly") == NOT_TESTABLE
    assert verdict(metrics, "Off the origin") == NOT_TESTABLE
    assert verdict(metrics, "cones") == HOLDS
