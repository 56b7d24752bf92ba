#include "dual_kernel/cuda/kernels.h"

#include "common/register.h"

namespace zb::dual_kernel {
namespace {

const Registration registration("CUDA", {ZB_DUAL_KERNELS(gram, matvec)});

}  // namespace
}  // namespace zb::dual_kernel
