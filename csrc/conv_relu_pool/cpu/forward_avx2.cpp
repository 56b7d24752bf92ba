// The forward kernels compiled for one instruction set; see forward_kernel.h.
#if defined(__x86_64__)
#include "conv_relu_pool/cpu/forward_kernel.h"

namespace zb::conv_relu_pool::cpu {

const Kernels kAvx2Kernels = {"direct avx2",
                              nullptr,
                              "direct-pixels avx2",
                              "depthwise avx2",
                              "winograd avx2",
                              "few-pixels avx2",
                              "backward winograd avx2",
                              &plan_call,
                              &pack_weights,
                              &run_task,
                              &add_planes};

}  // namespace zb::conv_relu_pool::cpu
#endif
