"""Difference networks, linearised ones and their gradient flow in closed form, of modules of all kinds."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from zbkernels.infinite import DifferenceNet, LinearizedNet, features, gradient_flow, ntk
from zbkernels.nn import ConvReLUPool2d, LinearReLU

pytestmark = pytest.mark.usefixtures("one_thread")

F64 = torch.float64
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class Shared(nn.Module):
    """Two layers of one weight, and a second input that comes by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor, *, times: Tensor) -> dict[str, Any]:
        y = torch.tanh(self.a(x)) * times
        return {"out": self.b(y), "both": (y, [x @ self.a.weight])}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def normed() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3))
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net


def frozen() -> nn.Module:
    net = mlp()
    net[0].requires_grad_(False)
    return net


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))


def parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.GELU(), nn.Linear(4, 1))


def fused() -> nn.Module:
    return nn.Sequential(ConvReLUPool2d(1, 3, 3), nn.Flatten(), LinearReLU(3 * 9, 6), LinearReLU(6, 2, 1.0))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "mlp": (mlp, lambda: ((draw(4, 5),), {})),
    "batch norm and dropout": (normed, lambda: ((draw(4, 5),), {})),
    "frozen layer": (frozen, lambda: ((draw(4, 5),), {})),
    "weight norm": (parametrized, lambda: ((draw(4, 5),), {})),
    "fused layers": (fused, lambda: ((draw(2, 1, 8, 8),), {})),
    "shared weight, nested outputs": (Shared, lambda: ((draw(4, 5),), {"times": draw(5)})),
    "recurrent": (Recurrent, lambda: ((draw(2, 4, 3),), {})),
    "attention": (Attention, lambda: ((draw(2, 6, 8),), {})),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"),
        lambda: ((draw(5, 2, 8),), {}),
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def of(name: str, dtype: torch.dtype = F64) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    args, kwargs = inputs()
    return make().to(dtype), (tuple(a.to(dtype) for a in args), {k: v.to(dtype) for k, v in kwargs.items()})


def linearized(name: str, model: nn.Module, **options: Any) -> LinearizedNet:
    """In forward mode where torch has one."""
    return LinearizedNet(model, **{"mode": "reverse" if name == "weight norm" else "forward", **options})


both_kinds = pytest.mark.parametrize(
    "kind", [linearized, lambda name, model: DifferenceNet(model)], ids=["L", "D"]
)


def flat(tree: Any) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in torch.utils._pytree.tree_leaves(tree)])


def randomise(net: LinearizedNet, seed: int = 1) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.delta.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    return {name: p.detach().clone() for name, p in net.delta.named_parameters()}


def moved(model: nn.Module, delta: dict[str, Tensor], by: float) -> nn.Module:
    """The model at θ(0) + by·Δθ, in evaluation mode, by torch's own means."""
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in delta:
                parameter += by * delta[name]
    return twin


@every_model
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_linearized_is_the_derivative_along_delta(mode: str, name: str) -> None:
    model, (args, kwargs) = of(name)
    net = LinearizedNet(model, mode=mode)
    if (mode, name) == ("forward", "weight norm"):
        with pytest.raises(NotImplementedError, match="forward AD"):
            net(*args, **kwargs)
        return
    assert flat(net(*args, **kwargs)).abs().max() == 0
    delta = randomise(net)
    h = 1e-5
    with torch.no_grad():
        ahead, behind = (flat(moved(model, delta, by)(*args, **kwargs)) for by in (h, -h))
        found = flat(net(*args, **kwargs))
    wanted = (ahead - behind) / (2 * h)
    assert (found - wanted).abs().max() <= 1e-8 * wanted.abs().max()
    assert wanted.abs().max() > 0.1


@pytest.mark.parametrize("name", ["mlp", "batch norm and dropout", "encoder layer", "recurrent"])
def test_what_the_expansion_leaves_out_is_of_second_order(name: str) -> None:
    """Equation 43 (``difference=False``) against the network itself, at steps of 1e-2 and 1e-3."""
    model, (args, kwargs) = of(name)
    net = LinearizedNet(model, difference=False)
    delta = randomise(net)
    errors = []
    for by in (1e-2, 1e-3):
        net.load_state_dict({**net.state_dict(), **{f"delta.{n}": by * d for n, d in delta.items()}})
        with torch.no_grad():
            left = flat(moved(model, delta, by)(*args, **kwargs)) - flat(net(*args, **kwargs))
        errors.append(float(left.norm()))
    assert 0.005 < errors[1] / errors[0] < 0.02


@every_model
def test_gradients_are_the_features(name: str) -> None:
    """∂(v·Δu)/∂Δθ is vᵀ∂u/∂θ at θ(0), wherever Δθ is."""
    model, (args, kwargs) = of(name)
    net = linearized(name, model)
    randomise(net)
    output = flat(net(*args, **kwargs))
    v = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=F64)
    output.backward(v)
    evaluated = copy.deepcopy(model).eval()
    flat(evaluated(*args, **kwargs)).backward(v)
    wanted = {n: p.grad for n, p in evaluated.named_parameters() if p.requires_grad}
    got = {n: p.grad for n, p in net.delta.named_parameters()}
    assert list(got) == list(wanted)
    for key, gradient in wanted.items():
        assert (got[key] - gradient).abs().max() <= 1e-12 * gradient.abs().max().clamp(min=1), key


@every_model
@both_kinds
def test_the_model_is_left_alone_and_mode_does_not_matter(kind: Any, name: str) -> None:
    model, (args, kwargs) = of(name)
    model.train()
    before = copy.deepcopy(model.state_dict())
    net = kind(name, model)
    step(net, args, kwargs)
    outputs = [flat(net.train(mode)(*args, **kwargs)) for mode in (True, True, False)]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    assert outputs[0].abs().max() > 0
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@every_model
def test_gradients_by_inputs_are_those_of_both_terms(name: str) -> None:
    """A difference network on top of layers that train, or whose inputs are looked into."""
    model, (args, kwargs) = of(name)
    net = DifferenceNet(model, epsilon=0.5)
    step(net, args, kwargs)
    x = args[0].clone().requires_grad_()
    found = torch.autograd.grad(flat(net(x, **kwargs)).sin().sum(), x)[0]
    difference = (flat(net.model(x, **kwargs)) - flat(copy.deepcopy(model).eval()(x, **kwargs))) / 0.5
    wanted = torch.autograd.grad(difference.sin().sum(), x)[0]
    assert (found - wanted).abs().max() <= 1e-12 * wanted.abs().max()


def step(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], lr: float = 0.1) -> None:
    """One step of SGD on a loss that is no square."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr)
    optimizer.zero_grad()
    output = flat(net(*args, **kwargs))
    nn.functional.softplus(output - 1).sum().backward()
    optimizer.step()


@every_model
@both_kinds
def test_saved_copied_pickled_and_moved(kind: Any, name: str, tmp_path: Path) -> None:
    model, (args, kwargs) = of(name)
    net = kind(name, model)
    step(net, args, kwargs)
    wanted = flat(net(*args, **kwargs)).detach()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    torch.manual_seed(9)
    other = kind(name, MODELS[name][0]().to(F64))  # another θ(0)
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    assert torch.equal(flat(other(*args, **kwargs)), wanted)
    copied = copy.deepcopy(net)
    assert torch.equal(flat(copied(*args, **kwargs)), wanted)
    if name != "weight norm":  # torch refuses to pickle a parametrised layer
        assert torch.equal(flat(pickle.loads(pickle.dumps(net))(*args, **kwargs)), wanted)
    step(copied, args, kwargs)
    assert not torch.equal(flat(copied(*args, **kwargs)), wanted)
    assert torch.equal(flat(net(*args, **kwargs)), wanted)
    single = net.float()
    small = flat(single(*(a.float() for a in args), **{k: v.float() for k, v in kwargs.items()}))
    assert small.dtype == torch.float32
    assert (small - wanted).abs().max() < 1e-4 * wanted.abs().max()
    back = flat(single.double()(*args, **kwargs))  # what is shared still is
    assert (back - wanted).abs().max() < 1e-4 * wanted.abs().max()


COMPILED = [
    ("L", "batch norm and dropout"),
    ("L", "fused layers"),
    ("L", "shared weight, nested outputs"),
    ("D", "mlp"),
]


@pytest.mark.parametrize(("kind", "name"), COMPILED)
def test_compiled_in_one_graph(kind: str, name: str) -> None:
    model, (args, kwargs) = of(name)
    net = LinearizedNet(model) if kind == "L" else DifferenceNet(model, epsilon=0.1)
    step(net, args, kwargs)
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    assert (flat(compiled(*args, **kwargs)) - flat(net(*args, **kwargs))).abs().max() < 1e-12
    step(net, args, kwargs)
    step(compiled, args, kwargs)
    assert (flat(twin(*args, **kwargs)) - flat(net(*args, **kwargs))).abs().max() < 1e-12


def test_shared_weights_are_one_parameter() -> None:
    net = LinearizedNet(of("shared weight, nested outputs")[0])
    assert [name for name, _ in net.delta.named_parameters()] == ["a.weight", "a.bias", "b.bias"]


def test_any_optimizer_fits_the_targets() -> None:
    model, (args, _) = of("mlp")
    labels = torch.tensor([0, 2, 1, 2])
    for make in (lambda p: torch.optim.Adam(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)):
        net = LinearizedNet(model)
        optimizer = make(net.parameters())
        for _ in range(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(*args), labels).backward()
            optimizer.step()
        assert torch.equal(net(*args).argmax(1), labels)


# Targets scaled down (equations 45 to 48)


def descend(net: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> nn.Module:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    factor = getattr(net, "loss_factor", 1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        (factor * 0.5 * (y - net(x)).square().sum()).backward()
        optimizer.step()
    return net


def test_downscaled_training_goes_to_the_linearized_as_epsilon_does() -> None:
    model, (args, _) = of("mlp")
    x, y = args[0], draw(4, 3).to(F64)
    wanted = descend(LinearizedNet(model), x, y, 60, 0.05)(x).detach()
    gaps = [
        float((descend(DifferenceNet(model, epsilon=epsilon), x, y, 60, 0.05)(x) - wanted).norm())
        for epsilon in (1e-2, 1e-3, 1e-4)
    ]
    assert gaps[0] < 0.1 * wanted.norm()
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.2)
    assert gaps[2] == pytest.approx(gaps[1] / 10, rel=0.2)


def test_the_loss_factor_makes_equation_45() -> None:
    model, (args, _) = of("mlp")
    x, y, epsilon = args[0], draw(4, 3).to(F64), 0.01
    net, plain = DifferenceNet(model, epsilon=epsilon), DifferenceNet(model)
    for other in (net, plain):
        with torch.no_grad():
            other.model[0].weight += 0.01
    loss = net.loss_factor * 0.5 * (y - net(x)).square().sum()
    assert loss.item() == pytest.approx(float(0.5 * (epsilon * y - plain(x)).square().sum()), rel=1e-12)


def test_in_float32_small_targets_drown_where_the_linearized_keeps_them() -> None:
    """Figure 3's corner: targets of 1e-4, scaled down by 1000, are of the size of float32's rounding."""
    model, (args, _) = of("mlp", torch.float32)
    x, y = args[0], 1e-4 * draw(4, 3)
    exact = descend(LinearizedNet(model.double()), x.double(), y.double(), 60, 0.05)(x.double())
    model.float()
    linear = descend(LinearizedNet(model), x, y, 60, 0.05)(x)
    small = descend(DifferenceNet(model, epsilon=1e-3), x, y, 60, 0.05)(x)
    assert (linear - exact).norm() < 1e-5 * exact.norm()
    assert (small - exact).norm() > 0.05 * exact.norm()


# Gradient flow in closed form


def squared(net: LinearizedNet, x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - net(x)).square().sum()


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 30), seed=st.integers(0, 100), start=st.booleans())
@example(rows=10, seed=77, start=False)  # singular values far apart
def test_the_flow_solves_its_equation(rows: int, seed: int, start: bool) -> None:
    """dΔθ/dt = -∂L/∂Δθ at any time, with more equations than parameters and with fewer; from any Δθ."""
    torch.manual_seed(seed)
    net = LinearizedNet(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    x, y = torch.randn(rows, 2, dtype=F64), torch.randn(rows, 2, dtype=F64)
    if start:
        randomise(net, seed)
    first = {n: p.detach().clone() for n, p in net.delta.named_parameters()}
    flow = gradient_flow(net, x, y)
    assert all((flow.at(0.0)[n] - first[n]).abs().max() < 1e-12 for n in first)
    t, h = 0.7, 1e-4
    ahead, behind = flow.at(t + h), flow.at(t - h)
    flow.load(flow.at(t))
    loss = squared(net, x, y)
    loss.backward()
    for name, parameter in net.delta.named_parameters():
        speed = (ahead[name] - behind[name]) / (2 * h)
        assert (speed + parameter.grad).abs().max() < 1e-5 * (1 + parameter.grad.abs().max())
    net.zero_grad()
    flow.load(flow.at(math.inf))
    end = squared(net, x, y)
    assert end <= loss + 1e-9
    end.backward()
    assert all(p.grad.abs().max() < 1e-6 for p in net.delta.parameters())


def test_descent_agrees_with_the_closed_form() -> None:
    model, (args, _) = of("mlp")
    x, y, lr = args[0], draw(4, 3).to(F64), 1e-3
    net = LinearizedNet(model)
    flow = gradient_flow(net, x, y)
    exact, near = flow.after_steps(500, lr), flow.at(500 * lr)
    descend(net, x, y, 500, lr)
    for name, parameter in net.delta.named_parameters():
        assert (parameter - exact[name]).abs().max() < 1e-12
        assert (parameter - near[name]).abs().max() < 5e-3  # steps that are not infinitesimal


def test_descent_in_float32_keeps_what_moves_slowly() -> None:
    """1 - (1 - lr s²)^steps is far below 1 here, where float32 has seven digits of it or none."""
    net = LinearizedNet(nn.Linear(3, 1, bias=False))
    sizes = torch.tensor([1.0, 1e-2, 1e-3])
    found = gradient_flow(net, sizes.diag(), torch.ones(3, 1)).after_steps(10, 0.5)["weight"][0].double()
    wanted = (1 - (1 - 0.5 * sizes.double() ** 2) ** 10) / sizes.double()
    assert (found / wanted - 1).abs().max() < 1e-6


def test_wide_networks_in_float32_fit_their_targets() -> None:
    """A million parameters: the rounding of their number is not that of their singular values."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(100, 10_000, bias=False), nn.ReLU(), nn.Linear(10_000, 1, bias=False))
    net[2].requires_grad_(False)
    with torch.no_grad():
        net[0].weight.normal_()
        net[2].weight.normal_().mul_(0.01)
    x = nn.functional.normalize(torch.rand(20, 100))
    x, y = torch.cat([x, x[:3]]), torch.randn(20, 1)
    y = torch.cat([y, y[:3] + 1])  # of equal inputs the mean can be met
    linear = LinearizedNet(net)
    flow = gradient_flow(linear, x, y)
    flow.load(flow.at(math.inf))
    y[:3] += 0.5
    y[20:] -= 0.5
    assert (linear(x) - y).norm() < 1e-4 * y.norm()


def test_features_that_are_zero_leave_the_network_as_it_is() -> None:
    net = LinearizedNet(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False)))
    flow = gradient_flow(net, torch.zeros(2, 3), torch.ones(2, 1))
    for delta in (flow.at(1.0), flow.at(math.inf), flow.after_steps(5, 0.1)):
        assert all((value == 0).all() for value in delta.values())


def test_features_are_the_jacobian_and_their_products_the_tangent_kernel() -> None:
    model, (args, _) = of("batch norm and dropout")
    x = args[0]
    net = LinearizedNet(model)
    found = features(net, x)
    evaluated = copy.deepcopy(model).eval()
    for i, row in enumerate(evaluated(x)):
        for j, value in enumerate(row):
            parts = torch.autograd.grad(value, list(evaluated.parameters()), retain_graph=True)
            assert (found[i, j] - torch.cat([p.flatten() for p in parts])).abs().max() < 1e-13
    wide = nn.Sequential(
        nn.Linear(3, 20_000, bias=False), nn.ReLU(), nn.Linear(20_000, 1, bias=False)
    ).double()
    torch.manual_seed(0)
    with torch.no_grad():
        wide[0].weight.normal_().mul_(2**0.5 / 3**0.5)
        wide[2].weight.normal_().mul_(2**0.5 / 20_000**0.5)
    wide[2].requires_grad_(False)
    z = torch.randn(5, 3, dtype=F64)
    phi = features(LinearizedNet(wide), z)[:, 0]
    # A weight of standard deviation s is s times a standard one, which is what the ntk parametrisation trains.
    kernel = ntk(z, train="first") * 3 / 2
    assert (phi @ phi.mT - kernel).abs().max() < 0.05 * kernel.abs().max()


def test_the_end_of_training_is_kernel_regression() -> None:
    """Equation 21 with the finite network's own kernel."""
    model, (args, _) = of("mlp")
    net = LinearizedNet(model)
    x, z, y = args[0], draw(6, 5).to(F64), draw(4, 3).to(F64)
    flow = gradient_flow(net, x, y)
    flow.load(flow.at(math.inf))
    on_x, on_z = features(net, x).flatten(0, 1), features(net, z).flatten(0, 1)
    wanted = on_z @ on_x.mT @ torch.linalg.solve(on_x @ on_x.mT, y.flatten())
    assert (net(z).flatten() - wanted).abs().max() < 1e-9 * wanted.abs().max()
    assert (net(x) - y).abs().max() < 1e-9


def test_a_feature_matrix_that_does_not_fit_is_refused_with_its_sizes() -> None:
    model, (args, _) = of("mlp")
    wanted = (
        r"features: 4 inputs x 3 outputs x 84 parameters of torch.float64 need 8,064 bytes, expected at most"
    )
    with pytest.raises(ValueError, match=wanted):
        gradient_flow(LinearizedNet(model), args[0], draw(4, 3).to(F64), max_bytes=8_063)
    gradient_flow(LinearizedNet(model), args[0], draw(4, 3).to(F64), max_bytes=8_064)


# What is refused


@pytest.mark.parametrize("kind", [LinearizedNet, DifferenceNet])
def test_models_that_cannot_be_held_are_refused_by_name(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(
        TypeError, match=f"{name}: expected a torch.nn.Module, not of TorchScript, got function"
    ):
        kind(lambda x: x)
    with pytest.raises(ValueError, match=f"{name}: expected a model with a trainable parameter"):
        kind(nn.ReLU())
    with pytest.raises(
        ValueError, match=f"{name}: expected a model that has run once, but weight has no shape yet"
    ):
        kind(nn.LazyLinear(3))
    compiled = torch.compile(mlp(), backend="eager")
    assert [n.split(".", 1)[1] for n, _ in kind(compiled).named_parameters()] == [
        n for n, _ in mlp().named_parameters()
    ]


def test_another_mode_is_refused() -> None:
    with pytest.raises(
        ValueError, match="LinearizedNet: expected mode to be 'forward' or 'reverse', got 'both'"
    ):
        LinearizedNet(mlp(), mode="both")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, True, "1"])
def test_another_epsilon_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match="DifferenceNet: expected epsilon to be a finite number > 0, got"):
        DifferenceNet(mlp(), epsilon=epsilon)


def test_other_arguments_of_the_flow_are_refused() -> None:
    model, (args, kwargs) = of("mlp")
    net = LinearizedNet(model)
    with pytest.raises(
        ValueError, match=r"gradient_flow: expected targets of the output's shape \[4, 3\], got \[4\]"
    ):
        gradient_flow(net, args[0], draw(4).to(F64))
    flow = gradient_flow(net, args[0], draw(4, 3).to(F64))
    with pytest.raises(ValueError, match=r"GradientFlow\.at: expected a time >= 0, got -1"):
        flow.at(-1)
    with pytest.raises(
        ValueError, match=r"GradientFlow\.after_steps: expected a whole number of steps >= 0 and 0 <= lr <= "
    ):
        flow.after_steps(10, 1e3)
    with pytest.raises(ValueError, match=r"expected a whole number of steps .* got 1\.5 and 0\.1"):
        flow.after_steps(1.5, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"features: expected at least one input, .* got \[0, 5\]"):
        gradient_flow(net, args[0][:0], draw(0, 3).to(F64))
    shared, (args, kwargs) = of("shared weight, nested outputs")
    with pytest.raises((TypeError, RuntimeError)):
        features(LinearizedNet(shared), args[0])
    del kwargs


def test_the_transformer_switch_is_put_back() -> None:
    model, (args, _) = of("encoder layer")
    before = torch.backends.mha.get_fastpath_enabled()
    LinearizedNet(model)(*args)
    assert torch.backends.mha.get_fastpath_enabled() == before
