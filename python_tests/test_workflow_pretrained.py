"""Folders of config.json and model.safetensors: what was saved comes back, and what does not fit is refused by name."""

from __future__ import annotations

import copy
import json
import pickle
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

import zbkernels as zb
from zbkernels.checkpoint import CheckpointError
from zbkernels.models import ARCHITECTURES, Network, ResNet, build, from_pretrained
from zbkernels.models.configuration import Configuration

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ARCHITECTURES["cnn-fashion"]
TINY = ResNet("tiny", "basic", (1, 1), width=4)


def network(seed: int = 3) -> Network:
    return build(SMALL, (1, 8, 8), 4, seed=seed)


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_each_row_is_its_own_configuration(row: Any) -> None:
    configuration = Configuration(row, row.image, 10, True, False)
    text = json.dumps(configuration.as_dict(), allow_nan=False)
    assert Configuration.from_dict(json.loads(text)) == configuration


@pytest.mark.parametrize("style", ["plain", "fixup", "nf", "bn"])
def test_a_network_comes_back(style: str, tmp_path: Path) -> None:
    model = build(replace(TINY, style=style), (1, 8, 8), 4, bias=style == "bn", seed=3)
    model(images())  # running statistics
    with torch.no_grad():
        for each in model.parameters():  # not what it starts with
            each.add_(0.1)
    model.eval().save_pretrained(tmp_path / "deep" / "folder")
    assert sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    again = Network.from_pretrained(tmp_path / "deep" / "folder")
    assert type(again) is Network and not again.training and again.configuration == model.configuration
    assert torch.equal(again(images()), model(images()))
    assert [name for name, each in again.named_parameters() if each.requires_grad] == [
        name for name, _ in model.named_parameters()
    ]


def test_what_is_asked_for_beside_the_folder(tmp_path: Path) -> None:
    model = network().half()
    model.save_pretrained(tmp_path)
    assert {each.dtype for each in from_pretrained(tmp_path).parameters()} == {torch.float16}
    plain = from_pretrained(str(tmp_path), dtype=torch.float64, fused=False)
    assert not any(isinstance(each, zb.nn.ConvReLUPool2d) for each in plain.modules())
    torch.testing.assert_close(plain(images().double()), model.double()(images().double()))
    assert all(each.is_meta for each in from_pretrained(tmp_path, device="meta").parameters())


def test_a_loaded_network_is_its_own_and_trains(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = from_pretrained(tmp_path).train()
    model(images()).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    trained = model(images())
    model.save_pretrained(tmp_path)  # over what it was loaded from
    assert torch.equal(from_pretrained(tmp_path)(images()), trained)


def test_copies_fused_and_compiled_networks_know_what_they_are(tmp_path: Path) -> None:
    plain = build(SMALL, (1, 8, 8), 4, fused=False)
    assert zb.fuse(plain, when="always")
    for number, each in enumerate(
        (plain, copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)), torch.compile(plain))
    ):
        each.save_pretrained(tmp_path / str(number))
        again = from_pretrained(tmp_path / str(number))
        assert type(again) is Network
        torch.testing.assert_close(again(images()), plain(images()), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_is_a_sequential_to_torchscript_too() -> None:
    model = build(SMALL, (1, 8, 8), 4, fused=False)
    assert torch.equal(torch.jit.script(model)(images()), model(images()))


def _sliced(model: Network) -> nn.Module:
    return model[:2]


def _parametrized(model: Network) -> nn.Module:
    parametrizations.weight_norm(model.conv1)
    return model


def _pruned(model: Network) -> nn.Module:
    prune.l1_unstructured(model.conv1, "weight", amount=0.5)
    return model


def _another_layer(model: Network) -> nn.Module:
    model.classifier = nn.Linear(128, 7, bias=False)
    return model


def _without_values(model: Network) -> nn.Module:
    return model.to("meta")


def _longer(model: Network) -> nn.Module:
    return model.append(nn.Softmax(1))


def _shorter(model: Network) -> nn.Module:
    del model.flatten
    return model


def _swapped(name: str, layer: nn.Module) -> Callable[[Network], nn.Module]:
    def change(model: Network) -> nn.Module:
        setattr(model, name, layer)
        return model

    return change


def _in_another_order(model: Network) -> nn.Module:
    layer = model.flatten
    del model.flatten
    model.add_module("flatten", layer)
    return model


def _set_otherwise(model: Network) -> nn.Module:
    model.fc3.negative_slope = 0.1
    return model


class _Doubled(nn.Flatten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_sliced, "expected a network of zbkernels.models.build, got a part of one"),
        (
            _parametrized,
            "don't fit the network's configuration; missing: conv1.weight; unexpected: conv1.param",
        ),
        (_pruned, r"missing: conv1.weight; unexpected: conv1.weight_orig, conv1.weight_mask"),
        (_another_layer, r"of the wrong shape: classifier.weight \[7, 128\] instead of \[4, 128\]"),
        (_without_values, r"conv1.weight \(no values\)"),
        (_longer, r"layers of the network's configuration; 5: Softmax\(dim=1\) instead of no such layer$"),
        (_shorter, r"flatten: no such layer instead of Flatten\(start_dim=1, end_dim=-1\)$"),
        (_swapped("flatten", nn.Identity()), r"flatten: Identity\(\) instead of Flatten\("),
        (_swapped("flatten", _Doubled()), r"flatten: <class '.*\._Doubled'>\(.* instead of Flatten\("),
        (_in_another_order, "expected the layers in the order of the network's configuration"),
        (_set_otherwise, r"fc3: LinearReLU\(.*, negative_slope=0.1\) instead of LinearReLU\("),
    ],
)
def test_what_would_not_come_back_is_not_saved(
    change: Callable[[Network], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=said):
        change(network()).save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("relu1", nn.LeakyReLU(0.1)),
        ("pool1", nn.AvgPool2d(2)),
        ("pool1", nn.MaxPool2d(2, ceil_mode=True)),
        ("conv1", nn.Conv2d(1, 16, 3, padding="same", padding_mode="circular", bias=False)),
    ],
)
@pytest.mark.parametrize("treated", [False, True], ids=["plain", "fused"])
def test_a_plain_networks_layer_that_was_swapped_is_named(
    name: str, layer: nn.Module, treated: bool, tmp_path: Path
) -> None:
    model = build(SMALL, (1, 8, 8), 4, fused=False)
    setattr(model, name, layer)
    if treated:
        zb.fuse(model, when="always")
    with pytest.raises(CheckpointError, match=f"; {name}: {type(layer).__name__}"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_changes_no_prediction_is_saved(tmp_path: Path) -> None:
    plain = build(replace(TINY, style="bn"), (1, 8, 8), 4, bias=True, seed=3, fused=False)
    plain(images())
    plain.eval()
    wanted = plain(images())
    for each in plain.modules():
        if isinstance(each, nn.ReLU):
            each.inplace = True
        if isinstance(each, nn.BatchNorm2d):
            each.momentum = 0.01
    plain.save_pretrained(tmp_path / "set")
    nn.SyncBatchNorm.convert_sync_batchnorm(plain).save_pretrained(tmp_path / "synchronised")
    pruned = build(SMALL, (1, 8, 8), 4, fused=False)
    prune.l1_unstructured(pruned.conv1, "weight", amount=0.5)
    prune.remove(pruned.conv1, "weight")
    parametrizations.weight_norm(pruned.conv2)
    zb.fuse(pruned, when="always")
    nn.utils.parametrize.remove_parametrizations(pruned.conv2, "weight")
    pruned.relu2 = pruned.relu1  # one layer in two places
    pruned.save_pretrained(tmp_path / "pruned")
    zb.unfuse(pruned)
    pruned.save_pretrained(tmp_path / "unfused")
    for name, expected in (
        ("set", wanted),
        ("synchronised", wanted),
        ("pruned", pruned(images())),
        ("unfused", pruned(images())),
    ):
        torch.testing.assert_close(from_pretrained(tmp_path / name)(images()), expected)


def test_a_disk_that_is_full_is_an_error_of_the_system(tmp_path: Path) -> None:
    first = network()
    first.save_pretrained(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 1000, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(OSError, match=r"model\.safetensors: cannot be written .*File too large"):
                network(seed=4).save_pretrained(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.equal(from_pretrained(tmp_path)(images()), first(images()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_flipped_bit_of_the_weights_is_found(tmp_path: Path) -> None:
    model = network()
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    good = path.read_bytes()
    for place in (len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bytes(bad))
        with pytest.raises(
            CheckpointError, match=r"model\.safetensors: .*expected the checksum \w+, got .*damaged"
        ):
            from_pretrained(tmp_path)
    save_file(model.state_dict(), path)  # of another writer
    assert torch.equal(from_pretrained(tmp_path)(images()), model(images()))


def test_a_save_that_is_cut_off_leaves_what_was_there_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = network(), network(seed=4)
    first.save_pretrained(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("zbkernels.tensor_file.save_file", _disk_full)
        with pytest.raises(OSError, match="No space left"):
            second.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(images()), first(images()))
    with (
        monkeypatch.context() as patch
    ):  # between the files, with the same configuration and with another one
        patch.setattr("zbkernels.models.network.write_json", _disk_full)
        with pytest.raises(OSError):
            second.save_pretrained(tmp_path)
        assert torch.equal(from_pretrained(tmp_path)(images()), second(images()))
        with pytest.raises(OSError):
            build(SMALL, (1, 9, 9), 4).save_pretrained(tmp_path)  # the same shapes
    with pytest.raises(CheckpointError, match=r"config.json is not what model.safetensors was saved with"):
        from_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def _disk_full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(config: dict[str, Any]) -> Any:
        target = config
        *path, last = name.split(".")
        for each in path:
            target = target[int(each) if each.isdigit() else each]
        target[last] = value
        return config

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: [], r"expected the configuration to be names and values, got \[\]"),
        (lambda config: {**config, "auto_map": "run.py"}, "unknown: 'auto_map'"),
        (lambda config: config.pop("classes") and config, "missing: classes"),
        (_with("model_type", "bert"), "expected model_type to be 'zbkernels', got 'bert'"),
        (_with("format", 2), "expected format to be 1, got 2"),
        (_with("classes", True), "expected classes to be a whole number from 1 to 16777216, got True"),
        (_with("classes", 10**30), "expected classes to be a whole number from 1 to"),
        (_with("bias", 1), "expected bias to be true or false, got 1"),
        (_with("bias", True), "the fused layers have no bias"),
        (_with("image_shape", [1, 8]), r"expected image_shape to be three sizes, got \[1, 8\]"),
        (_with("image_shape", [1, 1, 1]), r"no network has this configuration \(cnn-fashion: block 1 pools"),
        (
            _with("architecture", "resnet18"),
            "expected architecture.kind to be 'resnet' or 'blocks', got None",
        ),
        (_with("architecture.name", "x" * 1000), "expected architecture.name to be a short text, got 'xxx"),
        (
            _with("architecture.blocks.0.kind", "eval"),
            r"blocks\[0\].kind to be one of conv, residual, linear",
        ),
        (
            _with("architecture.blocks.0.kernel", 2),
            r"no network has this configuration \(cnn-fashion: expected an odd",
        ),
        (
            _with("architecture.blocks.0.out", 17),
            r"wrong shape: conv1.weight \[16, 1, 3, 3\] instead of \[17",
        ),
        (
            _with("architecture.blocks.0.out", 1 << 24),
            "wrong shape: conv1.weight",
        ),  # petabytes, were they allocated
        (
            _with("architecture.blocks", [{"kind": "linear", "out": 9}] * 9999),
            "of a network of 9999 blocks, model.safetensors has 4 tensors",
        ),
        (
            lambda config: {**config, "architecture": _resnet(depths=[1 << 24] * 99)},
            "of a network of 1660944384 blocks",
        ),
        (
            lambda config: {**config, "architecture": _resnet(alpha=float("inf"))},
            "expected architecture.alpha to be a number of at least 0, got inf",
        ),
        (lambda config: {**config, "architecture": _resnet(style="bn")}, "no form without bias"),
        (
            lambda config: {**config, "architecture": _resnet(style="os.system")},
            "expected style to be one of",
        ),
    ],
)
def test_a_wrong_configuration_is_named(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    save_file(
        load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
    )  # without its own copy
    path = tmp_path / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=said) as caught:
        from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def _resnet(**changes: Any) -> dict[str, Any]:
    return {**Configuration(TINY, (1, 8, 8), 4, False, True).as_dict()["architecture"], **changes}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "expected config.json, got no such file"),
        ("config.json", b"{", r"config.json: the file cannot be read \(JSONDecodeError"),
        ("config.json", b"\xff\xfe", r"the file cannot be read \(UnicodeDecodeError"),
        ("config.json", b"[" * 100_000, r"the file cannot be read \(RecursionError"),
        ("config.json", b" " * (1 << 21), "expected at most 1048576 bytes, got 2097152"),
        ("model.safetensors", None, "expected model.safetensors, got no such file"),
        ("model.safetensors", b"", r"model.safetensors: the file cannot be read \(SafetensorError"),
        ("model.safetensors", pickle.dumps({"a": 1}), r"the file cannot be read \(SafetensorError"),
        ("model.safetensors", b"\xff" * 64, r"the file cannot be read \(SafetensorError"),
    ],
)
def test_a_broken_file_is_named(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    path = tmp_path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        from_pretrained(tmp_path)


def test_other_folders_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a folder .*, got none; nothing is downloaded"):
        from_pretrained("someone/resnet")
    network().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="got a pickle, which could run code and is not read"):
        from_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weights in several files"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("conv2.weight"), "missing: conv2.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected: extra$"),
        (lambda t: t.update({"a\n\x1b[2J": torch.zeros(1)}), r"unexpected: 'a\\n\\x1b\[2J'$"),
        (lambda t: t.update({"a" * 9999: torch.zeros(1)}), "unexpected: a{160}…$"),
        (
            lambda t: t.update({"fc3.weight": torch.zeros(1, 2)}),
            r"wrong shape: fc3.weight \[1, 2\] instead of",
        ),
        (lambda t: t.update({"conv1.weight": t["conv1.weight"].long()}), "int64 instead of floating numbers"),
        (
            lambda t: t.update({"conv1.weight": t["conv1.weight"].to(torch.float8_e4m3fn)}),
            "expected conv1.weight of dtype float32, float64, float16 or bfloat16, got torch.float8_e4m3fn",
        ),
    ],
)
def test_wrong_tensors_are_named(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=said):
        from_pretrained(tmp_path)
