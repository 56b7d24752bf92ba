"""What dual_gram and dual_matvec share in Triton: the network's numbers, and what is known of each row."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from zbkernels.infinite import activations
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import INT32_MAX, cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.target import target_of
from zbkernels.triton.tiles import Product, candidates, product_kind

DTYPES = (torch.float32, torch.float64)


def cannot_compute(op: str, x1: torch.Tensor, x2: torch.Tensor, activation: str) -> str | None:
    """None if the kernels can run on these arguments, else the reason."""
    reason = cannot_run(op, x1, x2) or wrong_dtype(op, x1, DTYPES)
    if reason is None and x1.shape[1] > INT32_MAX - 64:
        reason = f"{op}: {x1.shape[1]} features, Triton's kernel counts them in 32 bits"
    if reason is None and activations.named(activation).form is None:
        reason = f"{op}: activation {activation!r} has no closed form"
    return reason


class Network(NamedTuple):
    """The form that kernels are compiled for, and their numbers in the order of their arguments."""

    form: int
    depth: int
    tangent: bool
    first_only: bool
    numbers: dict[str, float]

    def bits(self, *leave_out: str) -> list[int]:
        """The numbers as integers of 64 bits: a launch would round floats to float32."""
        return [_bits(value) for name, value in self.numbers.items() if name not in leave_out]


def network(
    kernel: str, activation: str, depth: int, w_std: float, b_std: float, train: str, features: int
) -> Network:
    """The recursion of zbkernels/infinite/kernels.py."""
    from zbkernels.triton.kernels.dual import FORMS

    act = activations.named(activation)
    name, slope = _form_of(act)
    numbers = {
        "w2": w_std**2,
        "b2": b_std**2,
        "first_w2": w_std**2 / features,
        "gain2": act.gain**2,
        "scale2": act.scale**2,
        "offset2": act.offset**2,  # no name has an offset and a mean that is not 0 without it
        "slope2": (act.scale * act.gain) ** 2,
        "odd2": ((1 + slope) / 2) ** 2,
        "even2": ((1 - slope) / 2) ** 2,
        # Of the derivative where one variance is 0, and both: the slope is that of the left side, and |x| has 0.
        "one": 0.0 if act.name == "abs" else slope * (1 + slope) / 2,
        "both": 0.0 if act.name == "abs" else slope**2,
    }
    return Network(FORMS.index(name), depth, kernel == "ntk", train == "first", numbers)


def _form_of(act: activations.Activation) -> tuple[str, float]:
    """Its form, one of FORMS, and the slope of the piecewise linear one."""
    fixed = {"relu": 0.0, "abs": -1.0}
    name = act.name.partition(":")[0]
    if name in ("relu", "leaky_relu", "abs"):
        return "piecewise linear", fixed[name] if name in fixed else float(act.derivative(_MINUS_ONE))
    return name, 0.0


_MINUS_ONE = torch.tensor(-1.0, dtype=torch.float64)


@functools.lru_cache(256)
def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


class Rows(NamedTuple):
    """[N] sums of squares, int64 [N] hashes, [depth, 4, N] moments."""

    squares: torch.Tensor
    hashes: torch.Tensor
    moments: torch.Tensor


def describe_rows(x: torch.Tensor, net: Network) -> Rows:
    """What the tiles know of each row before they meet it in a pair: one pass over x [N, d]."""
    from zbkernels.triton.kernels import dual

    N, features = x.shape
    rows = Rows(x.new_empty(N), x.new_empty(N, dtype=torch.int64), x.new_empty(net.depth, 4, N))
    block = power_of_two(features, 16, 128)
    start(
        dual.describe_rows_kernel,
        ceil_div(N, 512 // block),
        x,
        *rows,
        N,
        features,
        net.depth,
        *_strides(x),
        *net.bits("slope2", "one", "both"),
        FORM=net.form,
        BLOCK_N=512 // block,
        BLOCK_C=block,
    )
    return rows


def product_constants(x1: torch.Tensor, x2: torch.Tensor, depth_of_step: int) -> dict[str, Any]:
    """The compile-time arguments of the product of the rows of two batches."""
    features = x1.shape[1]
    return {
        "USE_DOT": x1.dtype != torch.float64,
        "CHUNKS": _in_chunks(x1) and _in_chunks(x2),
        "EVEN": features % depth_of_step == 0,
        "WIDE": (features + depth_of_step) * max(x1.stride(1), x2.stride(1)) > INT32_MAX,
    }


def network_constants(net: Network) -> dict[str, Any]:
    return {"FORM": net.form, "TANGENT": net.tangent, "FIRST_ONLY": net.first_only}


def strides(x1: torch.Tensor, x2: torch.Tensor) -> tuple[int, ...]:
    return (*_strides(x1), *_strides(x2))


def tile_config(op: str, x1: torch.Tensor, x2: torch.Tensor, net: Network) -> Config:
    """The tiles of one call."""
    target = target_of(x1.device)
    kind = product_kind(target, x1.dtype, False)
    (N, features), M = x1.shape, x2.shape[0]
    if x1.dtype == torch.float64:
        return Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_C": 16}, 4, 2)

    def all_candidates() -> Sequence[Config]:
        # What a form makes of each sum takes some registers.
        return candidates(
            target, kind, x1.element_size(), Product(N, M, features), most_sums=32, few_rows=True
        )

    shape_class = f"{kind} I{features} form{net.form} N2^{N.bit_length()} M2^{M.bit_length()}"
    return choose(op, x1.device, x1.dtype, shape_class, all_candidates)


def _in_chunks(t: torch.Tensor) -> bool:
    """Whether the rows of t are dense, whole 16-byte chunks long, and begin at multiples of 16 bytes."""
    unit = 16 // t.element_size()
    row, column = _strides(t)
    return column == 1 and t.shape[1] % unit == 0 and row % unit == 0 and t.data_ptr() % 16 == 0


def _strides(t: torch.Tensor) -> tuple[int, int]:
    """A single row's distance to the next may be anything: 0 keeps also the addresses aligned that are not read."""
    return (t.stride(0) if t.shape[0] > 1 else 0), t.stride(1)
