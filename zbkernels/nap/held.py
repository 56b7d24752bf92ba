"""One layer of units held as it is at some anchors: its rows, their magnitudes, and what it passes on.

A layer is an activation of some slope (1: none) and, it may be, a max pool after it. The region in which it would be
held so anyway is a list of rows g that are affine in the input, g > 0 where they are strict, else g >= 0:

- without a pool: z > 0 (strict) where the unit is on, -z >= 0 where it is off, since a bit is (value > 0);
- a max pool alone: its winner w is the first of the largest, so z_w - z_j >= 0, strict for the j before w;
- an activation and a pool: the winner's code alone, since no other bit has a say. Off, at slope 0: all -z_j >= 0. Else
  z_w - z_j as above, and the sign of z_w in place of the row of w against itself.

Rows that can't fail (w against itself, positions outside the map) are 0 and not strict.
"""

from __future__ import annotations

from typing import Any

import torch

from zbkernels.nap.unit_calls import Arguments
from zbkernels.ops._geometry import Geometry


class Held:
    """One layer of units, held as it is where its pre-activations are ``z`` [B, ...].

    Args:
        name: of the layer.
        slope: of the activation, 1 for none.
        window: int64 [O, L], the positions of each pool window in the flattened map in row-major order, -1 outside of
            it; None without a max pool.

    Attributes:
        strict: bool [B, rows].
        ties: bool [B, rows], of the rows z_w - z_j: at 0 two positions of a window are tied; the others are a unit's.
    """

    def __init__(self, name: str, slope: float, window: torch.Tensor | None, z: torch.Tensor) -> None:
        self.name, self.slope, self.window = name, slope, window
        if window is None:
            self.on = z > 0
            self.strict = self.on.flatten(1)
            self.ties = torch.zeros_like(self.strict)
            return
        outside = window < 0
        z = self._candidates(z)  # [B, ..., O, L]
        value = z if slope == 1 else torch.where(z > 0, z, z * slope)
        self.winner = value.masked_fill(outside, -torch.inf).argmax(
            -1, keepdim=True
        )  # the first of the largest
        self.on = z.gather(-1, self.winner) > 0
        slot = torch.arange(window.shape[1], device=z.device)
        self.own = (slot == self.winner) & ~outside
        # Where all are off at slope 0 no unit is compared with another.
        self.dead = ~self.on if slope == 0 else torch.zeros_like(self.on)
        strict = (slot < self.winner) & ~outside & ~self.dead
        if slope != 1:
            strict = strict | (self.own & self.on)
        self.strict = strict.flatten(1)
        self.ties = (~(outside | self.own | self.dead)).flatten(1)
        self.outside = outside

    def _candidates(self, z: torch.Tensor) -> torch.Tensor:
        """[..., H, W] -> [..., O, L]; what stands for positions outside is never looked at."""
        assert self.window is not None
        return z.flatten(-2)[..., self.window.clamp(min=0)]

    def _winner(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(candidates [B, T, ..., O, L], the winner's [B, T, ..., O, 1])."""
        z = self._candidates(z)
        winner = self.winner.unsqueeze(1).expand(-1, z.shape[1], *self.winner.shape[1:])
        return z, z.gather(-1, winner)

    def rows(self, z: torch.Tensor) -> torch.Tensor:
        """[B, T, ...] -> g [B, T, rows]."""
        on = self.on.unsqueeze(1)
        if self.window is None:
            return torch.where(on, z, -z).flatten(2)
        z, winner = self._winner(z)
        g = torch.where(self.dead.unsqueeze(1), -z, winner - z)
        if self.slope != 1:
            sign = torch.where(on, winner, -winner)
            g = torch.where(self.own.unsqueeze(1), sign, g)
        return g.masked_fill(self.outside, 0.0).flatten(2)

    def magnitudes(self, m: torch.Tensor) -> torch.Tensor:
        """The magnitudes of the rows from those of z, [B, T, ...] -> [B, T, rows]."""
        if self.window is None:
            return m.flatten(2).clone()  # an in-place call writes over m
        m, winner = self._winner(m)
        total = torch.where(self.dead.unsqueeze(1), m, winner + m)
        own = winner if self.slope != 1 else torch.zeros_like(winner)
        total = torch.where(self.own.unsqueeze(1), own, total)
        return total.masked_fill(self.outside, 0.0).flatten(2)

    def output(self, z: torch.Tensor) -> torch.Tensor:
        """What the layer passes on: [B, T, ...] -> [B, T, ...], pooled to [..., O] where there is a max pool."""
        on = self.on.unsqueeze(1)
        if self.window is not None:
            z, on = self._winner(z)[1].squeeze(-1), on.squeeze(-1)
        if self.slope == 1:
            return z
        return torch.where(on, z, z * self.slope if self.slope else 0.0)

    def describe(self, row: int) -> str:
        """Which unit a row belongs to."""
        if self.window is None:
            return f"unit {row} of {self.name!r}"
        length = self.window.shape[1]
        return f"window {row // length} of {self.name!r}, position {row % length}"


def pool_windows(args: Arguments, map_size: Any, pooled: Any) -> torch.Tensor:
    """int64 [O, L]: the positions of each window of a max pool call in the flattened map; -1 outside of it."""
    if "output_size" in args:
        rows, columns = (_adaptive(size, out) for size, out in zip(map_size, pooled, strict=True))
    else:
        keys = ("kernel_size", "stride", "padding", "dilation")
        rows, columns = (_strided(map_size[i], pooled[i], *(args[key][i] for key in keys)) for i in (0, 1))
    return _outer(rows, columns, map_size[1])


def fused_windows(g: Geometry, map_size: Any) -> torch.Tensor:
    """The same of ``conv_relu_pool2d``."""
    pooled = g.pooled_size(map_size)
    rows, columns = (
        _strided(map_size[i], pooled[i], g.pool_kernel[i], g.pool_stride[i], g.pool_padding[i], 1)
        for i in (0, 1)
    )
    return _outer(rows, columns, map_size[1])


def _strided(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> torch.Tensor:
    at = (torch.arange(out) * stride - padding).unsqueeze(1) + torch.arange(kernel) * dilation
    return at.masked_fill((at < 0) | (at >= size), -1)


def _adaptive(size: int, out: int) -> torch.Tensor:
    start = torch.arange(out) * size // out
    end = -(-(torch.arange(out) + 1) * size // out)
    at = start.unsqueeze(1) + torch.arange(int((end - start).max()))
    return at.masked_fill(at >= end.unsqueeze(1), -1)


def _outer(rows: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
    """[P, kh] and [Q, kw] -> [P·Q, kh·kw]."""
    at = rows[:, None, :, None] * width + columns[None, :, None, :]
    outside = (rows[:, None, :, None] < 0) | (columns[None, :, None, :] < 0)
    return at.masked_fill(outside, -1).flatten(2).flatten(0, 1)
