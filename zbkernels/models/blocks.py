"""The block that all residual networks consist of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """``relu(shortcut(x) + branch(x))``, or ``shortcut(relu(x)) + branch(relu(x))`` with ``pre_activation``.

    Args:
        branch: layers by name, in order. They become the block's own, as in torchvision's ResNets (``conv1``,
            ``bn1``, …), so that a ``state_dict`` has the same keys.
        downsample: what makes the shortcut fit the branch; None: the shortcut is x itself (without the ReLU).
        pre_activation: the ReLU stands first.
    """

    def __init__(
        self,
        branch: Mapping[str, nn.Module],
        downsample: nn.Module | None = None,
        pre_activation: bool = False,
    ) -> None:
        super().__init__()
        for name, layer in branch.items():
            self.add_module(name, layer)
        *self._inner, self._last = branch
        self.downsample = downsample
        self.relu = nn.ReLU()
        self.pre_activation = pre_activation

    def branch(self) -> dict[str, nn.Module]:
        """The branch's layers by name, in order."""
        return {name: self.get_submodule(name) for name in (*self._inner, self._last)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.relu(x) if self.pre_activation else x
        shortcut = x if self.downsample is None else self.downsample(h)
        for name in self._inner:
            h = self.get_submodule(name)(h)
        y = shortcut + self.get_submodule(self._last)(h)
        return y if self.pre_activation else self.relu(y)
