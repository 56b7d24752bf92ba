"""The training loop: seeds decide everything, and a run that is cut off anywhere ends as if it had not been."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from zbkernels import checkpoint as checkpoints
from zbkernels.checkpoint import CheckpointError
from zbkernels.data import Dataset, Split
from zbkernels.files import read_sealed_json, replacing, write_json, write_sealed_json
from zbkernels.models import Architecture, Conv, Linear, build
from zbkernels.train import Epoch, TrainConfig, TrainingError, evaluate, predict_logits, train

CONFIG = TrainConfig(epochs=4, batch_size=16, lr=0.5, seed=11)
ROW = Architecture("tiny", (Conv(4), Linear(8)))


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny_data(count: int = 72) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=generator) * 0.3
    labels = torch.arange(count) % 3
    for index, label in enumerate(labels.tolist()):
        images[index, :, 2 * label : 2 * label + 2] += 0.7
    train_part, test_part = (
        Split(images[: count - 24], labels[: count - 24]),
        Split(images[-24:], labels[-24:]),
    )
    return Dataset("tiny", "tiny", train_part, test_part, ("0", "1", "2"), True, "")


def with_dropout() -> nn.Module:
    """Draws from torch's global generator at every step."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "fused": lambda: build(ROW, (1, 8, 8), 3),
    "plain": lambda: build(ROW, (1, 8, 8), 3, fused=False),
    "bias": lambda: build(ROW, (1, 8, 8), 3, bias=True),
    "dropout": with_dropout,
}


def untimed(history: list[Epoch]) -> list[tuple]:
    return [dataclasses.astuple(dataclasses.replace(epoch, seconds=0)) for epoch in history]


def same_weights(one: nn.Module, two: nn.Module) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


class CutOff(BaseException):
    """Stands for anything that ends a process."""


@pytest.mark.parametrize("optimizer", ["adadelta", "adam", "sgd"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", MODELS)
def test_cut_off_and_resumed_equals_uncut(tmp_path: Path, kind: str, layout: str, optimizer: str) -> None:
    data = tiny_data()
    lr = {"adadelta": 0.5, "adam": 0.01, "sgd": 0.1}[optimizer]
    config = dataclasses.replace(CONFIG, memory_format=layout, optimizer=optimizer, lr=lr)
    uncut = MODELS[kind]()
    expected = train(uncut, data, config)

    steps = 0

    def cut_in_the_middle_of_the_third_epoch() -> None:
        nonlocal steps
        steps += 1
        if steps == 7:  # three batches an epoch
            raise CutOff

    with pytest.raises(CutOff):
        train(MODELS[kind](), data, config, folder=tmp_path, on_batch=cut_in_the_middle_of_the_third_epoch)
    torch.manual_seed(999)  # whatever the new process has done before
    resumed, seen = MODELS[kind](), []
    history = train(resumed, data, config, folder=tmp_path, on_epoch=seen.append)
    assert untimed(history) == untimed(expected)
    assert seen == history
    assert same_weights(resumed, uncut)


def test_training_learns_and_the_seed_decides_the_result() -> None:
    data = tiny_data()
    config = dataclasses.replace(CONFIG, epochs=12)
    one, two, other = MODELS["plain"](), MODELS["plain"](), MODELS["plain"]()
    history = train(one, data, config)
    assert history[-1].test_accuracy > 90
    assert history[-1].train_loss < history[0].train_loss / 2
    assert untimed(train(two, data, config)) == untimed(history)
    assert same_weights(one, two)
    assert untimed(train(other, data, dataclasses.replace(config, seed=12))) != untimed(history)


def test_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(with_dropout(), tiny_data(), dataclasses.replace(CONFIG, epochs=1))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    train(MODELS["bias"](), tiny_data(), dataclasses.replace(CONFIG, epochs=1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.rand(3), expected)


def test_a_finished_run_is_returned_without_training(tmp_path: Path) -> None:
    history = train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path)
    model = MODELS["plain"]()

    def never() -> None:
        raise AssertionError("trained again")

    assert train(model, tiny_data(), CONFIG, folder=tmp_path, on_batch=never) == history
    more = train(model, tiny_data(), dataclasses.replace(CONFIG, epochs=5), folder=tmp_path)
    assert more[:4] == history
    assert len(more) == 5


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    data = tiny_data()
    images = data.train.images.clone()
    images[0, 0, 0, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"the loss is nan at epoch 1, batch \d \(adadelta, lr 0.5\)"):
        train(MODELS["plain"](), dataclasses.replace(data, train=Split(images, data.train.labels)), CONFIG)
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) at epoch 1.*lr 1e\+30"):
        train(MODELS["bias"](), data, dataclasses.replace(CONFIG, optimizer="sgd", lr=1e30))


def test_another_configuration_is_not_continued(tmp_path: Path) -> None:
    train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path)
    with pytest.raises(
        TrainingError, match=r"made with lr 0.5 instead of 0.25, seed 11 instead of 12; --force"
    ):
        train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, lr=0.25, seed=12), folder=tmp_path)
    with pytest.raises(TrainingError, match="more epochs"):
        train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, epochs=2), folder=tmp_path)


def test_resuming_under_other_conditions_is_said(tmp_path: Path) -> None:
    train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, epochs=1), folder=tmp_path)

    def said_after(**change: int | None) -> list[str]:
        index = read_sealed_json(tmp_path / "checkpoint.json")
        then = index["meta"]["surroundings"] | change
        index["meta"]["surroundings"] = {key: value for key, value in then.items() if value is not None}
        write_sealed_json(tmp_path / "checkpoint.json", index)
        said: list[str] = []
        train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path, say=said.append)
        return said

    (line,) = said_after(threads=1000)
    assert "threads 1000 then" in line and "ranks" not in line
    threads = torch.get_num_threads()
    assert said_after(threads=threads, ranks=None) == []  # from a time when there were no ranks
    (line,) = said_after(ranks=8)
    assert "ranks 8 then, 1 now" in line


@pytest.mark.parametrize("harm", ["cut tensors", "no tensors", "no json", "json of something else"])
def test_a_broken_checkpoint_is_named(tmp_path: Path, harm: str) -> None:
    train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path, until=1)
    tensors, index = tmp_path / "epoch-0001.safetensors", tmp_path / "checkpoint.json"
    if harm == "cut tensors":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif harm == "no tensors":
        tensors.unlink()
    elif harm == "no json":
        index.write_text('{"tensors": ')
    else:
        index.write_text("{}")
    with pytest.raises(CheckpointError, match=r"checkpoint.json: the checkpoint cannot be read .* --force"):
        train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path)


@pytest.mark.parametrize("dies_in", ["tensors", "index"])
def test_dying_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    expected = train(MODELS["plain"](), tiny_data(), CONFIG)
    train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, epochs=2), folder=tmp_path)

    def die(*_: object, **__: object) -> None:
        raise CutOff

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_tensors" if dies_in == "tensors" else "write_sealed_json", die)
        with pytest.raises(CutOff):
            train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path)
    assert json.loads((tmp_path / "checkpoint.json").read_text())["tensors"] == "epoch-0002.safetensors"
    assert untimed(train(MODELS["plain"](), tiny_data(), CONFIG, folder=tmp_path)) == untimed(expected)
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {
        "epoch-0003.safetensors",
        "epoch-0004.safetensors",
    }


def test_replacing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(CutOff), replacing(path) as temporary:
        temporary.write_text("half")
        raise CutOff
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_evaluation_is_by_hand_the_same() -> None:
    data, model = tiny_data(), MODELS["bias"]()
    loss, accuracy = evaluate(model, data.test)
    logits: Tensor = model(data.test.images)
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, data.test.labels).item(), rel=1e-5)
    assert accuracy == pytest.approx(
        100 * (logits.argmax(1) == data.test.labels).float().mean().item(), rel=1e-5
    )
    dropout = with_dropout().train()
    assert torch.equal(predict_logits(dropout, data.test.images), predict_logits(dropout, data.test.images))
    assert dropout.training


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown optimizer 'lion'; known: adadelta, sgd, adam"):
        train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, optimizer="lion"))
    with pytest.raises(ValueError, match="unknown memory format 'nchw'; known: contiguous, channels_last"):
        train(MODELS["plain"](), tiny_data(), dataclasses.replace(CONFIG, memory_format="nchw"))
