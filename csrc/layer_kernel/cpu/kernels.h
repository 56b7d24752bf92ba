// The loop over units, compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "nap/cpu/kernels.h"

namespace zb::layer_kernel::cpu {

using nap::Element;

constexpr int64_t kScratchBytes = 6 * 65 * 64;  // six arrays of 65 vectors, of 64 bytes at most

// What of a unit's (u, v) the larger of |cos| and |sin| goes with, with that one's sign.
enum Side { kU, kMinusU, kV, kMinusV };

// An angle. Without biases, cos u + sin v = scale (side + ratio other): one multiply-add, and the scale is
// left to the end.
template <class T>
struct Turn {
  T cos, sin, ratio;
  Side side;
  double scale;  // the larger of |cos| and |sin|
};

// Adds to sums[0] the sum of a² over `count` units, and to sums[1 + 2 i] and sums[2 + 2 i] those of a r and
// r² at the angle turns[i] (Turn<float>, or Turn<double> for Element::kFloat64). Units lie side by side; bias
// is null where there is none.
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
