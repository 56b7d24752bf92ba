"""Networks for the scalar-invariance tests: one builder each, with and without what breaks it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

CHANNELS = 4


class Block(nn.Module):
    """The basic block of a ResNet with batch norms, in torchvision's names; one ReLU module is used twice."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += shortcut
        return self.relu(out)


class ResNet(nn.Module):
    """Two stages of two blocks for images [N, 3, H, W]; 10 classes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Block(width, width), Block(width, width))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.avgpool(x).flatten(1))


def trained_resnet() -> ResNet:
    """In evaluation mode, with running statistics of its own: one batch was seen."""
    torch.manual_seed(0)
    model = ResNet()
    model(torch.rand(8, 3, 12, 12))
    return model.eval()


class Functional(nn.Module):
    """Everything by functions and operators, no submodules but parameters."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(CHANNELS, 3, 3, 3))
        self.offset = nn.Parameter(torch.randn(CHANNELS)) if bias else None
        self.matrix = nn.Parameter(torch.randn(5, CHANNELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(F.conv2d(x, self.kernel, self.offset, padding=1)), 2)
        return y.mean((2, 3)) @ self.matrix.t() * 0.5


class TransformerBlock(nn.Module):
    """Pre-norm, in the usual words: attention and a GELU network on two residual branches."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 16)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(16, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class LinearAttention(nn.Module):
    """(q kᵀ) v without softmax: of degree 3, so predictions keep though values don't."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.q(x) @ self.k(x).transpose(1, 2)) @ self.v(x)).mean(1)


class Embedded(nn.Module):
    """Patches with a position embedding or a class token."""

    def __init__(self, position: bool, token: bool) -> None:
        super().__init__()
        self.project = nn.Linear(12, 6, bias=False)
        self.pos_embed = nn.Parameter(torch.randn(1, 16 + token, 6)) if position else None
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6)) if token else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(x.reshape(len(x), 16, 12))
        if self.cls_token is not None:
            y = torch.cat([self.cls_token.expand(len(x), -1, -1), y], 1)
        if self.pos_embed is not None:
            y = y + self.pos_embed
        return F.relu(y).sum(1)


def vgg(bias: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, bias=bias),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8 * 4, 10, bias=bias),
    )
