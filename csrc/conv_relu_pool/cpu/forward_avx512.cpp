// The forward kernels compiled for one instruction set; see forward_kernel.h.
#if defined(__x86_64__)
#include "conv_relu_pool/cpu/forward_kernel.h"

namespace zb::conv_relu_pool::cpu {

const Kernels kAvx512Kernels = {"direct avx512",
                                nullptr,
                                "direct-pixels avx512",
                                "depthwise avx512",
                                "winograd avx512",
                                "few-pixels avx512",
                                "backward winograd avx512",
                                &plan_call,
                                &pack_weights,
                                &run_task,
                                &add_planes};

}  // namespace zb::conv_relu_pool::cpu
#endif
