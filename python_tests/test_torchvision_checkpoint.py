"""ResNet checkpoints in torchvision's format: their names, what the network makes of them, and broken ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from zbkernels.checkpoint import CheckpointError
from zbkernels.models import ARCHITECTURES, ResNet, build, load_torchvision_resnet

DEPTHS = {
    "resnet18-imagenet-bn": [2, 2, 2, 2],
    "resnet34-imagenet-bn": [3, 4, 6, 3],
    "resnet50-bn": [3, 4, 6, 3],
}
State = dict[str, torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")


def torchvision_state(name: str, classes: int = 1000, first: int = 64) -> State:
    """Random tensors under the names and, for 64 channels in the first layer, in the shapes of torchvision's resnet18,
    resnet34 and resnet50."""
    generator = torch.Generator().manual_seed(0)
    bottleneck = name == "resnet50-bn"
    state: State = {}

    def conv(key: str, k: int, c: int, size: int) -> None:
        state[f"{key}.weight"] = (
            torch.randn(k, c, size, size, generator=generator) * (c * size * size) ** -0.5
        )

    def bn(key: str, k: int) -> None:
        state[f"{key}.weight"] = torch.rand(k, generator=generator) + 0.5
        state[f"{key}.bias"] = torch.randn(k, generator=generator) * 0.1
        state[f"{key}.running_mean"] = torch.randn(k, generator=generator) * 0.1
        state[f"{key}.running_var"] = torch.rand(k, generator=generator) + 0.5
        state[f"{key}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1", first, 3, 7)
    bn("bn1", first)
    channels = first
    for stage, depth in enumerate(DEPTHS[name]):
        width = first * 2**stage
        out = width * 4 if bottleneck else width
        for index in range(depth):
            block = f"layer{stage + 1}.{index}"
            steps = [(width, channels, 1), (width, width, 3), (out, width, 1)] if bottleneck else []
            for number, (k, c, size) in enumerate(
                steps or [(width, channels, 3), (width, width, 3)], start=1
            ):
                conv(f"{block}.conv{number}", k, c, size)
                bn(f"{block}.bn{number}", k)
            if index == 0 and (stage or bottleneck):
                conv(f"{block}.downsample.0", out, channels, 1)
                bn(f"{block}.downsample.1", out)
            channels = out
    state["fc.weight"] = torch.randn(classes, channels, generator=generator) * channels**-0.5
    state["fc.bias"] = torch.randn(classes, generator=generator)
    return state


def forward(state: State, x: torch.Tensor) -> torch.Tensor:
    """Such a network in evaluation mode, straight from its tensors."""

    def conv_bn(x: torch.Tensor, conv: str, bn: str, stride: int = 1) -> torch.Tensor:
        weight = state[f"{conv}.weight"]
        y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)
        mean, var, scale, shift = (
            state[f"{bn}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(y, mean, var, scale, shift, eps=1e-5)

    x = F.max_pool2d(conv_bn(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for block in dict.fromkeys(key.rsplit(".conv", 1)[0] for key in state if re.match(r"layer\d.*conv", key)):
        first = block.endswith(".0") and not block.startswith("layer1")
        numbers = [i for i in (1, 2, 3) if f"{block}.conv{i}.weight" in state]
        strided = numbers[-2]  # the 3×3 convolution: a basic block's first, a bottleneck's second
        h = x
        for i in numbers:
            h = conv_bn(h, f"{block}.conv{i}", f"{block}.bn{i}", 2 if first and i == strided else 1)
            h = h.relu() if i != numbers[-1] else h
        if f"{block}.downsample.0.weight" in state:
            x = conv_bn(x, f"{block}.downsample.0", f"{block}.downsample.1", 2 if first else 1)
        x = (x + h).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def model_of(name: str, classes: int = 1000, first: int = 64) -> torch.nn.Module:
    row = ARCHITECTURES[name]
    assert isinstance(row, ResNet)
    return build(replace(row, width=first), (3, 224, 224), classes, bias=True).eval()


@pytest.mark.parametrize(
    ("name", "tensors"), [("resnet18-imagenet-bn", 122), ("resnet34-imagenet-bn", 218), ("resnet50-bn", 320)]
)
@torch.inference_mode()
def test_the_network_is_torchvisions(name: str, tensors: int) -> None:
    state = torchvision_state(name)
    assert len(state) == tensors
    model = model_of(name)
    assert list(model.state_dict()) == list(state)
    load_torchvision_resnet(model, state)
    x = torch.randn(2, 3, 65, 64, generator=torch.Generator().manual_seed(1))
    expected = forward(state, x)
    torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    # equation 10: it is not homogeneous, not even up to the classifier's biases
    dark, bias = model(x * 0.01), state["fc.bias"]
    assert (dark - bias - 0.01 * (expected - bias)).norm() > 0.1 * (expected - bias).norm()


@pytest.mark.parametrize("form", ["pth", "safetensors", "wrapped", "model", "module", "old", "half"])
def test_checkpoints_come_in_many_wrappings(form: str, tmp_path: Path) -> None:
    name = "resnet18-imagenet-bn"
    state, path = torchvision_state(name, 3, first=8), tmp_path / "weights.pth"
    content: dict[str, object] = dict(state)
    if form in ("wrapped", "model"):
        content = {"epoch": 90, ("state_dict" if form == "wrapped" else "model"): state}
    elif form == "module":
        content = {"state_dict": {f"module.{key}": value for key, value in state.items()}}
    elif form == "old":  # before torch 0.4.1 nobody counted batches
        content = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    elif form == "half":
        content = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    if form == "safetensors":
        path = tmp_path / "weights.safetensors"
        save_file(state, path)
    else:
        torch.save(content, path)
    model = model_of(name, 3, first=8)
    load_torchvision_resnet(model, path if form != "half" else str(path))
    for key, value in model.state_dict().items():
        if form == "old" and key.endswith("num_batches_tracked"):
            continue
        wanted = state[key].half().float() if form == "half" and value.is_floating_point() else state[key]
        assert torch.equal(value, wanted), key


class Code:
    """What a pickle could hold besides tensors."""


def test_broken_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    name = "resnet18-imagenet-bn"
    model, state = model_of(name, 3, first=8), torchvision_state(name, 3, first=8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    names = list(state)
    text, pickled, cut = (tmp_path / f for f in ("text.safetensors", "pickled.pth", "cut.pth"))
    text.write_text("no tensors")
    torch.save({"state_dict": state, "args": Code()}, pickled)
    torch.save(state, cut)
    cut.write_bytes(cut.read_bytes()[:1000])
    other = {key: value for key, value in state.items() if key != "layer4.1.bn2.running_var"}
    cases = [
        (other, "the state dict: .* missing: layer4.1.bn2.running_var"),
        ({**state, "layer5.0.conv1.weight": torch.ones(1)}, "unexpected: layer5.0.conv1.weight"),
        ({**state, "fc.weight": torch.ones(1000, 64)}, r"fc.weight \[1000, 64\] instead of \[3, 64\]"),
        ({**state, "fc.bias": torch.ones(3, 1)}, r"fc.bias \[3, 1\] instead of \[3\]"),
        (
            {f"net.{key}": state[key] for key in names},
            r"missing: conv1.weight, .* more; unexpected: net.conv1",
        ),
        ({**state, "epoch": 3}, "the state dict: expected tensors only, got others under epoch"),
        ({"state_dict": {}}, "the state dict: expected tensors by name, got none"),
        (tmp_path / "absent.pth", "absent.pth: the checkpoint cannot be read .*No such file"),
        (tmp_path / "absent.safetensors", "absent.safetensors: the checkpoint cannot be read"),
        (text, "text.safetensors: the checkpoint cannot be read"),
        (cut, "cut.pth: the checkpoint cannot be read"),
        (pickled, "pickled.pth: expected a file of torch.save that holds tensors alone"),
    ]
    for source, message in cases:
        with pytest.raises(CheckpointError, match=message):
            load_torchvision_resnet(model, source)
    torch.save([state], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match=r"list.pth: expected tensors by name, got list"):
        load_torchvision_resnet(model, tmp_path / "list.pth")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_checkpoint_with_normalisation_does_not_load_into_a_network_without() -> None:
    row = ARCHITECTURES["resnet50"]
    assert isinstance(row, ResNet)
    model = build(replace(row, width=8), (3, 224, 224), 10)
    with pytest.raises(CheckpointError, match=r"unexpected: bn1.weight, bn1.bias"):
        load_torchvision_resnet(model, torchvision_state("resnet50-bn", 10, first=8))
