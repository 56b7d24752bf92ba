"""The problems of the suite ``trained-kernels``: a layer's kernel over angles, and one training iteration."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class AngleCase:
    """The normalised kernel of a ReLU layer at y = cos(t) x + sin(t) p, of ``pairs`` (x, p) and ``angles`` t.

    ``mode``: ``kernel`` begins with x and p of d numbers and the weight [n, d]; ``sums`` with the two pre-activations
    (d is 0).
    """

    name: str
    pairs: int
    d: int
    n: int
    angles: int
    mode: str = "kernel"
    dtype: str = "float32"

    suite = "trained-kernels"
    op = "layer_kernel"

    @property
    def flops(self) -> int:
        """Operations: two products with the weight; for each unit and angle four multiply-adds and a maximum."""
        return self.pairs * self.n * (4 * self.d + 9 * self.angles)

    @property
    def min_bytes(self) -> int:
        """Least traffic: inputs (or pre-activations) and weight read once, the kernel written once."""
        inputs = 2 * self.pairs * (self.d or self.n)
        elements = inputs + self.n * self.d + self.pairs * self.angles
        return elements * getattr(torch, self.dtype).itemsize

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``64 pairs of 784 -> 784 units, 32 angles``."""
        of = f" of {self.d} ->" if self.d else ","
        return f"{self.pairs} pair{'s' if self.pairs > 1 else ''}{of} {self.n} units, {self.angles} angles"


@dataclasses.dataclass(frozen=True)
class IterationCase:
    """One training iteration of a bias-free autoencoder of equally wide layers with a ReLU each: forward, mean squared
    error, backward, Adam."""

    name: str
    n: int
    width: int
    layers: int = 4
    dtype: str = "float32"

    suite = "trained-kernels"
    op = "model"  # of the table alone: a network is no op
    mode = "train"

    @property
    def flops(self) -> int:
        """Operations of the products: forward, the weights' gradients and, but for the first layer, the inputs'."""
        return 2 * self.n * self.width**2 * (3 * self.layers - 1)

    @property
    def min_bytes(self) -> int:
        """Least traffic: Adam reads and writes each weight and its two moments once; inputs read once."""
        return (6 * self.layers * self.width**2 + self.n * self.width) * getattr(torch, self.dtype).itemsize

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``256x3072, 4 layers, Adam``."""
        return f"{self.n}x{self.width}, {self.layers} layers, Adam"


def cases() -> list[AngleCase | IterationCase]:
    """On every device: the widths of the networks on MNIST and CIFAR-10, and layers wide enough for few pairs."""
    return [
        AngleCase("kernel-784", 64, 784, 784, 32),
        AngleCase("kernel-3072", 64, 3072, 3072, 32),
        AngleCase("kernel-3072-a8", 64, 3072, 3072, 8),
        AngleCase("sums-3072", 64, 0, 3072, 32, "sums"),
        AngleCase("sums-1m", 2, 0, 1_000_000, 32, "sums"),
        IterationCase("iteration-784", 256, 784),
        IterationCase("iteration-3072", 256, 3072),
    ]


def cuda_cases() -> list[AngleCase | IterationCase]:
    """Rows of a card only: the dtype of its tensor cores."""
    return [
        AngleCase("kernel-3072-bf16", 64, 3072, 3072, 32, dtype="bfloat16"),
        IterationCase("iteration-3072-bf16", 256, 3072, dtype="bfloat16"),
    ]
