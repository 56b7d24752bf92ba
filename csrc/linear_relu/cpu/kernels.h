// The activation pass over one row, compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "nap/cpu/kernels.h"

namespace zb::linear_relu {

using nap::Element;

// In place, over `count` elements at y: v < 0 ? 0 : v at slope 0 (NaN and -0.0 stay), else v > 0 ? v : v *
// slope. With words, also the sign words of the result, as nap::pack_row writes them. Half types at slope 0
// only.
#define ZB_ACTIVATE_ROW \
  void activate_row(Element element, void* y, int64_t count, double slope, uint64_t* words);

namespace portable {
ZB_ACTIVATE_ROW
}
namespace avx2 {
ZB_ACTIVATE_ROW
}
namespace avx512 {
ZB_ACTIVATE_ROW
}
#undef ZB_ACTIVATE_ROW

}  // namespace zb::linear_relu
