#include "nap/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace zb::nap::avx2 {
#include "nap/cpu/distances.inc"
#include "nap/cpu/frequency.inc"
#include "nap/cpu/hash.inc"
#include "nap/cpu/rows.inc"
}  // namespace zb::nap::avx2
#endif
