"""The experiment on f and g of activations, and the integrals and drawn means that it holds ours to."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gaussian import double_integral as by_density
from gaussian import single_integral
from rich.console import Console

from zbkernels.experiments import dual_activations, dual_activations_claims, runner
from zbkernels.experiments.gaussian_integrals import double_integral, mean, monte_carlo
from zbkernels.experiments.progress import Progress
from zbkernels.infinite.dual_expectation import slope_of
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")
SOME = ("relu", "erf:2", "sin+cos", "tanh", "tanh_erf")


@pytest.mark.parametrize("c", [-0.8, 0.0, 0.3])
@pytest.mark.parametrize("s", [torch.relu, torch.tanh, slope_of(torch.relu)])
def test_the_integral_is_that_of_the_density(s: Any, c: float) -> None:
    assert double_integral(s, torch.sigmoid, c) == pytest.approx(by_density(s, torch.sigmoid, c), abs=1e-12)
    assert mean(s) == pytest.approx(single_integral(s), abs=1e-12)


@pytest.mark.parametrize("c", [-1.0, -1 + 1e-9, 1 - 1e-6, 1.0])
def test_the_integral_near_a_right_line(c: float) -> None:
    """g of ReLU (59), written so that it has no cancellation at ±1."""
    root = math.sqrt((1 - c) * (1 + c))
    want = (root + c * (math.pi - math.atan2(root, c))) / (2 * math.pi)
    assert double_integral(torch.relu, torch.relu, c) == pytest.approx(want, abs=1e-13)


def test_drawn_means_and_their_errors() -> None:
    ((pair, square),) = monte_carlo((lambda x: x,), (0.25, 1.0), 1 << 19, 3)
    # E[uv] = c with the variance 1 + c²; E[u²] = 1 with the variance 2.
    assert pair[1] == pytest.approx(math.sqrt((1 + 0.25**2) / 2**19), rel=0.01)
    assert square[1] == pytest.approx(math.sqrt(2 / 2**19), rel=0.01)
    assert abs(pair[0] - 0.25) < 4 * pair[1] and abs(square[0] - 1) < 4 * square[1]


def quiet() -> Progress:
    return Progress(Console(quiet=True))


def start(out: Path, **options: Any) -> Path:
    return runner.run("dual-activations", preset="smoke", out=out, variants=SOME, progress=quiet(), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("dual"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in dual_activations_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    assert [found["name"] for found in metrics["curves"]] == list(SOME)
    for part in ("computed numerically", "drawn pairs", "(50, 55)", "(58) to (63)"):
        assert verdict(metrics, part) == HOLDS
    assert verdict(metrics, "(62): f") == verdict(metrics, "(57): an offset") == FAILS
    assert verdict(metrics, "(64, 65)") == NOT_TESTABLE  # without the sigmoid
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## Figure 4")[0].splitlines() if line[:1] == "|")
    row = next(row for row in metrics["equation_57"] if row["cosine"] == 0)
    assert row["ours"] == pytest.approx((1 - 1 / math.sqrt(2 * math.pi)) ** 2, abs=1e-12)
    assert row["printed"] == pytest.approx(1 + 1 / (2 * math.pi) + 2 / math.sqrt(2 * math.pi), abs=1e-10)


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dual_activations, "_witnesses", cut)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(dual_activations, "_curve", cut)  # these are done and are not done again
    assert json.loads((start(tmp_path) / "metrics.json").read_text()) == metrics


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(make: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        make(copied)
        return copied

    def curve(index: int, make: Any) -> dict[str, Any]:
        return changed(lambda m: make(m["curves"][index]))

    wrong = curve(0, lambda found: found["g"].__setitem__(3, found["g"][3] + 1e-6))
    assert verdict(wrong, "computed numerically") == FAILS
    far = curve(1, lambda found: found["drawn"][2].update(mean=found["drawn"][2]["mean"] + 0.1))
    assert verdict(far, "drawn pairs") == FAILS
    assert verdict(curve(2, lambda found: found.update(slope_apart=1e-3)), "(50, 55)") == FAILS
    other = curve(2, lambda found: found["by_integral"]["f"].__setitem__(0, 0.0))
    assert verdict(other, "(58) to (63)") == FAILS

    def as_printed(m: dict[str, Any]) -> None:
        for row in m["equation_62"]:
            row["by_integral"] = row["printed"]

    assert verdict(changed(as_printed), "(62): f") == HOLDS
    small = curve(3, lambda found: found["by_integral"].update(g=[0.01] * 9))
    assert verdict(small, "magnitude around 1") == HOLDS  # four of five are

    def with_sigmoid(m: dict[str, Any]) -> None:
        m["curves"] += [{**m["curves"][3], "name": "sigmoid"}, {**m["curves"][4], "name": "sigmoid_erf"}]

    whole = changed(with_sigmoid)
    assert verdict(whole, "(64, 65)") == verdict(whole, "approximate ones") == HOLDS
    whole["curves"][3]["function_apart"] = 0.2
    assert verdict(whole, "(64, 65)") == FAILS
