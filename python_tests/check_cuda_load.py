"""Shows, without a GPU, that ``_C_cuda`` loads in a CUDA build of torch and registers its kernels.

Run by ``make check-cuda-load`` in an environment with such a torch. Prints one line an op; exit code 1 where
a kernel is missing or comes from elsewhere.
"""

from __future__ import annotations

import re
import sys

import torch

import zbkernels
from zbkernels import _loader
from zbkernels.ops._op import OPS


def cuda_registration(name: str) -> str:
    """Where the op's CUDA kernel was registered, as the dispatcher tells it; "" where there is none."""
    match = re.search(r"^CUDA: (.*)$", torch._C._dispatch_dump(f"zb::{name}"), re.M)
    return match.group(1) if match else ""


def main() -> int:
    if torch.version.cuda is None:
        print(f"torch {torch.__version__} is not a CUDA build: set CUDA_TORCH or pip's index to one that is")
        return 1
    state = _loader.libraries()["_C_cuda"]
    print(f"zbkernels {zbkernels.__version__}, {_loader.torch_build()}")
    print(f"_C_cuda: {'loaded' if state.loaded else state.reason} ({state.path})")
    missing = 0
    for name in sorted(name for name, op in OPS.items() if not op.composite):
        where = cuda_registration(name)
        from_library = "register.cpp" in where
        missing += not from_library
        verdict = "ok" if from_library else f"NOT from the library: {where or 'no kernel'}"
        print(f"  zb::{name:<32} {verdict}")
    return 0 if state.loaded and OPS and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
