"""What the tests of DistributedDataParallel and FSDP run in each process: ``python parallel_program.py OUT``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from workflow_models import MODELS, examples

BATCH, STEPS = 6, 3
Step = Callable[[nn.Module, Any, torch.Tensor, torch.Tensor], None]


def trained(model: nn.Module, share: slice, around: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Some steps of SGD with momentum on this process's share of each batch."""
    wrapped = around(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images, labels = examples(BATCH, seed=step)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(images.double()[share]), labels[share]).backward()
        optimizer.step()
    return wrapped


def as_they_are(model: nn.Module) -> nn.Module:
    return model


def data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: nn.Module) -> nn.Module:
    """FSDP2: each layer's parameters by themselves, then what is left."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fully_sharded_whole(model: nn.Module) -> nn.Module:
    """FSDP2 around the model alone, so that its fused forward runs."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))


def wrapped_and_sharded(model: nn.Module) -> nn.Module:
    """FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


WAYS = {
    "ddp": data_parallel,
    "fsdp2": fully_sharded,
    "fsdp2 whole": fully_sharded_whole,
    "fsdp1": wrapped_and_sharded,
}


def weights(wrapped: nn.Module) -> dict[str, torch.Tensor]:
    """The whole weights by the model's own names."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(wrapped, options=StateDictOptions(full_state_dict=True))


def found(share: slice) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    for name, make in MODELS.items():
        for way, around in WAYS.items():
            yield f"{name}, {way}", weights(trained(make().double(), share, around))


def main(out: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.save(dict(found(slice(rank, None, size))), out / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    main(Path(sys.argv[1]))
