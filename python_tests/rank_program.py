"""What the tests of distributed training run in each process: ``python rank_program.py OUT IMAGES``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbkernels import distributed
from zbkernels.data import Dataset, Split
from zbkernels.data.folder import read_folder
from zbkernels.data.streamed import StreamedSplit
from zbkernels.distributed import DistributedError
from zbkernels.experiments.contrast import sweep
from zbkernels.train import TrainConfig, train

CONFIG = TrainConfig(
    epochs=3,
    batch_size=15,
    lr=0.3,
    optimizer="sgd",
    seed=5,
    momentum=0.9,
    weight_decay=1e-3,
    schedule="cosine",
    mixup=0.7,
    contrasts=(1.0, 0.25),
    crop="crop-flip",
)
IMAGES = 46  # three batches of 15 and one of a single image, of which one of two ranks has none


def network(channels: int = 1, side: int = 6, *, drops: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Dropout(0.5 if drops else 0.0),
        nn.Linear(4 * side * side, 3),
    )


def in_memory() -> Dataset:
    """Noise, with bright rows whose place is the label."""
    images = torch.rand(IMAGES + 24, 1, 8, 8, generator=torch.Generator().manual_seed(0)) / 2
    labels = torch.arange(IMAGES + 24) % 3
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 3 * label : 3 * label + 2] += 1
    train_part, test_part = Split(images[:IMAGES], labels[:IMAGES]), Split(images[IMAGES:], labels[IMAGES:])
    return Dataset("tiny", "tiny", train_part, test_part, ("0", "1", "2"), True, "")


def streamed(folder: Path) -> Dataset:
    train_part, test_part = (
        StreamedSplit(read_folder(folder / part), random=part == "train", size=16, workers=0)
        for part in ("train", "val")
    )
    return Dataset("tiny", "tiny", train_part, test_part, ("0", "1", "2"), True, "")


def trained(out: Path, images: Path) -> dict[str, Any]:
    """Two trainings, each stopped and continued, and sweeps."""
    found: dict[str, Any] = {}
    for name in ("in memory", "streamed"):
        data = in_memory() if name == "in memory" else streamed(images)
        config = CONFIG if name == "in memory" else replace(CONFIG, crop="none")
        model = network(data.image_shape[0])
        train(model, data, config, folder=out / name, until=2)
        if name == "streamed":  # as a new run would
            model = network(data.image_shape[0])
        history = train(model, data, config, folder=out / name)
        found[name] = {
            "history": [asdict(replace(epoch, seconds=0)) for epoch in history],
            "weights": torch.cat([weight.detach().flatten() for weight in model.parameters()]).tolist(),
            "sweep": sweep(model, data.test, (1.0, 0.25, 0.01)),
        }
    return found


def refused(out: Path) -> dict[str, str]:
    """What every rank is told where they cannot go on together."""
    team, data = distributed.team(), in_memory()
    differing = replace(data, train=data.train.first(40 + team.rank))
    other_folder = out / f"of rank {team.rank}"
    if team.first:
        train(network(), data, CONFIG, folder=other_folder, until=1)
    else:
        train(network(), data, CONFIG, until=1)
    cases: dict[str, Callable[[], object]] = {
        "dropout": lambda: train(network(drops=True), data, CONFIG),
        "other data": lambda: train(network(), differing, CONFIG),
        "other folders": lambda: train(network(), data, CONFIG, folder=other_folder),
        "decided by rank 0": lambda: team.agree(lambda: (out / f"nowhere of {team.rank}").read_text()),
    }
    said = {}
    for name, case in cases.items():
        try:
            case()
        except (DistributedError, OSError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def main(out: Path, images: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ.get("RANK", "0")
    with distributed.joined("cpu"):
        found = trained(out, images)
        if distributed.launched():
            found["refused"] = refused(out)
        found["agreed"] = distributed.team().agree(lambda: f"rank {rank}")
        (out / f"rank{rank}.json").write_text(json.dumps(found))
        if distributed.launched():  # and at last, one of them dies
            train(network(), in_memory(), CONFIG, on_batch=lambda: os._exit(7) if rank == "1" else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
