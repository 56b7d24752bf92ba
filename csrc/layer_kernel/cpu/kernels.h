// The loop over units, compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "nap/cpu/kernels.h"

namespace zb::layer_kernel::cpu {

using nap::Element;

constexpr int64_t kScratchBytes = 16 << 10;  // four arrays of 64 vectors, of 64 bytes at most

// Adds to sums[0] the sum of a² over `count` units, and to sums[1 + 2 i] and sums[2 + 2 i] those of a r and
// r² at the angle whose (cos, sin) are turns[2 i] and turns[2 i + 1]: float, or double for Element::kFloat64.
// Units lie side by side; bias is null where there is none.
#define ZB_ADD_SUMS                                                                             \
  void add_sums(Element element, const void* u, const void* v, const void* bias, int64_t count, \
                const void* turns, int64_t angles, double* sums, void* scratch);

namespace portable {
ZB_ADD_SUMS
}
namespace avx2 {
ZB_ADD_SUMS
}
namespace avx512 {
ZB_ADD_SUMS
}
#undef ZB_ADD_SUMS

}  // namespace zb::layer_kernel::cpu
