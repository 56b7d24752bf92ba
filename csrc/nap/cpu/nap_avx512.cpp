#include "nap/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace zb::nap::avx512 {
#include "nap/cpu/rows.inc"
}
#endif
