"""What networks of the ``zero-image`` experiment are trained on: an image set as it is, or changed in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from zbkernels.data import Dataset, Split
from zbkernels.experiments.contrast import SCALARS

LONGEST = 100  # times as many images of the last class as of the first, in a long tail
BLACK_EVERY = 10  # one black image for so many others


@dataclass(frozen=True)
class Training:
    """One way to train.

    Attributes:
        what: for the report, as a clause.
        alter: the image set -> what is trained on. The test images stay as they are.
        contrasts: see :class:`zbkernels.train.TrainConfig`.
        imbalanced: the classes have very different numbers of images.
        augmented: something is added that could teach a network what to make of the zero image.
    """

    name: str
    what: str
    alter: Callable[[Dataset], Dataset]
    contrasts: tuple[float, ...] = ()
    imbalanced: bool = False
    augmented: bool = False


def long_tail(data: Dataset) -> Dataset:
    """Of class k of C the first images only, the share ``LONGEST**(k / (C - 1) - 1)`` of them (at least one): all of
    the last class, a hundredth of the first, and a constant ratio between neighbours.

    The first class is the rarest so that a network which prefers the commonest class is told apart from the argmax
    of equal logits, which is class 0. Images keep their order.
    """
    labels, classes = data.train.labels, len(data.classes)
    kept = torch.zeros_like(labels, dtype=torch.bool)
    for label in range(classes):
        of_class = (labels == label).nonzero().flatten()
        share = LONGEST ** (label / max(classes - 1, 1) - 1)
        kept[of_class[: max(1, round(share * len(of_class)))]] = True
    train = Split(data.train.images[kept], labels[kept])
    return replace(data, title=f"{data.title}, long tail: {len(train):,} training images", train=train)


def with_black_images(data: Dataset) -> Dataset:
    """A black image for every ten training images, labelled with each class in turn.

    With cross-entropy this adds a tenth of the cross-entropy between the uniform distribution and the network's at
    the zero image: a change of the data and of the training objective in one.
    """
    images, labels = data.train.images, data.train.labels
    count = len(labels) // BLACK_EVERY
    black = torch.zeros(count, *images.shape[1:], dtype=images.dtype)
    every_class = torch.arange(count) % len(data.classes)
    train = Split(torch.cat([images, black]), torch.cat([labels, every_class]))
    return replace(data, title=f"{data.title}, and {count:,} black images", train=train)


TRAININGS: dict[str, Training] = {
    training.name: training
    for training in (
        Training("balanced", "the image set as it is", lambda data: data),
        Training(
            "long tail",
            f"class k keeps its share {LONGEST}^(k/(C-1) - 1): the last class has {LONGEST} times as many images as "
            "the first",
            long_tail,
            imbalanced=True,
        ),
        Training(
            "contrasts",
            "each image times one of Table 1's eleven scalars, drawn anew each epoch",
            lambda data: data,
            contrasts=SCALARS,
            augmented=True,
        ),
        Training(
            "black images",
            f"and one black image for every {BLACK_EVERY}, labelled with each class in turn: the objective gets a term "
            "that asks for the uniform distribution at the zero image",
            with_black_images,
            augmented=True,
        ),
        Training(
            "long tail, contrasts",
            "the long tail, multiplied in the same way: dark images, most of them of the common classes",
            long_tail,
            contrasts=SCALARS,
            imbalanced=True,
        ),
        Training(
            "long tail, black images",
            "the long tail, with black images in the same proportion",
            lambda data: with_black_images(long_tail(data)),
            imbalanced=True,
            augmented=True,
        ),
    )
}
