"""The arguments of ``conv_relu_pool2d`` in one value: made equal in form, checked, and turned into sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from zbkernels.ops._op import check_operands

POOLS = ("max", "avg", "none")
UNITS = ("relu", "output", "winner")
_LARGEST = 2**63 - 1

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


def _is_int(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def pair(op: str, name: str, value: IntOrPair, least: int) -> Pair:
    """``value`` as two ints, or a ValueError that names the argument."""
    if type(value) is int and value >= least:  # what nearly every call brings, in a tenth of the time
        return (value, value)
    two: Any = (value, value) if _is_int(value) else value
    if isinstance(two, (tuple, list)) and len(two) == 1:
        two = (two[0], two[0])
    if not isinstance(two, (tuple, list)) or len(two) != 2 or not all(_is_int(v) for v in two):
        raise ValueError(f"{op}: expected {name} to be an int or two ints, got {value!r}")
    if two[0] < least or two[1] < least:
        raise ValueError(f"{op}: expected {name} of at least {least}, got {value!r}")
    return (two[0], two[1])


class Geometry(NamedTuple):
    """How ``conv_relu_pool2d`` walks over its input; every pair is (height, width)."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    pool: str
    pool_kernel: Pair
    pool_stride: Pair
    pool_padding: Pair
    ceil_mode: bool
    count_include_pad: bool
    negative_slope: float

    @classmethod
    def of(
        cls,
        op: str,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        *,
        pool: str = "max",
        pool_kernel: IntOrPair = 2,
        pool_stride: IntOrPair | None = None,
        pool_padding: IntOrPair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        negative_slope: float = 0.0,
    ) -> Geometry:
        """Defaults and forms as in the op's schema.

        Raises:
            ValueError: an argument is of the wrong form, or out of its range.
        """
        if pool not in POOLS:
            raise ValueError(f"{op}: expected pool to be one of {', '.join(POOLS)}, got {pool!r}")
        if not _is_int(groups) or groups < 1:
            raise ValueError(f"{op}: expected groups to be a positive int, got {groups!r}")
        if not isinstance(negative_slope, (int, float)) or not 0 <= negative_slope <= 1:
            raise ValueError(f"{op}: expected 0 <= negative_slope <= 1, got {negative_slope!r}")
        kernel: Pair = (1, 1)
        step: Pair = (1, 1)
        border: Pair = (0, 0)
        if pool != "none":
            kernel = pair(op, "pool_kernel", pool_kernel, 1)
            empty = pool_stride is None or (isinstance(pool_stride, (tuple, list)) and not pool_stride)
            step = kernel if empty else pair(op, "pool_stride", pool_stride, 1)  # type: ignore[arg-type]
            border = pair(op, "pool_padding", pool_padding, 0)
            if border[0] > kernel[0] // 2 or border[1] > kernel[1] // 2:
                raise ValueError(
                    f"{op}: expected pool_padding of at most half of pool_kernel, got {border} for {kernel}"
                )
        return cls(
            pair(op, "stride", stride, 1),
            pair(op, "padding", padding, 0),
            pair(op, "dilation", dilation, 1),
            groups,
            pool,
            kernel,
            step,
            border,
            bool(ceil_mode) and pool != "none",
            bool(count_include_pad),
            float(negative_slope),
        )

    def conv_args(self) -> tuple[Any, ...]:
        """The positional part after x and weight."""
        return self[:4]

    def pool_kwargs(self) -> dict[str, Any]:
        """The keyword part."""
        return dict(zip(self._fields[4:], self[4:], strict=True))

    def map_size(self, x: torch.Tensor, weight: torch.Tensor) -> Pair:
        """(H1, W1) of the un-pooled map."""
        (stride_h, stride_w), (padding_h, padding_w), (dilation_h, dilation_w) = self[:3]
        h, w = x.shape[-2:]
        r, s = weight.shape[2:]
        return (
            (h + 2 * padding_h - dilation_h * (r - 1) - 1) // stride_h + 1,
            (w + 2 * padding_w - dilation_w * (s - 1) - 1) // stride_w + 1,
        )

    def pooled_size(self, map_size: Pair) -> Pair:
        """(P, Q) of the result."""
        (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w) = self[5:8]
        return (
            _pooled(map_size[0], kernel_h, stride_h, padding_h, self.ceil_mode),
            _pooled(map_size[1], kernel_w, stride_w, padding_w, self.ceil_mode),
        )

    def window(self) -> int:
        """Positions in one pool window."""
        return self.pool_kernel[0] * self.pool_kernel[1]

    def code_dtype(self) -> torch.dtype:
        """dtype of the backward's code; see ``csrc/conv_relu_pool/README.md``."""
        if self.pool != "max":
            return torch.int64
        return torch.uint8 if self.window() * (2 if self.negative_slope > 0 else 1) <= 255 else torch.int32

    def unit_bits(self, units: str) -> int:
        """Bits that one unit takes in a signature: 1, or ceil(log2(window + 1)) for the winner codes."""
        return self.window().bit_length() if units == "winner" else 1

    def unit_count(self, units: str, channels: int, map_size: Pair) -> int:
        """Bits of one input's signature before the padding to whole words."""
        h, w = map_size if units == "relu" else self.pooled_size(map_size)
        return channels * h * w * self.unit_bits(units)


def _pooled(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    span = size + 2 * padding - kernel
    out = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1  # the last window must start inside the map or its left padding
    return out


def check(op: str, x: Any, weight: Any, geometry: Geometry, units: str = "") -> None:
    """Everything that can be wrong with a call of ``conv_relu_pool2d`` and its kin.

    Raises:
        TypeError: x or weight is no tensor, or of a dtype that no kernel has.
        ValueError: shapes, devices or arguments that don't fit together.
    """
    check_operands(op, x, weight)
    if x.dim() not in (3, 4):
        raise ValueError(f"{op}: expected x of shape [N, C, H, W] or [C, H, W], got {list(x.shape)}")
    if weight.dim() != 4:
        raise ValueError(f"{op}: expected weight of shape [K, C/groups, R, S], got {list(weight.shape)}")
    channels, groups = x.shape[-3], geometry.groups
    if 0 in x.shape[-3:] or 0 in weight.shape:
        raise ValueError(
            f"{op}: only the batch may be empty, got x {list(x.shape)} and weight {list(weight.shape)}"
        )
    if channels % groups or weight.shape[0] % groups or weight.shape[1] != channels // groups:
        raise ValueError(
            f"{op}: expected weight of shape [K, C/groups, R, S] with C = {channels} of x {list(x.shape)} and "
            f"K divisible by groups = {groups}, got {list(weight.shape)}"
        )
    for size, taps, padding, dilation in zip(
        x.shape[-2:], weight.shape[2:], geometry.padding, geometry.dilation, strict=True
    ):
        padded = size + 2 * padding
        if dilation * (taps - 1) + 1 > padded or padded > _LARGEST:
            raise ValueError(
                f"{op}: expected a padded input that holds the kernel, got x {list(x.shape)} with padding "
                f"{geometry.padding}, weight {list(weight.shape)} and dilation {geometry.dilation}"
            )
    map_size = geometry.map_size(x, weight)
    if min(geometry.pooled_size(map_size)) < 1:
        raise ValueError(
            f"{op}: expected a map of at least the pool's size, got {list(map_size)} with pool_kernel "
            f"{geometry.pool_kernel}, pool_stride {geometry.pool_stride}, pool_padding {geometry.pool_padding}"
        )
    if max(*geometry.pool_kernel, *geometry.pool_stride) > 2**60 or geometry.window() >= 2**30:
        raise ValueError(
            f"{op}: expected a pool window of fewer than 2^30 positions and a stride of at most 2^60, got "
            f"pool_kernel {geometry.pool_kernel} and pool_stride {geometry.pool_stride}"
        )
    if units and units not in UNITS:
        raise ValueError(f"{op}: expected units to be one of {', '.join(UNITS)}, got {units!r}")
    if units == "winner" and (geometry.pool != "max" or geometry.negative_slope != 0):
        raise ValueError(
            f"{op}: units='winner' needs pool='max' and negative_slope=0 (with a slope an all-negative window has "
            f"a winner too), got pool={geometry.pool!r} and negative_slope={geometry.negative_slope}"
        )


def check_residual(op: str, x: torch.Tensor, weight: torch.Tensor, residual: Any, geometry: Geometry) -> None:
    """What can be wrong with the residual of a call that :func:`check` has passed.

    Raises:
        TypeError: it is no dense tensor of x's dtype.
        ValueError: it is not of the un-pooled map's shape, or on another device.
    """
    if not isinstance(residual, torch.Tensor):
        raise TypeError(f"{op}: expected residual to be a tensor or None, got {type(residual).__name__}")
    if residual.layout != torch.strided:
        raise TypeError(f"{op}: expected residual to be a dense (strided) tensor, got {residual.layout}")
    if residual.dtype != x.dtype:
        raise TypeError(f"{op}: expected residual of x's dtype {x.dtype}, got {residual.dtype}")
    if residual.device != x.device:
        raise ValueError(f"{op}: expected x and residual on one device, got {x.device} and {residual.device}")
    shape = (*x.shape[:-3], weight.shape[0], *geometry.map_size(x, weight))
    if residual.shape != shape:
        raise ValueError(
            f"{op}: expected residual of the un-pooled map's shape {list(shape)} (nothing is broadcast), got "
            f"{list(residual.shape)}"
        )


def is_channels_last(t: torch.Tensor) -> bool:
    """Whether results follow ``t`` in channels_last: only where its strides leave no doubt."""
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def adjoint_operands(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: Pair
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[N, ...] tensors as torch's convolution_backward is safe with, with the very strides of their memory format.

    torch 2.13 fails on some that count as channels_last but for a dimension of one, and takes others for what they
    are not where there are groups (a wrong gradient of the weight). In channels_last that of a 1x1 weight whose two
    strides differ is written past its end.
    """
    pixels = tuple(weight.shape[2:]) == (1, 1) and stride[0] != stride[1]
    return _plainly_strided(grad, pixels), _plainly_strided(x, pixels), _plainly_strided(weight, pixels)


def _plainly_strided(t: torch.Tensor, contiguous: bool) -> torch.Tensor:
    if is_channels_last(t) and not contiguous:
        nhwc = t.permute(0, 2, 3, 1)
        return nhwc.reshape(-1).view(nhwc.shape).permute(0, 3, 1, 2)
    return t.contiguous().reshape(-1).view(t.shape)


def memory_format(t: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if is_channels_last(t) else torch.contiguous_format
