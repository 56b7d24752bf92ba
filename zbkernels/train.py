"""The training loop: seeded, with a checkpoint each epoch.

A run that was cut off and is continued gives the uncut run's result bit for bit, on the same machine with the same
torch and the same number of threads. Under torchrun the processes share each batch (:mod:`zbkernels.distributed`).
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zbkernels import augment, distributed
from zbkernels import checkpoint as checkpoints
from zbkernels.data import Dataset, Split

EVALUATION_BATCH = 1000
_EVALUATION_PIXELS = 1 << 25  # in a batch at most: 222 images of 3×224×224
_LOSS_CHECK_EVERY = 64  # batches between looks at the losses: on a GPU each look waits for it
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "bfloat16")
_OPTIMIZERS = {"adadelta": torch.optim.Adadelta, "sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class TrainingError(Exception):
    """Training cannot go on; the message says where it stopped and why."""


class DivergedError(TrainingError):
    """The loss is no finite number any more."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run.

    Attributes:
        epochs: 0 leaves the network as it was initialised.
        optimizer: "adadelta", "sgd" or "adam", with torch's defaults besides what is given here.
        seed: of the order of the images, of what is drawn for them, and of anything random inside the model.
        memory_format: of weights and images, "contiguous" or "channels_last".
        momentum: of "sgd", which alone takes one.
        weight_decay: L2, on every parameter, as torch's optimizers have it.
        schedule: "constant", or "cosine": lr·(1 + cos(π·t/T))/2 at step t of T, over all epochs.
        scalar_lr: what ``lr`` is multiplied by for parameters of a single element (Fixup's multipliers).
        mixup: alpha of mixup's Beta(alpha, alpha); 0: none.
        contrasts: each training image is multiplied by one of these, drawn anew each epoch; (): by none.
        crop: "none", "crop" (moved by up to 4 pixels) or "crop-flip" (and half of them mirrored).
        precision: of the network's pass over training images, "float32" or "bfloat16" (by torch's autocast: weights,
            loss and optimizer stay float32). Test images are evaluated in float32.
    """

    epochs: int
    batch_size: int
    lr: float = 0.01
    optimizer: str = "adadelta"
    seed: int = 0
    memory_format: str = "contiguous"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    scalar_lr: float = 1.0
    mixup: float = 0.0
    contrasts: tuple[float, ...] = ()
    crop: str = "none"
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("schedule", self.schedule, SCHEDULES),
            ("crop", self.crop, augment.CROPS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise ValueError(
                    f"TrainConfig: expected {name} to be one of {', '.join(known)}, got {value!r}"
                )
        for name, least in (("epochs", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"TrainConfig: expected {name} ≥ {least}, got {getattr(self, name)}")
        for name in ("lr", "scalar_lr", "momentum", "weight_decay", "mixup"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"TrainConfig: expected {name} ≥ 0 and finite, got {getattr(self, name)}")
        if not all(0 < scalar < math.inf for scalar in self.contrasts):
            raise ValueError(f"TrainConfig: expected contrasts > 0 and finite, got {self.contrasts}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"TrainConfig: momentum is sgd's, got {self.momentum} with {self.optimizer}")

    def settings(self) -> dict[str, Any]:
        """Every field, as JSON has it."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


def differing_settings(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Key -> what was found, where it is not what is wanted. A field of :class:`TrainConfig` that an older file
    lacks had its default."""
    defaults = {f.name: f.default for f in fields(TrainConfig) if f.default is not MISSING}
    found = {**{key: list(v) if isinstance(v, tuple) else v for key, v in defaults.items()}, **found}
    return {key: found.get(key) for key in wanted if found.get(key) != wanted[key]}


@dataclass(frozen=True)
class Epoch:
    """Mean loss over the epoch's training batches (with what is done to their images), then cross-entropy and accuracy
    (%) on the test images."""

    epoch: int
    train_loss: float
    test_loss: float
    test_accuracy: float
    seconds: float


def train(
    model: nn.Module,
    data: Dataset,
    config: TrainConfig,
    *,
    folder: Path | None = None,
    until: int | None = None,
    on_batch: Callable[[], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Epoch]:
    """Train ``model`` in place with cross-entropy and return one :class:`Epoch` per epoch.

    Torch's global generators are left as they were found. Within :func:`zbkernels.distributed.joined` every rank calls
    this with the same arguments, gets the same weights and history, and rank 0 writes the checkpoints; the gradient is
    that of the whole batch (batch norm alone has statistics of each rank's share).

    Args:
        until: stop after this many of the epochs; None: after all. With ``folder``, a later call goes on from there.
        folder: where to keep the checkpoint. One that is already there is continued. None: no checkpoints.
        on_batch: called after each batch.
        on_epoch: called after each epoch; when resuming, first for each epoch already done.
        say: receives a line of text where the user should know something.

    Raises:
        DivergedError: the loss is not finite.
        TrainingError: the checkpoint in ``folder`` belongs to another configuration.
        CheckpointError: the checkpoint in ``folder`` is broken.
        DistributedError: the ranks differ in data or checkpoint, or in what they draw.
        ValueError: an unknown optimizer or memory format, or ``until`` is beyond the epochs.
    """
    if until is not None and not 0 <= until <= config.epochs:
        raise ValueError(f"train: expected until from 0 to {config.epochs} epochs, got {until}")
    device = next(model.parameters()).device
    layout = memory_format(config.memory_format)
    model.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub lacks it
    data = data.to(device)
    optimizer = new_optimizer(model, config)
    shuffle = torch.Generator().manual_seed(config.seed)
    history: list[Epoch] = []
    team = distributed.team()
    parallel = team.parallel(model)

    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), _deterministic_cudnn():
        torch.manual_seed(config.seed)
        team.check_same("as many images", (len(data.train), len(data.test)))
        found = checkpoints.load(folder) if folder is not None else None
        if found is not None:
            if found.damage is not None and say is not None:
                say(f"{found.damage}; going on from the one before")
            try:
                history = _resume(found, model, optimizer, shuffle, config, device, say)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
                raise checkpoints.CheckpointError(
                    f"{found.folder}: the checkpoint is not of this network ({type(error).__name__}: {error}); delete "
                    "the folder, or run again with --force, to start over"
                ) from error
            for epoch in history:
                if on_epoch is not None:
                    on_epoch(epoch)
        team.check_same("a checkpoint of as many epochs (the folder must be one for all ranks)", len(history))
        for number in range(len(history) + 1, (config.epochs if until is None else until) + 1):
            started = time.perf_counter()
            order = torch.randperm(len(data.train), generator=shuffle).to(device)
            train_loss = train_epoch(parallel, data.train, optimizer, config, order, number, on_batch)
            seconds = time.perf_counter() - started
            team.share_buffers(model)
            team.check_same("the same random numbers (dropout draws its own)", _crc32(torch.get_rng_state()))
            test_loss, test_accuracy = evaluate(model, data.test, memory_format=layout)
            history.append(Epoch(number, train_loss, test_loss, test_accuracy, seconds))
            if folder is not None and team.first:
                checkpoints.save(
                    folder,
                    step=number,
                    model=model,
                    optimizer=optimizer,
                    rng=_rng_states(shuffle, device),
                    meta={
                        "config": config.settings(),
                        "history": [asdict(epoch) for epoch in history],
                        "surroundings": _surroundings(device),
                    },
                )
            if on_epoch is not None:
                on_epoch(history[-1])
    return history


def new_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that ``config`` names, over all parameters of ``model``.

    Raises:
        ValueError: there is no such optimizer.
    """
    if config.optimizer not in _OPTIMIZERS:
        raise ValueError(f"unknown optimizer {config.optimizer!r}; known: {', '.join(_OPTIMIZERS)}")
    options = {"momentum": config.momentum} if config.momentum else {}
    scalars = [parameter for parameter in model.parameters() if parameter.numel() == 1]
    others = [parameter for parameter in model.parameters() if parameter.numel() != 1]
    groups = [{"params": others, "lr": config.lr}]
    if scalars:
        groups.append({"params": scalars, "lr": config.lr * config.scalar_lr})
    return _OPTIMIZERS[config.optimizer](groups, weight_decay=config.weight_decay, **options)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, progress: float) -> None:
    """The schedule's learning rate where ``progress`` (0 to 1) of all steps are done."""
    factor = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1.0
    for group in optimizer.param_groups:
        single = all(parameter.numel() == 1 for parameter in group["params"])
        group["lr"] = config.lr * factor * (config.scalar_lr if single else 1.0)


def train_epoch(
    model: nn.Module,
    split: Split,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    order: Tensor,
    number: int = 1,
    on_batch: Callable[[], None] | None = None,
) -> float:
    """One pass over ``split`` in the order ``order`` ([N] int64); returns the mean loss.

    In a team of several, ``model`` is what :meth:`zbkernels.distributed.Team.parallel` made of it.

    Raises:
        DivergedError: the loss of a batch is not finite.
    """
    layout = memory_format(config.memory_format)
    model.train()
    batches = order.split(config.batch_size)
    losses = torch.zeros(len(batches), dtype=torch.float64, device=order.device)
    team = distributed.team()
    read = split.batches(batches, seed=config.seed, epoch=number, team=team)
    for position, (images, labels) in enumerate(read):
        set_learning_rate(optimizer, config, (number - 1 + position / len(batches)) / config.epochs)
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(model, images, labels, config, layout)
        loss.backward()
        optimizer.step()
        losses[position] = loss.detach()
        if (position + 1) % _LOSS_CHECK_EVERY == 0 or position + 1 == len(batches):
            _check_finite(team.mean(losses[: position + 1]), number, config)
        if on_batch is not None:
            on_batch()
    sizes = torch.tensor([len(chosen) for chosen in batches], dtype=torch.float64, device=order.device)
    return float((team.mean(losses) * sizes).sum() / sizes.sum())


def _loss(
    model: nn.Module, images: Tensor, labels: Tensor, config: TrainConfig, layout: torch.memory_format
) -> Tensor:
    """Mean cross-entropy of a batch, after what the configuration does to its images.

    In a team, the mean over the ranks of what each returns: all draw for the whole batch, so that they draw the same,
    and each trains on its share.
    """
    if config.crop != "none":
        images = augment.crop(images, flip=config.crop == "crop-flip")
    if config.contrasts:
        images = augment.multiply(images, config.contrasts)
    targets = [(1.0, labels)]
    if config.mixup:
        images, partners, weight = augment.mixup(images, config.mixup)
        targets = [(weight, labels), (1 - weight, labels[partners])]
    team = distributed.team()
    mine = team.share(len(images))
    weigh = team.size * (mine.stop - mine.start) / len(images)  # shares of unequal length count by it
    if not weigh:  # fewer images than ranks: this one takes part in the exchange of gradients, with nothing
        mine = slice(0, 1)
    images = images[mine].to(memory_format=layout)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        logits = model(images)
    if config.precision == "bfloat16":
        logits = logits.float()
    losses = [weight * F.cross_entropy(logits, target[mine]) for weight, target in targets]
    return weigh * torch.stack(losses).sum()


@torch.inference_mode()
def evaluate(
    model: nn.Module, split: Split, *, memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy in percent. The ranks of a team share the images, and all return the same."""
    totals = torch.zeros(2, dtype=torch.float64, device=split.labels.device)
    for images, labels in split.batches(evaluation_batches(split)):
        logits = predict_logits(model, images, memory_format=memory_format)
        totals[0] += F.cross_entropy(logits.double(), labels, reduction="sum")
        totals[1] += (logits.argmax(1) == labels).sum()
    loss, correct = (distributed.team().sum(totals) / len(split)).tolist()
    return loss, 100 * correct


def evaluation_batches(split: Split) -> Sequence[Tensor]:
    """The indices of ``split`` in batches of bounded memory; in a team, those batches that are this rank's."""
    pixels = math.prod(split.image_shape)
    batches = torch.arange(len(split)).split(max(1, min(EVALUATION_BATCH, _EVALUATION_PIXELS // pixels)))
    return batches[distributed.team().share(len(batches))]


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    images: Tensor,
    *,
    scale: float = 1.0,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Logits ``[N, classes]`` of ``scale * images``, in evaluation mode and in batches."""
    was_training = model.training
    model.eval()
    batches = [
        model((batch * scale).to(memory_format=memory_format)) for batch in images.split(EVALUATION_BATCH)
    ]
    model.train(was_training)
    return torch.cat(batches)


def _check_finite(losses: Tensor, number: int, config: TrainConfig) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at = int(bad[0])
        raise DivergedError(
            f"the loss is {float(losses[at])} at epoch {number}, batch {at + 1} ({config.optimizer}, "
            f"lr {config.lr}): expected a finite number; a smaller learning rate may help"
        )


def _resume(
    found: checkpoints.Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shuffle: torch.Generator,
    config: TrainConfig,
    device: torch.device,
    say: Callable[[str], None] | None,
) -> list[Epoch]:
    """Bring everything back to where the checkpoint was taken."""
    meta = found.meta["meta"]
    wanted = config.settings()
    differing = differing_settings(wanted, meta["config"])
    if config.schedule == "constant":
        differing.pop("epochs", None)  # the epochs done do not depend on how many are to come
    if differing or len(meta["history"]) > config.epochs:
        said = ", ".join(f"{k} {v} instead of {wanted[k]}" for k, v in differing.items()) or "more epochs"
        raise TrainingError(f"{found.folder}: the checkpoint was made with {said}; --force starts over")
    now, then = _surroundings(device), {"ranks": 1, **meta["surroundings"]}
    changed = [f"{key} {then.get(key)} then, {now[key]} now" for key in now if then.get(key) != now[key]]
    if changed and say is not None:
        say(f"resumed under other conditions, so not bit for bit an uncut run: {', '.join(changed)}")
    checkpoints.restore(found, model, optimizer)
    shuffle.set_state(found.tensors["rng.shuffle"])
    torch.set_rng_state(found.tensors["rng.torch"])
    if device.type == "cuda" and "rng.cuda" in found.tensors:
        torch.cuda.set_rng_state(found.tensors["rng.cuda"], device)
    return [Epoch(**epoch) for epoch in meta["history"]]


def _rng_states(shuffle: torch.Generator, device: torch.device) -> dict[str, Tensor]:
    states = {"shuffle": shuffle.get_state(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _surroundings(device: torch.device) -> dict[str, Any]:
    """What the last bits of a result depend on besides the configuration."""
    return {
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "ranks": distributed.team().size,
    }


def _crc32(state: Tensor) -> int:
    return zlib.crc32(state.numpy().data)


def memory_format(name: str) -> torch.memory_format:
    """Torch's memory format by its name in :class:`TrainConfig`."""
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if name not in formats:
        raise ValueError(f"unknown memory format {name!r}; known: {', '.join(formats)}")
    return formats[name]


class _deterministic_cudnn:
    """cuDNN's deterministic algorithms inside the block; the caller's settings after it."""

    def __enter__(self) -> None:
        self._kept = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = self._kept
