"""Small piecewise-linear networks of every kind of layer, and what a network's pattern is when it is run as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import zbkernels as zb
from zbkernels.models.residual import Sum
from zbkernels.nap.patterns import PatternReader


class OverlappingPools(nn.Module):
    """Residual sum, a ReLU that is read twice, overlapping and padded max pools, a fixed factor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.project = nn.Conv2d(2, 3, 1, bias=False)
        self.head = nn.Linear(3 * 9, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.conv(x))
        y = F.max_pool2d(y, 3, stride=2, padding=1) - 0.5 * F.max_pool2d(y, 2, ceil_mode=True)
        y = y + F.max_pool2d(self.project(x), 2, ceil_mode=True)
        return self.head(F.leaky_relu(y, 0.2).flatten(1))


def fcn(bias: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 9, bias=bias),
        nn.ReLU(),
        nn.Linear(9, 8, bias=bias),
        nn.LeakyReLU(0.1),
        nn.Linear(8, 4, bias=bias),
    )


def fused() -> nn.Module:
    return nn.Sequential(
        zb.nn.ConvReLUPool2d(2, 3, 3, padding=1, pool_kernel=2),
        zb.nn.ConvReLUPool2d(3, 4, 2, pool="avg", negative_slope=0.2, pool_kernel=2),
        nn.Flatten(),
        zb.nn.LinearReLU(4 * 4, 7),
        zb.nn.LinearReLU(7, 4, negative_slope=1.0),
    )


def plain_of_fused(model: nn.Module) -> nn.Module:
    """:func:`fused` with torch's layers and the same weights."""
    plain = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.LeakyReLU(0.2),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, 4, bias=False),
    )
    for new, old in zip(plain.parameters(), model.parameters(), strict=True):
        new.data.copy_(old.data)
    return plain


def residual() -> nn.Module:
    inside = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.ReLU())
    return nn.Sequential(
        Sum(inside), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2 * 9, 4, bias=False)
    )  # fmt: skip


def normalised() -> nn.Module:
    """Batch normalisation in evaluation, with statistics that are not the identity."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(3 * 4, 4, bias=False)).eval()  # fmt: skip
    model[1].running_mean.uniform_(-0.2, 0.2)
    model[1].running_var.uniform_(0.5, 2)
    return model


VECTORS = (6,)
IMAGES = (2, 6, 6)
ZERO_BIAS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "fcn": (fcn, VECTORS),
    "fused": (fused, (2, 10, 10)),
    "pools": (OverlappingPools, (2, 5, 5)),
    "residual": (residual, IMAGES),
}
BIASED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "fcn with bias": (lambda: fcn(True), VECTORS),
    "normalised": (normalised, IMAGES),
}
ALL = ZERO_BIAS | BIASED


def make(
    name: str, count: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[nn.Module, torch.Tensor]:
    """(model, inputs [count, ...])."""
    torch.manual_seed(seed)
    build, shape = ALL[name]
    return build().to(dtype).requires_grad_(False), torch.randn(count, *shape, dtype=dtype)


def pattern_and_prediction(model: nn.Module, x: torch.Tensor, units: str = "winner") -> torch.Tensor:
    """int64 [N, words + 1] of the model run as it is, in its own dtype."""
    signatures, y = PatternReader(model, x, units=units).read(x)
    return torch.cat([signatures, y.argmax(1, keepdim=True)], 1)


def near(model: nn.Module, x: torch.Tensor, count: int, reach: float = 0.9, seed: int = 1) -> torch.Tensor:
    """``count`` inputs around x [1, ...] of its pattern and prediction, some close to the border of its region."""
    from zbkernels.nap import local_linear_map

    region = local_linear_map(model, x).inequalities()
    gen = torch.Generator().manual_seed(seed)
    direction = torch.randn(count, x[0].numel(), generator=gen, dtype=torch.float64)
    slope = direction @ region.A.T
    g = x.double().flatten(1) @ region.A.T + region.b
    way = torch.where(slope < 0, g / -slope, torch.inf).amin(1, keepdim=True).clamp(max=10)
    return (x.double().flatten(1) + reach * way * direction).to(x.dtype).view(count, *x.shape[1:])
