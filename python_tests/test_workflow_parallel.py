"""DistributedDataParallel and FSDP over two processes (gloo) train as one process does on the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import parallel_program
import pytest
import torch
import torch.distributed as dist
from torch import nn
from workflow_models import CLASSES, MODELS, SHAPE, Plain, examples, plain

import zbkernels as zb
from zbkernels.checkpoint import CheckpointError
from zbkernels.models import Network, ResNet, build
from zbkernels.nn.fusion.rewritten import is_fused

pytestmark = pytest.mark.usefixtures("one_thread")
Weights = dict[str, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """The weights that each of two processes has at the end, by model and way."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, parallel_program.__file__, folder],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_train_as_one(ranks: list[Weights], name: str) -> None:
    model = MODELS[name]().double()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    expected = parallel_program.trained(model, slice(None), parallel_program.as_they_are).state_dict()
    assert any((expected[key] - start[key]).abs().max() > 1e-3 for key in start)
    for way in parallel_program.WAYS:
        for weights in ranks:
            found = weights[f"{name}, {way}"]
            assert found.keys() == expected.keys(), way
            torch.testing.assert_close(found, dict(expected), rtol=1e-10, atol=1e-12)


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", ["fused", "sharded"])
def test_fuse_and_shard_in_either_order(first: str) -> None:
    model, (x, _) = plain(), examples(4)
    expected = model(x)
    if first == "fused":
        assert zb.fuse(model, when="always")
    parallel_program.fully_sharded_whole(model)
    sharded = type(model)
    if first == "sharded":
        assert len(zb.fuse(model, when="always").fused) == 3
    assert is_fused(model) and isinstance(model, Plain)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad(), zb.use_backend("reference"):
        model(x)
    assert zb.last_kernel() == "reference"  # an op of ours ran
    assert zb.unfuse(model) == 1
    assert type(model).__name__ == sharded.__name__ == "FSDPPlain" and not is_fused(model)
    torch.testing.assert_close(model(x), expected)
    model.unshard()  # type: ignore[operator]  # what torch put on top is still there


@pytest.mark.usefixtures("alone")
def test_networks_of_remove_bias_can_be_sharded() -> None:
    """FSDP takes no parameter without dimensions."""
    plain_net = build(ResNet("tiny", "basic", (1,), width=4), SHAPE, CLASSES, bias=True)
    model, _ = zb.nn.remove_bias(plain_net, "fixup")
    expected = model(x := examples(4)[0])
    torch.testing.assert_close(parallel_program.fully_sharded_whole(model)(x), expected)


@pytest.mark.usefixtures("alone")
def test_a_sharded_network_is_not_saved_in_parts(tmp_path: Path) -> None:
    model = MODELS["resnet9"]()
    assert isinstance(model, Network)
    parallel_program.fully_sharded_whole(model)
    with pytest.raises(
        CheckpointError, match=r"expected conv1.weight to be a tensor, got DTensor; gather it first"
    ):
        model.save_pretrained(tmp_path)


def test_data_parallel_on_a_machine_without_cards_is_the_module() -> None:
    for make in MODELS.values():
        model, (x, _) = make(), examples(4)
        if not torch.cuda.is_available():
            assert torch.equal(nn.DataParallel(model)(x), model(x))
