#include "common/transpose.h"
#include "common/vec.h"
#include "conv_relu_pool/cpu/backward_sparse.h"

namespace zb::conv_relu_pool::cpu::portable {
#include "conv_relu_pool/cpu/backward_sparse.inc"
}
