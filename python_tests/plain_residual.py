"""Networks with residual or dense connections and light ones for phones, in plain torch code as it is usually written.

``bias`` and ``width`` as in plain_classifiers.py. Some lose their batch norms by ``norm_layer=nn.Identity``.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv3x3(in_planes, out_planes, stride=1, groups=1):
    return nn.Conv2d(in_planes, out_planes, 3, stride=stride, padding=1, groups=groups, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride=1, downsample=None, norm_layer=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = norm_layer(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = norm_layer(planes)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes, planes, stride=1, downsample=None, norm_layer=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=1, bias=False)
        self.bn1 = norm_layer(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = norm_layer(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, kernel_size=1, bias=False)
        self.bn3 = norm_layer(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        residual = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.bn3(out)
        if self.downsample is not None:
            residual = self.downsample(x)
        out = out + residual
        return self.relu(out)


class ResNet(nn.Module):
    """A stem with a pool, then blocks; without normalisation ``norm_layer`` is nn.Identity."""

    def __init__(self, block, bias=True, width=64, num_classes=10):
        super().__init__()
        self._norm_layer = nn.BatchNorm2d if bias else nn.Identity
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = self._norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, width, 2)
        self.layer2 = self._make_layer(block, 2 * width, 1, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * width * block.expansion, num_classes, bias=bias)

    def _make_layer(self, block, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.inplanes != planes * block.expansion:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, planes * block.expansion, 1, stride=stride, bias=False),
                self._norm_layer(planes * block.expansion),
            )
        layers = [block(self.inplanes, planes, stride, downsample, self._norm_layer)]
        self.inplanes = planes * block.expansion
        layers += [block(self.inplanes, planes, norm_layer=self._norm_layer) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)

    def forward(self, x):
        return self._forward_impl(x)


def resnet_basic(bias=True, width=64):
    return ResNet(BasicBlock, bias, width)


def resnet_bottleneck(bias=True, width=64):
    return ResNet(Bottleneck, bias, width)


class WSConv2d(nn.Conv2d):
    """Weight standardisation in a forward of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def standardised(self):
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), keepdim=True)
        scale = torch.rsqrt(var * self.weight[0].numel() + 1e-4) * self.gain
        return (self.weight - mean) * scale

    def forward(self, x):
        weight = self.standardised()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class NFBlock(nn.Module):
    def __init__(self, channels, alpha, beta, bias):
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.conv1 = WSConv2d(channels, channels, 1, bias=bias)
        self.conv2 = WSConv2d(channels, channels, 3, padding=1, bias=bias)
        self.skipinit_gain = nn.Parameter(torch.full((), 0.5))

    def forward(self, x):
        out = F.relu(x) * 1.7139 * self.beta
        out = F.relu(self.conv1(out)) * 1.7139
        out = self.conv2(out)
        return out * self.skipinit_gain * self.alpha + x


class NFNet(nn.Module):
    """Normaliser-free: standardised weights are a function's, made anew in each forward."""

    def __init__(self, bias=True, width=64, num_classes=10):
        super().__init__()
        self.stem_weight = nn.Parameter(torch.randn(width, 3, 3, 3) * 0.2)
        self.blocks = nn.Sequential(*(NFBlock(width, 0.2, 1 / (1 + 0.04 * i) ** 0.5, bias) for i in range(2)))
        self.final = WSConv2d(width, 2 * width, 1, bias=bias)
        self.fc = nn.Linear(2 * width, num_classes, bias=bias)

    def forward(self, x):
        mean = self.stem_weight.mean(dim=(1, 2, 3), keepdim=True)
        x = F.max_pool2d(F.relu(F.conv2d(x, self.stem_weight - mean, padding=1)), 3, stride=2, padding=1)
        x = F.relu(self.final(self.blocks(x)))
        return self.fc(x.mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, cin, growth, bias):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(cin) if bias else nn.Identity()
        self.conv1 = nn.Conv2d(cin, 4 * growth, kernel_size=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth) if bias else nn.Identity()
        self.conv2 = nn.Conv2d(4 * growth, growth, kernel_size=3, padding=1, bias=False)
        self.drop_rate = 0.1

    def forward(self, prev_features):
        out = self.conv1(F.relu(self.norm1(torch.cat(prev_features, 1))))
        out = self.conv2(F.relu(self.norm2(out)))
        if self.drop_rate > 0:
            out = F.dropout(out, p=self.drop_rate, training=self.training)
        return out


class DenseNet(nn.Module):
    """Layers that are given a list of all maps before them."""

    def __init__(self, bias=True, width=32, num_classes=10):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 2 * width, kernel_size=3, padding=1, bias=False)
        self.layers = nn.ModuleList([DenseLayer((2 + i) * width, width, bias) for i in range(2)])
        self.transition = nn.Sequential(
            nn.BatchNorm2d(4 * width) if bias else nn.Identity(),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * width, 2 * width, kernel_size=1, bias=False),
            nn.AvgPool2d(kernel_size=2, stride=2),
        )
        self.classifier = nn.Linear(2 * width, num_classes, bias=bias)

    def forward(self, x):
        features = [F.max_pool2d(F.relu(self.conv0(x)), 2)]
        for layer in self.layers:
            features.append(layer(features))
        x = F.relu(self.transition(torch.cat(features, 1)), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class MobileNetV1(nn.Module):
    """Depthwise and pointwise convolutions by two small functions."""

    def __init__(self, bias=True, width=32, num_classes=10):
        super().__init__()

        def conv_bn(inp, oup, stride):
            norm = [nn.BatchNorm2d(oup)] if bias else []
            return nn.Sequential(nn.Conv2d(inp, oup, 3, stride, 1, bias=False), *norm, nn.ReLU(inplace=True))

        def conv_dw(inp, oup, stride):
            norms = [[nn.BatchNorm2d(n)] if bias else [] for n in (inp, oup)]
            return nn.Sequential(
                nn.Conv2d(inp, inp, 3, stride, 1, groups=inp, bias=False),
                *norms[0],
                nn.ReLU(inplace=True),
                nn.Conv2d(inp, oup, 1, 1, 0, bias=False),
                *norms[1],
                nn.ReLU(inplace=True),
            )

        self.model = nn.Sequential(
            conv_bn(3, width, 2),
            conv_dw(width, 2 * width, 1),
            conv_dw(2 * width, 4 * width, 2),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc = nn.Linear(4 * width, num_classes, bias=bias)

    def forward(self, x):
        x = self.model(x)
        x = x.view(-1, self.fc.in_features)
        return self.fc(x)


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand_ratio, norm_layer):
        super().__init__()
        hidden = inp * expand_ratio
        self.use_res_connect = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False),
            norm_layer(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            norm_layer(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, oup, 1, bias=False),
            norm_layer(oup),
        )

    def forward(self, x):
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class MobileNetV2(nn.Module):
    """ReLU6 everywhere, which no op of this package does, but for the last convolution's ReLU."""

    def __init__(self, bias=True, width=32, num_classes=10):
        super().__init__()
        norm_layer = nn.BatchNorm2d if bias else nn.Identity
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False),
            norm_layer(width),
            nn.ReLU6(inplace=True),
            InvertedResidual(width, width, 1, 2, norm_layer),
            InvertedResidual(width, 2 * width, 2, 2, norm_layer),
            nn.Conv2d(2 * width, 4 * width, 1, bias=False),
            norm_layer(4 * width),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * width, num_classes, bias=bias))

    def forward(self, x):
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1)).reshape(x.shape[0], -1)
        return self.classifier(x)


def channel_shuffle(x, groups):
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, -1, height, width)


class ShuffleUnit(nn.Module):
    def __init__(self, channels, bias, groups=2):
        super().__init__()
        self.groups = groups
        self.compress = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(channels) if bias else nn.Identity()
        self.depthwise = conv3x3(channels, channels, groups=channels)
        self.bn2 = nn.BatchNorm2d(channels) if bias else nn.Identity()
        self.expand = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)

    def forward(self, x):
        residual = x
        out = F.relu(self.bn1(self.compress(x)))
        out = channel_shuffle(out, self.groups)
        out = self.expand(self.bn2(self.depthwise(out)))
        return F.relu(residual + out)


class ShuffleNet(nn.Module):
    """Grouped convolutions and channels that change places by ``view``."""

    def __init__(self, bias=True, width=24, num_classes=10):
        super().__init__()
        self.conv1 = nn.Sequential(conv3x3(3, width, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.stage2 = nn.Sequential(ShuffleUnit(width, bias), ShuffleUnit(width, bias))
        self.globalpool = nn.AvgPool2d(8)
        self.fc = nn.Linear(width, num_classes, bias=bias)

    def forward(self, x):
        x = self.stage2(self.conv1(x))
        x = self.globalpool(x)
        x = x.view(-1, x.shape[1] * x.shape[2] * x.shape[3])
        return self.fc(x)
