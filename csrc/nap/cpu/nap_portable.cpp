#include "nap/cpu/kernels.h"

namespace zb::nap::portable {
#include "nap/cpu/rows.inc"
}
