#include "conv_relu_pool/cpu/small_calls.h"

#include <cstring>
#include <exception>

#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "conv_relu_pool/cpu/run_call.h"

namespace zb::conv_relu_pool::cpu {
namespace {

thread_local void* wanted = nullptr;

int run_kept(const void* kept, const void* x, const void* weight, const void* residual, void* y) {
  Call call;
  std::memcpy(&call, kept, sizeof(call));
  call.x = x, call.weight = weight, call.residual = residual, call.y = y;
  call.highest = highest_precision();
  call.threads = thread_count();
  try {
    run_forward(call);
  } catch (const std::exception&) {
    return 0;  // out of memory: the op itself says so
  }
  return 1;
}

}  // namespace

void keep_call(const Call& call) {
  if (wanted) std::memcpy(wanted, &call, sizeof(call));
  wanted = nullptr;
}

}  // namespace zb::conv_relu_pool::cpu

#define ZB_EXPORT extern "C" __attribute__((visibility("default")))

ZB_EXPORT int64_t zb_cpu_call_bytes() { return sizeof(zb::conv_relu_pool::cpu::Call); }

// This thread's next forward pass leaves its description in `to`, of zb_cpu_call_bytes(); null takes that
// back.
ZB_EXPORT void zb_cpu_keep_next_call(void* to) { zb::conv_relu_pool::cpu::wanted = to; }

// Run a kept call of pool(act(conv)) alone (no code, no signature) on other tensors of the same layout; the
// second one where it was kept with a residual. They return 0 where they could not: then nothing but `y` was
// written.
ZB_EXPORT int zb_cpu_run_kept_call(const void* kept, const void* x, const void* weight, void* y) {
  return zb::conv_relu_pool::cpu::run_kept(kept, x, weight, nullptr, y);
}
ZB_EXPORT int zb_cpu_run_kept_residual_call(const void* kept, const void* x, const void* weight,
                                            const void* residual, void* y) {
  return zb::conv_relu_pool::cpu::run_kept(kept, x, weight, residual, y);
}
