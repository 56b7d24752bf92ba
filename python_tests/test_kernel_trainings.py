"""The experiments ``trained-kernels`` and ``kernel-drift``: trainings, measurements, cut runs, Ray, verdicts."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.exchangeability.layer_kernels import arc_cosine
from zbkernels.exchangeability.optimizers import optimizer
from zbkernels.exchangeability.pairs import procedure1
from zbkernels.exchangeability.stacked_mlp import STACK_UP_TO, StackedMLP
from zbkernels.experiments import ExperimentError, runner
from zbkernels.experiments.engine import Engine
from zbkernels.experiments.exchangeability import (
    kernel_drift_claims,
    sweep_units,
    trained_kernels_claims,
    training,
)
from zbkernels.experiments.exchangeability.encoding import (
    decoded_images,
    decoded_kernels,
    encoded_images,
    encoded_kernels,
)
from zbkernels.experiments.exchangeability.measures import CENTRED, KINDS, NON_ZERO, ZERO, inputs, measure
from zbkernels.experiments.exchangeability.sweeps import (
    ASCENT,
    BIASED,
    OURS,
    PLAIN,
    PLANS,
    VARIANTS,
    Sweep,
    Unit,
)
from zbkernels.experiments.exchangeability.training import Task, Training, train
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
ADAM = Sweep("a", "", "digits", "adam", 0.003, (1e-32, 1e-3))
SGD = Sweep("s", "", "digits", "sgd", None, (0.5, 1e30))


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def task(iterations: int = 30, width: int = 24, looks: tuple[int, ...] = (0, 11, 30), **options: Any) -> Task:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(300, width, generator=generator)
    images *= torch.rand(300, width, generator=generator) < 0.5  # zeros, for Procedure 1
    return Task(images, inputs(images[:40], 3, CPU), iterations, list(looks), **options)


# Trainings


@pytest.mark.parametrize("sweep", [ADAM, Sweep("n", "", "digits", "nadam", 0.002, (1e-8, 1.0)), SGD])
def test_a_cut_training_goes_on_as_if_it_had_not_been_cut(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    unit = Unit(sweep, 1, sweep.values)
    whole = train(unit, task(), tmp_path / "whole")
    left = 17

    def cut(done: int) -> None:
        nonlocal left
        left -= done
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(unit, task(), tmp_path / "cut", cut)
    seen: list[int] = []
    again = train(unit, task(), tmp_path / "cut", seen.append)
    assert seen[0] in (16, 17) and sum(seen) == 30
    assert json.dumps(again) == json.dumps(whole)
    assert (tmp_path / "cut").exists()  # until whoever asked has kept the result


def test_a_divergent_network_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    unit = Unit(SGD, 0, SGD.values)
    found = train(unit, task(), tmp_path / "x")
    good, bad = found["runs"]
    assert good["diverged"] is None and good["looks"][-1]["test_loss"] < good["looks"][0]["test_loss"]
    assert bad["diverged"] in (2, 3)
    assert bad["looks"][-1]["test_loss"] is None and bad["looks"][-1]["drift"][NON_ZERO] == [None] * 5
    assert bad["looks"][-1]["undefined"][NON_ZERO][0] == 1
    json.dumps(found, allow_nan=False)
    alone = train(Unit(SGD, 0, (0.5,)), task(), tmp_path / "y")["runs"][0]
    assert alone["looks"][-1]["test_loss"] == pytest.approx(good["looks"][-1]["test_loss"], rel=1e-4)


def test_batches_are_an_epochs_images_once_each_and_the_same_for_all_rules() -> None:
    one, other = (Training(Unit(sweep, 2, sweep.values), task()) for sweep in (ADAM, SGD))
    images = one.task.train
    first = torch.cat([one.batch(0)])
    assert len(first) == 256 and len({tuple(row) for row in first.tolist()}) == 256
    torch.testing.assert_close(first, other.batch(0), rtol=0, atol=0)
    assert not torch.equal(one.batch(1), first)  # another epoch: 300 images give one batch
    torch.testing.assert_close(one.batch(0), first, rtol=0, atol=0)
    assert Training(Unit(ADAM, 3, ADAM.values), task()).batch(0).ne(first).any()
    assert len(images) == 300


def test_ascent_climbs_and_biases_train(tmp_path: Path) -> None:
    up = Sweep("u", "", "digits", "sgd", None, (0.01,), variant=ASCENT)
    looks = train(Unit(up, 0, up.values), task(), tmp_path / "u")["runs"][0]["looks"]
    assert looks[-1]["test_loss"] > looks[0]["test_loss"]
    biased = Training(
        Unit(Sweep("b", "", "digits", "adam", 0.01, (1e-8,), variant=BIASED), 0, (1e-8,)), task()
    )
    for _ in range(3):
        biased.step()
    assert biased.nets.biases is not None and biased.nets.biases[0].abs().max() > 0
    biased.look()
    assert "bounds" not in biased.looks[0][0]


def test_bfloat16_products_train(tmp_path: Path) -> None:
    unit = Unit(ADAM, 0, ADAM.values)
    exact, half = (train(unit, task(precision=p), tmp_path / p) for p in ("float32", "bfloat16"))
    a, b = (found["runs"][0]["looks"][-1]["test_loss"] for found in (exact, half))
    assert a != b and a == pytest.approx(b, rel=0.1)


# Measurements


def test_what_is_measured() -> None:
    nets = StackedMLP.he_normal((24,) * 5, (0, 1))
    rule = optimizer("adam", lr=0.1)
    state = rule.init(nets.parameters())
    state.first[0][1, 2, 3] = 1e-30
    shown = task().shown
    first, second = measure(nets, state, shown)
    assert first["underflow"] == 0 and second["underflow"] == 1
    for kind in KINDS:
        pairs, w = shown.pairs[kind], nets.weights[2][1].double()
        y = pairs.at(shown.angles).double()
        a, b = (pairs.x.double() @ w.mT).relu(), (y @ w.mT).relu()
        kernel = (a[:, None] * b).sum(-1) / (a.norm(dim=-1)[:, None] * b.norm(dim=-1))
        drift = float((kernel - arc_cosine(shown.angles.double())).square().mean())
        assert second["drift"][kind][2] == pytest.approx(drift, rel=1e-3)
        assert second["kernels"][kind][2] == pytest.approx(kernel.mean(0).tolist(), abs=1e-4)
        assert second["undefined"][kind] == [0] * 5
        assert all(layer["row_mean_held"] == 1 for layer in second["bounds"][kind])
    assert (
        second["bounds"][ZERO][0]["row_mean_bound"] < 1e-4 < second["bounds"][NON_ZERO][0]["row_mean_bound"]
    )
    assert second["row_means"][0] == pytest.approx(
        float(nets.weights[0][1].double().mean(1).square().max()), rel=1e-5
    )
    centred = shown.pairs[CENTRED]
    assert centred.x.sum(1).abs().max() < 1e-4


def test_a_dead_network_has_no_kernel() -> None:
    nets = StackedMLP([-torch.ones(1, 6, 6)] * 2)
    images = torch.rand(10, 6) * torch.tensor([1, 0, 1, 0, 1, 1])
    found = measure(nets, optimizer("sgd", lr=1).init([]), inputs(images, 2, CPU))[0]
    assert found["dead"] == 1 and found["drift"][NON_ZERO][0] is None and found["undefined"][NON_ZERO][0] > 0


def test_images_that_procedure_1_cannot_use_are_passed_over() -> None:
    images = torch.rand(5, 8)
    images[0] = 0
    images[1, :-2] = 0
    images[2] = 0.5
    assert inputs(images, 2, CPU).pairs[ZERO].index.tolist() == [3, 4]


def test_pictures_and_kernels_survive_as_text() -> None:
    images = torch.rand(2, 3, 4, 5)
    again = decoded_images(encoded_images(images), (3, 4, 5))
    assert (again.permute(0, 3, 1, 2) - images).abs().max() <= 0.5 / 255 + 1e-6
    table = [[[1.0, None], [0.25, 0.333]]]
    kernels = decoded_kernels(encoded_kernels(table), 2, 2)
    assert kernels.shape == (1, 2, 2) and kernels[0, 0, 1].isnan()
    assert float(kernels[0, 1, 1]) == pytest.approx(0.333, abs=5e-4)


# Plans


def test_the_papers_lists() -> None:
    plan = PLANS["paper"]
    counts = {sweep.key: len(sweep.values) for sweep in plan.sweeps if sweep.variant == PLAIN}
    assert counts == {
        "cifar-adam": 15,
        "cifar-adam-0.002": 15,
        "cifar-rmsprop": 15,
        "cifar-nadam": 15,
        "cifar-sgd": 9,
        "mnist-adam-0.002": 8,
        "mnist-adam": 9,
        "mnist-sgd": 9,
    }
    wide = list(plan.units(VARIANTS, (0,), {"cifar-10": 3072, "mnist": 784}))
    assert all(len(unit.values) == 1 for unit in wide if unit.sweep.data == "cifar-10")
    assert [unit.values[0] for unit in wide[:3]] == [1e-32, 1.0, 1e-22] and wide[15].sweep.rule == "sgd"
    assert all(unit.values == unit.sweep.values for unit in wide if unit.sweep.data == "mnist")
    assert len({unit.folder for unit in wide}) == len(wide) and STACK_UP_TO < 3072
    assert {sweep.variant for sweep in OURS} == set(VARIANTS) - {PLAIN}
    for plan in PLANS.values():
        looks = plan.measured_after()
        assert looks[0] == 0 and looks[-1] == plan.iterations and looks == sorted(set(looks))
    decades = [math.log10(v) for v in PLANS["reduced"].sweeps[0].values]
    assert min(decades) == -32 and sum(-7 < d < -2.5 for d in decades) >= 3 and max(decades) == 0


def test_the_paper_preset_says_how_long_it_takes_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise Started

    small = task()
    found = sweep_units.Images(small.train, small.train[:40], (1, 4, 6), "images", None, "0")
    monkeypatch.setattr(sweep_units, "images", lambda *_: found)
    monkeypatch.setattr(sweep_units, "seconds_an_iteration", lambda unit, _: 0.5 * len(unit.values))
    monkeypatch.setattr(Engine, "map", refuse)
    said = io.StringIO()
    progress = Progress(Console(file=said, width=400))
    with pytest.raises(Started):
        runner.run("kernel-drift", preset="paper", out=tmp_path, device="cpu", progress=progress)
    # 115 trainings of 19,000 iterations at half a second each
    assert (
        "estimate: 303.5 hours of this process on cpu for 115 trainings of 19,000 iterations"
        in said.getvalue()
    )


# Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Metrics of both experiments on the smoke preset, the second of which finds all trained."""
    out = tmp_path_factory.mktemp("out")
    torch.set_num_threads(1)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kernel-drift", "trained-kernels"):
            folder = runner.run(name, preset="smoke", out=out, device="cpu", progress=quiet())
            found[name] = {**json.loads((folder / "metrics.json").read_text()), "folder": folder}
            patch.delattr(sweep_units, "train", raising=False)  # whoever trains after the first fails
    return found


def test_both_experiments_report_the_same_trainings(runs: dict[str, Any]) -> None:
    drift, kernels = runs["kernel-drift"], runs["trained-kernels"]
    assert len(drift["runs"]) == len(kernels["runs"]) == 13
    for a, b in zip(drift["runs"], kernels["runs"], strict=True):
        assert a["drift"][NON_ZERO][1] == b["looks"][-1]["drift"][NON_ZERO]
    assert [r["value"] for r in drift["runs"] if r["diverged"]] == [1e6]
    table = (drift["folder"] / "table.md").read_text()
    assert "1 diverged (iteration 2)" in table and "| start |" in table
    beside = {path.name for path in kernels["folder"].glob("figure*.png")}
    assert {"figure.png", "figure-bounds.png", "figure-mnist-sgd-non-zero.png"} <= beside


def test_ray_gives_what_this_process_gives(runs: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = runner.run(
        "kernel-drift",
        preset="smoke",
        variants=(ASCENT,),
        engine="ray",
        out=tmp_path,
        device="cpu",
        progress=quiet(),
    )
    found = json.loads((folder / "metrics.json").read_text())["runs"]
    here = [run for run in runs["kernel-drift"]["runs"] if run["sweep"] == "mnist-ascent"]
    assert len(found) == 1
    assert found[0]["loss"] == pytest.approx(here[0]["loss"], rel=1e-5)


def test_engines_are_checked_by_name(tmp_path: Path) -> None:
    for name, options, message in (
        ("kernel-drift", {"engine": "spark"}, "unknown engine 'spark'; known: in-process, ray"),
        ("kernel-drift", {"address": "auto"}, "expected with --engine ray"),
        ("spectra", {"engine": "ray"}, "spectra runs in-process only, got --engine ray"),
    ):
        with pytest.raises(ExperimentError, match=message):
            runner.run(name, preset="smoke", out=tmp_path, progress=quiet(), **options)


# Verdicts


VALUES = (1e-32, 1e-8, 1e-4, 1e-3, 1e-2, 1.0)


def sharp_metrics(
    levels: list[float], spread: float = 1e-4, values: tuple[float, ...] = VALUES
) -> dict[str, Any]:
    """Metrics of one Adam sweep with these Δk, 0.001 added, three seeds."""
    sweep = {"key": "a", "data": "mnist", "rule": "adam", "variant": PLAIN, "symbol": "epsilon"}
    sweep |= {"title": "Adam", "figures": "15", "values": values}
    runs = [
        {
            "sweep": "a",
            "seed": seed,
            "value": value,
            "diverged": None,
            "dead": 0.0,
            "loss": [1.0, 0.1],
            "drift": {NON_ZERO: [[2e-3] * 5, [level + seed * spread] * 5]},
            "row_means": [[2e-3] * 4, [level] * 4],
        }
        for value, level in zip(values, [1e-3 + each for each in levels], strict=True)
        for seed in range(3)
    ]
    return {"layers": 4, "data": {"mnist": {"title": "MNIST"}}, "sweeps": [sweep], "runs": runs}


def test_a_sharp_change_is_told_from_a_slow_one_and_from_none() -> None:
    def verdict(levels: list[float], **options: Any) -> str:
        return kernel_drift_claims.verdicts(sharp_metrics(levels, **options))[0].verdict

    assert verdict([4e-2, 4e-2, 3.6e-2, 2e-3, 1e-3, 1e-3]) == HOLDS
    assert (
        verdict([6e-2, 4.8e-2, 3.5e-2, 2.5e-2, 1.3e-2, 1e-3]) == FAILS
    )  # by equal steps over the whole list
    assert verdict([4e-2, 2e-3, 1e-3, 1e-3, 1e-3, 1e-3]) == NOT_TESTABLE  # in a gap of 24 decades
    assert verdict([1.1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]) == FAILS
    assert (
        verdict([4e-2, 4e-2, 3e-2, 2e-3, 1e-3, 1e-3], spread=3e-2) == FAILS
    )  # within the spread of the seeds
    assert verdict([10e-2, 10e-2, 9.5e-2, 1e-2, 1e-2, 0]) == HOLDS  # 85 %
    assert verdict([10e-2, 10e-2, 10e-2, 6e-2, 2.5e-2, 0]) == FAILS  # 75 %
    assert verdict([10e-2, 5e-2, 0, 0, 0, 0], values=(1e-32, 1e-16, 1e-13, 1e-9, 1e-4, 1)) == NOT_TESTABLE
    gone = sharp_metrics([4e-2, 4e-2, 3e-2, 2e-3, 1e-3, 1e-3])
    for run in gone["runs"]:
        run["diverged"] = 5
    assert kernel_drift_claims.verdicts(gone)[0].verdict == NOT_TESTABLE


@pytest.mark.parametrize("size", [10 ** (-5 + k / 8) for k in range(8)])
def test_the_narrowest_step_of_an_update_is_sharp_wherever_it_falls(size: float) -> None:
    decades = tuple(10.0**k for k in range(-10, 1))
    steps = [size / (size + value) for value in decades]
    assert kernel_drift_claims.verdicts(sharp_metrics(steps, values=decades))[0].verdict == HOLDS
    even = [-math.log10(value) / 10 for value in decades]
    found = kernel_drift_claims.verdicts(sharp_metrics(even, values=decades))[0]
    assert found.verdict == FAILS and "at most 30 % of the change" in found.measured


def test_a_change_that_comes_and_goes_is_measured_on_the_figures_axis() -> None:
    found = kernel_drift_claims.verdicts(sharp_metrics([2e-2, 2e-2, 8e-2, 0, 0, 0], spread=0))[0]
    assert found.verdict == HOLDS and "at most 100 % of the change" in found.measured


def sgd_metrics(starts: list[float], ends: list[float]) -> dict[str, Any]:
    """Metrics of one SGD sweep of one network with these Δk, a layer each; Adam's beside it have Δk of 0.04."""
    metrics = sharp_metrics([4e-2] * 6)
    sweep = {**metrics["sweeps"][0], "key": "s", "rule": "sgd", "symbol": "alpha", "title": "SGD"}
    run = {**metrics["runs"][0], "sweep": "s", "value": 0.5}
    run["drift"] = {NON_ZERO: [[*starts, 1.0], [*ends, 1.0]]}
    return {**metrics, "sweeps": [*metrics["sweeps"], sweep], "runs": [*metrics["runs"], run]}


def test_kernels_roughly_match_by_their_distance_on_the_figures_axis() -> None:
    def verdict(starts: list[float], ends: list[float]) -> str:
        metrics = sgd_metrics(starts, ends)
        looks = [
            {"test_loss": loss, "drift": {NON_ZERO: drift}}
            for loss, drift in zip(
                metrics["runs"][-1]["loss"], metrics["runs"][-1]["drift"][NON_ZERO], strict=True
            )
        ]
        trained = {"layers": 4, "data": metrics["data"], "runs": [{**metrics["runs"][-1], "looks": looks}]}
        stays = trained_kernels_claims._stays(trained, metrics["sweeps"][1]).verdict
        stable = kernel_drift_claims._stable(metrics, metrics["sweeps"][1]).verdict
        assert stays == stable
        return stable

    assert (
        verdict([1e-6] * 4, [1e-4] * 4) == HOLDS
    )  # a hundred times the start's, and a hundredth of the axis
    assert verdict([4e-3] * 4, [4e-3, 4e-3, 4e-3, 1.2e-2]) == FAILS  # one layer is 0.11 away
    assert verdict([1.2e-2] * 4, [1.2e-2] * 4) == NOT_TESTABLE  # so are they before training
    angles = torch.linspace(0, math.pi, 19, dtype=torch.float64)
    kernel = arc_cosine(angles)
    other = angles.cos().clamp_min(0)
    assert float((kernel - other).square().mean().sqrt()) == pytest.approx(0.126, abs=1e-3)
    assert float(kernel.std(correction=0)) == pytest.approx(0.369, abs=1e-3)


def test_sgd_is_compared_with_adams_stable_networks() -> None:
    metrics = sgd_metrics([1e-3] * 4, [3e-2] * 4)
    for run in metrics["runs"][:3]:  # at epsilon = 1e-32; one of them has come to nothing
        run["drift"] = {NON_ZERO: [[1e-3] * 5, [4e-2] * 5]}
    metrics["runs"][0] |= {"loss": [1.0, 2.0], "drift": {NON_ZERO: [[1e-3] * 5, [0.0] * 5]}}
    metrics["runs"] = [*metrics["runs"][:3], metrics["runs"][-1]]
    found = kernel_drift_claims._smaller(metrics, metrics["sweeps"][1], "Δk", kernel_drift_claims.drift)
    assert found.verdict == HOLDS and found.measured.endswith("4.00e-02")


def test_where_row_means_stay_small_kernels_must_stay() -> None:
    held = kernel_drift_claims.verdicts(sharp_metrics([4e-2, 4e-2, 3e-2, 2e-3, 1e-3, 1e-3]))[2]
    assert held.verdict == HOLDS
    broken = sharp_metrics([4e-2, 4e-2, 3e-2, 2e-3, 1e-3, 1e-3])
    for run in broken["runs"]:
        run["row_means"][1] = [1e-3] * 4
    assert kernel_drift_claims.verdicts(broken)[2].verdict == FAILS


def test_verdicts_on_kernels_follow_the_numbers(runs: dict[str, Any]) -> None:
    metrics = json.loads(json.dumps({k: v for k, v in runs["trained-kernels"].items() if k != "folder"}))

    def of(start: str) -> str:
        return next(v.verdict for v in trained_kernels_claims.verdicts(metrics) if v.claim.startswith(start))

    assert of("Inputs with sums of 0") == HOLDS and of("Inputs with other sums") == FAILS
    assert of("The bound by row means") == HOLDS
    for run in metrics["runs"]:
        if run["sweep"] == "mnist-adam" and run["value"] == 1e-32:
            run["looks"][-1]["drift"][NON_ZERO] = [0.1] * 5
            run["looks"][-1]["drift"][ZERO] = [0.1] * 5
        run["bounds_held"]["row_mean_held"] = 0.999
    assert of("Inputs with sums of 0") == FAILS and of("Inputs with other sums") == HOLDS
    assert of("The bound by row means") == FAILS


def test_pairs_of_a_reduced_image_have_zeros() -> None:
    """Averaging images to fewer pixels must leave Procedure 1 its zeros: a digit's margin does."""
    images = torch.zeros(3, 1, 28, 28)
    images[:, :, 6:22, 6:22] = torch.rand(3, 1, 16, 16)
    small = torch.nn.functional.adaptive_avg_pool2d(images, 16).flatten(1)
    assert not procedure1(small, torch.arange(3), zero_sum=True).projected.any()
