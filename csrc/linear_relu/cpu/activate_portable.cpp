#include "linear_relu/cpu/kernels.h"

namespace zb::linear_relu::portable {
#include "linear_relu/cpu/activate.inc"
}
