"""What each workflow is tried on: our layers, a fused model, networks of zbkernels.models; and examples for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import zbkernels as zb
from zbkernels.models import ARCHITECTURES, ResNet, build

SHAPE, CLASSES = (1, 8, 8), 3


class Plain(nn.Module):
    """A network as someone writes it, with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 1, 3, 3) / 3)
        self.conv = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6 * 2 * 2, 8, bias=False)
        self.out = nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(F.conv2d(x, self.weight, padding=1)), 2)
        x = F.avg_pool2d(self.relu(self.conv(x)), 2).flatten(1)
        return self.out(F.relu(self.fc(x)))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return Plain()


def fused() -> nn.Module:
    """:func:`plain`'s twin, fused."""
    model = plain()
    report = zb.fuse(model, when="always")
    assert len(report.fused) == 3, report
    return model


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 4, 3, padding=1),
        zb.nn.ConvReLUPool2d(4, 6, 3, padding=1, pool="avg"),
        nn.Flatten(),
        zb.nn.LinearReLU(6 * 2 * 2, 8, negative_slope=0.1),
        zb.nn.LinearReLU(8, CLASSES, negative_slope=1.0),
    )


def resnet9() -> nn.Module:
    return build(ARCHITECTURES["resnet9-small"], SHAPE, CLASSES)


def fixup() -> nn.Module:
    """With scalar multipliers. The layers that start at 0 would leave most gradients 0."""
    model = build(ResNet("tiny-fixup", "basic", (1, 1), style="fixup", width=4), SHAPE, CLASSES)
    torch.manual_seed(0)
    for layer in model.modules():
        if getattr(layer, "start_scale", 1.0) == 0:
            nn.init.normal_(layer.get_parameter("weight"), std=0.1)
    return model


MODELS = {"layers": layers, "fused": fused, "resnet9": resnet9, "fixup": fixup}


def examples(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(images [count, *SHAPE], labels [count])"""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    return torch.randn(count, *SHAPE, generator=draw) + labels[:, None, None, None], labels
