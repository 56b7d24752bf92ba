"""``zbkernels.nn.remove_bias``: what it takes out, what it keeps, what it says it could not do, and that it trains."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from invariance_nets import Functional, ResNet, TransformerBlock, trained_resnet, vgg
from torch import nn

import zbkernels as zb
from zbkernels.models import ARCHITECTURES, build
from zbkernels.models.residual import Sum
from zbkernels.nn import ChannelScale, remove_bias
from zbkernels.nn.fixup import ScalarMultiplier

pytestmark = pytest.mark.usefixtures("one_thread")


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*(shape or (4, 3, 8, 8)), generator=torch.Generator().manual_seed(0))


def said(changes, path: str) -> str:
    return "; ".join(each.what for each in changes if each.path == path)


# --- drop --------------------------------------------------------------------------------------------------------


def test_drop_makes_a_resnet_invariant_and_keeps_its_weights():
    model, x = trained_resnet(), images(4, 3, 12, 12)
    before = copy.deepcopy(model.state_dict())
    result, report = remove_bias(model, x=x)
    assert report.invariant and report.check.homogeneous and not report.left, str(report)
    assert type(result) is ResNet and not result.training
    kept = result.state_dict()
    gone = {k.rpartition(".")[2] for k in before.keys() - kept.keys()}
    assert kept.keys() < before.keys() and gone == {"bias", "running_mean", "num_batches_tracked"}
    assert all(torch.equal(value, before[key]) for key, value in kept.items())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # untouched
    result.load_state_dict(before, strict=False)


def test_channel_scale_is_a_batch_norm_without_shift():
    norm = nn.BatchNorm2d(3).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    scale, _ = remove_bias(norm)
    assert isinstance(scale, ChannelScale)
    for x in (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).double()):
        expected = copy.deepcopy(norm).to(x.dtype)(x) - copy.deepcopy(norm).to(x.dtype)(torch.zeros_like(x))
        torch.testing.assert_close(copy.deepcopy(scale).to(x.dtype)(x), expected)
    flat, _ = remove_bias(nn.BatchNorm1d(3, affine=False).eval())
    x = torch.randn(5, 3)
    torch.testing.assert_close(flat(x), x / (1 + 1e-5) ** 0.5)
    assert "ChannelScale(3" in repr(flat)


@pytest.mark.parametrize(
    "name", ["conv1d", "transposed", "bilinear", "vgg", "package", "shared", "hidden in a list"]
)
def test_drop_of_every_kind_of_layer(name):
    shared = nn.Linear(6, 6)
    model, x = {
        "conv1d": (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten()), images(2, 3, 8)),
        "transposed": (nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Flatten()), images()),
        "bilinear": (nn.Bilinear(6, 6, 3), (images(2, 6), images(2, 6))),
        "vgg": (vgg(bias=True), images()),
        "package": (build(ARCHITECTURES["cnn-fashion"], (1, 8, 8), 5, bias=True), images(2, 1, 8, 8)),
        "shared": (nn.Sequential(shared, nn.ReLU(), shared), images(2, 6)),
        "hidden in a list": (nn.ModuleList([nn.Sequential(nn.Flatten(), nn.Linear(192, 3))])[0], images()),
    }[name]
    assert not zb.check_scalar_invariance(model, x).invariant or name == "conv1d"
    result, report = remove_bias(model, x=x)
    assert report.invariant and not report.left, str(report)
    assert not [n for n, _ in result.named_parameters() if n.endswith("bias")]


def test_shared_batch_norm_stays_one_layer():
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), norm).train()
    model(images(8, 6))
    result, report = remove_bias(model)
    assert result[1] is result[3] and result.training and len(report.changed) == 2
    with_hook = nn.Sequential(nn.BatchNorm1d(6).eval())
    calls = []
    with_hook[0].register_forward_hook(lambda *_: calls.append(1))
    remove_bias(with_hook)[0](images(2, 6))
    assert calls == [1]


def test_inplace():
    model = vgg(bias=True)
    result, _ = remove_bias(model, inplace=True)
    assert result is model and model[0].bias is None
    original = vgg(bias=True)
    assert remove_bias(original)[0] is not original and original[0].bias is not None


def test_parametrized_and_tied_weights_are_kept():
    plain = nn.Linear(6, 6)
    tied = nn.Linear(6, 6)
    tied.weight = plain.weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    biased = nn.Linear(6, 3)
    nn.utils.parametrize.register_parametrization(biased, "bias", nn.Softplus())
    result, report = remove_bias(nn.Sequential(plain, tied, normed, nn.ReLU(), biased), x=images(2, 6))
    assert report.invariant and result[0].weight is result[1].weight and biased.bias is not None
    assert "2.parametrizations.weight.original0" in result.state_dict()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_weight_norms_of_the_old_kind(norm):
    model = nn.Sequential(getattr(nn.utils, norm)(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3))
    model(images(2, 6))  # a weight that torch refuses to copy
    result, report = remove_bias(model, x=images(2, 6))
    assert report.invariant and result[0].bias is None and model[0].bias is not None
    result(images(2, 6)).sum().backward()
    trained = {name for name, p in result.named_parameters() if p.grad is not None}
    assert trained >= {"0.weight_g", "0.weight_v"} if norm == "weight_norm" else trained >= {"0.weight_orig"}
    mend = (
        rf"torch\.nn\.utils\.{norm} on '0' \(Linear\): call torch\.nn\.utils\.remove_{norm} on it, or use .*"
    )
    with pytest.raises(ValueError, match=mend):
        remove_bias(model, "fixup")


def test_what_cannot_be_copied_is_named():
    model = nn.Sequential(nn.Linear(6, 3))
    model.lock = threading.Lock()
    with pytest.raises(
        ValueError, match=r"remove_bias: expected a model that copy\.deepcopy can copy, got Sequential"
    ):
        remove_bias(model)
    assert remove_bias(model, inplace=True)[0] is model


def test_what_drop_cannot_do_is_named():
    model = nn.Sequential(
        nn.Linear(8, 8),
        nn.GELU(),
        nn.LayerNorm(8),
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.LazyLinear(4),
    )
    model.add_module("unknown", Functional(bias=True))
    model.unknown.register_parameter("pos_embed", nn.Parameter(torch.zeros(3)))
    _, report = remove_bias(model)
    assert report.invariant is None and [each.path for each in report.left] == ["1", "2", "3", "4", "unknown"]
    assert "not homogeneous" in said(report.left, "1") and "own spread" in said(report.left, "2")
    assert "no running statistics" in said(report.left, "3") and "lazy" in said(report.left, "4")
    assert "its 'offset', 'pos_embed' may be added" in said(
        report.left, "unknown"
    ) and "1 changed, 5 left" in str(report)
    recurrent = remove_bias(nn.LSTM(4, 4))[1].left
    assert [each.path for each in recurrent] == ["forward"] and "gates" in recurrent[0].what


def test_what_only_a_run_shows_is_named_by_the_check():
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return F.gelu(self.fc(x))

    _, report = remove_bias(Calls())
    assert report.left == () and report.invariant is None and "check   none: give x" in str(report)

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.off = nn.Linear(6, 6), nn.Parameter(torch.ones(6))

        def forward(self, x):
            return F.linear(x, self.fc.weight) + self.off

    assert (
        remove_bias(Adds())[1].invariant is None and remove_bias(Adds(), x=images(2, 6))[1].invariant is False
    )
    _, report = remove_bias(Calls(), x=images(2, 6))
    assert not report.invariant and "GELU" in said(report.left, "forward")
    _, report = remove_bias(Functional(bias=True), x=images())
    assert not report.invariant and "adds the bias 'offset'" in said(report.left, "forward")
    assert "check   not scalar invariant" in str(report)


@pytest.mark.parametrize("how", ["drop", "fixup"])
def test_a_transformer_block_keeps_what_is_its_nature(how):
    result, report = remove_bias(TransformerBlock(), how, x=images(2, 5, 8))
    assert not report.invariant
    assert {"norm1", "attention", "norm2", "act"} <= {each.path for each in report.left}
    assert result.fc1.bias is None and result.attention.in_proj_bias is None
    result(images(2, 5, 8))


# --- fixup -------------------------------------------------------------------------------------------------------


def test_fixup_follows_the_recipe():
    torch.manual_seed(0)
    model, x = trained_resnet(), images(4, 3, 12, 12)
    result, report = remove_bias(model, "fixup", x=x)
    assert report.invariant and not report.left, str(report)
    state = result.state_dict()
    # 1. the last layer of each branch and the classifier
    zero = {key for key, value in state.items() if not value.any()}
    assert zero == {f"layer{i}.{j}.conv2.weight" for i in (1, 2) for j in (0, 1)} | {"fc.weight"}
    # 2. L = 4 branches of m = 2 layers: 4^(-1/2) times He
    for name, factor in (
        ("conv1", 1),
        ("layer1.0.conv1", 0.5),
        ("layer2.1.conv1", 0.5),
        ("layer2.0.downsample.0", 1),
    ):
        weight = state[f"{name}.weight"]
        he = (2 / weight[0].numel()) ** 0.5 * factor
        assert weight.std() == pytest.approx(he, rel=5 / weight.numel() ** 0.5), name
    # 3. multipliers before conv, ReLU, conv of each branch; none elsewhere
    multipliers = {key for key in state if "multiplier" in key}
    parts = ("conv1", "relu", "conv2")
    assert multipliers == {
        f"layer{i}.{j}.{k}_multiplier.weight" for i in (1, 2) for j in (0, 1) for k in parts
    }
    assert all(state[key] == 1 and state[key].shape == (1,) for key in multipliers)
    # no batch norms, no biases, and the layers' names
    assert state.keys() - multipliers == {
        k for k in model.state_dict() if k.endswith("weight") and _weighted(k)
    }
    before = [m for m in result.modules() if isinstance(m, ScalarMultiplier)]
    assert len(before) == 12 and not [m for m in result.modules() if isinstance(m, nn.BatchNorm2d)]


def _weighted(key: str) -> bool:
    return "conv" in key or "fc" in key or "downsample.0" in key


def test_multipliers_stand_before_their_layers():
    result, _ = remove_bias(trained_resnet(), "fixup")
    x, changed = images(2, 3, 12, 12), []
    with torch.no_grad():
        for parameter in result.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.1)
        base = result(x)
        for name, parameter in result.named_parameters():
            if "multiplier" in name:
                parameter.fill_(2.0)
                changed.append(not torch.allclose(result(x), base))
                parameter.fill_(1.0)
    assert changed == [True] * 12 and torch.equal(result(x), base)


def test_training_goes_on_after_fixup():
    torch.manual_seed(0)
    x = torch.randn(32, 3, 8, 8)
    labels = (x[:, 0].mean((1, 2)) > 0).long() + 2 * (x[:, 1].mean((1, 2)) > 0).long()
    result, _ = remove_bias(ResNet(width=4), "fixup")
    result.train()
    optimizer = torch.optim.Adam(result.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(result(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.log(torch.tensor(10.0)).item(), abs=1e-5)  # all logits are 0
    assert losses[-1] < 0.8 * losses[0]
    moved = [p for n, p in result.named_parameters() if "multiplier" in n and p != 1]
    assert len(moved) == 12
    assert zb.check_scalar_invariance(result, x[:4]).homogeneous


def test_the_result_is_copied_pickled_and_saved():
    result, _ = remove_bias(trained_resnet(), "fixup")
    x = images(2, 3, 12, 12)
    for twin in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        twin.load_state_dict(result.state_dict())
        assert torch.equal(twin(x), result(x))


class Residual(nn.Module):
    """A block in functions and methods; ``project``: 1×1 on the shortcut; ``twice``: one layer used two times."""

    def __init__(self, project: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.short = nn.Linear(6, 6) if project else nn.Identity()
        self.twice = twice

    def forward(self, x):
        y = self.a(F.relu(x))
        y = self.b(y.relu())
        if self.twice:
            y = self.b(torch.relu(y))
        return torch.add(self.short(x), y)


def test_functions_methods_and_projections():
    result, report = remove_bias(nn.Sequential(Residual(), Residual(project=True), nn.Linear(6, 3)), "fixup")
    names = [each.path for each in report.changed if each.kind == "ScalarMultiplier"]
    assert names == [
        f"{i}.{name}_multiplier{n}"
        for i in (0, 1)
        for name, n in (("relu", ""), ("a", ""), ("relu", "2"), ("b", ""))
    ]
    zero = {name for name, p in result.named_parameters() if not p.any()}
    assert zero == {"0.b.weight", "1.b.weight", "2.weight"} and not report.left


def test_a_layer_used_twice_is_not_set_to_zero():
    result, report = remove_bias(
        nn.Sequential(Residual(twice=True), nn.Linear(6, 3)), "fixup", x=images(2, 6)
    )
    assert result.get_parameter("0.b.weight").any() and "used elsewhere too" in said(report.left, "0.b")
    assert report.invariant


class Branching(nn.Module):
    """Cannot be traced itself; its block can."""

    def __init__(self) -> None:
        super().__init__()
        self.block = self.again = Residual()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.again(self.block(x)) if x.sum() > 0 else x)


def test_what_cannot_be_traced_is_named_and_its_parts_are_done():
    result, report = remove_bias(Branching(), "fixup", x=images(2, 6))
    assert type(result) is Branching and "cannot be traced" in said(report.left, "forward")
    assert "classification layer is not known" in said(report.left, "forward")
    assert not result.get_parameter("block.b.weight").any() and result.get_parameter("fc.weight").any()
    assert "block.b_multiplier" in [each.path for each in report.changed]
    assert isinstance(result.block, torch.fx.GraphModule) and result.again is result.block


def test_what_fixup_has_to_say():
    class Dropping(Residual):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, self.training)

    model = nn.Sequential(Dropping(), nn.Linear(6, 3)).eval()
    model[0].register_forward_hook(lambda *_: None)
    report = remove_bias(model, "fixup")[1]
    assert "hooks no longer run" in said(report.left, "0") and "training=False" in str(report)
    towers = remove_bias(Towers(), "fixup")[1]
    assert "none is a shortcut" in str(towers) and "no residual branch" in said(towers.left, "forward")
    weight = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    parametrized = remove_bias(nn.Sequential(weight, nn.Linear(6, 3)), "fixup")[1]
    assert "parametrized" in said(parametrized.left, "0")


def test_the_projection_of_a_last_block_is_no_classifier():
    result, report = remove_bias(nn.Sequential(Residual(), Residual(project=True)), "fixup")
    assert result.get_parameter("1.short.weight").any() and "not known" in said(report.left, "forward")


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_fixup_of_the_fused_layers():
    half = [zb.nn.ConvReLUPool2d(4, 4, 3, padding=1, pool="none") for _ in range(2)]
    model = nn.Sequential(
        zb.nn.ConvReLUPool2d(3, 4, 3, padding=1), Sum(nn.Sequential(*half)), nn.Flatten(), nn.Linear(64, 5)
    )
    result, report = remove_bias(model, "fixup", x=images())
    fused = [each.path for each in report.changed if "holds its activation" in each.what]
    assert fused == ["1.inside.0_multiplier", "1.inside.1_multiplier"] and report.invariant, str(report)
    zero = {name for name, parameter in result.named_parameters() if not parameter.any()}
    assert zero == {"1.inside.1.weight", "3.weight"}


# --- refusals ----------------------------------------------------------------------------------------------------


def test_refusals():
    with pytest.raises(TypeError, match=r"remove_bias: expected model to be an nn\.Module, got str"):
        remove_bias("model")
    with pytest.raises(ValueError, match="expected how to be one of drop, fixup, got 'drip'"):
        remove_bias(vgg(), "drip")
    with pytest.raises(ValueError, match="expected inplace=False with how='fixup'"):
        remove_bias(vgg(), "fixup", inplace=True)
