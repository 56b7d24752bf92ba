#include "common/vec.h"
#include "layer_kernel/cpu/kernels.h"

namespace zb::layer_kernel::cpu::portable {
#include "layer_kernel/cpu/sums.inc"
}
