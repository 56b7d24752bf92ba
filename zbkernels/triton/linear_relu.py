"""linear_relu in Triton: matrix product and ReLU in one pass, the sign bits packed from the same registers."""

from __future__ import annotations

import math

import torch

from zbkernels.triton.launch import INT32_MAX, cannot_run, ceil_div, power_of_two, start, wrong_dtype


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
    leaky ReLU. Products of float32 are full ones, never TF32; float64 uses plain multiply-adds.
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
    use_dot = x.dtype != torch.float64
    block_m = power_of_two(rows, 16, 64)
    block_n = power_of_two(outputs, 64 if need_sig else 16, 64)
    start(
        linear.linear_act_kernel,
        ceil_div(rows, block_m) * ceil_div(outputs, block_n),
        flat,
        weight,
        y,
        sig.view(torch.int32),
        rows,
        outputs,
        inputs,
        2 * ceil_div(outputs, 64),
        *flat.stride(),
        *weight.stride(),
        SLOPE=float(negative_slope),
        WANT_BITS=need_sig,
        USE_DOT=use_dot,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_I=16 if x.dtype == torch.float32 else 64,
        num_warps=4,
        num_stages=3,
    )
    return y, sig
