"""Whether torch allows TF32 now; the CUDA kernels are told, since LibTorch's stable ABI has no word for it."""

from __future__ import annotations

import torch

from zbkernels import _loader

# torch.backends.cudnn.conv.fp32_precision and torch.backends.cuda.matmul.fp32_precision, which the older allow_tf32
# set as well, through the function behind them: the properties cost 1 µs each.
_precision = torch._C._get_fp32_precision_getter
_told: tuple[bool, bool] | None = None  # for convolutions, for matrix products


def allowed(where: str) -> bool:
    """Whether torch lets float32 be multiplied as TF32 on a GPU, in ``"conv"`` or in ``"matmul"``."""
    return _precision("cuda", where) == "tf32"


def follow() -> None:
    """Reads torch's switches, and tells the libraries where they changed. Below 1 µs where they did not.

    Called by the public functions and by the autograd rules, so that ``torch.ops.zb`` follows as well. Only in
    inference mode ``torch.ops.zb`` goes past both and has the switches as they were at the last other call.
    """
    global _told
    now = allowed("conv"), allowed("matmul")
    if now != _told:
        _loader.allow_tf32(*now)
        _told = now
