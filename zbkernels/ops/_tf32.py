"""Tells the CUDA kernels whether torch allows TF32 now: LibTorch's stable ABI has no word for it."""

from __future__ import annotations

import torch

from zbkernels import _loader

_told: tuple[bool, bool] | None = None  # for convolutions, for matrix products


def follow() -> None:
    """Reads torch's switches, and tells the libraries where they changed. Below 1 µs where they did not.

    ``torch.backends.cudnn.conv.fp32_precision`` and ``torch.backends.cuda.matmul.fp32_precision``, which the older
    ``allow_tf32`` set as well, are asked through the function behind them: the properties cost 1 µs each.

    Called by the public functions and by the autograd rules, so that ``torch.ops.zb`` follows as well. Only in
    inference mode ``torch.ops.zb`` goes past both and has the switches as they were at the last other call.
    """
    global _told
    precision = torch._C._get_fp32_precision_getter
    now = precision("cuda", "conv") == "tf32", precision("cuda", "matmul") == "tf32"
    if now != _told:
        _loader.allow_tf32(*now)
        _told = now
