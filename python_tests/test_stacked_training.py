"""Update rules and stacked networks: against torch's own optimisers, the printed formulas and each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zbkernels.exchangeability.optimizers import RULES, optimizer
from zbkernels.exchangeability.row_means import expected_by_chance, greatest_squared_row_mean, row_means
from zbkernels.exchangeability.stacked_mlp import StackedMLP

TORCH = {
    "sgd": (torch.optim.SGD, {}),
    "adam": (torch.optim.Adam, {"eps": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {"eps": 1e-3}),
    "nadam": (torch.optim.NAdam, {"eps": 1e-3}),
}


def gradients(steps: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(steps)]


def walk(rule: object, gradients: list[Tensor], start: Tensor | None = None) -> Tensor:
    w = torch.zeros_like(gradients[0]) if start is None else start.clone()
    state = rule.init([w])  # type: ignore[attr-defined]
    for g in gradients:
        rule.step([w], [g], state)  # type: ignore[attr-defined]
    return w


@pytest.mark.parametrize("name", RULES)
def test_torchs_form_is_torchs_optimiser(name: str) -> None:
    kind, options = TORCH[name]
    w = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    theirs = kind([w], lr=0.01, **options)
    steps = gradients(40, 3, 5)
    for g in steps:
        w.grad = g
        theirs.step()
    ours = walk(optimizer(name, form="torch", lr=0.01, **options), steps)
    rtol = 1e-6 if name == "nadam" else 1e-12  # torch keeps Nadam's product in float32
    torch.testing.assert_close(ours, w.detach(), rtol=rtol, atol=1e-15)


def keras(name: str, steps: list[float], lr: float, eps: float) -> float:
    """Keras 2's rules, entry by entry in Python's floats."""
    w = m = v = 0.0
    schedule = 1.0
    for t, g in enumerate(steps, 1):
        if name == "sgd":
            w -= lr * g
        elif name == "rmsprop":
            v = 0.9 * v + 0.1 * g * g
            w -= lr * g / (math.sqrt(v) + eps)
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            if name == "adam":
                rate = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                w -= rate * m / (math.sqrt(v) + eps)
            else:
                now, then = (0.9 * (1 - 0.5 * 0.96 ** (k * 0.004)) for k in (t, t + 1))
                schedule *= now
                bar = (1 - now) * g / (1 - schedule) + then * m / (1 - schedule * then)
                w -= lr * bar / (math.sqrt(v / (1 - 0.999**t)) + eps)
    return w


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("eps", [1e-32, 1e-3, 1.0])
def test_keras_form_is_the_printed_formula(name: str, eps: float) -> None:
    steps = gradients(30, 4)
    ours = walk(optimizer(name, lr=0.01, eps=eps), steps)
    theirs = [keras(name, [float(g[i]) for g in steps], 0.01, eps) for i in range(4)]
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float64), rtol=1e-12, atol=1e-15)


def test_the_forms_differ_in_adams_epsilon_alone() -> None:
    steps = gradients(3, 6)
    for name in ("sgd", "nadam"):
        a, b = (walk(optimizer(name, form=form, lr=0.1, eps=1e-2), steps) for form in ("keras", "torch"))
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    a, b = (walk(optimizer("rmsprop", form=f, lr=0.1, eps=1e-2, rho=0.9), steps) for f in ("keras", "torch"))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    # One step: torch's ε stands for √(1 - β₂) ε of Keras.
    one = steps[:1]
    ours = walk(optimizer("adam", form="keras", lr=0.1, eps=1e-2 * math.sqrt(1e-3)), one)
    torch.testing.assert_close(ours, walk(optimizer("adam", form="torch", lr=0.1, eps=1e-2), one))
    assert (ours - walk(optimizer("adam", form="keras", lr=0.1, eps=1e-2), one)).abs().min() > 1e-3


def test_a_tiny_epsilon() -> None:
    """0/(0 + 1e-32) is 0; what survives above the fraction bar while g² underflows is divided by ε alone."""
    for name in ("adam", "rmsprop", "nadam"):
        rule = optimizer(name, lr=1e-3, eps=1e-32)
        assert walk(rule, [torch.zeros(2)] * 3).eq(0).all()
        first = walk(rule, [torch.full((2,), 1e-23)])
        assert first.abs().min() > 1e7 * 1e-3, name  # step sizes
        assert walk(optimizer(name, lr=1e-3, eps=1e-16), [torch.full((2,), 1e-23)]).abs().max() < 1e-9
        # 1e-46 is 0 in float32, in the frameworks as here: 0/0.
        assert walk(optimizer(name, lr=1e-3, eps=1e-46), [torch.zeros(2)]).isnan().all()


@pytest.mark.parametrize("name", RULES)
def test_hyper_parameters_of_each_run(name: str) -> None:
    lr, eps = torch.tensor([0.1, 0.01, -0.02]), torch.tensor([1e-32, 1e-3, 1.0])
    steps = gradients(5, 3, 4, 2, dtype=torch.float32)
    together = walk(optimizer(name, lr=lr, eps=eps), steps)
    for r in range(3):
        alone = walk(optimizer(name, lr=float(lr[r]), eps=float(eps[r])), [g[r] for g in steps])
        torch.testing.assert_close(together[r], alone, rtol=1e-5, atol=1e-7)


def test_bad_rules_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"expected one of sgd, .*'adm'"):
        optimizer("adm", lr=1)
    with pytest.raises(ValueError, match="form keras or torch, got 'jax'"):
        optimizer("adam", form="jax", lr=1)
    with pytest.raises(ValueError, match="eps >= 0"):
        optimizer("adam", lr=1, eps=torch.tensor([1e-3, -1.0]))
    for options, message in (
        ({"eps": float("nan")}, "eps >= 0, got nan"),
        ({"lr": torch.tensor([0.1, float("nan")])}, "finite lr"),
        ({"betas": (0.9, 1.0)}, r"in \[0, 1\), got \(0.9, 1.0\)"),
        ({"rho": -0.1}, r"in \[0, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer("adam", **{"lr": 1, **options})
    rule = optimizer("sgd", lr=torch.ones(3))
    with pytest.raises(ValueError, match=r"got \[3\] and \[2, 2\]"):
        rule.step([torch.zeros(2, 2)], [torch.zeros(2, 2)], rule.init([]))
    with pytest.raises(ValueError, match="2 gradients"):
        rule.step([torch.zeros(3), torch.zeros(3)], [torch.zeros(3)], rule.init([]))


def test_a_refused_step_changes_nothing() -> None:
    rule = optimizer("adam", lr=1)
    weights = [torch.ones(2, 3), torch.ones(4)]
    state = rule.init(weights)
    with pytest.raises(ValueError, match=r"shape \[4\], got \[5\]"):
        rule.step(weights, [torch.ones(2, 3), torch.ones(5)], state)
    assert state.step == 0 and weights[0].eq(1).all() and state.first[0].eq(0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_stacked_gradients_are_autograds(bias: bool) -> None:
    nets = StackedMLP.he_normal((6, 8, 5, 6), (3, 4, 5), bias=bias, dtype=torch.float64)
    if nets.biases is not None:
        for b in nets.biases:
            b.normal_()
    x = torch.rand(7, 6, dtype=torch.float64)
    loss, found = nets.gradients(x, x)
    for r in range(3):
        one = nets.select([r])
        parameters = [p.requires_grad_() for p in one.parameters()]
        h = x
        for i, w in enumerate(one.weights):
            h = torch.relu(
                torch.nn.functional.linear(h, w[0], None if one.biases is None else one.biases[i][0])
            )
        expected = torch.nn.functional.mse_loss(h, x)
        torch.testing.assert_close(loss[r], expected.detach())
        for ours, theirs in zip(found, torch.autograd.grad(expected, parameters), strict=True):
            torch.testing.assert_close(ours[r], theirs[0], rtol=1e-10, atol=1e-14)


def test_a_run_does_not_see_the_others() -> None:
    """Neither equal seeds in other company nor a diverging neighbour change a run."""
    x = torch.rand(16, 12)
    nets, alone = (StackedMLP.he_normal((12, 12, 12), seeds) for seeds in ((1, 2), (1,)))
    nets.weights[1][1, 3, 4] = float("nan")
    rules = optimizer("sgd", lr=torch.tensor([0.5, 0.1])), optimizer("sgd", lr=0.5)
    states = rules[0].init(nets.parameters()), rules[1].init(alone.parameters())
    for _ in range(10):
        loss, grads = nets.gradients(x, x)
        rules[0].step(nets.parameters(), grads, states[0])
        rules[1].step(alone.parameters(), alone.gradients(x, x)[1], states[1])
    assert not loss[1].isfinite()
    torch.testing.assert_close(nets.weights[0][0], alone.weights[0][0], rtol=1e-5, atol=1e-6)


def test_misfitting_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[R, out, in\]"):
        StackedMLP([torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)])
    with pytest.raises(ValueError, match=r"biases \[R, out\]"):
        StackedMLP([torch.zeros(2, 3, 4)], [torch.zeros(2, 4)])


def test_misfitting_images_are_refused() -> None:
    """A target of one column would be spread over all of them."""
    nets = StackedMLP.he_normal((4, 3), (0, 1))
    with pytest.raises(ValueError, match=r"x \[B, 4\] or \[2, B, 4\], got \[5, 3\]"):
        nets(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"target \[5, 3\] or \[2, 5, 3\], got \[5, 1\]"):
        nets.gradients(torch.zeros(5, 4), torch.zeros(5, 1))


def test_row_means() -> None:
    weight = torch.zeros(2, 3, 4)
    weight[0, 1] = torch.tensor([4.0, 0, 0, 4])
    weight[0, 2] = -3
    assert row_means(weight).tolist() == [[0, 2, -3], [0, 0, 0]]
    assert greatest_squared_row_mean(weight).tolist() == [9, 0]
    drawn = StackedMLP.he_normal((400, 300), range(20)).weights[0]
    found = float(greatest_squared_row_mean(drawn).mean())
    assert found == pytest.approx(expected_by_chance(300, 400, (2 / 400) ** 0.5), rel=0.35)
    with pytest.raises(ValueError, match=r"\[\.\.\., out, in\]"):
        row_means(torch.zeros(3))
    with pytest.raises(ValueError, match="at least one unit"):
        greatest_squared_row_mean(torch.zeros(0, 3))
