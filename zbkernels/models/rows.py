"""The networks of the experiments, one row each.

"Scalar Invariant Networks with Zero Bias" names its networks (FCN, CNN) but gives no sizes. These were chosen
under the paper's own training settings so that accuracy at scalar 1 comes out beside the paper's; see
docs/results/ for what was tried.
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
class Linear:
    """A fully connected layer and a ReLU."""

    out: int


@dataclass(frozen=True)
class Architecture:
    """Hidden blocks in order; a last linear layer without activation, one output per class, follows them."""

    name: str
    blocks: tuple[Conv | Linear, ...]

    def __str__(self) -> str:
        parts = []
        for block in self.blocks:
            if isinstance(block, Conv):
                parts.append(f"conv{block.kernel}×{block.kernel}({block.out})")
                if block.pool > 1:
                    parts.append(f"pool{block.pool}")
            else:
                parts.append(f"fc({block.out})")
        return "-".join([*parts, "fc(classes)"])


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("fcn-mnist", (Linear(32),)),
        Architecture("cnn-fashion", (Conv(16), Conv(32, pool=1), Linear(128))),
    )
}
