"""The ops: one module each holds schema, checks, reference, fake, autograd, vmap, samples and public function."""

from zbkernels.ops import _decompositions
from zbkernels.ops._backend import (
    explain,
    get_conv_precision,
    last_kernel,
    last_refusals,
    set_conv_precision,
    use_backend,
)
from zbkernels.ops._op import OPS, Op, Sample
from zbkernels.ops._weight_cache import clear_weight_cache, weight_cache_info
from zbkernels.ops.conv_relu_pool2d import conv_relu_pool2d
from zbkernels.ops.conv_relu_pool2d_nap import conv_relu_pool2d_nap
from zbkernels.ops.dual_gram import dual_gram
from zbkernels.ops.dual_matvec import dual_matvec
from zbkernels.ops.dual_solve import dual_solve
from zbkernels.ops.layer_kernel import layer_kernel
from zbkernels.ops.linear_relu import linear_relu
from zbkernels.ops.linear_relu_nap import linear_relu_nap
from zbkernels.ops.nap_frequency import nap_frequency
from zbkernels.ops.nap_group import nap_group
from zbkernels.ops.nap_hamming import nap_hamming
from zbkernels.ops.nap_hash import nap_hash
from zbkernels.ops.nap_pack import nap_pack
from zbkernels.ops.nap_topk import nap_topk
from zbkernels.ops.nap_unpack import nap_unpack

_decompositions.register()

__all__ = [
    "OPS",
    "Op",
    "Sample",
    "clear_weight_cache",
    "conv_relu_pool2d",
    "conv_relu_pool2d_nap",
    "dual_gram",
    "dual_matvec",
    "dual_solve",
    "explain",
    "get_conv_precision",
    "last_kernel",
    "last_refusals",
    "layer_kernel",
    "linear_relu",
    "linear_relu_nap",
    "nap_frequency",
    "nap_group",
    "nap_hamming",
    "nap_hash",
    "nap_pack",
    "nap_topk",
    "nap_unpack",
    "set_conv_precision",
    "use_backend",
    "weight_cache_info",
]
