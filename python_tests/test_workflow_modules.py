"""What users do to modules: copies, the meta device, hooks of the state_dict, parametrizations and pruning."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, skip_init
from workflow_models import MODELS, Plain, examples, plain

import zbkernels as zb
from zbkernels.models import layer_kernels
from zbkernels.nn.fixup import ScalarMultiplier
from zbkernels.nn.fusion.rewritten import is_fused

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=MODELS)
def make(request: pytest.FixtureRequest) -> Callable[[], nn.Module]:
    return MODELS[request.param]


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def saved_whole(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model)), saved_whole]
)
def test_copies(make: Callable[[], nn.Module], copied: Callable[[nn.Module], nn.Module]) -> None:
    model, (x, labels) = make(), examples(5)
    twin = copied(model)
    assert type(twin) is type(model) and torch.equal(twin(x), model(x))
    assert (
        twin.get_parameter(name := next(iter(dict(model.named_parameters())))) is model.get_parameter(name)
    ) == (copied is copy.copy)
    F.cross_entropy(twin(x), labels).backward()
    assert all(each.grad is not None for each in twin.parameters())


# Deferred initialisation.


def test_made_on_meta_and_given_weights(make: Callable[[], nn.Module]) -> None:
    model, (x, _) = make(), examples(5)
    with torch.device("meta"):
        outline = make()
    assert all(each.is_meta for each in outline.parameters())
    assert outline(x.to("meta")).shape == model(x).shape
    outline.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(outline(x), model(x))


def test_made_on_meta_and_started_by_each_layer(make: Callable[[], nn.Module]) -> None:
    """``to_empty`` and ``reset_parameters``, as FSDP's deferred initialisation does: nothing stays as memory had it."""
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(torch.nan)
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)) and not isinstance(module, Plain):
                module.reset_parameters()  # type: ignore[operator]
        if isinstance(model, Plain):  # whose author gave it none
            model.weight.fill_(0.1)
    assert all(each.isfinite().all() for each in model.parameters())
    assert model(examples(5)[0]).isfinite().all()
    if make is MODELS["fixup"]:
        assert all(each.item() == 1 for name, each in model.named_parameters() if "multiplier" in name)
        assert not model.get_submodule("fc").weight.any()


def test_skip_init_and_the_remaining_layers() -> None:
    conv = skip_init(zb.nn.ConvReLUPool2d, 1, 4, 3)
    linear = skip_init(zb.nn.LinearReLU, 5, 3)
    torch.manual_seed(0)
    for layer in (conv, linear):
        layer.reset_parameters()
    torch.manual_seed(0)
    assert torch.equal(conv.weight, zb.nn.ConvReLUPool2d(1, 4, 3).weight)
    assert torch.equal(linear.weight, zb.nn.LinearReLU(5, 3).weight)
    multiplier = ScalarMultiplier()
    multiplier.load_state_dict({"weight": torch.tensor(3.0)})  # as earlier versions saved it
    assert torch.equal(multiplier.weight.detach(), torch.tensor([3.0]))
    multiplier.reset_parameters()
    assert multiplier.weight.item() == 1


def test_hooks_of_the_state_dict(make: Callable[[], nn.Module]) -> None:
    source, target, said = make(), make(), []
    with torch.no_grad():
        for each in source.parameters():
            each.add_(0.1)
    source.register_state_dict_pre_hook(lambda *_: said.append("before saving"))
    source.register_state_dict_post_hook(lambda *_: said.append("after saving"))
    target.register_load_state_dict_pre_hook(lambda *_: said.append("before loading"))
    target.register_load_state_dict_post_hook(lambda *_: said.append("after loading"))
    target.load_state_dict(source.state_dict())
    assert said == ["before saving", "after saving", "before loading", "after loading"]
    x, _ = examples(5)
    assert torch.equal(target(x), source(x))


# Parametrizations and pruning.


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


COMPUTED: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda module: parametrize.register_parametrization(module, "weight", Doubled()),
    "pruned": lambda module: prune.l1_unstructured(module, "weight", amount=0.5),
    "pruned filters": lambda module: prune.ln_structured(module, "weight", amount=0.25, n=2, dim=0),
    "old weight_norm": torch.nn.utils.weight_norm,
    "old spectral_norm": torch.nn.utils.spectral_norm,
}
PLAIN_OF = {
    "conv": (
        lambda: zb.nn.ConvReLUPool2d(1, 8, 3),
        lambda layer: nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2)),
        lambda: nn.Conv2d(1, 8, 3, bias=False),
    ),
    "linear": (
        lambda: zb.nn.LinearReLU(8, 6),
        lambda layer: nn.Sequential(layer, nn.ReLU()),
        lambda: nn.Linear(8, 6, bias=False),
    ),
}


def trained(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The result in eval() after some steps: of power iterations, too."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.eval()(x)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("how", COMPUTED)
@pytest.mark.parametrize("kind", PLAIN_OF)
def test_layers_see_the_computed_weight(kind: str, how: str) -> None:
    ours, around, theirs = PLAIN_OF[kind]
    layer, twin = ours(), theirs()
    twin.load_state_dict(layer.state_dict())
    x, _ = examples(5)
    for each in (layer, twin):
        torch.manual_seed(0)
        COMPUTED[how](each)
    plainly = around(twin)
    close(trained(layer, x), trained(plainly, x))
    assert list(layer.state_dict()) == list(twin.state_dict())
    close(layer.forward_nap(x)[0], plainly(x))
    ran = layer_kernels(layer, lambda: layer.train()(x).sum().backward())
    assert [len(each) for each in ran.values()] == [2]
    if how.startswith("pruned"):
        prune.remove(layer.eval(), "weight")
        close(layer(x), plainly(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("how", COMPUTED)
@pytest.mark.parametrize("first", ["fused", "computed"])
@pytest.mark.parametrize("of", ["conv", ""], ids=["a layer", "the fused module"])
def test_fused_models_see_the_computed_weight(how: str, first: str, of: str) -> None:
    """In either order, of a layer and of a weight of the fused module's own; until unfuse, and after it."""
    model, written, (x, _) = plain(), plain(), examples(5)
    if first == "fused":
        zb.fuse(model, when="always")
    for each in (model, written):
        torch.manual_seed(0)
        COMPUTED[how](each.get_submodule(of))
    if first == "computed":
        report = zb.fuse(model, when="always")
        hooked = of == "conv" and (how.startswith(("pruned", "old")))
        assert len(report.fused) == (2 if hooked else 3)
        assert ("a hook is on it" in str(report)) == hooked
    expected = trained(written, x)
    close(trained(model, x), expected)
    assert is_fused(model)
    assert zb.unfuse(model) == 1
    close(model(x), expected)
    assert zb.fuse(model, when="always")
    close(model(x), expected)
    module = model.get_submodule(of)
    if parametrize.is_parametrized(module):
        parametrize.remove_parametrizations(module, "weight")
        close(model(x), expected)
    elif how.startswith("pruned"):
        prune.remove(module, "weight")
        close(model(x), expected)
    zb.unfuse(model)
    assert how.startswith(("pruned", "old")) or type(module) in (Plain, nn.Conv2d)
    close(model(x), expected)


class Asking(Plain):
    def forward(self, x: Any) -> torch.Tensor:
        return super().forward(x if isinstance(x, torch.Tensor) else x[0])


def test_a_parametrized_module_is_read_as_it_was_written() -> None:
    model = Asking()
    parametrizations.weight_norm(model)
    report = zb.fuse(model, when="always")
    assert not report and "asks for the type of a value" in str(report)


def test_tensors_that_a_fused_module_remembers_are_not_kept_alive() -> None:
    import gc
    import weakref

    class Conditioned(Plain):
        condition: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.condition)

    model, (x, _) = Conditioned(), examples(5)
    model.condition = torch.ones(())
    assert zb.fuse(model, when="always")
    seen = []
    for factor in range(1, 12):  # more than there are ways through one forward
        model.condition = torch.tensor(float(factor))
        seen.append(weakref.ref(model.condition))
        fused = model(x)
        close(fused, Plain.forward(model, x * factor))
    gc.collect()
    assert [each() is None for each in seen] == [True] * 10 + [False]
