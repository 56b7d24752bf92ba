// The forward kernels compiled for one instruction set; see forward_kernel.h.
#include "conv_relu_pool/cpu/forward_kernel.h"

namespace zb::conv_relu_pool::cpu {

const Kernels kPortableKernels = {"direct portable",
                                  nullptr,
                                  "direct-pixels portable",
                                  "depthwise portable",
                                  "winograd portable",
                                  "few-pixels portable",
                                  "backward winograd portable",
                                  &plan_call,
                                  &pack_weights,
                                  &run_task,
                                  &add_planes};

}  // namespace zb::conv_relu_pool::cpu
