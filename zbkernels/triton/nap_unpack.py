"""nap_unpack in Triton: the words of a signature back to one bool per unit."""

from __future__ import annotations

import torch

from zbkernels.triton.launch import cannot_run, ceil_div, power_of_two, start, wrong_dtype


def can_run(sig: torch.Tensor, F: int) -> str | None:
    """None if `forward` can run on sig, else the reason."""
    return cannot_run("nap_unpack", sig) or wrong_dtype("nap_unpack", sig, (torch.int64,))


def forward(sig: torch.Tensor, F: int) -> torch.Tensor:
    """Unpacks the first F units.

    sig: int64 [N, ceil(F/64)], any strides. Returns bool [N, F]: unit u is bit u % 64 of word u // 64.
    """
    from zbkernels.triton.kernels import bits

    rows = sig.shape[0]
    out = torch.empty((rows, F), dtype=torch.bool, device=sig.device)
    if out.numel() == 0:
        return out
    block = power_of_two(ceil_div(F, 64), 1, 32)
    start(
        bits.unpack_kernel,
        rows * ceil_div(F, block * 64),
        sig,
        out.view(torch.uint8),
        rows,
        F,
        *sig.stride(),
        BLOCK=block,
    )
    return out
