#include "dual_kernel/cpu/kernels.h"

#if defined(__x86_64__)
#include "common/transpose.h"
#include "dual_kernel/cpu/layer.h"

namespace zb::dual_kernel::cpu::avx512 {
#include "dual_kernel/cpu/tile.inc"
}
#endif
