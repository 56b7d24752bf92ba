"""EfficientNet-B0 (Tan & Le, 2019) in plain torch, with torchvision's parameter names, for looking at its checkpoints.

Left out is what has no effect in evaluation: torchvision drops whole residual branches while it trains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stage:
    """``blocks`` blocks in a row; the first of them has the stride and changes the number of channels."""

    expand: int
    kernel: int
    stride: int
    out: int
    blocks: int


# Table 1 of the EfficientNet paper: stages 2 to 8.
B0 = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)
STEM, HEAD = 32, 1280
SQUEEZE = 4  # the squeezed layer has a quarter of the block's input channels


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """Convolution without bias, batch normalisation, SiLU: keys ``0`` and ``1``."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([nn.SiLU()] if act else []))


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate in (0, 1) that depends on the means of all of them."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)  # [N, C, 1, 1]
        return x * self.fc2(nn.functional.silu(self.fc1(means))).sigmoid()


class InvertedBottleneck(nn.Module):
    """1×1 to ``expand`` times the channels (none where that is 1), depthwise, gate, 1×1 back; x is added where it
    fits."""

    def __init__(self, inputs: int, outputs: int, stage: Stage, stride: int) -> None:
        super().__init__()
        wide = inputs * stage.expand
        widen = [conv_norm(inputs, wide, 1)] if wide != inputs else []
        self.block = nn.Sequential(
            *widen,
            conv_norm(wide, wide, stage.kernel, stride, groups=wide),
            SqueezeExcitation(wide, max(1, inputs // SQUEEZE)),
            conv_norm(wide, outputs, 1, act=False),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.adds else self.block(x)


class EfficientNet(nn.Module):
    """EfficientNet-B0: images ``[N, 3, H, W]``, normalised as its checkpoint wants them, to logits ``[N, classes]``."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        stages: list[nn.Module] = [conv_norm(3, STEM, 3, stride=2)]
        channels = STEM
        for stage in B0:
            blocks = []
            for index in range(stage.blocks):
                blocks.append(InvertedBottleneck(channels, stage.out, stage, 1 if index else stage.stride))
                channels = stage.out
            stages.append(nn.Sequential(*blocks))
        stages.append(conv_norm(channels, HEAD, 1))
        self.features = nn.Sequential(*stages)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(HEAD, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x).mean((2, 3)), 1))
