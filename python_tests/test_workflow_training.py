"""Ways to train: autocast, GradScaler, activation checkpointing, averaged weights, Lightning, spawned workers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset, TensorDataset
from workflow_models import CLASSES, MODELS, examples, plain

import zbkernels as zb

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


def loss_of(model: nn.Module, batch: int = 6, seed: int = 0) -> torch.Tensor:
    x, labels = examples(batch, seed)
    return F.cross_entropy(model(x), labels)


def test_autocast(model: nn.Module) -> None:
    """Outputs in bfloat16, gradients of the parameters' own dtype; as near to float64 as torch's own layers come."""
    x, _ = examples(6)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype is torch.bfloat16
    y.float().square().sum().backward()
    assert all(each.grad.dtype is torch.float32 for each in model.parameters())
    torch.testing.assert_close(y.float(), model(x), rtol=0.05, atol=0.05 * float(model(x).abs().max()))


def test_autocast_of_fused_layers_is_as_exact_as_torchs() -> None:
    x, _ = examples(200)
    network = plain()
    exact = plain().double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        theirs = (network(x) - exact).abs().max()
        assert zb.fuse(network, when="always")
        ours = (network(x) - exact).abs().max()
    assert 0 < ours <= 1.5 * theirs


def test_grad_scaler(model: nn.Module) -> None:
    """Scaled steps are those without scaling; an infinite gradient costs its step and half the scale."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(4):
        expected = torch.autograd.grad(loss_of(model, seed=step), list(model.parameters()))
        before = [each.detach().clone() for each in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(loss_of(model, seed=step)).backward()
        if step == 1:
            next(model.parameters()).grad.view(-1)[0] = float("inf")  # type: ignore[union-attr]
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        for old, gradient, new in zip(before, expected, model.parameters(), strict=True):
            wanted = old if step == 1 else old - 0.1 * gradient
            torch.testing.assert_close(new.detach(), wanted, rtol=1e-5, atol=1e-6)
    assert scales == [1024.0, 512.0, 512.0, 1024.0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(model: nn.Module, use_reentrant: bool) -> None:
    x = examples(6)[0].requires_grad_()
    leaves = [x, *model.parameters()]
    expected = torch.autograd.grad(model(x).square().sum(), leaves)

    def check(y: torch.Tensor) -> None:
        y.square().sum().backward()
        assert all(torch.equal(each.grad, wanted) for each, wanted in zip(leaves, expected, strict=True))
        for each in leaves:
            each.grad = None

    check(checkpoint(model, x, use_reentrant=use_reentrant))
    if isinstance(model, nn.Sequential):
        check(checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant))


def test_averaged_weights(model: nn.Module) -> None:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    expected: list[torch.Tensor] = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, seed=step).backward()
        optimizer.step()
        average.update_parameters(model)
        now = [each.detach().clone() for each in model.parameters()]
        expected = [0.9 * old + 0.1 * new for old, new in zip(expected, now, strict=True)] if step else now
    torch.testing.assert_close([each.detach() for each in average.module.parameters()], expected)
    x, _ = examples(6)
    update_bn([x], average)  # there is nothing to update
    for each, value in zip(model.parameters(), expected, strict=True):
        each.data.copy_(value)
    torch.testing.assert_close(average(x), model(x))


class Signatures(Dataset[Any]):
    """A data set that runs networks and packs bits where its items are made: in a worker."""

    def __init__(self, models: nn.ModuleDict) -> None:
        self.models = models

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = examples(1, seed=index)
        with torch.no_grad():
            return torch.cat([each(x) for each in self.models.values()]), zb.nap_pack(x.flatten(1))[0]


def test_spawned_workers_call_ops() -> None:
    """One worker for all models: each start of a process imports torch."""
    models = nn.ModuleDict({name: make() for name, make in MODELS.items()})
    found = list(DataLoader(Signatures(models), batch_size=3, num_workers=1, multiprocessing_context="spawn"))
    for index, (outputs, bits) in enumerate(zip(*map(torch.cat, zip(*found, strict=True)), strict=True)):
        x, _ = examples(1, seed=index)
        expected = torch.cat([each(x) for each in models.values()])
        torch.testing.assert_close(outputs, expected.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(bits, zb.nap_pack(x.flatten(1))[0])


def test_a_folder_of_tensors_is_loaded_in_order() -> None:
    x, labels = examples(10)
    model = plain()
    zb.fuse(model, when="always")
    loader = DataLoader(TensorDataset(x, labels), batch_size=4)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([model(images) for images, _ in loader]), model(x))


@pytest.fixture
def lightning() -> Any:
    try:
        return importlib.import_module("lightning")
    except Exception as error:  # it imports much, such as a torchvision of another torch
        pytest.skip(f"needs lightning, whose import ends in {type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["layers", "fused", "resnet9"])
def test_lightning(name: str, lightning: Any, tmp_path: Path) -> None:
    """A few steps, and on from the checkpoint: the same weights as a plain loop's."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = MODELS[name]()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    loader = DataLoader(TensorDataset(*examples(12)), batch_size=4)

    def trainer(epochs: int) -> Any:
        return lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )

    first = trainer(1)
    first.fit(Module(), loader)
    module = Module()
    trainer(2).fit(module, loader, ckpt_path=first.checkpoint_callback.best_model_path)
    expected = MODELS[name]()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for x, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(expected(x), labels).backward()
            optimizer.step()
    for actual, wanted in zip(module.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual, wanted)
    assert module.model(examples(2)[0]).shape == (2, CLASSES)
