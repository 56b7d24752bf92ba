#include "conv_relu_pool/cpu/backward_sparse.h"

#if defined(__x86_64__)
#include "common/transpose.h"
#include "common/vec.h"

namespace zb::conv_relu_pool::cpu::avx2 {
#include "conv_relu_pool/cpu/backward_sparse.inc"
}
#endif
