"""Networks of others: torchvision's names and shapes, weights read from files, files refused."""

from __future__ import annotations

import importlib
import math
import os
import pickle
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from zbkernels.checkpoint import CheckpointError
from zbkernels.models import ARCHITECTURES, ResNet, build, parameter_count
from zbkernels.models.reference import (
    EfficientNet,
    PackageUnavailable,
    VisionTransformer,
    ViTSize,
    load_from_package,
    load_reference,
)
from zbkernels.models.reference.names import resnet_title, vit_title
from zbkernels.models.reference.vit import EncoderLayer

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ViTSize(width=64, depth=2, heads=1, hidden=96, patch=8, image=32, classes=5)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and statistic drawn anew, so that none is at a value which hides where it belongs."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
            elif value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator) * value[0].numel() ** -0.5 * 0.5)
    return model.eval()


def norm(prefix: str, channels: int) -> dict[str, list[int]]:
    names = ("weight", "bias", "running_mean", "running_var")
    return {**{f"{prefix}.{name}": [channels] for name in names}, f"{prefix}.num_batches_tracked": []}


def torchvision_efficientnet_b0() -> dict[str, list[int]]:
    """Names and shapes as torchvision's ``efficientnet_b0`` has them, block by block, written out from its layout."""
    found = {"features.0.0.weight": [32, 3, 3, 3], **norm("features.0.1", 32)}
    # stage, block, inputs, widened, outputs, kernel, squeezed
    blocks = [
        (1, 0, 32, 32, 16, 3, 8),
        (2, 0, 16, 96, 24, 3, 4),
        (2, 1, 24, 144, 24, 3, 6),
        (3, 0, 24, 144, 40, 5, 6),
        (3, 1, 40, 240, 40, 5, 10),
        (4, 0, 40, 240, 80, 3, 10),
        (4, 1, 80, 480, 80, 3, 20),
        (4, 2, 80, 480, 80, 3, 20),
        (5, 0, 80, 480, 112, 5, 20),
        (5, 1, 112, 672, 112, 5, 28),
        (5, 2, 112, 672, 112, 5, 28),
        (6, 0, 112, 672, 192, 5, 28),
        (6, 1, 192, 1152, 192, 5, 48),
        (6, 2, 192, 1152, 192, 5, 48),
        (6, 3, 192, 1152, 192, 5, 48),
        (7, 0, 192, 1152, 320, 3, 48),
    ]
    for stage, block, inputs, wide, outputs, kernel, squeezed in blocks:
        prefix = f"features.{stage}.{block}.block"
        at = 0
        if stage > 1:
            found |= {f"{prefix}.0.0.weight": [wide, inputs, 1, 1], **norm(f"{prefix}.0.1", wide)}
            at = 1
        found |= {f"{prefix}.{at}.0.weight": [wide, 1, kernel, kernel], **norm(f"{prefix}.{at}.1", wide)}
        found |= {
            f"{prefix}.{at + 1}.fc1.weight": [squeezed, wide, 1, 1],
            f"{prefix}.{at + 1}.fc1.bias": [squeezed],
        }
        found |= {
            f"{prefix}.{at + 1}.fc2.weight": [wide, squeezed, 1, 1],
            f"{prefix}.{at + 1}.fc2.bias": [wide],
        }
        found |= {
            f"{prefix}.{at + 2}.0.weight": [outputs, wide, 1, 1],
            **norm(f"{prefix}.{at + 2}.1", outputs),
        }
    found |= {"features.8.0.weight": [1280, 320, 1, 1], **norm("features.8.1", 1280)}
    return found | {"classifier.1.weight": [1000, 1280], "classifier.1.bias": [1000]}


def torchvision_vit_b_16() -> dict[str, list[int]]:
    found = {"class_token": [1, 1, 768], "conv_proj.weight": [768, 3, 16, 16], "conv_proj.bias": [768]}
    found["encoder.pos_embedding"] = [1, 197, 768]
    for layer in range(12):
        prefix = f"encoder.layers.encoder_layer_{layer}"
        found |= {
            f"{prefix}.ln_1.weight": [768],
            f"{prefix}.ln_1.bias": [768],
            f"{prefix}.self_attention.in_proj_weight": [2304, 768],
            f"{prefix}.self_attention.in_proj_bias": [2304],
            f"{prefix}.self_attention.out_proj.weight": [768, 768],
            f"{prefix}.self_attention.out_proj.bias": [768],
            f"{prefix}.ln_2.weight": [768],
            f"{prefix}.ln_2.bias": [768],
            f"{prefix}.mlp.0.weight": [3072, 768],
            f"{prefix}.mlp.0.bias": [3072],
            f"{prefix}.mlp.3.weight": [768, 3072],
            f"{prefix}.mlp.3.bias": [768],
        }
    found |= {"encoder.ln.weight": [768], "encoder.ln.bias": [768]}
    return found | {"heads.head.weight": [1000, 768], "heads.head.bias": [1000]}


def test_names_shapes_and_counts_are_torchvisions() -> None:
    with torch.device("meta"):
        models = {EfficientNet(): torchvision_efficientnet_b0(), VisionTransformer(): torchvision_vit_b_16()}
    for (model, wanted), count in zip(models.items(), (5_288_548, 86_567_656), strict=True):
        assert {name: list(value.shape) for name, value in model.state_dict().items()} == wanted
        assert parameter_count(model) == count


def test_an_encoder_layer_is_torchs_transformer_layer() -> None:
    size = ViTSize(width=128, heads=2, hidden=96)
    ours = randomised(EncoderLayer(size))
    theirs = nn.TransformerEncoderLayer(
        128, 2, 96, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).eval()
    renamed = {
        "ln_1": "norm1",
        "ln_2": "norm2",
        "self_attention": "self_attn",
        "mlp.0": "linear1",
        "mlp.3": "linear2",
    }
    state = {}
    for name, value in ours.state_dict().items():
        stem = next(old for old in renamed if name.startswith(old))
        state[name.replace(stem, renamed[stem], 1)] = value
    theirs.load_state_dict(state)
    x = torch.randn(3, 10, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_a_vit_sees_patches_row_by_row_and_reads_the_class_token() -> None:
    model = randomised(VisionTransformer(SMALL))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    patches = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(2, 16, -1)
    weights = model.state_dict()
    tokens = patches @ weights["conv_proj.weight"].flatten(1).T + weights["conv_proj.bias"]
    tokens = (
        torch.cat([weights["class_token"].expand(2, 1, 64), tokens], 1) + weights["encoder.pos_embedding"]
    )
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        encoded = F.layer_norm(
            model.encoder.layers(tokens),
            (64,),
            weights["encoder.ln.weight"],
            weights["encoder.ln.bias"],
            1e-6,
        )
        wanted = encoded[:, 0] @ weights["heads.head.weight"].T + weights["heads.head.bias"]
        torch.testing.assert_close(model(x), wanted)


def functional_block(x: Tensor, weights: dict[str, Tensor], prefix: str, stride: int, add: bool) -> Tensor:
    """An inverted bottleneck from the weights alone."""

    def norm_of(y: Tensor, name: str) -> Tensor:
        scale = weights[f"{name}.weight"] / (weights[f"{name}.running_var"] + 1e-5).sqrt()
        shift = weights[f"{name}.bias"] - weights[f"{name}.running_mean"] * scale
        return y * scale[:, None, None] + shift[:, None, None]

    y = F.silu(norm_of(F.conv2d(x, weights[f"{prefix}.0.0.weight"]), f"{prefix}.0.1"))
    depthwise = weights[f"{prefix}.1.0.weight"]
    y = F.conv2d(y, depthwise, stride=stride, padding=depthwise.shape[-1] // 2, groups=len(depthwise))
    y = F.silu(norm_of(y, f"{prefix}.1.1"))
    gate = y.mean((2, 3), keepdim=True)
    gate = F.silu(F.conv2d(gate, weights[f"{prefix}.2.fc1.weight"], weights[f"{prefix}.2.fc1.bias"]))
    gate = F.conv2d(gate, weights[f"{prefix}.2.fc2.weight"], weights[f"{prefix}.2.fc2.bias"]).sigmoid()
    y = norm_of(F.conv2d(y * gate, weights[f"{prefix}.3.0.weight"]), f"{prefix}.3.1")
    return x + y if add else y


@pytest.mark.parametrize(
    ("stage", "block", "stride", "add"), [(3, 0, 2, False), (3, 1, 1, True), (5, 0, 1, False)]
)
def test_an_inverted_bottleneck_by_its_formula(stage: int, block: int, stride: int, add: bool) -> None:
    model = randomised(EfficientNet())
    assert isinstance(model, EfficientNet)
    module = model.features[stage][block]  # type: ignore[index]
    inputs = module.block[0][0].in_channels
    x = torch.randn(2, inputs, 9, 9, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = functional_block(x, model.state_dict(), f"features.{stage}.{block}.block", stride, add)
        torch.testing.assert_close(module(x), wanted)


@pytest.mark.parametrize("name", ["efficientnet_b0", "vit_b_16", "resnet18"])
def test_the_same_as_torchvision_where_it_imports(name: str, tmp_path: Path) -> None:
    try:
        models = importlib.import_module("torchvision.models")
    except Exception as error:
        pytest.skip(f"torchvision does not import here: {error}")
    theirs = randomised(models.get_model(name, weights=None))
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        torch.testing.assert_close(load_reference(tmp_path / "weights.pth").model(x), theirs(x))


# Files


@pytest.fixture
def vit_file(tmp_path: Path) -> Path:
    torch.save(randomised(VisionTransformer(SMALL)).state_dict(), tmp_path / "vit.pth")
    return tmp_path / "vit.pth"


def same(path: Path, model: nn.Module, image: int) -> bool:
    x = torch.randn(1, 3, image, image, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return torch.equal(load_reference(path).model(x), model(x))


@pytest.mark.parametrize("family", ["ViT", "EfficientNet", "ResNet"])
@pytest.mark.parametrize("form", ["pth", "safetensors", "wrapped"])
def test_a_checkpoint_gives_the_networks_own_outputs(family: str, form: str, tmp_path: Path) -> None:
    model: nn.Module
    if family == "ViT":
        model, title, image = (
            VisionTransformer(SMALL),
            "a ViT of 2 layers, 64 wide, MLPs 96, patches 8, torchvision",
            32,
        )
    elif family == "EfficientNet":
        model, title, image = EfficientNet(7), "EfficientNet-B0, torchvision", 64
    else:
        row = ARCHITECTURES["resnet18-imagenet-bn"]
        model, title, image = build(row, (3, 224, 224), 7, bias=True), "ResNet18, torchvision", 64
    randomised(model)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    path = tmp_path / f"weights.{'safetensors' if form == 'safetensors' else 'pth'}"
    if form == "safetensors":
        save_file(state, path)
    elif form == "pth":
        torch.save(state, path)
    else:  # as training scripts write it, by DataParallel and an old torch
        kept = {f"module.{name}": v for name, v in state.items() if "num_batches" not in name}
        torch.save({"epoch": 3, "state_dict": kept}, path)
    reference = load_reference(path)
    assert (reference.family, reference.title) == (family, title)
    assert same(path, model, image)


def test_timms_names_and_torchvisions_old_ones_of_a_vit(tmp_path: Path) -> None:
    model = randomised(VisionTransformer(SMALL))
    whole = {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj.weight": "patch_embed.proj.weight",
        "conv_proj.bias": "patch_embed.proj.bias",
        "encoder.ln.weight": "norm.weight",
        "encoder.ln.bias": "norm.bias",
        "heads.head.weight": "head.weight",
        "heads.head.bias": "head.bias",
    }
    parts = {
        "encoder.layers.encoder_layer_": "blocks.",
        "ln_1": "norm1",
        "ln_2": "norm2",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    timm, old = {}, {}
    for name, value in model.state_dict().items():
        old[name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")] = value
        renamed = whole.get(name, name)
        for ours, theirs in parts.items():
            renamed = renamed.replace(ours, theirs)
        timm[renamed] = value
    assert {"blocks.1.attn.qkv.bias", "blocks.0.mlp.fc2.weight", "norm.weight", "head.bias"} <= set(timm)
    for kind, state in {"timm": timm, "old": old}.items():
        torch.save(state, tmp_path / f"{kind}.pth")
        assert same(tmp_path / f"{kind}.pth", model, 32)
    assert set(load_reference(tmp_path / "timm.pth").normalisations) == {"ImageNet", "halves"}
    assert set(load_reference(tmp_path / "old.pth").normalisations) == {"ImageNet"}


class _Code:
    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.trace,)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_a_file_with_code_is_refused_and_not_run(form: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "code.pth", tmp_path / "ran"
    content = {"weight": torch.zeros(2), "code": _Code(str(trace))}
    if form == "pickle":
        path.write_bytes(pickle.dumps({"code": content["code"]}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(
        CheckpointError,
        match=r"code\.pth: expected .* tensors alone, got posix\.mkdir; nothing in it was run",
    ):
        load_reference(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the checkpoint cannot be read .*No such file"),
        (b"", "the checkpoint cannot be read"),
        (b"neither zip nor pickle", "tensors alone, got something else"),
        (nn.Linear(2, 2), r"tensors alone, got torch\.nn\.modules\.linear\.Linear"),
        ([torch.zeros(1)], "expected tensors by name, got list"),
        ({}, "expected tensors by name, got none"),
        ({"a": torch.zeros(1), "b": 3}, "got others under b"),
        ({"conv.weight": torch.zeros(1)}, r"no known network has such weights \(conv\.weight, .*timm:NAME="),
    ],
)
def test_other_files_are_refused_by_name(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=rf"weights\.pth: .*{message}"):
        load_reference(path)


def test_a_broken_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x08" * 40)
    with pytest.raises(CheckpointError, match=r"a\.safetensors: the checkpoint cannot be read"):
        load_reference(tmp_path / "a.safetensors")


def test_names_that_do_not_fit_are_listed(vit_file: Path) -> None:
    state = torch.load(vit_file, weights_only=True)
    del state["encoder.ln.bias"]
    state["heads.head.bias"] = torch.zeros(6)
    state["dist_token"] = torch.zeros(1)
    torch.save(state, vit_file)
    with pytest.raises(
        CheckpointError,
        match=r"don't fit a ViT.*missing: encoder\.ln\.bias; unexpected: dist_token; of the wrong shape: "
        r"heads\.head\.bias \[6\] instead of \[5\]",
    ):
        load_reference(vit_file)
    del state["encoder.pos_embedding"]
    torch.save(state, vit_file)
    with pytest.raises(CheckpointError, match=r"has no encoder\.pos_embedding"):
        load_reference(vit_file)


@pytest.mark.parametrize(
    ("name", "value"),
    [("conv_proj.weight", torch.zeros(3)), ("encoder.pos_embedding", torch.zeros(())), ("class_token", None)],
)
def test_odd_shapes_are_refused_too(name: str, value: Tensor | None, vit_file: Path) -> None:
    state = torch.load(vit_file, weights_only=True)
    state[name] = torch.zeros(7) if value is None else value
    torch.save(state, vit_file)
    with pytest.raises(CheckpointError, match=r"vit\.pth: its tensors (have shapes of no known|don't fit)"):
        load_reference(vit_file)


STATES = {
    "vit": lambda: VisionTransformer(SMALL).state_dict(),
    "resnet": lambda: build(
        replace(ARCHITECTURES["resnet18-imagenet-bn"], width=4),  # type: ignore[arg-type]
        (3, 224, 224),
        5,
        bias=True,
    ).state_dict(),
}
TELLING = {
    "vit": (
        "conv_proj.weight",
        "encoder.pos_embedding",
        "heads.head.weight",
        "encoder.layers.encoder_layer_0.mlp.0.weight",
    ),
    "resnet": ("conv1.weight", "layer1.0.conv1.weight", "fc.weight", "bn1.running_var"),
}


@pytest.mark.parametrize("family", sorted(STATES))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_other_shape_is_one_line(
    family: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the tensors that a network's size is told by: empty, huge, of another number of dimensions."""
    state = {name: value.clone() for name, value in STATES[family]().items()}
    name = data.draw(st.sampled_from(TELLING[family]))
    shape = list(state[name].shape)
    if data.draw(st.booleans()):
        shape[data.draw(st.integers(0, len(shape) - 1))] = data.draw(st.sampled_from([0, 1, 2, 10**6, 2**33]))
    else:
        shape = data.draw(st.lists(st.sampled_from([0, 1, 3, 64, 2**20]), max_size=5))
    # torch counts elements from the front, and overflows before it meets a later 0.
    assume(shape != list(state[name].shape) and math.prod(max(size, 1) for size in shape) < 2**60)
    state[name] = torch.zeros(()).expand(shape)  # takes no memory, in the file either
    path = tmp_path_factory.mktemp("shapes") / "weights.pth"
    torch.save(state, path)
    told = ""
    try:
        load_reference(path)
    except CheckpointError as error:
        told = str(error)
    assert told.startswith(f"{path}: ") and "\n" not in told
    if state[name].numel() <= 10**6:  # and where the numbers are there; some shapes are of another network
        torch.save({**state, name: state[name].clone()}, path)
        with suppress(CheckpointError):
            load_reference(path)


def test_patches_of_no_pixels(vit_file: Path) -> None:
    state = torch.load(vit_file, weights_only=True)
    state["conv_proj.weight"] = torch.zeros(192, 3, 0, 0)
    torch.save(state, vit_file)
    with pytest.raises(
        CheckpointError, match=r"vit\.pth: .*conv_proj\.weight: expected 4 dimensions, none of them 0, got"
    ):
        load_reference(vit_file)


def test_published_names_are_of_the_published_sizes() -> None:
    tiny = ViTSize(width=192, depth=12, heads=3, hidden=768)
    assert [vit_title(size) for size in (ViTSize(), tiny)] == ["ViT-B/16", "ViT-Ti/16"]
    assert vit_title(replace(tiny, depth=2)) == "a ViT of 2 layers, 192 wide, MLPs 768, patches 16"
    assert vit_title(replace(tiny, hidden=192)).startswith("a ViT of 12 layers")
    row = ARCHITECTURES["resnet50-bn"]
    assert isinstance(row, ResNet) and "2+5" in resnet_title(replace(row, depths=(2, 5, 6, 3)))
    assert resnet_title(replace(row, name="ResNet50")) == "ResNet50"
    assert resnet_title(replace(row, width=8)) == "a ResNet of 3+4+6+3 bottleneck blocks, stem 8 wide"


def test_a_vit_of_another_form_is_refused(vit_file: Path) -> None:
    state = torch.load(vit_file, weights_only=True)
    state["encoder.pos_embedding"] = torch.zeros(1, 18, 64)
    torch.save(state, vit_file)
    with pytest.raises(CheckpointError, match="got width 64 and 18 tokens"):
        load_reference(vit_file)
    with pytest.raises(ValueError, match="multiple of the patch"):
        VisionTransformer(ViTSize(image=30))


# Packages


@pytest.fixture
def fake_torchvision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    models = types.ModuleType("torchvision.models")

    def get_model(name: str, weights: object = None) -> nn.Module:
        if name != "tiny":
            raise ValueError(f"Unknown model {name}")
        assert weights is None
        return VisionTransformer(SMALL)

    models.get_model = get_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    yield


def test_a_packages_network_takes_the_weights(fake_torchvision: None, vit_file: Path) -> None:
    reference = load_from_package("torchvision", "tiny", vit_file)
    assert (reference.title, set(reference.normalisations)) == ("tiny, torchvision", {"ImageNet"})
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        assert torch.equal(reference.model(x), load_reference(vit_file).model(x))
    with pytest.raises(CheckpointError, match=r"torchvision makes no such network .Unknown model huge"):
        load_from_package("torchvision", "huge", vit_file)


def test_timms_own_normalisation_is_used(monkeypatch: pytest.MonkeyPatch, vit_file: Path) -> None:
    timm = types.ModuleType("timm")

    def create_model(name: str, pretrained: bool) -> nn.Module:
        assert not pretrained
        model = VisionTransformer(SMALL)
        model.default_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "input_size": (3, 32, 32)}  # type: ignore[assignment]
        return model

    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert load_from_package("timm", "vit_tiny", vit_file).family == "ViT"
    reference = load_from_package("timm", "tiny", vit_file)
    assert reference.family == "tiny"
    assert reference.image == 32
    assert reference.normalisations == {"timm's": ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))}


def test_a_package_that_does_not_import_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        PackageUnavailable,
        match=r"torchvision does not import here \(RuntimeError: operator torchvision::nms",
    ):
        load_from_package("torchvision", "resnet18", tmp_path / "none")
