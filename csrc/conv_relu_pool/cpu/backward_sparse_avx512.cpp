#include "conv_relu_pool/cpu/backward_sparse.h"

#if defined(__x86_64__)
#include "common/transpose.h"
#include "common/vec.h"

#pragma GCC diagnostic ignored \
    "-Wmaybe-uninitialized"  // GCC 12 warns of its own intrinsics' undefined operands

namespace zb::conv_relu_pool::cpu::avx512 {
#include "conv_relu_pool/cpu/backward_sparse.inc"
}
#endif
