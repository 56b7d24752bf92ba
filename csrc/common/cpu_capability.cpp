#include "common/cpu_capability.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace zb {
namespace {

std::atomic<bool> highest{false};

Capability best_of_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // looks at the saved-state mask too, so an OS without AVX-512 state counts as
                         // without
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
#if defined(ZB_AVX512_BF16)  // the compiler knew it
    if (__builtin_cpu_supports("avx512bf16")) return Capability::kAvx512Bf16;
#endif
    return Capability::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Capability::kAvx2;
#endif
  return Capability::kPortable;
}

Capability decide() {
  const Capability best = best_of_processor();
  const char* asked = std::getenv("ZBKERNELS_CPU_CAPABILITY");
  for (Capability lower : {Capability::kPortable, Capability::kAvx2, Capability::kAvx512}) {
    if (asked && std::strcmp(asked, capability_name(lower)) == 0 && lower < best) return lower;
  }
  return best;
}

}  // namespace

Capability cpu_capability() {
  static const Capability capability = decide();
  return capability;
}

bool has_vpopcntdq() {
  static const bool has = [] {
    const char* asked = std::getenv("ZBKERNELS_CPU_CAPABILITY");
    if (cpu_capability() < Capability::kAvx512 || (asked && std::strcmp(asked, "avx512") == 0)) return false;
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vpopcntdq") != 0;
#else
    return false;
#endif
  }();
  return has;
}

const char* capability_name(Capability capability) {
  switch (capability) {
    case Capability::kAvx512Bf16:
      return "avx512_bf16";
    case Capability::kAvx512:
      return "avx512";
    case Capability::kAvx2:
      return "avx2";
    default:
      return "portable";
  }
}

bool highest_precision() { return highest.load(std::memory_order_relaxed); }

}  // namespace zb

#define ZB_EXPORT extern "C" __attribute__((visibility("default")))

ZB_EXPORT const char* zb_cpu_capability() { return zb::capability_name(zb::cpu_capability()); }
ZB_EXPORT void zb_cpu_set_highest_precision(int on) { zb::highest.store(on != 0, std::memory_order_relaxed); }
