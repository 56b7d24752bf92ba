"""Well-known classifiers of the time before residual connections, in plain torch code as it is usually written.

Each takes ``bias``: True is its usual form, with biases and batch norms; False has neither. ``width`` is the number of
channels of its first layer (of hidden units in the MLP), so that the same code is small in a test and full in a bench.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class LeNet(nn.Module):
    """LeNet-5 with ReLU, average pools and its layers under names of their own."""

    def __init__(self, bias=True, width=6, num_classes=10):
        super().__init__()
        self.c1 = nn.Conv2d(1, width, kernel_size=5, padding=2, bias=bias)
        self.s2 = nn.AvgPool2d(kernel_size=2, stride=2)
        self.c3 = nn.Conv2d(width, 16, kernel_size=5, bias=bias)
        self.s4 = nn.AvgPool2d(2, 2)
        self.c5 = nn.Conv2d(16, 120, kernel_size=5, bias=bias)
        self.f6 = nn.Linear(120, 84, bias=bias)
        self.output = nn.Linear(84, num_classes, bias=bias)

    def forward(self, img):
        output = self.s2(torch.relu(self.c1(img)))
        output = self.s4(torch.relu(self.c3(output)))
        output = torch.relu(self.c5(output))
        output = output.view(img.size(0), -1)
        output = torch.relu(self.f6(output))
        return self.output(output)


class MNISTNet(nn.Module):
    """A beginner's net for MNIST: everything functional, log-softmax at the end."""

    def __init__(self, bias=True, width=32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, 1, bias=bias)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, 1, bias=bias)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(2 * width * 144, 128, bias=bias)
        self.fc2 = nn.Linear(128, 10, bias=bias)

    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


class OldMNISTNet(nn.Module):
    """An older habit: the pool before its ReLU, dropout of channels between them, and ``view``."""

    def __init__(self, bias=True, width=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, kernel_size=5, bias=bias)
        self.conv2 = nn.Conv2d(width, 20, kernel_size=5, bias=bias)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50, bias=bias)
        self.fc2 = nn.Linear(50, 10, bias=bias)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class CIFARNet(nn.Module):
    """A beginner's net for CIFAR: one pool used twice."""

    def __init__(self, bias=True, width=6):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 5, bias=bias)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(width, 16, 5, bias=bias)
        self.fc1 = nn.Linear(16 * 5 * 5, 120, bias=bias)
        self.fc2 = nn.Linear(120, 84, bias=bias)
        self.fc3 = nn.Linear(84, 10, bias=bias)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class AlexNet(nn.Module):
    """Overlapping pools, a dropout in place after the pooled map."""

    def __init__(self, bias=True, width=64, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=11, stride=4, padding=2, bias=bias),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(width, 3 * width, kernel_size=5, padding=2, bias=bias),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(3 * width, 6 * width, kernel_size=3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.Conv2d(6 * width, 4 * width, kernel_size=3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * width, 4 * width, kernel_size=3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.5, inplace=True),
            nn.Linear(16 * width, 16 * width, bias=bias),
            nn.ReLU(inplace=True),
            nn.Dropout(p=0.5),
            nn.Linear(16 * width, num_classes, bias=bias),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


class ZFNet(nn.Module):
    """ZFNet and OverFeat's way: blocks with local response normalisation after the pool, in a ModuleList."""

    def __init__(self, bias=True, width=96, num_classes=10):
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(3, width, 7, stride=2, padding=1, bias=bias),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2, padding=1),
                    nn.LocalResponseNorm(5),
                ),
                nn.Sequential(
                    nn.Conv2d(width, 2 * width, 5, stride=2, bias=bias),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
                ),
                nn.Sequential(nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=bias), nn.ReLU()),
            ]
        )
        self.flatten = nn.Flatten()
        self.fc = nn.LazyLinear(num_classes, bias=bias)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.fc(self.flatten(x))


class NiN(nn.Module):
    """Network in network: 1x1 convolutions after each, pools that round up, dropout after the pool."""

    def __init__(self, bias=True, width=192, num_classes=10):
        super().__init__()

        def mlpconv(cin, cout, kernel, padding):
            return [
                nn.Conv2d(cin, cout, kernel, padding=padding, bias=bias),
                nn.ReLU(inplace=True),
                nn.Conv2d(cout, cout, kernel_size=1, bias=bias),
                nn.ReLU(inplace=True),
            ]

        self.net = nn.Sequential(
            *mlpconv(3, width, 5, 2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Dropout(inplace=True),
            *mlpconv(width, width, 5, 2),
            nn.AvgPool2d(kernel_size=3, stride=2, ceil_mode=True),
            nn.Dropout(inplace=True),
            nn.Conv2d(width, num_classes, 3, padding=1, bias=bias),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, x):
        x = self.net(x)
        return x.view(x.size(0), -1)


class VGG(nn.Module):
    """Layers made from a list of numbers and letters; batch norms in the usual form."""

    cfg = (1, "M", 2, "M", 4, 4, "M", 8, 8, "M")

    def __init__(self, bias=True, width=64, num_classes=10):
        super().__init__()
        self.features = self._make_layers(bias, width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(8 * width, 8 * width, bias=bias),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(8 * width, num_classes, bias=bias),
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

    def _make_layers(self, bias, width):
        layers, in_channels = [], 3
        for v in self.cfg:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
                continue
            conv2d = nn.Conv2d(in_channels, v * width, kernel_size=3, padding=1, bias=bias)
            layers += [conv2d, nn.BatchNorm2d(v * width)] if bias else [conv2d]
            layers += [nn.ReLU(inplace=True)]
            in_channels = v * width
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.features(x)
        x = self.avgpool(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


class Fire(nn.Module):
    def __init__(self, inplanes, squeeze_planes, expand_planes, bias):
        super().__init__()
        self.squeeze = nn.Conv2d(inplanes, squeeze_planes, kernel_size=1, bias=bias)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze_planes, expand_planes, kernel_size=1, bias=bias)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze_planes, expand_planes, kernel_size=3, padding=1, bias=bias)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))], 1
        )


class SqueezeNet(nn.Module):
    """Fire modules; the classifier is a convolution."""

    def __init__(self, bias=True, width=64, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=3, stride=2, bias=bias),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(width, width // 4, width, bias),
            Fire(2 * width, width // 4, width, bias),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(2 * width, width // 2, 2 * width, bias),
        )
        final_conv = nn.Conv2d(4 * width, num_classes, kernel_size=1, bias=bias)
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.5), final_conv, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x):
        return torch.flatten(self.classifier(self.features(x)), 1)


class BasicConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, bias, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, bias=False, **kwargs)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001) if bias else nn.Identity()

    def forward(self, x):
        x = self.conv(x)
        x = self.bn(x)
        return F.relu(x, inplace=True)


class Inception(nn.Module):
    def __init__(self, cin, ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj, bias):
        super().__init__()
        self.branch1 = BasicConv2d(cin, ch1x1, bias, kernel_size=1)
        self.branch2 = nn.Sequential(
            BasicConv2d(cin, ch3x3red, bias, kernel_size=1),
            BasicConv2d(ch3x3red, ch3x3, bias, kernel_size=3, padding=1),
        )
        self.branch3 = nn.Sequential(
            BasicConv2d(cin, ch5x5red, bias, kernel_size=1),
            BasicConv2d(ch5x5red, ch5x5, bias, kernel_size=5, padding=2),
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            BasicConv2d(cin, pool_proj, bias, kernel_size=1),
        )

    def _forward(self, x):
        return [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]

    def forward(self, x):
        return torch.cat(self._forward(x), 1)


class GoogLeNet(nn.Module):
    """A stem, two inception modules and a second classifier that speaks in training alone."""

    def __init__(self, bias=True, width=64, num_classes=10):
        super().__init__()
        self.conv1 = BasicConv2d(3, width, bias, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        w = width // 4
        self.inception3a = Inception(width, 4 * w, 4 * w, 6 * w, w, 2 * w, 4 * w, bias)
        self.inception3b = Inception(16 * w, 4 * w, 4 * w, 6 * w, w, 2 * w, 4 * w, bias)
        self.aux = nn.Linear(16 * w, num_classes, bias=bias)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(16 * w, num_classes, bias=bias)

    def forward(self, x):
        x = self.maxpool1(self.conv1(x))
        x = self.inception3a(x)
        aux = self.aux(x.mean([2, 3])) if self.training else None
        x = self.inception3b(x)
        x = self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))
        if self.training:
            return x, aux
        return x


class MLP(nn.Module):
    def __init__(self, bias=True, width=512):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(784, width, bias=bias), nn.Linear(width, width, bias=bias)])
        self.head = nn.Linear(width, 10, bias=bias)

    def forward(self, x):
        x = x.view(x.shape[0], -1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)
