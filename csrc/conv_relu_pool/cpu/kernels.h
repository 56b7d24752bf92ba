// The CPU's two halves of conv_relu_pool2d: forward.cpp (with the kernels of each instruction set) and
// backward.cpp.
#pragma once

#include <tuple>

#include "conv_relu_pool/conv_relu_pool.h"

namespace zb::conv_relu_pool::cpu {

// Fills out.y, out.code and out.sig as far as the problem asks for them; x is not empty.
void forward(const Problem& p, const Tensor& x, const Tensor& weight, const Tensor* residual, Outputs& out);

// (grad_x, grad_weight); an output that is not wanted is an empty [0] tensor of x's dtype.
std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight);

}  // namespace zb::conv_relu_pool::cpu
