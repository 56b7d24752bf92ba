"""Image to image, pyramids, several inputs or outputs, control, sequences: plain torch code as it is usually written.

``bias`` and ``width`` as in plain_classifiers.py.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels, bias):
        super().__init__()
        norms = [nn.BatchNorm2d(out_channels) if bias else nn.Identity() for _ in range(2)]
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            norms[0],
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            norms[1],
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels, bias):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2, bias=bias)
        self.conv = DoubleConv(in_channels, out_channels, bias)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diff_y = x2.size()[2] - x1.size()[2]
        diff_x = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    """Maps that are pooled and kept, and sizes that are computed from shapes."""

    def __init__(self, bias=True, width=64, n_classes=2):
        super().__init__()
        self.inc = DoubleConv(3, width, bias)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width, bias))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width, bias))
        self.up1 = Up(4 * width, 2 * width, bias)
        self.up2 = Up(2 * width, width, bias)
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1, bias=bias)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


class DnCNN(nn.Module):
    """Predicts the noise; a bias-free denoiser is this without its batch norms' shifts."""

    def __init__(self, bias=True, width=64, depth=5):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1, bias=bias), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            layers.append(nn.Conv2d(width, width, 3, padding=1, bias=False))
            if bias:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
        layers.append(nn.Conv2d(width, 1, 3, padding=1, bias=False))
        self.dncnn = nn.Sequential(*layers)

    def forward(self, x):
        noise = self.dncnn(x)
        return x - noise


class SRCNN(nn.Module):
    def __init__(self, bias=True, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, kernel_size=9, padding=9 // 2, bias=bias)
        self.conv2 = nn.Conv2d(width, width // 2, kernel_size=5, padding=5 // 2, bias=bias)
        self.conv3 = nn.Conv2d(width // 2, 1, kernel_size=5, padding=5 // 2, bias=bias)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.conv3(x)


class Autoencoder(nn.Module):
    """An encoder with pools, a decoder of transposed convolutions."""

    def __init__(self, bias=True, width=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(width, width // 4, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width // 4, width, 2, stride=2, bias=bias),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 2, stride=2, bias=bias),
            nn.Sigmoid(),
        )

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code)


class SiameseNet(nn.Module):
    """One trunk for two images, by a method that forward calls twice; the head is called once."""

    def __init__(self, bias=True, width=32):
        super().__init__()
        self.cnn1 = nn.Conv2d(1, width, 5, bias=bias)
        self.cnn2 = nn.Conv2d(width, 2 * width, 3, bias=bias)
        self.fc1 = nn.Linear(2 * width * 25, 64, bias=bias)
        self.fc2 = nn.Linear(64, 1, bias=bias)

    def forward_once(self, x):
        x = F.max_pool2d(F.relu(self.cnn1(x)), 2)
        x = F.max_pool2d(F.relu(self.cnn2(x)), 2)
        x = x.view(x.size()[0], -1)
        return F.relu(self.fc1(x))

    def forward(self, input1, input2):
        output1 = self.forward_once(input1)
        output2 = self.forward_once(input2)
        return torch.sigmoid(self.fc2(torch.abs(output1 - output2)))


class TwoHeadedNet(nn.Module):
    """A shared trunk; a dict of a class and a box."""

    def __init__(self, bias=True, width=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=bias),
            nn.LeakyReLU(0.1, inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=bias),
            nn.LeakyReLU(0.1, inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 64, 10, bias=bias))
        self.box = nn.Sequential(nn.Conv2d(2 * width, 4, 1, bias=bias), nn.ReLU(), nn.AdaptiveMaxPool2d(1))

    def forward(self, images):
        features = self.backbone(images)
        return {"label": self.classifier(features), "box": self.box(features).squeeze(-1).squeeze(-1)}


class DQN(nn.Module):
    """Four frames of a game to the values of its actions, in two streams."""

    def __init__(self, bias=True, width=32, n_actions=6):
        super().__init__()
        self.conv1 = nn.Conv2d(4, width, kernel_size=8, stride=4, bias=bias)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=4, stride=2, bias=bias)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, kernel_size=3, stride=1, bias=bias)
        self.value = nn.Sequential(nn.Linear(2 * width * 49, 8 * width, bias=bias), nn.ReLU())
        self.v = nn.Linear(8 * width, 1, bias=bias)
        self.advantage = nn.Linear(2 * width * 49, n_actions, bias=bias)

    def forward(self, x):
        x = x / 255.0
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = x.reshape(x.size(0), -1)
        advantage = self.advantage(x)
        return self.v(self.value(x)) + advantage - advantage.mean(1, keepdim=True)


class TemporalBlock(nn.Module):
    """A block of a temporal convolutional network, time in the last of two image axes."""

    def __init__(self, cin, cout, dilation, bias):
        super().__init__()
        self.padding = 2 * dilation
        conv1 = nn.Conv2d(cin, cout, (1, 3), padding=(0, self.padding), dilation=(1, dilation), bias=bias)
        conv2 = nn.Conv2d(cout, cout, (1, 3), padding=(0, self.padding), dilation=(1, dilation), bias=bias)
        self.conv1 = nn.utils.parametrizations.weight_norm(conv1)
        self.conv2 = nn.utils.parametrizations.weight_norm(conv2)
        self.dropout = nn.Dropout(0.2)
        self.downsample = nn.Conv2d(cin, cout, 1, bias=bias) if cin != cout else None
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.dropout(self.relu(self.conv1(x)[:, :, :, : -self.padding].contiguous()))
        out = self.relu(self.conv2(F.pad(out, (self.padding, 0)))[..., self.padding : -self.padding])
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


class TCN(nn.Module):
    """Causal: what looks ahead is cut off between a convolution and its ReLU, so that nothing can be fused there."""

    def __init__(self, bias=True, width=16):
        super().__init__()
        self.network = nn.Sequential(*(TemporalBlock((1, width)[i > 0], width, 2**i, bias) for i in range(2)))
        self.linear = nn.Linear(width, 5, bias=bias)

    def forward(self, x):
        y = self.network(x)
        return self.linear(y[:, :, 0, -1])


class WaveNet(nn.Module):
    """Gated, dilated, with skips that are summed up; ReLUs stand between its last convolutions."""

    def __init__(self, bias=True, width=32, layers=3):
        super().__init__()
        self.causal = nn.Conv2d(1, width, (1, 2), bias=bias)
        self.filter_convs = nn.ModuleList()
        self.gate_convs = nn.ModuleList()
        self.skip_convs = nn.ModuleList()
        for i in range(layers):
            self.filter_convs.append(nn.Conv2d(width, width, (1, 2), dilation=(1, 2**i), bias=bias))
            self.gate_convs.append(nn.Conv2d(width, width, (1, 2), dilation=(1, 2**i), bias=bias))
            self.skip_convs.append(nn.Conv2d(width, width, 1, bias=bias))
        self.end_conv_1 = nn.Conv2d(width, width, 1, bias=bias)
        self.end_conv_2 = nn.Conv2d(width, 8, 1, bias=bias)

    def forward(self, x):
        x = self.causal(x)
        skip = 0
        for i, (filter_conv, gate_conv) in enumerate(zip(self.filter_convs, self.gate_convs)):  # noqa: B905
            residual = x
            x = torch.tanh(filter_conv(x)) * torch.sigmoid(gate_conv(x))
            s = self.skip_convs[i](x)
            try:
                skip = skip[..., -s.size(3) :]
            except TypeError:
                skip = 0
            skip = s + skip
            x = x + residual[..., -x.size(3) :]
        x = F.relu(skip)
        x = F.relu(self.end_conv_1(x))
        return self.end_conv_2(x)


class FPN(nn.Module):
    """A pyramid: maps of several sizes in a list, each used by the next and by its lateral convolution."""

    def __init__(self, bias=True, width=32):
        super().__init__()
        self.stages = nn.ModuleList()
        for i in range(3):
            cin = 3 if i == 0 else width * 2 ** (i - 1)
            stage = nn.Conv2d(cin, width * 2**i, 3, padding=1, bias=bias)
            self.stages.append(nn.Sequential(stage, nn.ReLU(inplace=True), nn.MaxPool2d(2)))
        self.lateral = nn.ModuleList([nn.Conv2d(width * 2**i, width, 1, bias=bias) for i in range(3)])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1, bias=bias) for _ in range(3)])

    def _upsample_add(self, x, y):
        _, _, H, W = y.size()
        return F.interpolate(x, size=(H, W), mode="nearest") + y

    def forward(self, x):
        assert x.dim() == 4 and x.shape[1] == 3, f"expected images, got {x.shape}"
        outs = []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        laterals = [conv(out) for conv, out in zip(self.lateral, outs)]  # noqa: B905
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = self._upsample_add(laterals[i], laterals[i - 1])
        return tuple(F.relu(self.smooth[i](laterals[i])) for i in range(len(laterals)))


class Discriminator(nn.Module):
    """DCGAN's: convolutions that have no bias in the usual form either, leaky ReLUs, strides for pools."""

    def __init__(self, bias=True, width=64):
        super().__init__()
        norms = [nn.BatchNorm2d(width * n) if bias else nn.Identity() for n in (2, 4)]
        self.main = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
            norms[0],
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 2, width * 4, 4, 2, 1, bias=False),
            norms[1],
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1)
