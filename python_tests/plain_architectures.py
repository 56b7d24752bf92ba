"""Well-known networks in plain torch code, by name: what test_fuse_architectures.py and the bench of ``fuse`` run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plain_classifiers as classifiers
import plain_dense as dense
import plain_residual as residual
import torch
from torch import nn


@dataclass(frozen=True)
class Architecture:
    """A network in two sizes.

    Attributes:
        constructor: ``constructor(bias, width)``; without ``bias`` it has no batch norm either.
        shape: of one input of the small network, without the batch.
        width: of the small network.
        usual_shape: a batch for the network with its usual width.
        chains: how many chains ``fuse`` finds in the usual form and without biases.
        inputs: how many of them forward takes.
    """

    constructor: Callable[..., nn.Module]
    shape: tuple[int, ...]
    width: int
    usual_shape: tuple[int, ...]
    chains: tuple[int, int]
    inputs: int = 1

    def small(self, bias: bool) -> nn.Module:
        """In training mode, with lazy layers made."""
        model = self.constructor(bias, width=self.width)
        model.eval()(*self.small_inputs())
        return model.train()

    def small_inputs(self, batch: int = 3) -> tuple[torch.Tensor, ...]:
        return _draw(self.inputs, (batch, *self.shape))

    def usual(self, bias: bool) -> nn.Module:
        model = self.constructor(bias)
        model.eval()(*_draw(self.inputs, (1, *self.usual_shape[1:])))
        return model.train()

    def usual_inputs(self) -> tuple[torch.Tensor, ...]:
        return _draw(self.inputs, self.usual_shape)


def _draw(count: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for _ in range(count))


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
ARCHITECTURES = {
    "LeNet-5": Architecture(classifiers.LeNet, MNIST, 4, (128, *MNIST), (0, 4)),
    "MNIST net": Architecture(classifiers.MNISTNet, MNIST, 4, (128, *MNIST), (0, 3)),
    "MNIST net, old": Architecture(classifiers.OldMNISTNet, MNIST, 4, (128, *MNIST), (0, 3)),
    "CIFAR net": Architecture(classifiers.CIFARNet, CIFAR, 4, (128, *CIFAR), (0, 4)),
    "AlexNet": Architecture(classifiers.AlexNet, (3, 64, 64), 4, (16, 3, 224, 224), (0, 6)),
    "ZFNet": Architecture(classifiers.ZFNet, (3, 48, 48), 4, (16, 3, 96, 96), (0, 3)),
    "NiN": Architecture(classifiers.NiN, CIFAR, 8, (32, *CIFAR), (0, 5)),
    "VGG": Architecture(classifiers.VGG, CIFAR, 8, (32, *CIFAR), (0, 7)),
    "SqueezeNet": Architecture(classifiers.SqueezeNet, (3, 40, 40), 8, (32, 3, 96, 96), (0, 11)),
    "GoogLeNet": Architecture(classifiers.GoogLeNet, CIFAR, 8, (32, 3, 96, 96), (0, 13)),
    "MLP": Architecture(classifiers.MLP, MNIST, 16, (128, *MNIST), (0, 2)),
    "ResNet, basic": Architecture(residual.resnet_basic, CIFAR, 8, (16, 3, 96, 96), (0, 4)),
    "ResNet, bottleneck": Architecture(residual.resnet_bottleneck, CIFAR, 8, (16, 3, 96, 96), (0, 7)),
    "NFNet": Architecture(residual.NFNet, CIFAR, 8, (32, *CIFAR), (1, 4)),
    "DenseNet": Architecture(residual.DenseNet, CIFAR, 4, (32, *CIFAR), (1, 3)),
    "MobileNet v1": Architecture(residual.MobileNetV1, CIFAR, 8, (32, 3, 96, 96), (0, 5)),
    "MobileNet v2": Architecture(residual.MobileNetV2, CIFAR, 8, (32, 3, 96, 96), (0, 1)),
    "ShuffleNet": Architecture(residual.ShuffleNet, CIFAR, 8, (32, *CIFAR), (1, 3)),
    "U-Net": Architecture(dense.UNet, (3, 19, 22), 4, (2, 3, 96, 96), (0, 10)),
    "DnCNN": Architecture(dense.DnCNN, (1, 20, 20), 8, (8, 1, 50, 50), (0, 4)),
    "SRCNN": Architecture(dense.SRCNN, (1, 21, 21), 8, (8, 1, 33, 33), (0, 2)),
    "autoencoder": Architecture(dense.Autoencoder, MNIST, 8, (128, *MNIST), (0, 2)),
    "Siamese net": Architecture(dense.SiameseNet, MNIST, 4, (64, *MNIST), (0, 6), inputs=2),
    "two heads": Architecture(dense.TwoHeadedNet, CIFAR, 4, (64, *CIFAR), (0, 3)),
    "DQN": Architecture(dense.DQN, (4, 84, 84), 4, (32, 4, 84, 84), (0, 4)),
    "TCN": Architecture(dense.TCN, (1, 1, 40), 4, (32, 1, 1, 400), (0, 0)),
    "WaveNet": Architecture(dense.WaveNet, (1, 4, 40), 4, (8, 1, 4, 400), (0, 1)),
    "FPN": Architecture(dense.FPN, CIFAR, 4, (8, 3, 96, 96), (0, 6)),
    "DCGAN discriminator": Architecture(dense.Discriminator, CIFAR, 8, (64, *CIFAR), (1, 3)),
}
