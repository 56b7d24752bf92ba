// The backward pass on a GPU, registered with the forward pass in conv_relu_pool.cu.
#pragma once

#include "conv_relu_pool/conv_relu_pool.h"

namespace zb::conv_relu_pool {

// (grad_x, grad_weight), each of shape [0] where not wanted.
std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight);

}  // namespace zb::conv_relu_pool
