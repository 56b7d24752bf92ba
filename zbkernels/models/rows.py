"""The networks of the experiments and of the benches, one row each.

"Scalar Invariant Networks with Zero Bias" names its networks (FCN, CNN) but gives no sizes. These were chosen
under the paper's own training settings so that accuracy at scalar 1 comes out beside the paper's; see
docs/results/ for what was tried. ``resnet9`` and ``vgg11`` have the layers of the networks that are known by these
names on CIFAR-10, but for what a network without biases cannot have: batch normalisation. The ResNets are those of
He et al. (2016) in four styles, which ``resnet.py`` explains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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


STYLES = ("plain", "fixup", "nf", "bn")
STEMS = ("cifar", "imagenet")
BLOCKS = ("basic", "bottleneck")


@dataclass(frozen=True)
class ResNet:
    """A residual network: a first convolution, stages of residual blocks, the average of the map, a linear layer.

    Attributes:
        block: "basic" (two 3×3 convolutions) or "bottleneck" (1×1, 3×3, and 1×1 to four times the channels).
        depths: blocks in each stage. Stage k is ``width``·2^k wide and, but for the first, begins by halving the map.
        stem: "cifar" (3×3) or "imagenet" (7×7 with stride 2, then a max pool of 3×3 with stride 2).
        style: "plain" (no normalisation), "fixup", "nf" or "bn"; see ``resnet.py``.
        width: channels of the first convolution and of the first stage.
        alpha: of "nf", the growth of the variance from block to block.
        image: [C, H, W], the shape of the images that the network is meant for.
    """

    name: str
    block: str
    depths: tuple[int, ...]
    stem: str = "cifar"
    style: str = "plain"
    width: int = 64
    alpha: float = 0.2
    image: tuple[int, int, int] = (3, 32, 32)

    def __post_init__(self) -> None:
        for field, known in (("block", BLOCKS), ("stem", STEMS), ("style", STYLES)):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"{self.name}: expected {field} to be one of {', '.join(known)}, got {getattr(self, field)!r}"
                )
        if not self.depths or min(self.depths) < 1 or self.width < 1:
            raise ValueError(
                f"{self.name}: expected at least one block in each stage and width ≥ 1, got depths "
                f"{self.depths} and width {self.width}"
            )

    def __str__(self) -> str:
        first = f"conv3×3({self.width})" if self.stem == "cifar" else f"conv7×7/2({self.width})-pool3/2"
        stages = [f"{depth}×{self.block}({self.width << stage})" for stage, depth in enumerate(self.depths)]
        style = {"plain": "", "nf": f", nf {self.alpha}"}.get(self.style, f", {self.style}")
        return "-".join([first, *stages, "average", "fc(classes)"]) + style


def _in_every_style(row: ResNet) -> tuple[ResNet, ...]:
    return tuple(
        replace(row, name=row.name if style == "plain" else f"{row.name}-{style}", style=style)
        for style in STYLES
    )


_ROWS: tuple[Architecture | ResNet, ...] = (
    Architecture("fcn-mnist", (Linear(32),)),
    Architecture("cnn-fashion", (Conv(16), Conv(32, pool=1), Linear(128))),
    Architecture(
        "resnet9",
        (Conv(64, pool=1), Conv(128), Residual(), Conv(256), Conv(512), Residual(pool=4)),
        image=(3, 32, 32),
    ),
    Architecture(  # for images of 8×8
        "resnet9-small",
        (Conv(8, pool=1), Conv(16), Residual(), Conv(32), Residual(pool=2)),
        image=(1, 8, 8),
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
    *_in_every_style(ResNet("resnet18", "basic", (2, 2, 2, 2))),
    *_in_every_style(ResNet("resnet18-w16", "basic", (2, 2, 2, 2), width=16)),
    *_in_every_style(ResNet("resnet50", "bottleneck", (3, 4, 6, 3), "imagenet", image=(3, 224, 224))),
    *_in_every_style(ResNet("resnet50-w8", "bottleneck", (3, 4, 6, 3), "imagenet", width=8)),
    ResNet("resnet18-imagenet-bn", "basic", (2, 2, 2, 2), "imagenet", "bn", image=(3, 224, 224)),
    ResNet("resnet34-imagenet-bn", "basic", (3, 4, 6, 3), "imagenet", "bn", image=(3, 224, 224)),
)

ARCHITECTURES: dict[str, Architecture | ResNet] = {row.name: row for row in _ROWS}
