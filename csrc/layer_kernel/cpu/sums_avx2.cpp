#include "layer_kernel/cpu/kernels.h"

#if defined(__x86_64__)
#include "common/vec.h"

namespace zb::layer_kernel::cpu::avx2 {
#include "layer_kernel/cpu/sums.inc"
}
#endif
