// The three ways of the CPU's backward pass, chosen by backward.cpp.
//
// Where x or weight holds an infinity under a dead unit, torch's dense convolution computes 0 * inf = NaN;
// the sparse way and the one by minimal filtering add nothing there. NaN gradients are not zero and propagate
// in all of them.
#pragma once

#include <tuple>

#include "conv_relu_pool/conv_relu_pool.h"

namespace zb::conv_relu_pool::cpu {

// x and grad as [N, C, H, W] and [N, K, P, Q] also where the call is unbatched; code likewise.
struct BackwardArgs {
  const Problem& p;
  Tensor grad, x, weight, code;
  bool need_x, need_weight;
};

// Writes out the gradient of the un-pooled map and hands it to torch's convolution_backward. Any problem.
std::tuple<Tensor, Tensor> backward_dense(const BackwardArgs& args);

// The gradient of x by minimal filtering: whether it can run and is the fastest way, and the way itself.
bool winograd_input_is_faster(const BackwardArgs& args);
Tensor backward_winograd_input(const BackwardArgs& args);

// Multiplies only by the gradients that are there (float32; max pooling or none).
bool sparse_can_run(const Problem& p);
bool sparse_is_faster(const Problem& p, bool need_x);
std::tuple<Tensor, Tensor> backward_sparse(const BackwardArgs& args);

}  // namespace zb::conv_relu_pool::cpu
