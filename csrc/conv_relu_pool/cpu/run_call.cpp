#include "conv_relu_pool/cpu/run_call.h"

#include <algorithm>

#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "conv_relu_pool/cpu/packed_weights.h"

namespace zb::conv_relu_pool::cpu {

const Kernels& kernels_here() {
#if defined(ZB_AVX512_BF16)
  if (cpu_capability() == Capability::kAvx512Bf16) return kAvx512Bf16Kernels;
#endif
  return general_kernels_here();
}

const Kernels& general_kernels_here() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return kAvx512Kernels;
  if (cpu_capability() == Capability::kAvx2) return kAvx2Kernels;
#endif
  return kPortableKernels;
}

Element element_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double:
      return Element::kDouble;
    case ScalarType::Half:
      return Element::kHalf;
    case ScalarType::BFloat16:
      return Element::kBFloat;
    default:
      return Element::kFloat;
  }
}

void run_call(const Kernels& kernels, Call& call, bool keep_weights) {
  thread_local Arena weights;
  thread_local Arena scratch;
  const PackedWeights packed =
      keep_weights && call.algorithm != Algorithm::kFewPixels ? find_packed_weights(kernels, call) : nullptr;
  if (!packed) {
    call.packed_weight = weights.get(call.weight_bytes);
    pack_weights(kernels, call);
  }
  parallel_tasks(task_count(call), [&](int64_t task) {
    kernels.run(call, task, scratch.get(call.scratch_bytes));
    scratch.release();
  });
  weights.release();
  if (call.adds_planes) {
    const int64_t planes = call.N * call.K, pieces = std::min(planes, 4 * call.threads);
    parallel_tasks(
        pieces, [&](int64_t i) { kernels.add_planes(call, planes * i / pieces, planes * (i + 1) / pieces); });
  }
}

}  // namespace zb::conv_relu_pool::cpu
