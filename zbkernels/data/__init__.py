"""Image sets as plain tensors: ``load("mnist", root)`` gives a :class:`Dataset` of two :class:`Split`.

Pixels are float32 in [0, 1] and no mean is subtracted: a zero-bias network maps the zero image to zero
logits, and that says something only while a black image is still zero. ImageNet and Imagenette are streamed: their
splits (:class:`zbkernels.data.streamed.StreamedSplit`) give batches, and never all images at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zbkernels.data.cifar import load_cifar10, load_cifar100
from zbkernels.data.composite import load_composite, load_composite_garments
from zbkernels.data.dataset import DataError, Dataset, Split
from zbkernels.data.digits import load_digits
from zbkernels.data.imagenet import load_imagenet, load_imagenette
from zbkernels.data.mnist import load_fashion_mnist, load_mnist

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Split",
    "load",
    "load_cifar10",
    "load_cifar100",
    "load_composite",
    "load_composite_garments",
    "load_digits",
    "load_fashion_mnist",
    "load_imagenet",
    "load_imagenette",
    "load_mnist",
]

DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar-10": load_cifar10,
    "cifar-100": load_cifar100,
    "imagenet": load_imagenet,
    "imagenette": load_imagenette,
    "composite": load_composite,
    "composite-10": load_composite_garments,
    "digits": load_digits,
}


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Load the image set ``name`` (a key of :data:`DATASETS`) from ``root``, or from ``$ZBKERNELS_DATA``.

    Raises:
        DataError: the name is unknown, or a file is missing or broken.
    """
    if name not in DATASETS:
        raise DataError(f"unknown image set {name!r}; known: {', '.join(DATASETS)}")
    return DATASETS[name](root)
