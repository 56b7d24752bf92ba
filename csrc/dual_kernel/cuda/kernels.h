// The functions of this device over a Problem.
#pragma once

#include "dual_kernel/dual_kernel.h"

namespace zb::dual_kernel {

void gram(const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out);
void matvec(const Problem& p, const Tensor& x1, const Tensor& x2, const Tensor& v, Tensor& out);

}  // namespace zb::dual_kernel
