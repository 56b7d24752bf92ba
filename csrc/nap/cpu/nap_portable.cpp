#include "nap/cpu/kernels.h"

namespace zb::nap::portable {
#include "nap/cpu/distances.inc"
#include "nap/cpu/frequency.inc"
#include "nap/cpu/hash.inc"
#include "nap/cpu/rows.inc"
}  // namespace zb::nap::portable
