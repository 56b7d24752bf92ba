"""Deep ReLU networks beside deep linear ones: gradients, the flow on its own clock, measures, and the experiment."""

from __future__ import annotations

import copy
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from zbkernels.data import load
from zbkernels.experiments import runner
from zbkernels.experiments.base import ExperimentError
from zbkernels.experiments.effectively_linear import (
    deep_linear,
    deep_linear_claims,
    deep_measures,
    deep_studies,
)
from zbkernels.experiments.effectively_linear.deep_data import (
    even_target,
    lopsided,
    mirrored,
    two_digits,
)
from zbkernels.experiments.effectively_linear.deep_flow import solve
from zbkernels.experiments.effectively_linear.deep_nets import Problem, Weights, draw
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


def even(x: Tensor) -> Tensor:
    return torch.full((len(x),), 1 / len(x), dtype=torch.float64)


@settings(deadline=None, max_examples=20)
@given(
    depth=st.integers(2, 4),
    width=st.integers(1, 6),
    outputs=st.integers(1, 3),
    slope=st.sampled_from([0.0, 0.3, 1.0]),
    own=st.booleans(),
)
def test_descent_is_the_negative_gradient_of_the_loss(
    depth: int, width: int, outputs: int, slope: float, own: bool
) -> None:
    x = mirrored(9, 4)
    weights = [w.requires_grad_() for w in draw([4, *[width] * (depth - 1), outputs], 2.0, (0, 1))]
    y = torch.randn(2, 18, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p = torch.stack([lopsided(9, 0.5), even(x)])
    problem = Problem(x, y if own else y[0], p if own else p[1], slope)
    want = torch.autograd.grad(problem.loss(weights).sum(), weights)
    with torch.no_grad():
        for mine, theirs in zip(problem.descent(weights), want, strict=True):
            torch.testing.assert_close(mine, -theirs, rtol=1e-12, atol=1e-14)


def test_a_networks_outputs_are_its_own() -> None:
    x = mirrored(5, 3)
    weights = draw([3, 4, 4, 2], 1.5, (3, 8))
    found = Problem(x, x[:, :2], even(x), 0.0).outputs(weights)
    for i in range(2):
        h = x
        for w in weights[:-1]:
            h = torch.relu(h @ w[i].T)
        torch.testing.assert_close(found[i], h @ weights[-1][i].T)


def test_each_layer_starts_with_the_norm_asked_for_and_a_seed_gives_its_own_weights() -> None:
    both, one = draw([5, 7, 1], 0.3, (0, 4)), draw([5, 7, 1], 0.3, (4,))
    assert [list(w.shape) for w in both] == [[2, 7, 5], [2, 1, 7]]
    torch.testing.assert_close(deep_measures.norms(both), torch.full((2, 2), 0.3, dtype=torch.float64))
    assert all(torch.equal(w[1], v[0]) for w, v in zip(both, one, strict=True))


# Data


def test_mirrored_inputs_have_the_symmetry_and_the_covariance_exactly() -> None:
    x = mirrored(40, 5, spread=0.2)
    assert torch.equal(x[40:], -x[:40])
    covariance = x.T @ x / 80
    assert covariance.diagonal()[0] == pytest.approx(1, rel=1e-10)
    assert covariance.diagonal()[-1] == pytest.approx(0.2, rel=1e-10)
    torch.testing.assert_close(covariance, covariance.diagonal().diag(), rtol=0, atol=1e-12)


def test_linear_networks_do_not_see_how_the_symmetry_is_broken() -> None:
    x = mirrored(30, 4)
    weights = draw([4, 6, 6, 1], 1.0, (0,))
    plain = Problem(x, x[:, :1], even(x), 1.0).descent(weights)
    for other in (
        Problem(x, even_target(x, 0.7), even(x), 1.0),
        Problem(x, x[:, :1], lopsided(30, 1.0), 1.0),
    ):
        for mine, theirs in zip(other.descent(weights), plain, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)
    seen = Problem(x, even_target(x, 0.7), even(x), 0.0).descent(weights)
    assert (seen[0] - Problem(x, x[:, :1], even(x), 0.0).descent(weights)[0]).abs().max() > 1e-3


def test_two_digits_are_scaled_and_labelled_and_too_few_are_refused() -> None:
    x, y, x_test, y_test = two_digits(load("digits"), (3, 8), 20)
    assert x.shape == (40, 64) and y.flatten().tolist() == [1.0] * 20 + [-1.0] * 20
    assert torch.linalg.eigvalsh(x.T @ x / 40)[-1] == pytest.approx(1, rel=1e-10)
    assert set(y_test.flatten().tolist()) == {1.0, -1.0} and len(x_test) == len(y_test) > 20
    with pytest.raises(ExperimentError, match=r"expected 5000 images of 3 and 8, got \d+ and \d+"):
        two_digits(load("digits"), (3, 8), 5000)


# The flow


def test_the_own_clock_follows_the_same_trajectory() -> None:
    x = mirrored(20, 3)
    problem = Problem(x, x[:, :1], even(x), 1.0)
    start = draw([3, 4, 4, 1], 0.5, (0, 1))
    fast = solve(problem, start, 6.0, points=4)
    assert torch.all(fast.times[-1] > 1) and fast.times[-1, 0] != fast.times[-1, 1]
    for net in range(2):
        own = [w[net : net + 1] for w in start]
        plain = solve(problem, own, float(fast.times[-1, net]), points=2, own_clock=False)
        torch.testing.assert_close(plain.times[-1, 0], fast.times[-1, net])
        for mine, theirs in zip(fast.at(-1), plain.at(-1), strict=True):
            torch.testing.assert_close(mine[net], theirs[0], rtol=1e-5, atol=1e-6)


def test_small_steps_of_gradient_descent_go_to_the_flow() -> None:
    x = mirrored(20, 3)
    problem = Problem(x, x[:, :1], even(x), 0.0)
    start = draw([3, 5, 1], 0.4, (0,))
    end = solve(problem, start, 4.0, points=2, own_clock=False, method="RK45", rtol=1e-7, atol=1e-9).at(-1)

    def off(steps: int) -> float:
        w = list(start)
        for _ in range(steps):
            w = [a + 4.0 / steps * b for a, b in zip(w, problem.descent(w), strict=True)]
        return max(float((a - b).norm()) for a, b in zip(w, end, strict=True))

    coarse, fine = off(100), off(400)
    assert fine < coarse / 3 and fine < 0.01


def test_moments_are_those_of_the_solver_where_a_plateau_lies_between_two_kept_points() -> None:
    """A balanced deep linear network of rank one: a' = a³(1 - a⁴), which has a solution in closed form."""
    a0, half = 0.1, 0.5**0.25
    weights = [a0 * w for w in rank_one(4, 6, 6, 6, 1)]
    x = mirrored(20, 4)
    problem = Problem(x, x @ weights[0][0].T @ torch.ones(6, 1, dtype=torch.float64), even(x), 1.0)
    problem = Problem(x, problem.y / problem.y.square().mean().sqrt(), even(x), 1.0)

    def watch(w: Weights) -> Tensor:
        return (problem.outputs(w) * problem.y).mean((1, 2))[:, None]

    def time(a: float) -> float:
        return (math.atanh(a**2) - 1 / a**2) / 2

    run = solve(problem, weights, 200.0, points=21, watch=watch)
    found = deep_measures.crossing(run.watched_times, run.watched[..., 0], 0.5).item()
    assert found == pytest.approx(time(half) - time(a0), rel=1e-3)
    kept = torch.stack([watch(run.at(k))[:, 0] for k in range(21)])
    coarse = deep_measures.crossing(run.times, kept, 0.5).item()
    assert coarse != pytest.approx(found, rel=0.05)


def test_thinned_curves_keep_their_ends_and_what_happens_at_once() -> None:
    times = torch.linspace(0, 100, 5001, dtype=torch.float64)
    values = torch.stack([torch.sigmoid(20 * (times - 50)), torch.zeros_like(times)], 1)
    t, v = deep_measures.thinned(times, values, 41)
    assert len(t) <= 41 and t[0] == 0 and t[-1] == 100
    assert v[:, 0].diff().max() < 0.2 and torch.equal(v, values[torch.searchsorted(times, t)])
    still, _ = deep_measures.thinned(times, torch.zeros_like(values), 5)
    assert still[0] == 0 and still[-1] == 100


# Measures


def rank_one(*sizes: int) -> Weights:
    g = torch.Generator().manual_seed(0)
    a = [torch.nn.functional.normalize(torch.rand(n, generator=g, dtype=torch.float64), dim=0) for n in sizes]
    return [torch.outer(out, into)[None] for into, out in pairwise(a)]


def test_rank_alignment_and_balance_of_known_weights() -> None:
    weights = rank_one(4, 6, 6, 1)
    assert deep_measures.shares(weights, 1).flatten().tolist() == pytest.approx([1, 1, 1])
    assert deep_measures.alignment(weights, [1, 1, 1]).flatten().tolist() == pytest.approx([1, 1])
    full = [torch.eye(6, dtype=torch.float64)[None], weights[2]]
    assert deep_measures.shares(full, 2)[0].tolist() == pytest.approx([2 / 6, 1])
    across = [
        weights[0],
        torch.linalg.svd(weights[0][0])[0][:, 1][None, None],
    ]  # at right angles to what comes out
    assert deep_measures.alignment(across, [1, 1]).item() == pytest.approx(0, abs=1e-12)
    still = deep_measures.drifts(weights, weights)
    assert all(float(value) == 0 for value in still.values())
    moved = deep_measures.drifts(weights, [weights[0], 2 * weights[1], weights[2]])
    assert moved["layers"].item() == pytest.approx(3 / 4) and moved["matrices"].item() == pytest.approx(3 / 4)


def test_how_linear_and_how_odd_a_function_is() -> None:
    x = mirrored(30, 3)
    problem = Problem(x, x[:, :1], lopsided(30, 0.4), 0.0)
    span = deep_measures.linear_span(problem)
    f = torch.stack([x[:, :1], x[:, :1].abs(), x[:, :1] + x[:, 1:2].abs()])
    shares = deep_measures.linear_share(problem, f, span)
    assert shares[0].item() == pytest.approx(1) and shares[1] < 0.3
    best = torch.linalg.lstsq(problem.p[:, None].sqrt() * x, problem.p[:, None].sqrt() * f[2]).solution
    left = (problem.p[:, None] * (f[2] - x @ best).square()).sum() / (
        problem.p[:, None] * f[2].square()
    ).sum()
    assert 1 - shares[2].item() == pytest.approx(left.item(), rel=1e-9)
    assert deep_measures.odd_share(f)[:2].tolist() == pytest.approx([1, 0], abs=1e-12)
    half = torch.relu(x[:, :1])[None]
    assert deep_measures.halves(problem, half)[0].tolist() == pytest.approx([1, 0])
    assert deep_measures.odd_share(half).item() == pytest.approx(0.5)


def test_crossings() -> None:
    times = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    values = torch.tensor([[0.0, 0.0], [0.4, 0.1], [0.6, 0.2]], dtype=torch.float64)
    assert deep_measures.crossing(times, values, 0.5).tolist() == [2.0, math.inf]


# What is derived


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_mirrored_halves_are_the_linear_network_at_half_the_speed(depth: int) -> None:
    found = deep_studies.twins(depth, 5, 12.0, (0, 1))
    assert found["gradient"] < 1e-14
    assert max(found["off"]["outputs"]) < 1e-6 and max(found["off"]["weights"]) < 1e-6
    assert max(found["off"]["uneven"]) > 0.01
    assert found["loss"][-1] < 0.5 * found["loss"][0]


def test_one_half_space_grows_ahead_of_the_other_for_good_from_three_layers_on() -> None:
    """The scalar dynamics of the page: a' = a^(L-1)(1 - a^L)/2 from two starts, ever smaller."""
    from scipy.integrate import solve_ivp

    def wait(depth: int, start: float) -> float:
        def rate(_: float, a: Any) -> Any:
            return a ** (depth - 1) * (1 - a**depth) / 2

        ends = []
        for size in (start, start / 1.2):

            def half(_: float, a: Any) -> float:
                return float(a[0] ** depth - 0.5)

            half.terminal = True  # type: ignore[attr-defined]
            ends.append(solve_ivp(rate, (0, 1e9), [size], events=half, rtol=1e-8, atol=1e-14).t[-1])
        return ends[1] / ends[0] - 1

    two, three, four = ([wait(depth, start) for start in (0.1, 0.01, 0.001)] for depth in (2, 3, 4))
    assert two[0] > two[1] > two[2] and two[2] < 0.04
    assert three[2] == pytest.approx(1.2 - 1, rel=0.02) and four[2] == pytest.approx(1.2**2 - 1, rel=0.02)


# The experiment


def start(out: Path, **more: Any) -> Path:
    return runner.run(
        "deep-linear", preset="smoke", out=out, progress=Progress(Console(quiet=True)), seeds=(0,), **more
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("deep"), variants=("depth-2", "depth-3"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in deep_linear_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in (
        "mirrored rank-one",
        "must be equal",
        "linear networks from small",
        "Deep linear networks: sing",
    ):
        assert verdict(metrics, part) == HOLDS, part
    assert verdict(metrics, "Balanced norms") == verdict(metrics, "Balance does not need") == HOLDS
    assert verdict(metrics, "linear networks learn the modes") == HOLDS
    assert verdict(metrics, "loses its rank one") == HOLDS
    assert verdict(metrics, "The smaller the start") == NOT_TESTABLE
    text = (finished / "table.md").read_text()
    claims = text.split("## Rank")[0]
    assert all(line.count("|") == 4 for line in claims.splitlines() if line[:1] == "|")
    assert "nan" not in text and "None" not in text
    for found in metrics["depths"]:  # what is not drawn is not kept
        assert not any("curve" in net for part in found["broken"] for net in part["nets"])
        assert [row["amount"] for row in found["digits"][0]["relu"] if "curve" in row] == [0.0, 1.0]


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep-linear-smoke"
    shutil.copytree(finished / "units", folder / "units")
    shutil.rmtree(folder / "units" / "depth-3-twins")
    done: list[int] = []
    plain = deep_studies.twins
    monkeypatch.setattr(deep_studies, "twins", lambda depth, *more: done.append(depth) or plain(depth, *more))
    again = json.loads((start(tmp_path, variants=("depth-2", "depth-3")) / "metrics.json").read_text())
    assert done == [3] and again == metrics


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        for found in copied["depths"]:
            make(found)
        return copied

    def of_nets(kind: str, key: str, value: Any) -> dict[str, Any]:
        def make(found: dict[str, Any]) -> None:
            for net in found["nets"]:
                net[kind][key] = value(net[kind][key], found["depth"])

        return changed(make)

    full = of_nets("linear", "rank1", lambda old, _: [[0.5] * len(row) for row in old])
    assert verdict(full, "linear networks from small") == FAILS
    across = of_nets("linear", "alignment", lambda old, _: [[0.1] * len(row) for row in old])
    assert verdict(across, "Deep linear networks: sing") == FAILS
    lost = of_nets("relu", "units_drift", lambda old, _: [0.1 for _ in old])
    assert verdict(lost, "Balanced norms") == FAILS
    stuck = of_nets("relu", "loss", lambda old, _: [0.5 for _ in old])
    assert verdict(stuck, "end at the linear map") == FAILS
    assert verdict(stuck, "layers between of rank two") == verdict(stuck, "√2 times") == NOT_TESTABLE
    assert verdict(of_nets("relu", "least_odd", lambda old, _: [1.0 for _ in old]), "On the way") == HOLDS
    assert verdict(of_nets("relu", "least_odd", lambda old, _: [0.5 for _ in old]), "On the way") == FAILS
    apart = changed(lambda found: found["twins"].update(gradient=1e-3))
    assert verdict(apart, "mirrored rank-one") == FAILS
    found = metrics["depths"][0]["stages"]["linear"]
    one = [[times[0], None, None] for times in found["times"]]
    alone = changed(lambda found: found["stages"]["linear"].update(times=one, next=[[0.0, None]]))
    (told,) = [v for v in deep_linear_claims.verdicts(alone) if "linear networks learn the modes" in v.claim]
    assert "first mode alone" in told.measured
    none = [[None] * 3 for _ in found["times"]]
    idle = changed(lambda found: found["stages"]["linear"].update(times=none, next=[[None, None]]))
    assert verdict(idle, "linear networks learn the modes") == NOT_TESTABLE
    assert not any("nan" in v.measured for v in deep_linear_claims.verdicts(idle))
    early = changed(lambda found: found["stages"]["linear"].update(next=[[0.5, 0.5]]))
    assert verdict(early, "linear networks learn the modes") == FAILS

    def straight(found: dict[str, Any]) -> None:
        for part in found["broken"]:
            for net in part["nets"]:
                net.update(bent=0.0, rank1=[1.0] * found["depth"])

    assert verdict(changed(straight), "slight asymmetry") == FAILS
    assert verdict(changed(straight), "loses its rank one") == FAILS

    def bent(value: float) -> dict[str, Any]:
        def make(found: dict[str, Any]) -> None:
            for part in found["digits"]:
                for row in part["relu"]:
                    row.update(bent=value, odd=0.5)

        return changed(make)

    for part in ("two layers stay linear", "so do more layers", "as the images are:"):
        assert verdict(bent(0.001), part) == HOLDS and verdict(bent(0.2), part) == FAILS, part


def test_shrinking_starts_and_waits_are_judged_by_their_powers(metrics: dict[str, Any]) -> None:
    def two_starts(left: float, waits: tuple[float, float]) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        for found in copied["depths"]:
            net = found["nets"][0]
            other = copy.deepcopy(net)
            other["norm"] = net["norm"] / 2
            for place, (part, wait) in enumerate(zip((net, other), waits, strict=True)):
                part["linear"]["rank1"] = [[1 - 0.1 * left**place] * found["depth"]]
                part["relu"].update(first_half=[1.0], second_half=[1.0 + wait])
            found["nets"].append(other)
        return copied

    assert verdict(two_starts(0.25, (0.2, 0.2)), "The smaller the start") == HOLDS
    assert verdict(two_starts(0.5, (0.2, 0.2)), "The smaller the start") == FAILS
    one = "one after the other"
    assert verdict(two_starts(0.25, (0.2, 0.19)), one) == HOLDS
    assert verdict(two_starts(0.25, (0.2, 0.05)), one) != HOLDS  # it vanishes with three layers as well
    assert verdict(two_starts(0.25, (0.2, 0.3)), one) == FAILS
    other_width = two_starts(0.25, (0.2, 0.19))
    for found in other_width["depths"]:
        wide = copy.deepcopy(found["nets"][0])
        wide["width"] += 1
        wide["relu"]["second_half"] = [1.0]
        found["nets"].append(wide)
    assert verdict(other_width, one) == HOLDS  # a width with one start says nothing of the other
    for variant, depth in deep_linear.DEPTHS.items():
        assert variant == f"depth-{depth}"
