#include "common/last_kernel.h"

#include <chrono>
#include <cstdint>

namespace {

thread_local const char* last_kernel = "";
thread_local int64_t last_time = 0;  // of the steady clock, which is Python's time.monotonic_ns

}  // namespace

namespace zb {

void note_kernel(const char* literal) {
  last_kernel = literal;
  last_time = std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace zb

#define ZB_EXPORT extern "C" __attribute__((visibility("default")))

ZB_EXPORT const char* zb_last_kernel() { return last_kernel; }
ZB_EXPORT int64_t zb_last_kernel_time() { return last_time; }
