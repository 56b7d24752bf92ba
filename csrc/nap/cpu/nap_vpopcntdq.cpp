#include "nap/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace zb::nap::vpopcntdq {
#include "nap/cpu/distances.inc"
}  // namespace zb::nap::vpopcntdq
#endif
