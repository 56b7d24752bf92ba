"""Flows of two-layer networks beside linear ones: right-hand sides, closed forms, starts, and the experiment."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from zbkernels.experiments import runner
from zbkernels.experiments.effectively_linear import linear_dynamics, linear_dynamics_claims
from zbkernels.experiments.effectively_linear.reduced_dynamics import (
    imbalance_floor,
    logistic,
    rank_one,
    two_groups,
)
from zbkernels.experiments.effectively_linear.small_random_runs import draw, growing_part
from zbkernels.experiments.effectively_linear.symmetric_starts import SETTINGS, points, read_out, start
from zbkernels.experiments.effectively_linear.two_layer import even_part, network
from zbkernels.experiments.effectively_linear.weight_flow import (
    apart,
    data_rate,
    descend,
    even_square,
    flow,
    gaussian_rate,
    linear_rate,
)
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slopes(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def test_rates_are_negative_gradients_over_c() -> None:
    alpha, x, y = slopes(0.0, 0.3), normal(2, 20, 3), normal(2, 20, 1, seed=1)
    w1, w2 = normal(2, 7, 3, seed=2).requires_grad_(), normal(2, 1, 7, seed=3).requires_grad_()
    loss = sum(0.5 * (y[i] - network(w1[i], w2[i], float(alpha[i]), x[i])).square().mean() for i in (0, 1))
    wanted = [-g / ((1 + alpha) / 2) for g in torch.autograd.grad(loss, (w1, w2))]
    torch.testing.assert_close(list(data_rate(alpha, x, y)(w1.detach(), w2.detach())), wanted)
    linear = 0.5 * (y - x @ (w2 @ w1).mT).square().mean(1).sum()
    rate = linear_rate((y.mT @ x) / 20, x.mT @ x / 20)
    torch.testing.assert_close(
        list(rate(w1.detach(), w2.detach())), [-g for g in torch.autograd.grad(linear, (w1, w2))]
    )


def test_the_rate_over_normal_inputs_is_that_of_points_on_a_circle() -> None:
    """In two dimensions all that enters has degree 2: the circle of radius √2 stands for the normal distribution."""
    angle = torch.arange(20_000, dtype=torch.float64) * (2 * math.pi / 20_000) + 0.1
    x = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], 1)[None]
    beta, alpha = normal(1, 1, 2, seed=4), slopes(0.0, 0.4)
    w1, w2 = normal(2, 5, 2, seed=5), normal(2, 1, 5, seed=6)
    points_rate = data_rate(alpha, x, x @ beta.mT)(w1, w2)
    for mine, wanted in zip(gaussian_rate(alpha, beta)(w1, w2), points_rate, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-3)
    for i in (0, 1):  # at slope -1 the even part is the sum of w2 |w1 x| itself
        square = even_part(w1[i], w2[i], -1.0, x[0]).square().mean()
        assert float(even_square(w1, w2)[i]) == pytest.approx(float(square), rel=1e-6)


def test_closed_forms_solve_the_reduced_equations() -> None:
    times = torch.linspace(0, 8, 30, dtype=torch.float64)
    beta = torch.tensor([0.6, -0.8], dtype=torch.float64) * 1.5
    a, r = rank_one(times, 1e-3, beta / 1.5, beta, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(a, logistic(times, 1e-3, 1.5), rtol=1e-9, atol=0)
    torch.testing.assert_close(r, (beta / 1.5).expand(30, -1), rtol=1e-10, atol=0)
    p, q = two_groups(times, 2e-3, 1e-3, 1.5, 0.0)
    torch.testing.assert_close(p, logistic(times, 2e-3, 0.75, 4.0), rtol=1e-9, atol=0)
    torch.testing.assert_close(q, logistic(times, 1e-3, 0.75, 4.0), rtol=1e-9, atol=0)
    p, q = two_groups(times, 2e-3, 1e-3, 1.5, 1.0)  # a linear network sees the sum alone
    torch.testing.assert_close(p + q, logistic(times, 3e-3, 1.5), rtol=1e-9, atol=0)


def test_lengths_of_r_and_the_conserved_difference() -> None:
    times = torch.linspace(0, 6, 20, dtype=torch.float64)
    beta, sigma = normal(3, seed=1), torch.diag(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
    for length in (0.5, 1.0, 2.0):
        r = normal(3, seed=2)
        a, rs = rank_one(times, 0.01, length * r / r.norm(), beta, sigma)
        torch.testing.assert_close(
            a * (1 - rs.square().sum(1)), (a * (1 - rs.square().sum(1)))[:1].expand(20), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("ratio", [1.2, 5.0])
def test_the_floor_is_the_even_part_of_two_logistics_and_a_little_more(ratio: float) -> None:
    even = math.tanh(math.log(ratio) / 4) / 2
    assert even < imbalance_floor(ratio, 0.0) < 1.1 * even
    assert imbalance_floor(1 / ratio, 0.3) == pytest.approx(imbalance_floor(ratio, 0.3), rel=1e-6)
    assert imbalance_floor(1.0, 0.0) < 1e-7


def test_starts_are_balanced_as_they_say() -> None:
    for share in (0.5, 0.9, 1.0):
        w = read_out(9, 0, share)
        assert float(w.clamp_min(0).square().sum()) == pytest.approx(share) and float(
            w.norm()
        ) == pytest.approx(1)
    u = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    grown = growing_part(*draw(50, 4, 1e-3, 3, u), u)
    assert float(grown.clamp_min(0).norm()) == pytest.approx(float(grown.clamp_max(0).norm()), rel=1e-12)
    plain = growing_part(*draw(50, 4, 1e-3, 3, None), u)
    assert abs(float(plain.clamp_min(0).norm() / plain.clamp_max(0).norm()) - 1) > 1e-3


def test_points_have_the_symmetry_and_the_covariance_of_their_setting() -> None:
    for setting in SETTINGS.values():
        data = points(setting, 4, 30, 0)
        assert torch.equal(data.x[30:], -data.x[:30]) and torch.equal(data.y[30:], -data.y[:30])
        assert float(data.y.square().mean()) == pytest.approx(1)
        eye = torch.eye(4, dtype=torch.float64)
        assert ((data.sigma - eye).abs().max() < 1e-12) == setting.whitened


def test_descent_keeps_the_rank_and_moves_r_as_the_page_says() -> None:
    """r becomes (r + h g)/(1 + h g·r), ‖V2‖ grows by 1 + h g·r."""
    data = points(SETTINGS["general"], 4, 30, 0)
    v1, v2, r = start(SETTINGS["general"], data, 10, 0)
    v1, v2 = 20 * v1, 20 * v2
    h, alpha = 0.1, slopes(0.0)
    g = data.beta - float(v2.square().sum()) * data.sigma @ r
    w1, w2 = descend(
        data_rate(alpha, data.x[None], data.y[None]), v1[None] / 0.5**0.5, v2[None] / 0.5**0.5, h, 1
    )
    factor = 1 + h * g @ r
    torch.testing.assert_close(w2[1, 0] * 0.5**0.5, factor * v2, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        w1[1, 0] * 0.5**0.5, factor * v2.mT * (r + h * g) / factor, rtol=1e-12, atol=1e-15
    )


def test_mirrored_starts_of_any_scale_stay_linear() -> None:
    data = points(SETTINGS["general"], 4, 30, 0)
    v1, v2 = normal(12, 4, seed=7), normal(1, 12, seed=8)
    v1, v2 = torch.cat([v1, -v1])[None], torch.cat([v2, -v2], 1)[None]
    root = slopes(0.2).add(1).div(2).sqrt()
    w = descend(data_rate(slopes(0.2), data.x[None], data.y[None]), v1 / root, v2 / root, 0.02, 300)
    v = descend(linear_rate(data.beta[None, None], data.sigma[None]), v1, v2, 0.02, 300)
    assert float(apart(w[0] * root, w[1] * root, *v).max()) < 1e-12
    assert float(apart(*v, v1, v2).max()) > 0.05  # it has moved


def test_the_flow_meets_its_closed_form_whatever_the_stack() -> None:
    setting, times = SETTINGS["whitened"], torch.linspace(0, 6, 10, dtype=torch.float64)
    data = points(setting, 3, 20, 1)
    v1, v2, r = start(setting, data, 6, 1)
    alpha = slopes(0.0, 0.7)
    root = ((1 + alpha) / 2).sqrt()
    w1, w2 = flow(data_rate(alpha, data.x[None], data.y[None]), v1 / root, v2 / root, times)
    size = float(data.beta.norm())
    o2 = (v2 / v2.norm() * logistic(times, float(v2.square().sum()), size)[:, None, None].sqrt())[:, None]
    assert float(apart(w1 * root, w2 * root, o2.mT * r, o2).max()) < 1e-7


def run(out: Path, **options: Any) -> Path:
    progress = Progress(Console(quiet=True))
    return runner.run("linear-dynamics", preset="smoke", out=out, progress=progress, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("linear"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdicts(metrics: dict[str, Any]) -> list[str]:
    return [v.verdict for v in linear_dynamics_claims.verdicts(metrics)]


AS_DRAWN, WIDTH = 9, 11  # places of the claim that does not hold, and of the one that takes many draws


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    found = verdicts(metrics)
    assert found[AS_DRAWN] == FAILS
    assert found[WIDTH] == NOT_TESTABLE  # four draws of each width
    assert [v for i, v in enumerate(found) if i not in (AS_DRAWN, WIDTH)] == [HOLDS] * 12
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## Balanced")[0].splitlines() if line[:1] == "|")


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise AssertionError("done before")

    (finished / "metrics.json").unlink()
    for name in ("balanced", "one_sided", "unbalanced", "in_expectation", "on_points", "converge"):
        monkeypatch.setattr(linear_dynamics, name, cut)
    assert json.loads((run(finished.parent) / "metrics.json").read_text()) == metrics


def test_parts_that_were_not_run_are_not_judged(tmp_path: Path) -> None:
    folder = run(tmp_path, variants=("step-size",))
    found = verdicts(json.loads((folder / "metrics.json").read_text()))
    assert found == [NOT_TESTABLE] * 13 + [HOLDS]


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def after(change: Any) -> list[int]:
        """Places of the claims whose verdict another number changes."""
        copied = copy.deepcopy(metrics)
        change(copied)
        return [i for i, (a, b) in enumerate(zip(verdicts(metrics), verdicts(copied), strict=True)) if a != b]

    row = {"general": 1, "whitened": 0}
    assert after(lambda m: m["rank_one"][row["general"]]["rows"][0].update(weights=1e-6)) == [0]
    assert after(lambda m: m["rank_one"][row["general"]]["rows"][3].update(descent=1e-8)) == [1]
    assert after(lambda m: [r.update(weights=1e-3) for r in m["one_sided"]]) == [2]
    assert after(lambda m: m["rank_one"][row["whitened"]]["rows"][0].update(reduced_loss=1e-3)) == [3]
    assert after(lambda m: m["rank_one"][row["general"]]["rows"][0].update(reduced_weights=1e-3)) == [4]
    assert after(lambda m: m["unbalanced"]["rows"][1].update(even_from_said=1e-3)) == [5]
    assert after(lambda m: m["unbalanced"]["rows"][1].update(parts=1e-3)) == [6]
    assert after(lambda m: m["unbalanced"]["rows"][1].update(even_end=0.25)) == [7]

    drawn = next(r["outputs"] for r in metrics["scales"] if (r["start"], r["scale"]) == ("as drawn", 1e-2))

    def set_distance(start: str, scale: float, value: float) -> Any:
        def change(m: dict[str, Any]) -> None:
            for r in m["scales"]:
                if (r["start"], r["scale"]) == (start, scale):
                    r["outputs"] = value

        return change

    assert after(set_distance("balanced", 1e-3, 0.02)) == [8]
    assert after(set_distance("as drawn", 1e-3, 1e-4)) == [9, 10]
    assert AS_DRAWN not in after(
        set_distance("as drawn", 1e-3, 0.8 * drawn)
    )  # a little less is not on its way to 0
    assert after(lambda m: [r.update(outputs=0.1) for r in m["on_points"]]) == [12]
    for power, wanted in ((-0.5, HOLDS), (0.0, FAILS), (-1.0, FAILS)):
        many = copy.deepcopy(metrics)
        many["plan"]["draws"] = 40
        for r in many["widths"]:
            r["outputs"] = r["width"] ** power
        assert verdicts(many)[WIDTH] == wanted
    assert after(lambda m: [r.update(from_flow=0.1) for r in m["step_size"]]) == [13]
