"""Which position won each window of a max pool, as the number that a pattern holds.

The code is the fused op's: 0 where no unit of the window is on, else 1 + i·kw + j of the winner (i, j), the first in
row-major order among equal ones. A pool whose input is not a ReLU's output has a winner in every window, also among
negative values, and no 0 but where the maximum is NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from zbkernels.nap.unit_calls import Arguments


def window_positions(args: Arguments) -> int:
    """Positions of the largest window of a ``max_pool`` call."""
    kh, kw = _kernel(args)
    return kh * kw


def winners(args: Arguments, rectified: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes uint8 or int64 [..., P, Q], pooled values, their indices as torch counts them) of a ``max_pool`` call.

    Args:
        args: as ``unit_calls.recognise`` binds them.
        rectified: the input is a ReLU's output, so that a maximum of 0 means that all are off.
    """
    x = args["input"]
    if "output_size" in args:
        y, index = F.adaptive_max_pool2d(x, args["output_size"], return_indices=True)
        first_row, first_column = (_adaptive_starts(x, args, d) for d in (0, 1))
        steps = (1, 1)
    else:
        y, index = F.max_pool2d(
            x,
            args["kernel_size"],
            args["stride"],
            args["padding"],
            args["dilation"],
            args["ceil_mode"],
            return_indices=True,
        )
        first_row, first_column = (
            torch.arange(y.shape[d - 2], device=x.device) * args["stride"][d] - args["padding"][d]
            for d in (0, 1)
        )
        steps = args["dilation"]
    i = (index // x.shape[-1] - first_row[:, None]) // steps[0]
    j = (index % x.shape[-1] - first_column) // steps[1]
    some = y > 0 if rectified else ~y.isnan()
    codes = 1 + i * _kernel(args)[1] + j
    small = (
        torch.uint8 if window_positions(args) <= 255 else torch.int64
    )  # an eighth of the memory to go through
    return codes.to(small).mul_(some), y, index


def code_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """bool [..., bits], the lowest bit first."""
    return ((codes.unsqueeze(-1) >> torch.arange(bits, dtype=codes.dtype, device=codes.device)) & 1).bool()


def _kernel(args: Arguments) -> tuple[int, int]:
    if "output_size" not in args:
        return args["kernel_size"]
    return tuple(_longest(args["input"].shape[d - 2], args["output_size"][d]) for d in (0, 1))  # type: ignore[return-value]


def _longest(size: int, windows: int) -> int:
    """Of adaptive windows: the p-th goes from floor(p·size/windows) to ceil((p+1)·size/windows)."""
    return max((-(-(p + 1) * size // windows) - p * size // windows for p in range(windows)), default=0)


def _adaptive_starts(x: torch.Tensor, args: Arguments, d: int) -> torch.Tensor:
    windows = args["output_size"][d]
    return torch.arange(windows, device=x.device) * x.shape[d - 2] // windows
