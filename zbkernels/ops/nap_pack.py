"""``nap_pack``: the signs of a batch of activations as 64-bit words, one signature an input.

A neural activation pattern (NAP) says for each unit whether it is on (Definition 1 of "Scalar Invariant
Networks with Zero Bias"). Words are compared, hashed and counted 64 units at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from zbkernels.ops import _backend
from zbkernels.ops._op import FLOATING, Op, Sample, checked, register
from zbkernels.ops._opaque import opaque_kernels
from zbkernels.ops._shape_class import layout_class, rows_class

SCHEMA = "nap_pack(Tensor x) -> Tensor"

_DTYPES = (*FLOATING, torch.bool)


def words_for(bits: int) -> int:
    return (bits + 63) // 64


def check(x: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"nap_pack: expected x to be a tensor, got {type(x).__name__}")
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"nap_pack: expected x of dtype float32, float64, float16, bfloat16 or bool, got {x.dtype}"
        )
    if x.layout != torch.strided:
        raise TypeError(f"nap_pack: expected x to be a dense (strided) tensor, got {x.layout}")
    if x.dim() < 2:
        raise ValueError(f"nap_pack: expected x of shape [N, units] or [N, C, H, W], got {list(x.shape)}")


def pack_last(on: torch.Tensor) -> torch.Tensor:
    """bool [..., F] -> int64 [..., ceil(F/64)]."""
    words = words_for(on.shape[-1])
    padded = torch.nn.functional.pad(on, (0, words * 64 - on.shape[-1]))
    bits = padded.unflatten(-1, (words, 64)).to(torch.int64)  # [..., words, 64]
    return (bits << torch.arange(64, device=on.device)).sum(-1)  # distinct bits: the sum is their union


def reference(x: torch.Tensor) -> torch.Tensor:
    check(x)
    _backend.note_kernel("reference")
    return pack_last((x > 0).flatten(1))


def fake(x: torch.Tensor) -> torch.Tensor:
    check(x)
    units = 1
    for size in x.shape[1:]:
        units = units * size
    return x.new_empty((x.shape[0], words_for(units)), dtype=torch.int64)


def vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor) -> tuple[torch.Tensor, int]:
    x = x.movedim(in_dims[0], 0)  # [B, N, ...]
    return torch.ops.zb.nap_pack(x.flatten(0, 1)).unflatten(0, x.shape[:2]), 0


def samples(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(device, dtype)

    for units in (1, 7, 63, 64, 65, 70, 127, 128, 129, 1000):
        yield Sample(f"{units} units", (draw(5, units),))
    yield Sample("feature map", (draw(5, 4, 8, 8),))
    yield Sample("channels_last", (draw(5, 4, 7, 9).to(memory_format=torch.channels_last),))
    yield Sample("transposed", (draw(70, 6).t(),))
    yield Sample("every other column", (draw(6, 200)[:, ::2],))
    yield Sample("expanded", (draw(1, 70).expand(4, 70),))
    yield Sample("odd storage offset", (draw(4 * 70 + 3)[3:].view(4, 70),))
    yield Sample("no rows", (draw(0, 70),))
    yield Sample("no units", (draw(3, 0),))
    special = torch.tensor([[-0.0, 0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.0]])
    yield Sample("zeros, NaN, inf", (special.to(device, dtype),))
    tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps if dtype.is_floating_point else 1.0
    yield Sample(
        "smallest subnormal", (torch.tensor([[tiny, -tiny]], dtype=torch.float64).to(device, dtype),)
    )


def nap_pack(x: torch.Tensor) -> torch.Tensor:
    """Pack the signs of activations into words: bit j of word k is ``x[n].flatten()[64k + j] > 0``.

    NaN, zeros of either sign and negative values give 0, every positive value, subnormals too, gives 1. The
    units of a feature map are all its values, in C, H, W order whatever the memory format.

    Args:
        x: [N, ...] of float32, float64, float16, bfloat16 or bool, any strides.

    Returns:
        int64 [N, ceil(F/64)], F the product of the other sizes; the padding bits are 0.

    Raises:
        TypeError: x is no dense tensor of one of these dtypes.
        ValueError: x has fewer than two dimensions.
    """
    check(x)
    kernel = _backend.choose_kernel(OP, x, None)
    return torch.ops.zb.nap_pack(x) if kernel is None else kernel.run(x)


def shape_class(x: torch.Tensor) -> str:
    return rows_class(x.shape[0], math.prod(x.shape[1:])) + layout_class(x)


TRITON = _backend.triton_kernel("nap_pack", _backend.triton_function("nap_pack", "forward"))
KERNELS = (
    _backend.library_kernel("cpu"),
    _backend.library_kernel("cuda"),
    TRITON,
    *_backend.emulated_kernels(_backend.emulated_function("nap_pack")),
    _backend.reference_kernel(reference),
)

OP = Op(
    "nap_pack",
    SCHEMA,
    reference,
    samples,
    public=nap_pack,
    normalise=checked(check),
    kernels=KERNELS,
    dtypes=_DTYPES,
    shape_class=shape_class,
    opaque=opaque_kernels("nap_pack", KERNELS, SCHEMA, fake),
)
register(OP, fake=fake, vmap=vmap, cuda_fallback=_backend.or_reference(TRITON, reference))
