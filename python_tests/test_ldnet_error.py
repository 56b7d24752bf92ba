"""The experiment ``ldnet-error``: its networks against torch's own, its references, its run and its verdicts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import cut_at
from rich.console import Console
from torch import Tensor, nn

from zbkernels.data import DataError
from zbkernels.experiments import ldnet_error, ldnet_error_claims, runner
from zbkernels.experiments.ldnet_error_claims import DOWNSCALED, IN_PIXELS, LINEARIZED, NORMAL
from zbkernels.experiments.progress import Progress
from zbkernels.experiments.shallow_networks import Task, draw, infinite, linearized, make_task, train
from zbkernels.infinite import LinearizedNet, dual, features, gradient_flow
from zbkernels.report import FAILS, HOLDS, NOT_TESTABLE

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
ACTIVATIONS = {"relu": torch.relu, "erf:2": lambda x: torch.erf(2 * x)}
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def raw(n: int = 6, tests: int = 4, d: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(n + tests, d, generator=random, dtype=torch.float64)
    return x[:n], x[n:], torch.randn(n, generator=random, dtype=torch.float64)


class Shallow(nn.Module):
    """u(x) of equation 1; the output weights are not trained."""

    def __init__(self, W: Tensor, a: Tensor, activation: str) -> None:
        super().__init__()
        self.W = nn.Parameter(W.clone())
        self.register_buffer("a", a)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](x @ self.W.mT) @ self.a


def network(task: Task, activation: str, width: int = 30, seed: int = 3) -> Shallow:
    weights = draw(width, task, seed, CPU)
    return Shallow(weights.W.double(), weights.a.double(), activation)


# What the figures are made of


@pytest.mark.parametrize("d", [20, 8, 3])
def test_the_basis_keeps_inner_products_and_trains_the_span_of_the_training_inputs(d: int) -> None:
    x, z, y = raw(d=d)
    task, plain = make_task(x, z, y), make_task(x, z, y, pixels=True)
    assert task.trained == min(6, d)
    assert task.train[:, task.trained :].abs().sum() == 0
    for a in ("train", "test"):
        assert (getattr(plain, a).norm(dim=1) - 1).abs().max() < 1e-14
        for b in ("train", "test"):
            wanted = getattr(plain, a) @ getattr(plain, b).mT
            assert (getattr(task, a) @ getattr(task, b).mT - wanted).abs().max() < 1e-13


@every_activation
def test_the_limit_is_kernel_regression_with_equations_58_and_62(activation: str) -> None:
    task = make_task(*raw())
    cosines = [x @ task.train.mT for x in (task.train, task.test)]
    cosines[0].fill_diagonal_(1)  # the angle of an input with itself
    kernels = [dual.f(activation, c) for c in cosines]
    wanted = kernels[1] @ torch.linalg.solve(kernels[0], task.y)
    assert (infinite(task, activation).predict(task.y, None, 0.01) - wanted).abs().max() < 1e-10


@every_activation
def test_the_linearized_learner_is_the_linearized_net(activation: str) -> None:
    task = make_task(*raw())
    model = network(task, activation)
    net = LinearizedNet(model)
    learner = linearized(draw(30, task, 3, CPU), task, activation)
    phi = [features(net, x)[:, 0] for x in (task.train, task.test)]
    assert (learner.on_train - phi[0] @ phi[0].mT).abs().max() < 1e-13
    assert (learner.on_test - phi[1] @ phi[0].mT).abs().max() < 1e-13
    flow = gradient_flow(net, task.train, task.y)
    flow.load(flow.after_steps(200, 0.1))
    assert (learner.predict(task.y, 200, 0.1) - net(task.test)).abs().max() < 1e-11
    stepped = learner.descend(task.y[:, None], 200, 0.1, torch.float64)[:, 0]
    assert (stepped - net(task.test)).abs().max() < 1e-11


@every_activation
@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("pixels", [False, True])
def test_training_is_gradient_descent(activation: str, difference: bool, pixels: bool) -> None:
    """Against torch's autograd in float64, a network for each of three scales."""
    task = make_task(*raw(), pixels=pixels)
    scales = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
    targets = scales[:, None] * task.y
    counted: list[int] = []
    found = train(
        draw(30, task, 3, CPU),
        task,
        activation,
        targets,
        60,
        0.1,
        difference=difference,
        on_steps=counted.append,
    )
    assert sum(counted) == 60
    for i, y in enumerate(targets):
        model = network(task, activation)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start, start_test = model(task.train).detach(), model(task.test).detach()
        for _ in range(60):
            optimizer.zero_grad()
            output = model(task.train) - (start if difference else 0)
            (0.5 * (y - output).square().sum()).backward()
            optimizer.step()
        ends = [model(task.train) - difference * start, model(task.test) - difference * start_test]
        for got, wanted in ((found.train[i], ends[0]), (found.test[i], ends[1]), (found.exact[i], ends[1])):
            assert (got - wanted).abs().max() < 2e-5 * wanted.abs().max().clamp(min=1)
    assert (found.start[0] - start_test).abs().max() < 1e-6
    assert (found.start[1] - start).abs().max() < 1e-6


def test_few_images_are_refused() -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    with pytest.raises(DataError, match="ldnet-error: expected 4 images of a 0 and of a 1, got fewer"):
        ldnet_error.zeros_and_ones(torch.rand(7, 1, 2, 2), labels, 2)
    task = ldnet_error.zeros_and_ones(torch.eye(7).view(7, 1, 7, 1), labels, 1, pixels=True)
    assert torch.equal(task.train, torch.eye(7, dtype=torch.float64)[[0, 1]])  # the first 0 and the first 1
    assert torch.equal(task.test, torch.eye(7, dtype=torch.float64)[[2, 3]])  # the next
    assert torch.equal(task.y, torch.tensor([0.0, 1], dtype=torch.float64))


# The run


def quiet() -> Progress:
    return Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ZBKERNELS_DATA", raising=False)
        return runner.run("ldnet-error", preset="smoke", out=tmp_path_factory.mktemp("out"), progress=quiet())


@pytest.fixture
def metrics(smoke: Path) -> dict[str, Any]:
    return json.loads((smoke / "metrics.json").read_text())


def test_smoke_runs_without_any_data_folder(smoke: Path, metrics: dict[str, Any]) -> None:
    from matplotlib.image import imread

    table = (smoke / "table.md").read_text()
    for part in (
        "scikit-learn digits",
        "## Figure 1: erf(2x)",
        "## Figure 3: ReLU",
        "downscaled, in pixels, m = 30",
    ):
        assert part in table
    kinds = {(unit["activation"], unit["kind"]) for unit in metrics["units"]}
    assert kinds == {
        *(("erf:2", kind) for kind in (NORMAL, LINEARIZED)),
        *(("relu", kind) for kind in (NORMAL, LINEARIZED, DOWNSCALED, IN_PIXELS)),
    }
    pixels = torch.from_numpy(imread(smoke / "figure.png"))[..., :3]
    assert len(pixels.mul(255).round().to(torch.int32).flatten(0, 1).unique(dim=0)) > 50


def test_a_run_that_was_cut_off_gives_the_same_metrics(smoke: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.run("ldnet-error", preset="smoke", out=tmp_path, progress=cut_at(quiet(), 7))
    assert not (tmp_path / "ldnet-error-smoke/metrics.json").exists()
    again = runner.run("ldnet-error", preset="smoke", out=tmp_path, progress=quiet())
    assert (again / "metrics.json").read_bytes() == (smoke / "metrics.json").read_bytes()


def test_the_papers_preset_has_what_the_thesis_gives() -> None:
    plan = ldnet_error.PLANS["paper"]
    assert (plan.per_class, plan.steps, ldnet_error.LEARNING_RATE, ldnet_error.EPSILON) == (
        50,
        10_000,
        0.01,
        1e-3,
    )
    units = list(plan.units(ldnet_error.VARIANTS, (0, 1, 2)))
    assert len({unit.folder for unit in units}) == len(units)
    for activation, kinds in ldnet_error.FIGURES.items():
        for kind in kinds:
            cells = [
                (u.width, u.seed, s)
                for u in units
                if (u.activation, u.kind) == (activation, kind)
                for s in u.scales
            ]
            assert len(cells) == len(set(cells)) == 6 * 3 * 9
            assert {cell[0] for cell in cells} == {100, 300, 1_000, 3_000, 10_000, 30_000}
            assert (min(c[2] for c in cells), max(c[2] for c in cells)) == pytest.approx((1e-4, 1e4))


# The verdicts: each follows its numbers


def verdict(metrics: dict[str, Any], words: str) -> str:
    (found,) = [v for v in ldnet_error_claims.verdicts(metrics) if words in v.claim]
    return found.verdict


def ideal() -> dict[str, Any]:
    """Metrics in which everything is as the thesis says."""
    scales, widths = [1e-4, 1e-2, 1.0, 1e2, 1e4], [100, 400]
    units: list[dict[str, Any]] = []
    for width in widths:
        linear = 1 / width**0.5
        about = {"width": width, "seed": 0, "scales": scales}
        for activation, far in (("erf:2", 0.9), ("relu", 0.3)):
            mine = {"activation": activation, **about}
            initial = [0.4 / scale for scale in scales]
            error = [0.4 / scale if scale <= 1 else far for scale in scales]
            plain = {"error": error, "exact": error, "initial": initial, "fit": [0, 0, 0, 0.9, 0.99]}
            units.append({**mine, "kind": NORMAL, **plain, "largest": 0.99 * width**0.5})
            units.append(
                {**mine, "kind": LINEARIZED, "error": [linear] * 5, "stepped": [linear * 1.0001] * 5}
            )
        down = [0.7, 1.5 * linear, *[1.05 * linear] * 3]
        more = {"error": down, "exact": down, "apart": down, "fit": down, "largest": 1.0}
        units.append({"activation": "relu", **about, "kind": DOWNSCALED, **more})
    limit = {"size": 1.0, "unfinished": 1e-6, "least_eigenvalue": 0.1, "largest_eigenvalue": 1.0}
    head = {"steps": 10_000, "scales": scales, "widths": widths, "trained": widths}
    return {**head, "infinite": {"erf:2": limit, "relu": limit}, "units": units}


CLAIMS = {  # words of the claim -> (activation, kind, key, numbers that contradict it)
    "nearer to the IEIN limit than plain ones (Figure 1": ("erf:2", LINEARIZED, "error", [0.95] * 5),
    "nearer to the IEIN limit than plain ones (Figure 2": ("relu", LINEARIZED, "error", [0.5] * 5),
    "does not depend on the scale of the targets, but": (
        "relu",
        LINEARIZED,
        "stepped",
        [0.1, 0.1, 0.1, 0.1, 0.2],
    ),
    "At low target scales": ("erf:2", NORMAL, "error", [2e3, 40.0, 0.4, 0.9, 0.9]),
    "Even at scale 1": ("erf:2", NORMAL, "initial", [4e3, 40, 0.1, 0, 0]),
    "At large target scales": ("relu", LINEARIZED, "error", [0.29] * 5),
    "ReLU suffers less": ("relu", NORMAL, "error", [4e3, 40, 0.4, 0.95, 0.3]),
    "never put out more": ("erf:2", NORMAL, "largest", 21.0),
    "rounding spoils": ("relu", DOWNSCALED, "error", [0.06] * 5),
    "Otherwise": ("relu", DOWNSCALED, "error", [0.7, 0.1, 0.2, 0.1, 0.1]),
    "error falls as": ("relu", LINEARIZED, "error", [0.1] * 5),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_each_verdict_follows_its_numbers(words: str) -> None:
    metrics = ideal()
    assert verdict(metrics, words) == HOLDS
    activation, kind, key, numbers = CLAIMS[words]
    for unit in metrics["units"]:
        if (unit["activation"], unit["kind"]) == (activation, kind):
            unit[key] = numbers
    assert verdict(metrics, words) == FAILS
    metrics["units"] = [unit for unit in metrics["units"] if unit["kind"] != kind]
    assert verdict(metrics, words) == NOT_TESTABLE


def test_the_steps_are_enough_where_the_limit_itself_has_converged() -> None:
    metrics = ideal()
    assert verdict(metrics, "enough for convergence") == HOLDS
    metrics["infinite"]["relu"] = {**metrics["infinite"]["relu"], "unfinished": 0.04}
    assert verdict(metrics, "enough for convergence") == FAILS
    assert verdict({**metrics, "steps": 400}, "enough for convergence") == NOT_TESTABLE


def test_networks_that_ran_away_are_left_out(metrics: dict[str, Any], tmp_path: Path) -> None:
    lost = copy.deepcopy(metrics)
    for unit in lost["units"]:
        if unit["kind"] == NORMAL and unit["width"] == 30:
            for key in ("error", "exact", "fit"):
                unit[key] = [*unit[key][:-1], None]
    assert "## Claims" in ldnet_error.EXPERIMENT.table(lost)
    ldnet_error.EXPERIMENT.figure(lost, tmp_path / "figure.png")
    for kind, activation in ((LINEARIZED, "relu"), (NORMAL, "erf:2")):
        lost = copy.deepcopy(metrics)
        for unit in lost["units"]:
            if (unit["kind"], unit["activation"]) == (kind, activation):
                for key in {"error", "exact", "fit", "stepped"} & unit.keys():
                    unit[key] = [*unit[key][:-1], None]
        text = ldnet_error.EXPERIMENT.table(lost)
        assert "inf" not in text.replace("infinite", "")
        assert (
            "| **does not hold** | trained step by step in float32, some run away" in text or kind == NORMAL
        )
    alone = {**metrics, "units": [unit for unit in metrics["units"] if unit["kind"] == LINEARIZED]}
    assert "not testable here" in ldnet_error.EXPERIMENT.table(alone)
    ldnet_error.EXPERIMENT.figure(alone, tmp_path / "figure.png")
