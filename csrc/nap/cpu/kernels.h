// The loops over one row, compiled once for each instruction set.
#pragma once

#include <cstdint>

namespace zb::nap {

enum class Element { kFloat32, kFloat64, kFloat16, kBFloat16, kBool };

#define ZB_NAP_ROW_LOOPS                                                                             \
  /* words[0 .. ceil(count / 64)): bit j of word k is element 64 k + j > 0; bits past count are 0 */ \
  void pack_row(Element element, const void* row, int64_t count, uint64_t* words);                   \
  /* bits[0 .. count): one byte of 0 or 1 for each bit */                                            \
  void unpack_row(const uint64_t* words, int64_t count, uint8_t* bits);

namespace portable {
ZB_NAP_ROW_LOOPS
}
namespace avx2 {
ZB_NAP_ROW_LOOPS
}
namespace avx512 {
ZB_NAP_ROW_LOOPS
}
#undef ZB_NAP_ROW_LOOPS

}  // namespace zb::nap
