"""The networks of the experiments and of the benches, one row each.

"Scalar Invariant Networks with Zero Bias" names its networks (FCN, CNN) but gives no sizes. These were chosen
under the paper's own training settings so that accuracy at scalar 1 comes out beside the paper's; see
docs/results/ for what was tried. ``resnet9`` and ``vgg11`` have the layers of the networks that are known by these
names on CIFAR-10, but for what a network without biases cannot have: batch normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Conv:
    """A convolution with stride 1 and padding kernel // 2, a ReLU, and a max pool of ``pool``×``pool`` (1:
    none)."""

    out: int
    kernel: int = 3
    pool: int = 2


@dataclass(frozen=True)
class Residual:
    """Two convolutions with as many channels out as in, a ReLU after each, whose result is added to the input; then
    a max pool of ``pool``×``pool`` (1: none)."""

    kernel: int = 3
    pool: int = 1


@dataclass(frozen=True)
class Linear:
    """A fully connected layer and a ReLU."""

    out: int


@dataclass(frozen=True)
class Architecture:
    """Hidden blocks in order; a last linear layer without activation, one output per class, follows them.

    ``image`` [C, H, W] is the shape of the images that the network is meant for.
    """

    name: str
    blocks: tuple[Conv | Residual | Linear, ...]
    image: tuple[int, int, int] = (1, 28, 28)

    def __str__(self) -> str:
        parts = []
        for block in self.blocks:
            if isinstance(block, Conv):
                parts.append(f"conv{block.kernel}×{block.kernel}({block.out})")
            elif isinstance(block, Residual):
                parts.append(f"residual{block.kernel}×{block.kernel}")
            else:
                parts.append(f"fc({block.out})")
                continue
            if block.pool > 1:
                parts.append(f"pool{block.pool}")
        return "-".join([*parts, "fc(classes)"])


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("fcn-mnist", (Linear(32),)),
        Architecture("cnn-fashion", (Conv(16), Conv(32, pool=1), Linear(128))),
        Architecture(
            "resnet9",
            (Conv(64, pool=1), Conv(128), Residual(), Conv(256), Conv(512), Residual(pool=4)),
            image=(3, 32, 32),
        ),
        Architecture(
            "vgg11",
            (
                Conv(64),
                Conv(128),
                Conv(256, pool=1),
                Conv(256),
                Conv(512, pool=1),
                Conv(512),
                Conv(512, pool=1),
                Conv(512),
            ),
            image=(3, 32, 32),
        ),
    )
}
