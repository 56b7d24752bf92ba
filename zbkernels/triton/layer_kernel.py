"""layer_kernel in Triton: a program sums a part of a pair's units for all angles; torch adds the parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from zbkernels.triton.config import Config, choose
from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype


def can_run(
    u: torch.Tensor, v: torch.Tensor, angles: tuple[int, ...], has_bias: bool = False, normalized: bool = True
) -> str | None:
    """None if `forward` can run on these arguments (of the angles their shape), else the reason."""
    return cannot_run("layer_kernel", u, v) or wrong_dtype("layer_kernel", u)


def forward(
    u: torch.Tensor, v: torch.Tensor, angles: torch.Tensor, bias: torch.Tensor | None, normalized: bool
) -> torch.Tensor:
    """[P, A]: zbkernels.layer_kernel of u and v [P, n], angles [A] or [P, A] and bias [n] or None, any strides."""
    from zbkernels.triton.kernels import layer

    (P, n), A = u.shape, angles.shape[-1]
    if P * A == 0:
        return u.new_empty(P, A)
    wide = torch.promote_types(u.dtype, torch.float32)
    doubles = angles.double()
    turns = torch.stack([doubles.cos(), doubles.sin()], -1).to(wide)
    shape_class = f"n2^{max(n - 1, 0).bit_length()} A2^{(A - 1).bit_length()}"
    config = choose("layer_kernel", u.device, u.dtype, shape_class, lambda: candidates(n, A))
    parts = ceil_div(n, config.constants["BLOCK_N"])
    sums = torch.empty((P, parts, 1 + 2 * A), dtype=wide, device=u.device)
    start(
        layer.layer_sums_kernel,
        P * parts,
        u,
        v,
        u if bias is None else bias,
        turns,
        sums,
        n,
        A,
        parts,
        *u.stride(),
        *v.stride(),
        0 if bias is None else bias.stride(0),
        2 * A if angles.dim() == 2 else 0,
        HAS_BIAS=bias is not None,
        WIDE=wide == torch.float64,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    total = sums.sum(1, dtype=torch.float64)
    a2, ar, r2 = total[:, :1], total[:, 1::2], total[:, 2::2]
    return (ar / (a2.sqrt() * r2.sqrt()) if normalized else ar / n).to(u.dtype)


@functools.cache
def candidates(n: int, A: int) -> Sequence[Config]:
    """8 units a thread and up to 4 angles at a time; or 16 units, or 8 angles. The default first."""
    units, angles = power_of_two(n, 128, 1024), power_of_two(A, 1, 8)
    return [
        Config({"BLOCK_A": min(angles, 4), "BLOCK_N": units}),
        Config({"BLOCK_A": min(angles, 4), "BLOCK_N": 2 * units}),
        Config({"BLOCK_A": angles, "BLOCK_N": units}, num_warps=8),
    ]
