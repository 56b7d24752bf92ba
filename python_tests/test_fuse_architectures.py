"""fuse on networks as other people write them: results, one training step, state and what undoing gives back."""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any

import bench_tools
import pytest
import torch
from plain_architectures import ARCHITECTURES
from torch import Tensor, nn

import zbkernels as zb

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [(name, bias) for name in ARCHITECTURES for bias in (True, False)]


def leaves(value: Any) -> list[Tensor]:
    """The tensors in what a forward returned, as lists, tuples and dicts hold them."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [leaf for each in values for leaf in leaves(each)]


def step(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """What a training step computes: outputs, gradients of inputs and parameters, and the buffers after it."""
    inputs = tuple(each.clone().requires_grad_() for each in inputs)
    model.zero_grad()
    torch.manual_seed(3)  # of dropout
    found = {f"output {i}": leaf for i, leaf in enumerate(leaves(model(*inputs)))}
    sum(
        (leaf * torch.linspace(-1, 1, leaf.numel()).view_as(leaf)).sum() for leaf in found.values()
    ).backward()  # type: ignore[union-attr]
    found |= {f"gradient of input {i}": each.grad for i, each in enumerate(inputs)}
    found |= {f"gradient of {name}": each.grad for name, each in model.named_parameters()}
    found |= {f"buffer {name}": each.clone() for name, each in model.named_buffers()}
    return {name: value.detach() for name, value in found.items() if value is not None}


def forward(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {f"output {i}": leaf for i, leaf in enumerate(leaves(model(*inputs)))}


def check(ours: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Eight times torch's own error against float64 is allowed, or what the op documents, by norm."""
    assert list(ours) == list(plain)
    for name, value in exact.items():
        assert ours[name].dtype == plain[name].dtype and ours[name].shape == plain[name].shape, name
        value = value.double()  # counts are integers
        error, torchs = ((each[name] - value).norm().item() for each in (ours, plain))
        assert error <= max(8 * torchs, 1e-5 * value.norm().item()), (name, error, torchs)


def compare(model: nn.Module, inputs: tuple[Tensor, ...], chains: int | None = None) -> None:
    """Fuse, compare forward and training step, undo; ``chains`` None: any number but none."""
    runs = [(step, model.train()), (forward, copy.deepcopy(model).eval())]
    for run, plain in runs:
        ours, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
        keys = list(plain.state_dict())
        report = zb.fuse(ours, when="always")
        assert report if chains is None else len(report.fused) == chains, str(report)
        assert list(ours.state_dict()) == keys
        untouched = copy.deepcopy(plain)
        expected = run(plain, inputs)
        check(run(ours, inputs), expected, run(exact, tuple(each.double() for each in inputs)))
        if report:
            with zb.use_backend("reference"):
                forward(ours, inputs)
            assert zb.last_kernel() == "reference"  # an op of ours ran
        zb.unfuse(ours)
        assert [type(each) for each in ours.modules()] == [type(each) for each in plain.modules()]
        ours.load_state_dict(untouched.state_dict())
        for name, value in run(ours, inputs).items():
            assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(("name", "bias"), CASES)
def test_an_architecture_stays_the_same(name: str, bias: bool) -> None:
    each = ARCHITECTURES[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lazy layers are new
        model = each.small(bias)
    compare(model, each.small_inputs(), each.chains[0 if bias else 1])


def test_the_bench_has_a_row_for_each() -> None:
    bench = bench_tools.load("fuse_architectures")
    row = bench.row("MLP", ARCHITECTURES["MLP"], 1)
    assert len(row) == len(bench.COLUMNS)
    assert row[:2] == ["MLP", "128x1x28x28"]
    assert all(row[place].endswith(" of 2") for place in (2, 7))
    assert all(float(row[place]) > 0 for place in (3, 4, 8, 9))


def bias_free(model: nn.Module) -> nn.Module:
    """The model with neither biases nor batch norms, as one takes them out of a model that is already there."""
    for module in list(model.modules()):
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.bias = None
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    return model


def compare_models(package: str, models: dict[str, tuple[dict[str, Any], str]], size: int) -> None:
    """Models by name: (arguments, the part that is compared)."""
    try:
        importlib.import_module(package)
    except Exception as error:  # what a build for another torch raises is no ImportError
        pytest.skip(f"{package} does not import: {type(error).__name__}")
    create = {
        "torchvision.models": lambda name: getattr(importlib.import_module(package), name),
        "timm": lambda name: lambda **options: importlib.import_module(package).create_model(name, **options),
    }[package]
    for name, (options, part) in models.items():
        torch.manual_seed(0)
        model = bias_free(create(name)(**options).get_submodule(part))
        compare(model, (torch.randn(2, 3, size, size),))


def test_torchvision_models_stay_the_same() -> None:
    densenet = {"growth_rate": 4, "block_config": (2, 2), "num_init_features": 8}
    models: dict[str, tuple[dict[str, Any], str]] = {
        "vgg11": ({}, "features"),
        "alexnet": ({}, "features"),
        "squeezenet1_1": ({}, ""),
        "resnet18": ({}, ""),
        "shufflenet_v2_x0_5": ({}, ""),
        "DenseNet": (densenet, ""),
        "googlenet": ({"init_weights": False, "aux_logits": False}, ""),
    }
    compare_models("torchvision.models", models, 64)


def test_timm_models_stay_the_same() -> None:
    compare_models("timm", {"test_resnet": ({}, ""), "test_byobnet": ({}, ""), "resnet10t": ({}, "")}, 64)
