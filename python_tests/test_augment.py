"""The schedule, the optimizer's settings and what is done to batches: each against a computation by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_train import CutOff, same_weights, tiny_data, untimed
from torch import Tensor, nn

from zbkernels import augment
from zbkernels.data import Split
from zbkernels.train import (
    Epoch,
    TrainConfig,
    TrainingError,
    differing_settings,
    new_optimizer,
    set_learning_rate,
    train,
    train_epoch,
)

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYTHING = TrainConfig(
    epochs=4,
    batch_size=16,
    lr=0.1,
    optimizer="sgd",
    seed=3,
    momentum=0.9,
    weight_decay=1e-3,
    schedule="cosine",
    scalar_lr=0.1,
    mixup=0.7,
    contrasts=(1.0, 0.25, 0.01),
    crop="crop-flip",
)


class Scaled(nn.Module):
    """A convolution and a linear layer with a multiplier between, as Fixup has them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.linear = nn.Conv2d(1, 4, 3, bias=False), nn.Linear(4 * 36, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.scale * self.conv(x).relu().flatten(1))


# The schedule and the optimizer.


def test_the_cosine_at_known_steps() -> None:
    model = Scaled()
    optimizer = new_optimizer(model, EVERYTHING)
    for progress, expected in ((0, 0.1), (1 / 3, 0.075), (0.5, 0.05), (2 / 3, 0.025), (1, 0)):
        set_learning_rate(optimizer, EVERYTHING, progress)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([expected, expected / 10])
    constant = dataclasses.replace(EVERYTHING, schedule="constant")
    set_learning_rate(optimizer, constant, 0.7)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01])


def test_each_step_has_its_own_rate_over_all_epochs() -> None:
    """3 batches in each of 4 epochs: step t of 12 is taken at lr·(1 + cos(π·t/12))/2."""
    rates: list[float] = []
    data, model = tiny_data(), Scaled()
    plain_step = torch.optim.SGD.step

    def step(self: torch.optim.SGD, closure: None = None) -> None:
        rates.append(self.param_groups[0]["lr"])
        plain_step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", step)
        train(model, data, EVERYTHING)
    assert rates == pytest.approx([0.1 * (1 + math.cos(math.pi * t / 12)) / 2 for t in range(12)])


def test_what_reaches_torchs_optimizer() -> None:
    model = Scaled()
    optimizer = new_optimizer(model, EVERYTHING)
    assert isinstance(optimizer, torch.optim.SGD)
    wide, single = optimizer.param_groups
    assert {id(p) for p in wide["params"]} == {id(model.conv.weight), id(model.linear.weight)}
    assert [id(p) for p in single["params"]] == [id(model.scale)]
    for group in optimizer.param_groups:
        assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-3)
    assert (wide["lr"], single["lr"]) == pytest.approx((0.1, 0.01))
    adam = new_optimizer(model, TrainConfig(1, 1, optimizer="adam", weight_decay=0.25))
    assert isinstance(adam, torch.optim.Adam)
    assert adam.param_groups[0]["weight_decay"] == 0.25


def test_a_step_by_hand() -> None:
    """v = 0.9·v + g + 1e-3·w; w = w - lr·v, the multiplier at a tenth of the rate."""
    config = dataclasses.replace(
        EVERYTHING, batch_size=24, mixup=0.0, contrasts=(), crop="none", schedule="constant"
    )
    data, model, by_hand = tiny_data(), Scaled(), Scaled()
    velocity = [torch.zeros_like(w) for w in by_hand.parameters()]
    order = torch.arange(48)
    for indices in order.split(24):
        loss = F.cross_entropy(by_hand(data.train.images[indices]), data.train.labels[indices])
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for v, w, g in zip(velocity, by_hand.parameters(), gradients, strict=True):
                v.mul_(0.9).add_(g + 1e-3 * w)
                w.sub_((0.01 if w.numel() == 1 else 0.1) * v)
    train_epoch(model, data.train, new_optimizer(model, config), config, order)
    for one, two in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "step"}, "expected schedule to be one of constant, cosine, got 'step'"),
        ({"crop": "flip"}, "expected crop to be one of none, crop, crop-flip, got 'flip'"),
        ({"precision": "float16"}, "expected precision to be one of float32, bfloat16, got 'float16'"),
        ({"mixup": -1.0}, "expected mixup ≥ 0 and finite, got -1.0"),
        ({"weight_decay": float("nan")}, "expected weight_decay ≥ 0 and finite, got nan"),
        ({"optimizer": "adam"}, "momentum is sgd's, got 0.9 with adam"),
        ({"epochs": -1}, "expected epochs ≥ 0, got -1"),
        ({"batch_size": 0}, "expected batch_size ≥ 1, got 0"),
        ({"lr": -1.0}, "expected lr ≥ 0 and finite, got -1.0"),
        ({"scalar_lr": math.nan}, "expected scalar_lr ≥ 0 and finite, got nan"),
        ({"mixup": math.inf}, "expected mixup ≥ 0 and finite, got inf"),
        ({"contrasts": (1.0, 0.0)}, r"expected contrasts > 0 and finite, got \(1.0, 0.0\)"),
        ({"contrasts": (math.nan,)}, "expected contrasts > 0 and finite"),
    ],
)
def test_settings_that_cannot_be(change: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(EVERYTHING, **change)


def test_a_file_from_before_a_setting_was_there_had_its_default() -> None:
    old = {key: value for key, value in EVERYTHING.settings().items() if key not in ("precision", "crop")}
    assert differing_settings(EVERYTHING.settings(), old) == {"crop": "none"}


# What is done to images.


def test_mixups_loss_by_hand() -> None:
    data, model = tiny_data(), Scaled()
    config = TrainConfig(1, 48, lr=0.0, optimizer="sgd", mixup=0.7)
    torch.manual_seed(8)
    found = train_epoch(model, data.train, new_optimizer(model, config), config, torch.arange(48))
    torch.manual_seed(8)
    weight = float(torch.distributions.Beta(0.7, 0.7).sample())
    partners = torch.randperm(48)
    assert 0 < weight < 1
    x, y = data.train.images, data.train.labels
    logp = model(weight * x + (1 - weight) * x[partners]).log_softmax(1)
    rows = torch.arange(48)
    expected = -(weight * logp[rows, y] + (1 - weight) * logp[rows, y[partners]]).mean()
    assert found == pytest.approx(expected.item(), rel=1e-5)


def test_mixups_weights_are_betas() -> None:
    """Beta(a, a) has the mean 1/2 and the variance 1 / (4·(2a + 1))."""
    torch.manual_seed(0)
    image = torch.ones(2, 1, 1, 1)
    for alpha in (0.2, 0.7, 2.0):
        drawn = torch.tensor([augment.mixup(image, alpha)[2] for _ in range(1500)])
        assert drawn.mean() == pytest.approx(0.5, abs=0.05)
        assert drawn.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.12)


def test_contrasts_have_equal_chances_and_the_epoch_keeps_its_length() -> None:
    scalars = (1.0, 0.25, 0.1, 0.0001)
    torch.manual_seed(1)
    found = augment.multiply(torch.ones(8000, 1, 1, 1), scalars).flatten()
    counts = torch.stack([(found == scalar).sum() for scalar in scalars])
    assert counts.sum() == 8000
    assert (counts - 2000).abs().max() < 160  # four standard deviations
    images = torch.rand(64, 3, 5, 5)
    factor = (augment.multiply(images, scalars) / images).flatten(1)
    assert (factor.amax(1) - factor.amin(1)).max() < 1e-6  # one scalar for an image

    seen: list[Tensor] = []

    class Watching(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.amax((1, 2, 3)))
            return super().forward(x)

    data, model = tiny_data(), Watching()
    white = Split(torch.ones_like(data.train.images), data.train.labels)
    config = TrainConfig(2, 16, lr=0.01, optimizer="sgd", contrasts=scalars)
    optimizer = new_optimizer(model, config)
    for number in (1, 2):
        train_epoch(model, white, optimizer, config, torch.arange(48), number)
    assert len(seen) == 2 * 3
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert len(first) == len(second) == 48
    assert set(first.tolist()) == set(torch.tensor(scalars).tolist())
    assert not torch.equal(first, second)  # drawn anew


@given(
    n=st.integers(1, 6),
    c=st.integers(1, 3),
    h=st.integers(1, 12),
    w=st.integers(1, 12),
    flip=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_a_crop_is_the_image_moved_over_black(n: int, c: int, h: int, w: int, flip: bool, seed: int) -> None:
    images = 1 + torch.arange(n * c * h * w).reshape(n, c, h, w).float()
    torch.manual_seed(seed)
    moved = augment.crop(images, flip=flip)
    assert moved.shape == images.shape
    padded = F.pad(images, (4, 4, 4, 4))
    for image, before in zip(moved, padded, strict=True):
        ways = [before[:, d : d + h, r : r + w] for d in range(9) for r in range(9)]
        ways += [way.flip(2) for way in ways] if flip else []
        assert any(torch.equal(image, way) for way in ways)


def test_crops_are_spread_and_half_are_mirrored() -> None:
    torch.manual_seed(4)
    images = torch.zeros(4000, 1, 9, 9)
    images[:, :, 4, 4] = 1
    images[:, :, 4, 5] = 2
    moved = augment.crop(images, flip=True)[:, 0].flatten(1)
    at, beside = (moved == 1).float().argmax(1), (moved == 2).float().argmax(1)
    inside = (moved == 1).any(1) & (moved == 2).any(1)
    mirrored = (beside < at)[inside].float().mean()
    assert abs(mirrored - 0.5) < 0.04
    counts = at[inside].bincount(minlength=81)
    assert (counts > 0).sum() >= 72  # every row, and every column but where the neighbour is outside
    plain = augment.crop(images)[:, 0].flatten(1)
    seen = (plain == 1).any(1) & (plain == 2).any(1)
    assert ((plain == 2).float().argmax(1) > (plain == 1).float().argmax(1))[seen].all()


# All of it together.


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cut_off_and_resumed_equals_uncut_with_everything_on(tmp_path: Path, precision: str) -> None:
    config = dataclasses.replace(EVERYTHING, precision=precision)
    data, uncut = tiny_data(), Scaled()
    expected = train(uncut, data, config)
    steps = 0

    def cut_in_the_third_epoch() -> None:
        nonlocal steps
        steps += 1
        if steps == 8:
            raise CutOff

    with pytest.raises(CutOff):
        train(Scaled(), data, config, folder=tmp_path, on_batch=cut_in_the_third_epoch)
    torch.manual_seed(77)
    resumed = Scaled()
    assert untimed(train(resumed, data, config, folder=tmp_path)) == untimed(expected)
    assert same_weights(resumed, uncut)


def test_until_stops_on_the_way_of_the_whole_schedule(tmp_path: Path) -> None:
    data, uncut, model = tiny_data(), Scaled(), Scaled()
    expected = train(uncut, data, EVERYTHING)
    lengths = []
    for epochs in (1, 3, None):
        history = train(model, data, EVERYTHING, folder=tmp_path, until=epochs)
        lengths.append(len(history))
        assert untimed(history) == untimed(expected)[: len(history)]
    assert lengths == [1, 3, 4]
    assert same_weights(model, uncut)
    assert len(train(Scaled(), data, EVERYTHING, folder=tmp_path, until=2)) == 4  # what is done is done
    longer = dataclasses.replace(EVERYTHING, epochs=5)
    with pytest.raises(TrainingError, match="made with epochs 4 instead of 5"):  # its cosine was another
        train(Scaled(), data, longer, folder=tmp_path)


def test_bfloat16_is_in_the_networks_pass_alone() -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    class Watching(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            seen.append((logits.dtype, self.conv.weight.dtype))
            return logits

    data = tiny_data()
    runs: dict[str, list[Epoch]] = {}
    for precision in ("float32", "bfloat16"):
        seen.clear()
        config = TrainConfig(2, 16, lr=0.05, optimizer="sgd", precision=precision)
        model = Watching()
        runs[precision] = train(model, data, config)
        training, evaluating = seen[:3], seen[3]
        dtype = getattr(torch, precision)
        assert training == [(dtype, torch.float32)] * 3
        assert evaluating == (torch.float32, torch.float32)
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
    one, two = (runs[precision][-1].train_loss for precision in runs)
    assert one != two
    assert one == pytest.approx(two, rel=0.01)


def test_until_lies_within_the_schedule() -> None:
    with pytest.raises(ValueError, match="train: expected until from 0 to 4 epochs, got 5"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), tiny_data(), EVERYTHING, until=5)
