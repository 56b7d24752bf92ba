"""Tangent kernels with and without biases: finite networks, the limits, what they predict, and the experiment."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.data import load
from zbkernels.experiments import ntk_bias, ntk_bias_claims, runner
from zbkernels.experiments.ntk_limits import (
    Regression,
    best_multiple,
    centred,
    distances,
    kernel,
    losses,
    time_to,
    witnesses,
)
from zbkernels.experiments.ntk_networks import draw, empirical_ntk, forward, train
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, WITHIN_SPREAD

pytestmark = pytest.mark.usefixtures("one_thread")


def inputs(count: int = 6, features: int = 9) -> torch.Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_empirical_kernel_is_of_the_derivatives_of_each_output(beta: float, depth: int) -> None:
    x = inputs()
    parameters = draw(9, 11, depth, beta, torch.Generator().manual_seed(0))
    assert len(parameters) == (depth + 1) * (2 if beta else 1)
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(out, list(leaves.values()), retain_graph=True)])
        for out in forward(leaves, x, beta)
    ]
    jacobian = torch.stack(rows).double()
    parts = empirical_ntk(parameters, x, beta)
    torch.testing.assert_close(sum(parts.values()), jacobian @ jacobian.T, rtol=1e-5, atol=1e-5)
    if beta:  # (36): the read-out's bias has the derivative beta, at any width
        torch.testing.assert_close(
            parts[f"b{depth}"], torch.full((6, 6), beta**2).double(), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_wide_networks_are_near_the_closed_form_of_their_own_beta(beta: float) -> None:
    x = inputs()
    mean = torch.zeros(6, 6, dtype=torch.float64)
    for seed in range(4):
        parameters = draw(9, 3000, 1, beta, torch.Generator().manual_seed(seed))
        mean += sum(empirical_ntk(parameters, x, beta).values()) / 4
    own, other = (kernel(x.double(), None, 1, b) for b in (beta, 0.7 - beta))
    assert (mean - own).norm() / own.norm() < 0.03
    assert (mean - other).norm() / other.norm() > 0.3


def test_training_descends_and_a_wide_network_follows_its_kernel() -> None:
    x, y = inputs(4), torch.tensor([0.1, -0.1, 0.1, 0.1])
    parameters = draw(9, 4000, 1, 0.5, torch.Generator().manual_seed(0))
    k = sum(empirical_ntk(parameters, x, 0.5).values()).float()
    start = forward(parameters, x, 0.5)
    trained, curve = train(parameters, x, y, 0.5, 0.3, 20)
    assert len(curve) == 21 and all(after < before for before, after in itertools.pairwise(curve))
    step = torch.linalg.matrix_power(torch.eye(4) - 0.3 * k, 20)
    torch.testing.assert_close(forward(trained, x, 0.5), y + step @ (start - y), rtol=0, atol=0.02)
    assert curve[0] == pytest.approx(float((y - start).square().sum() / 2), rel=1e-5)


def test_limits_differ_by_terms_in_beta_squared() -> None:
    x = inputs().double()
    one, other = distances(x, 2, (0.01, 0.02))
    assert math.log2(other["plain"] / one["plain"]) == pytest.approx(2, abs=0.01)
    for row in witnesses(x[:2], (0.3,)):
        assert row["linear_with"] - row["linear_without"] == pytest.approx(0.09, abs=1e-12)
        assert row["black_without"] == 0 < row["black_with"]


def test_measures_of_matrices() -> None:
    a = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = a @ a.T
    assert best_multiple(a, 3 * a) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(centred(a + 7), centred(a))
    assert centred(a).sum(0).abs().max() < 1e-12
    assert 0 < best_multiple(a, a + 7) < 1


def test_regression_fits_and_its_loss_curve_is_that_of_gradient_descent() -> None:
    data = load("digits").subset(40, 30)
    found = Regression(data, 1, 0.3)
    torch.testing.assert_close(found.k @ found.weights, found.y, rtol=0, atol=1e-8)
    spectrum = found.spectrum()
    times = torch.tensor([0.0, 3.0], dtype=torch.float64)
    left, steps = found.y.clone(), 3000
    for _ in range(steps):
        left -= (3.0 / steps) * (found.k @ left) / len(left)
    want = float(left.square().sum() / found.y.square().sum())
    assert losses(spectrum, times).tolist() == pytest.approx([1.0, want], rel=2e-3)
    quarter = torch.tensor([time_to(spectrum, 0.25)], dtype=torch.float64)
    assert float(losses(spectrum, quarter)) == pytest.approx(0.25, rel=1e-9)


def test_contrast_moves_the_predictions_of_biased_limits_alone() -> None:
    data = load("digits").subset(100, 80)
    without, with_bias = (Regression(data, 1, beta) for beta in (0.0, 1.0))
    torch.testing.assert_close(without.predict(0.01), 0.01 * without.predict(1.0), rtol=1e-8, atol=1e-12)
    rows = [found.by_contrast((1.0, 0.01)) for found in (without, with_bias)]
    assert rows[0][1]["changed"] == 0 and rows[0][0]["accuracy"] == rows[0][1]["accuracy"] > 70
    assert rows[1][1]["changed"] > 20 and rows[1][1]["accuracy"] < 40


# The experiment


def start(out: Path) -> Path:
    return runner.run("ntk-bias", preset="smoke", out=out, progress=Progress(Console(quiet=True)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("ntk"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in ntk_bias_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    for part in ("Remark 1, second", "Remark 2, second", "(38, 39)", "at one learning rate", "each at the"):
        assert verdict(metrics, part) == FAILS, part
    for part in ("terms in β²", "Nor are they multiples", "same at every scalar", "lost with the contrast"):
        assert verdict(metrics, part) == HOLDS, part
    assert len(metrics["depths"][0]["networks"]) == 6
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## 1 hidden")[0].splitlines() if line[:1] == "|")


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ntk_bias, "measure", cut)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    monkeypatch.undo()
    plain = ntk_bias._regression
    monkeypatch.setattr(  # of one hidden layer it is done and is not done again
        ntk_bias, "_regression", lambda data, depth, plan: cut() if depth == 1 else plain(data, depth, plan)
    )
    assert json.loads((start(tmp_path) / "metrics.json").read_text()) == metrics


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        for found in copied["depths"]:
            make(found)
        return copied

    def measured(key: str, law: Any) -> dict[str, Any]:
        def set_it(found: dict[str, Any]) -> None:
            for place, net in enumerate(found["networks"]):
                net[key] = None if net[key] is None else law(net["width"], place)

        return changed(set_it)

    for key, part in (("to_own", "Remark 1, first"), ("moved", "Remark 2, first")):
        assert verdict(measured(key, lambda width, _: width**-0.5), part) == HOLDS
        assert verdict(measured(key, lambda width, _: width**-0.1), part) == FAILS
        noisy = measured(key, lambda width, place: width**-0.2 * (3 if place % 3 == 1 else 1))
        assert verdict(noisy, part) == WITHIN_SPREAD

    def equal(found: dict[str, Any]) -> None:
        for row in found["distances"]:
            row.update(plain=1e-9, scaled=1e-9)

    same = changed(equal)
    assert verdict(same, "Remark 1, second") == HOLDS
    assert verdict(same, "terms in β²") == verdict(same, "Nor are they multiples") == FAILS
    vanishing = measured("readout_bias", lambda width, _: 1 / width)
    assert verdict(vanishing, "(38, 39)") == HOLDS
    near = changed(lambda found: [net.update(after_to_zero=0.0) for net in found["networks"]])
    assert verdict(near, "Remark 2, second") == HOLDS

    def one_curve(found: dict[str, Any]) -> None:
        for unit in ("same", "own"):
            curves = found["dynamics"][unit]["losses"]
            curves.update(dict.fromkeys(curves, curves["0"]))

    together = changed(one_curve)
    assert verdict(together, "at one learning rate") == verdict(together, "each at the") == HOLDS
    worse = changed(lambda found: found["regressions"][1]["contrast"][0].update(accuracy=10.0))
    assert verdict(worse, "generalise alike") == FAILS
    moved = changed(lambda found: found["regressions"][0]["contrast"][2].update(changed=1))
    assert verdict(moved, "same at every scalar") == FAILS
    kept = changed(lambda found: found["regressions"][1]["contrast"][-1].update(accuracy=85.0))
    assert verdict(kept, "lost with the contrast") == FAILS
