"""linear_relu in Triton: matrix product and ReLU in one pass, the sign bits packed from the same registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from zbkernels.ops import _tf32
from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import INT32_MAX, cannot_run, ceil_div, power_of_two, start, wrong_dtype
from zbkernels.triton.target import target_of
from zbkernels.triton.tiles import Product, candidates, product_kind


def can_run(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float = 0.0, *, need_sig: bool = False
) -> str | None:
    """None if `forward` can run on these arguments, else the reason."""
    reason = cannot_run("linear_relu", x, weight) or wrong_dtype("linear_relu", x)
    if reason is None and weight.shape[1] > INT32_MAX - 64:
        reason = f"linear_relu: {weight.shape[1]} input features, Triton's kernel counts them in 32 bits"
    return reason


def forward(
    x: torch.Tensor, weight: torch.Tensor, negative_slope: float, *, need_sig: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """act(x @ weight.T) and its sign bits.

    x: [..., in], weight: [out, in], one dtype of float32, float64, float16, bfloat16, any strides. The product is
    accumulated in float32 (float64 for float64), rounded to the dtype, then activated: ReLU at slope 0, else
    leaky ReLU. Products of float32 are TF32 only where torch's switch for matrix products allows it and no signature
    is asked for; float64 uses plain multiply-adds.
    Returns y [..., out] and, with need_sig, sig int64 [..., ceil(out/64)], bit = y > 0; else an empty int64 [0].
    """
    from zbkernels.triton.kernels import linear

    outputs, inputs = weight.shape
    lead = x.shape[:-1]
    rows = math.prod(lead)
    y = torch.empty((*lead, outputs), dtype=x.dtype, device=x.device)
    sig_shape = (*lead, ceil_div(outputs, 64)) if need_sig else (0,)
    sig = torch.empty(sig_shape, dtype=torch.int64, device=x.device)
    if y.numel() == 0:
        return y, sig
    flat = x.reshape(rows, inputs)  # a view wherever the leading dimensions have one common stride
    tf32 = x.dtype == torch.float32 and not need_sig and _tf32.allowed("matmul")
    config = _config(flat, outputs, need_sig, tf32)
    block = config.constants
    start(
        linear.linear_act_kernel,
        ceil_div(rows, block["BLOCK_M"]) * ceil_div(outputs, block["BLOCK_N"]),
        flat,
        weight,
        y,
        sig.view(torch.int32),
        rows,
        outputs,
        inputs,
        2 * ceil_div(outputs, 64),
        *_strides(flat),
        *_strides(weight),
        SLOPE=float(negative_slope),
        WANT_BITS=need_sig,
        USE_DOT=x.dtype != torch.float64,
        CHUNKS=_in_chunks(flat) and _in_chunks(weight),
        EVEN=inputs % block["BLOCK_C"] == 0,
        WIDE=(inputs + block["BLOCK_C"]) * max(flat.stride(1), weight.stride(1)) > INT32_MAX,
        TF32=tf32,
        GROUP_M=8,
        **block,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return y, sig


def _in_chunks(t: torch.Tensor) -> bool:
    """Whether the rows of t are dense, whole 16-byte chunks long, and begin at multiples of 16 bytes."""
    unit = 16 // t.element_size()
    row, column = _strides(t)
    return column == 1 and t.shape[1] % unit == 0 and row % unit == 0 and t.data_ptr() % 16 == 0


def _strides(t: torch.Tensor) -> tuple[int, int]:
    """A single row's distance to the next may be anything: 0 keeps also the addresses aligned that are not read."""
    return (t.stride(0) if t.shape[0] > 1 else 0), t.stride(1)


def _config(x: torch.Tensor, outputs: int, need_sig: bool, tf32: bool) -> Config:
    """The tiles of one call. Speed depends on the sizes, the rows' only up to a factor of two."""
    rows, inputs = x.shape
    if x.dtype == torch.float64:
        block_n = power_of_two(outputs, 64 if need_sig else 16, 64)
        return Config({"BLOCK_M": power_of_two(rows, 16, 64), "BLOCK_N": block_n, "BLOCK_C": 16}, 4, 2)
    target = target_of(x.device)
    kind = product_kind(target, x.dtype, tf32)
    product = Product(rows, outputs, inputs)

    def all_candidates() -> Sequence[Config]:
        # A word of the signature has one writer. Below 64 rows wgmma and tcgen05 give way to mma.sync, whose sums
        # may round otherwise: a pattern must not change with the batch.
        least_columns, least_rows = (64, 64) if need_sig else (16, 1)
        return candidates(
            target,
            kind,
            x.element_size(),
            product,
            least_rows=least_rows,
            least_columns=least_columns,
            few_rows=True,
        )

    shape_class = f"{kind} O{outputs} I{inputs} M2^{rows.bit_length()}{' bits' if need_sig else ''}"
    return choose("linear_relu", x.device, x.dtype, shape_class, all_candidates)
