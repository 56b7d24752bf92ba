#include "conv_relu_pool/cpu/backward.h"

#include <string>

#include "common/aten.h"
#include "common/last_kernel.h"
#include "conv_relu_pool/cpu/kernels.h"

namespace zb::conv_relu_pool::cpu {

std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight) {
  const NoGrad no_grad;
  const auto batch = [&p](const Tensor& t) { return p.batched ? t : torch::stable::unsqueeze(t, 0); };
  const Tensor none = empty_on(x, {0}, p.dtype);
  Tensor grad_x = none, grad_weight = none;
  if (p.N == 0) {
    if (need_x) grad_x = empty_on(x, {0, p.C, p.H, p.W}, p.dtype);
    if (need_weight) {
      grad_weight = empty_on(x, {p.K, p.Cg, p.R, p.S}, p.dtype, p.w_channels_last);
      torch::stable::zero_(grad_weight);
    }
    return {grad_x, grad_weight};
  }
  if (!need_x && !need_weight) return {grad_x, grad_weight};
  const BackwardArgs args{p, batch(grad), batch(x), weight, batch(code), need_x, need_weight};
  BackwardArgs left = args;  // what is left to do
  const char* input_kernel = "";
  if (need_x && winograd_input_is_faster(args)) {
    grad_x = backward_winograd_input(args);
    input_kernel = noted_kernel();
    left.need_x = false;
  }
  if (left.need_x || left.need_weight) {
    const bool sparse = sparse_can_run(p) && sparse_is_faster(p, left.need_x);
    auto [of_x, of_weight] = sparse ? backward_sparse(left) : backward_dense(left);
    if (left.need_x) grad_x = of_x;
    grad_weight = of_weight;
    if (need_x && !left.need_x) {
      thread_local std::string both;  // lives as long as what notes it
      both = std::string(input_kernel) + " and " + noted_kernel();
      note_kernel(both.c_str());
    }
  }
  if (need_x && !p.batched) grad_x = torch::stable::squeeze(grad_x, 0);
  return {need_x ? grad_x : none, need_weight ? grad_weight : none};
}

}  // namespace zb::conv_relu_pool::cpu
