"""torch.func over layers, fused models and networks: every transform, and per-sample gradients as a loop has them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.nn.utils import stateless
from workflow_models import CLASSES, MODELS, examples

pytestmark = pytest.mark.usefixtures("one_thread")
COUNT = 4
close = torch.testing.assert_close


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    """In float64, where transforms and loops agree to 1e-7 of torch's default tolerance."""
    return MODELS[request.param]().double()


@pytest.fixture
def x() -> torch.Tensor:
    return examples(COUNT)[0].double()


LABELS = examples(COUNT)[1]


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in model.named_parameters()}


def test_per_sample_gradients_are_a_loops(model: nn.Module, x: torch.Tensor) -> None:
    def loss(weights: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(func.functional_call(model, weights, (image[None],)), label[None])

    found = func.vmap(func.grad(loss), (None, 0, 0))(parameters(model), x, LABELS)
    for index in range(COUNT):
        one = slice(index, index + 1)
        expected = torch.autograd.grad(F.cross_entropy(model(x[one]), LABELS[one]), list(model.parameters()))
        close([each[index] for each in found.values()], list(expected))


def test_jacobians_agree_and_jvp_is_their_product(model: nn.Module, x: torch.Tensor) -> None:
    one, direction = x[:1], torch.randn(x[:1].shape, dtype=torch.float64)
    jacobian = func.jacrev(model)(one)
    assert jacobian.shape == (1, CLASSES, *one.shape) and jacobian.any()
    close(func.jacfwd(model)(one), jacobian)
    y, tangent = func.jvp(model, (one,), (direction,))
    close(y, model(one).detach())
    close(tangent.flatten(), jacobian.reshape(CLASSES, -1) @ direction.flatten())
    close(func.vmap(lambda image: model(image[None])[0])(x), model(x))


def test_hessian_vector_products(model: nn.Module, x: torch.Tensor) -> None:
    """Forward over reverse, reverse over reverse, and torch.autograd twice."""
    weights = parameters(model)
    direction = {name: torch.randn_like(each) for name, each in weights.items()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(func.functional_call(model, weights, (x,)), LABELS)

    leaves = list(model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(model(x), LABELS), leaves, create_graph=True)
    product = sum((slope * d).sum() for slope, d in zip(slopes, direction.values(), strict=True))
    expected = list(torch.autograd.grad(product, leaves))
    close(list(func.jvp(func.grad(loss), (weights,), (direction,))[1].values()), expected)
    close(list(func.vjp(func.grad(loss), weights)[1](direction)[0].values()), expected)


def test_an_ensemble_by_stacked_weights(model: nn.Module, x: torch.Tensor) -> None:
    models = [copy.deepcopy(model) for _ in range(3)]
    with torch.no_grad():
        for factor, each in enumerate(models, start=1):
            for weight in each.parameters():
                weight.mul_(factor / 2)
    weights, buffers = func.stack_module_state(models)
    base = copy.deepcopy(model).to("meta")

    def run(weights: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> torch.Tensor:
        return func.functional_call(base, (weights, buffers), (x,))

    close(func.vmap(run)(weights, buffers), torch.stack([each(x) for each in models]))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_functional_calls_leave_the_model_as_it_is(model: nn.Module, x: torch.Tensor) -> None:
    before = {name: each.clone() for name, each in parameters(model).items()}
    zeros = {name: torch.zeros_like(each) for name, each in before.items()}
    for call in (func.functional_call, stateless.functional_call):
        assert not call(model, zeros, (x,)).any()
        assert model(x).any()
    close(parameters(model), before)
