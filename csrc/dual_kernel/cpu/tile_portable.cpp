#include "common/transpose.h"
#include "dual_kernel/cpu/kernels.h"
#include "dual_kernel/cpu/layer.h"

namespace zb::dual_kernel::cpu::portable {
#include "dual_kernel/cpu/tile.inc"
}
