#include "common/last_kernel.h"

#include <chrono>
#include <cstdint>
#include <string>

namespace {

thread_local const char* last_kernel = "";
struct Refusal {
  const char *kernel, *reason;
};
constexpr int kMostRefusals = 8;
thread_local Refusal refusals[kMostRefusals];
thread_local int refusal_count = 0;
thread_local std::string refusal_text;

thread_local int64_t last_time = 0;  // of the steady clock, which is Python's time.monotonic_ns

}  // namespace

namespace zb {

void note_kernel(const char* name) {
  last_kernel = name;
  last_time = std::chrono::steady_clock::now().time_since_epoch().count();
}

const char* noted_kernel() { return last_kernel; }

void note_refusals_from_here() { refusal_count = 0; }

void note_refusal(const char* kernel, const char* reason) {
  if (refusal_count < kMostRefusals) refusals[refusal_count++] = {kernel, reason};
}

}  // namespace zb

#define ZB_EXPORT extern "C" __attribute__((visibility("default")))

ZB_EXPORT const char* zb_last_kernel() { return last_kernel; }
ZB_EXPORT const char* zb_last_refusals() {  // "kernel: reason" by lines
  refusal_text.clear();
  for (int i = 0; i < refusal_count; ++i) {
    refusal_text += std::string(i ? "\n" : "") + refusals[i].kernel + ": " + refusals[i].reason;
  }
  return refusal_text.c_str();
}
ZB_EXPORT int64_t zb_last_kernel_time() { return last_time; }
