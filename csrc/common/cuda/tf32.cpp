#include "common/cuda/tf32.h"

#include <atomic>

namespace {
std::atomic<bool> convolution{false}, matmul{false};
}

namespace zb::cuda {

bool tf32_allowed(Tf32 where) {
  return (where == Tf32::kConvolution ? convolution : matmul).load(std::memory_order_relaxed);
}

}  // namespace zb::cuda

extern "C" __attribute__((visibility("default"))) void zb_cuda_allow_tf32(int for_convolution,
                                                                          int for_matmul) {
  convolution = for_convolution != 0;
  matmul = for_matmul != 0;
}
