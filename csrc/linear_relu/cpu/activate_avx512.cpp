#include "linear_relu/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace zb::linear_relu::avx512 {
#include "linear_relu/cpu/activate.inc"
}
#endif
