// What processors with AVX-512-BF16 have beside the kernels of forward_avx512.cpp, which take everything
// else.
#if defined(__AVX512BF16__)
#include "conv_relu_pool/cpu/direct_pairs.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Whether the pairs' sums are faster than what `c` was planned for.
bool pairs_are_faster(const Call& c) {
  if (c.element != Element::kBFloat) return false;
  if (c.algorithm == Algorithm::kDirect) return true;
  if (c.algorithm != Algorithm::kWinograd) return false;
  // Winograd leaves points^2 products a channel for side^2 outputs, each a multiply-add, as a pair of taps
  // is. Its transforms take as long as so many more: the input's, shared by the output channels, of 9, the
  // output's, shared by the input channels, of 10, or 3 where folding has made four channels of one. Fitted
  // to filters from 2x2 to 7x7, 1 to 128 channels, 16 and 64 output channels on one core of an EPYC (Zen 4).
  const double points = static_cast<double>(c.points), side = points + 1 - static_cast<double>(c.filter);
  const double products = static_cast<double>(c.fold * c.fold) * points * points / (side * side);
  const double taps = static_cast<double>(c.kernel[0] * c.kernel[1]);
  const double extra = taps / 2 - products * (1 + 9 / static_cast<double>(c.K));
  return static_cast<double>(c.C) * extra < products * (c.fold == 1 ? 10 : 3);
}

void plan(Call& c) {
  kAvx512Kernels.plan(c);
  if (!pairs_are_faster(c)) return;
  plan_pairs(c);
  plan_residual(c);
}

void pack(const Call& c, int64_t begin, int64_t end) {
  c.algorithm == Algorithm::kDirectPairs ? pack_pairs(c, begin, end) : kAvx512Kernels.pack(c, begin, end);
}

void run(const Call& c, int64_t task, void* scratch) {
  if (c.algorithm != Algorithm::kDirectPairs) return kAvx512Kernels.run(c, task, scratch);
  const Task t = task_at(c, task);
  if (adds_to_outputs(c)) {
    run(without_residual(c), task, scratch);
    return finish_task<BFloat, float>(c, t);
  }
  Scratch memory{static_cast<char*>(scratch), 0};
  const DirectScratch<float> s = direct_scratch<float>(c, memory);
  PairSums::pools(c) ? run_pooled_pairs(c, t, s) : run_direct<BFloat, float, PairSums>(c, t, s);
}

void add(const Call& c, int64_t begin, int64_t end) { kAvx512Kernels.add_planes(c, begin, end); }

}  // namespace

const Kernels kAvx512Bf16Kernels = {"direct avx512",
                                    "direct bf16 avx512",
                                    "direct-pixels avx512",
                                    "depthwise avx512",
                                    "winograd avx512",
                                    "few-pixels avx512",
                                    "backward winograd avx512",
                                    &plan,
                                    &pack,
                                    &run,
                                    &add};

}  // namespace zb::conv_relu_pool::cpu
#endif
