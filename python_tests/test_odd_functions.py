"""Two-layer bias-free networks taken apart, odd targets, networks fitted to them, and the experiment on both."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from zbkernels.experiments import runner
from zbkernels.experiments.effectively_linear import odd_functions, odd_functions_claims
from zbkernels.experiments.effectively_linear.fitted_networks import Kind, fit
from zbkernels.experiments.effectively_linear.odd_functions import decomposition_errors
from zbkernels.experiments.effectively_linear.odd_targets import ODD_TARGETS, best_linear, symmetric_inputs
from zbkernels.experiments.effectively_linear.two_layer import even_part, linear_network, network, odd_map
from zbkernels.experiments.effectively_linear.two_layer_fit import fit_closely, polish
from zbkernels.experiments.progress import Progress
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")
SOME = ("two-layer", "three-layer", "two-layer-biased")


def drawn(
    outputs: int, width: int, inputs: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(w1, w2, x), float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((width, inputs), (outputs, width), (30, inputs))
    w1, w2, x = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return w1, w2, x


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 60), st.integers(1, 20), st.floats(-2, 2), st.integers(0, 1000))
def test_a_two_layer_network_is_a_linear_odd_part_and_an_even_part(
    outputs: int, width: int, inputs: int, alpha: float, seed: int
) -> None:
    w1, w2, x = drawn(outputs, width, inputs, seed)
    f, mirrored = network(w1, w2, alpha, x), network(w1, w2, alpha, -x)
    unit = (
        10
        * torch.finfo(torch.float64).eps
        * (width + inputs)
        * float((w2.abs() @ w1.abs() @ x.abs().mT).max())
    )
    assert ((f - mirrored) / 2 - x @ odd_map(w1, w2, alpha).mT).abs().max() <= unit
    assert ((f + mirrored) / 2 - even_part(w1, w2, alpha, x)).abs().max() <= unit


def test_the_decomposition_error_finds_a_wrong_slope_and_a_bias() -> None:
    w1, w2, x = drawn(1, 20, 5, 0)
    f, mirrored = network(w1, w2, 0.2, x), network(w1, w2, 0.2, -x)
    assert max(decomposition_errors(w1, w2, 0.2, x, f, mirrored)) < 1
    assert min(decomposition_errors(w1, w2, 0.2 + 1e-9, x, f, mirrored)) > 1
    biased = [(torch.relu(at @ w1.mT + 1e-9)) @ w2.mT for at in (x, -x)]
    assert decomposition_errors(w1, w2, 0.0, x, *biased)[0] > 1


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.3, 1.0])
def test_two_units_an_output_are_any_linear_map(alpha: float) -> None:
    linear = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w1, w2 = linear_network(linear, alpha)
    x = drawn(1, 1, 4, 3)[2]
    assert w1.shape == (6, 4)
    torch.testing.assert_close(network(w1, w2, alpha, x), x @ linear.mT, rtol=1e-13, atol=1e-13)


def test_an_even_activation_has_no_odd_network() -> None:
    with pytest.raises(ValueError, match=r"linear_network: expected alpha other than -1"):
        linear_network(torch.ones(1, 2), -1.0)


@pytest.mark.parametrize("name", ODD_TARGETS)
def test_targets_are_odd_and_homogeneous_where_they_say_so(name: str) -> None:
    target, x = ODD_TARGETS[name], symmetric_inputs(50, 3, 1)
    y = target.function(x)
    assert torch.equal(x[50:], -x[:50]) and torch.equal(y[50:], -y[:50])
    assert torch.allclose(target.function(3 * x), 3 * y) == target.homogeneous
    assert best_linear(x, y)[1] > 0.05 * y.square().mean()  # not linear


def test_the_dead_zone_is_a_bias_free_network_of_three_layers() -> None:
    first = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
    second = torch.tensor([[1.0, -1, -1, -1], [-1, 1, -1, -1]], dtype=torch.float64)
    last = torch.tensor([[1.0, -1]], dtype=torch.float64)
    x = symmetric_inputs(40, 2, 0)
    f = torch.relu(torch.relu(x @ first.mT) @ second.mT) @ last.mT
    torch.testing.assert_close(f[:, 0], ODD_TARGETS["dead-zone"].function(x), rtol=0, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(3, 8),
    st.floats(-1, 1),
    st.sampled_from(list(ODD_TARGETS)),
    st.integers(0, 99),
)
def test_the_error_on_an_odd_target_is_a_sum_of_three(
    width: int, dimension: int, alpha: float, target: str, seed: int
) -> None:
    """That of the best linear map, the odd part's distance from it, and the even part's mean square."""
    x = symmetric_inputs(30, dimension, seed)
    y = ODD_TARGETS[target].function(x)
    w1, w2, _ = drawn(1, width, dimension, seed)
    linear, least = best_linear(x, y)
    error = float((network(w1, w2, alpha, x)[:, 0] - y).square().mean())
    away = float((x @ (odd_map(w1, w2, alpha)[0] - linear)).square().mean())
    even = float(even_part(w1, w2, alpha, x).square().mean())
    assert error == pytest.approx(least + away + even, rel=1e-11)


@pytest.mark.parametrize("kind", [Kind("", (8,)), Kind("", (8,), bias=True), Kind("", (5, 5), alpha=0.2)])
def test_fitting_makes_the_error_smaller_and_keeps_the_kind(kind: Kind) -> None:
    x = symmetric_inputs(20, 3, 0)
    y = ODD_TARGETS["median"].function(x)
    start, end = fit(kind, x, y, 0, 0), fit(kind, x, y, 0, 60)
    assert (end(x) - y).square().mean() < 0.5 * (start(x) - y).square().mean()
    assert end.iterations <= 60 and len(end.weights) == len(kind.hidden) + 1
    assert any(float(bias.abs().max()) > 0 for bias in end.biases) == kind.bias
    again = fit(kind, x, y, 0, 60)
    assert all(torch.equal(a, b) for a, b in zip(end.weights, again.weights, strict=True))


@pytest.mark.parametrize(("alpha", "dimension"), [(0.0, 2), (0.3, 5)])
def test_close_fits_reach_the_best_linear_map_to_rounding(alpha: float, dimension: int) -> None:
    x = symmetric_inputs(40, dimension, 1)
    y = ODD_TARGETS["cubic"].function(x)
    y = y / y.square().mean().sqrt()
    least = best_linear(x, y)[1]
    kind = Kind("", (12,), alpha=alpha)
    near, close = (
        float((net(x) - y).square().mean())
        for net in (fit(kind, x, y, 0, 60), fit_closely(kind, x, y, 0, 60))
    )
    assert abs(close - least) < 1e-12 < near - least


def test_close_fits_are_of_two_layers_without_biases() -> None:
    x = symmetric_inputs(5, 2, 0)
    for kind in (Kind("", (4, 4)), Kind("", (4,), bias=True)):
        with pytest.raises(ValueError, match="fit_closely: expected two layers without biases, got Kind"):
            fit_closely(kind, x, x[:, 0], 0, 3)


def test_polishing_never_makes_the_error_larger() -> None:
    x = symmetric_inputs(20, 3, 0)[:20]  # without the symmetry, where it may be held by units' borders
    y = ODD_TARGETS["median"].function(x)
    rough = fit(Kind("", (6,)), x, y, 0, 5)
    assert (polish(rough, x, y)(x) - y).square().mean() < (rough(x) - y).square().mean()


def start(out: Path, **options: Any) -> Path:
    progress = Progress(Console(quiet=True))
    return runner.run("odd-functions", preset="smoke", out=out, variants=SOME, progress=progress, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def metrics(finished: Path) -> dict[str, Any]:
    return json.loads((finished / "metrics.json").read_text())


def verdict(metrics: dict[str, Any], part: str) -> str:
    (found,) = [v for v in odd_functions_claims.verdicts(metrics) if part in v.claim]
    return found.verdict


PARTS = (
    "f(x) = c W2 W1 x",
    "The same of trained",
    "none is nearer",
    "reaches exactly",
    "symmetric inputs",
    "Deeper",
    "odd part of the deeper",
    "positively homogeneous",
    "with biases (ours)",
    "not homogeneous",
)


def test_smoke_run(finished: Path, metrics: dict[str, Any]) -> None:
    names = sorted(path.name for path in finished.iterdir() if path.is_file())
    assert names == ["config.json", "figure.png", "metrics.json", "table.md"]
    assert {part: verdict(metrics, part) for part in PARTS} == dict.fromkeys(PARTS, HOLDS)
    text = (finished / "table.md").read_text()
    assert all(line.count("|") == 4 for line in text.split("## Errors")[0].splitlines() if line[:1] == "|")


def test_a_run_cut_off_takes_up_what_is_there(
    metrics: dict[str, Any], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise AssertionError("done before")

    (finished / "metrics.json").unlink()
    monkeypatch.setattr(odd_functions, "_fit_all", cut)
    monkeypatch.setattr(odd_functions, "_decomposition", cut)
    assert json.loads((start(finished.parent) / "metrics.json").read_text()) == metrics


def test_verdicts_follow_the_metrics(metrics: dict[str, Any]) -> None:
    def changed(kind: str, **values: Any) -> dict[str, Any]:
        copied = copy.deepcopy(metrics)
        copied["fits"][0]["networks"][kind].update(values)
        return copied

    least = metrics["fits"][0]["linear"]
    assert verdict(changed("two-layer", error=least - 1e-9), "none is nearer") == FAILS
    assert verdict(changed("two-layer", error=least + 2e-9), "reaches exactly") == FAILS
    assert verdict(changed("two-layer", apart=2.0), "The same of trained") == FAILS
    assert verdict(changed("two-layer", half=metrics["fits"][0]["linear_half"]), "symmetric inputs") == FAILS
    assert verdict(changed("three-layer", error=least), "Deeper") == FAILS
    assert verdict(changed("three-layer", odd_is_linear_to=0.0), "odd part of the deeper") == FAILS
    assert verdict(changed("three-layer", inhomogeneous_exact=1e-16), "positively homogeneous") == FAILS
    assert verdict(changed("two-layer-biased", error=least), "with biases (ours)") == FAILS
    assert verdict(changed("two-layer-biased", inhomogeneous=0.0), "not homogeneous") == FAILS
    wrong = copy.deepcopy(metrics)
    wrong["decomposition"][2]["odd"] = math.inf
    assert verdict(wrong, "f(x) = c W2 W1 x") == FAILS
    for fit_ in wrong["fits"]:
        fit_["networks"] = {}
    assert verdict(wrong, "Deeper") == verdict(wrong, "none is nearer") == NOT_TESTABLE
