"""zbkernels: kernels and tools for bias-free (zero-bias) neural networks.

The ops are here and under ``torch.ops.zb``; drop-in layers are in :mod:`zbkernels.nn`. ``zb doctor`` on the
command line says what is built, loaded and used on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zbkernels import _loader
from zbkernels._lazy import lazy
from zbkernels._loader import library_path
from zbkernels._version import __version__

_loader.load()  # before the ops: a library defines them from C++, Python adds only what is missing

from zbkernels import nn  # noqa: E402
from zbkernels.ops import (  # noqa: E402
    clear_weight_cache,
    conv_relu_pool2d,
    conv_relu_pool2d_nap,
    dual_gram,
    dual_matvec,
    dual_solve,
    explain,
    get_conv_precision,
    last_kernel,
    last_refusals,
    layer_kernel,
    linear_relu,
    linear_relu_nap,
    nap_frequency,
    nap_group,
    nap_hamming,
    nap_hash,
    nap_pack,
    nap_topk,
    nap_unpack,
    set_conv_precision,
    use_backend,
    weight_cache_info,
)

if TYPE_CHECKING:
    from zbkernels.invariance import check_scalar_invariance
    from zbkernels.nn.fusion import enable_inductor_pass, fuse, unfuse

__all__ = [
    "__version__",
    "check_scalar_invariance",
    "clear_weight_cache",
    "conv_relu_pool2d",
    "conv_relu_pool2d_nap",
    "dual_gram",
    "dual_matvec",
    "dual_solve",
    "enable_inductor_pass",
    "explain",
    "fuse",
    "get_conv_precision",
    "last_kernel",
    "last_refusals",
    "layer_kernel",
    "library_path",
    "linear_relu",
    "linear_relu_nap",
    "nap_frequency",
    "nap_group",
    "nap_hamming",
    "nap_hash",
    "nap_pack",
    "nap_topk",
    "nap_unpack",
    "nn",
    "set_conv_precision",
    "unfuse",
    "use_backend",
    "weight_cache_info",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "check_scalar_invariance": "zbkernels.invariance",
            "enable_inductor_pass": "zbkernels.nn.fusion",
            "fuse": "zbkernels.nn.fusion",
            "unfuse": "zbkernels.nn.fusion",
        },
    )
