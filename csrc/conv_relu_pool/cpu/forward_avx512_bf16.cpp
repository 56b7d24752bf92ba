// What processors with AVX-512-BF16 have beside the kernels of forward_avx512.cpp, which take everything
// else.
#if defined(__AVX512BF16__)
#include <cstdlib>
#include "conv_relu_pool/cpu/direct_pairs.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Whether the pairs' sums are faster than what `c` was planned for.
bool pairs_are_faster(const Call& c) {
  if (c.element != Element::kBFloat) return false;
  if (c.algorithm == Algorithm::kDirect) return true;
  return c.algorithm == Algorithm::kWinograd && getenv("ZB_PAIRS");
}

void plan(Call& c) {
  kAvx512Kernels.plan(c);
  if (pairs_are_faster(c)) plan_pairs(c);
}

void pack(const Call& c, int64_t begin, int64_t end) {
  c.algorithm == Algorithm::kDirectPairs ? pack_pairs(c, begin, end) : kAvx512Kernels.pack(c, begin, end);
}

void run(const Call& c, int64_t task, void* scratch) {
  if (c.algorithm != Algorithm::kDirectPairs) return kAvx512Kernels.run(c, task, scratch);
  Scratch memory{static_cast<char*>(scratch), 0};
  const Task t = task_at(c, task);
  const DirectScratch<float> s = direct_scratch<float>(c, memory);
  PairSums::pools(c) ? run_pooled_pairs(c, t, s) : run_direct<BFloat, float, PairSums>(c, t, s);
}

}  // namespace

const Kernels kAvx512Bf16Kernels = {"direct avx512",
                                    "direct bf16 avx512",
                                    "direct-pixels avx512",
                                    "depthwise avx512",
                                    "winograd avx512",
                                    "backward winograd avx512",
                                    &plan,
                                    &pack,
                                    &run};

}  // namespace zb::conv_relu_pool::cpu
#endif
