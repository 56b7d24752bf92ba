// The few of torch's own operators that kernels call, through the dispatcher of the stable ABI.
#pragma once

#include <tuple>

#include "common/tensor.h"

namespace zb {

// Kernels may be entered with tensors that require a gradient and with gradient mode on. What they compute
// with torch's operators must not be recorded (and `out=` operators refuse such tensors), so each holds one
// of these.
class NoGrad {
 public:
  NoGrad() : before_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

namespace aten {

// x as [rows, columns]: a view where the strides allow one, else a copy.
inline Tensor as_matrix(const Tensor& x, int64_t rows, int64_t columns) {
  return x.dim() == 2 ? x : torch::stable::reshape(x, Ints{rows, columns});
}

inline Tensor rows_of(const Tensor& x, int64_t first, int64_t count) {
  Tensor base = x;
  return torch::stable::narrow(base, 0, first, count);
}

// out [M, N] = a [M, K] b [K, N], written in place.
inline void mm_out(const Tensor& out, const Tensor& a, const Tensor& b) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(a), from(b), from(out)};
  ZB_TORCH_CALL(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // releases the reference that the call returned
}

// The k smallest of each row of x [N, M], ascending.
inline Tensor smallest(const Tensor& x, int64_t k) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 5> stack{from(x), from(k), from(int64_t{1}), from(false), from(true)};
  ZB_TORCH_CALL(torch_call_dispatcher("aten::topk", "", stack.data(), TORCH_ABI_VERSION));
  Tensor values = to<Tensor>(stack[0]);
  to<Tensor>(stack[1]);
  return values;
}

// t with the very strides of its memory format, of dimensions of size 1 too; a copy where it has no format.
inline Tensor plainly_strided(const Tensor& t) {
  const Ints sizes(t.sizes().begin(), t.sizes().end());
  const int64_t c = sizes[1], r = sizes[2], s = sizes[3];
  const bool channels_last =
      t.stride(0) == r * s * c && t.stride(1) == 1 && t.stride(2) == s * c && t.stride(3) == c;
  if (!t.is_contiguous()) return channels_last ? t : torch::stable::contiguous(t);
  const bool plain = t.stride(0) == c * r * s && t.stride(1) == r * s && t.stride(2) == s && t.stride(3) == 1;
  return plain ? t : torch::stable::reshape(torch::stable::reshape(t, Ints{t.numel()}), sizes);
}

// The gradients of a bias-free convolution: (grad_x, grad_weight), each an undefined tensor where not wanted.
inline std::tuple<Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x,
                                                       const Tensor& weight, const Pair& stride,
                                                       const Pair& padding, const Pair& dilation,
                                                       int64_t groups, bool need_x, bool need_weight) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  // torch 2.13 fails on some weights of other strides.
  const Tensor plain = plainly_strided(weight);
  const bool wanted[3] = {need_x, need_weight, false};
  const auto ints = [](const Pair& p) { return from(Ints{p[0], p[1]}); };
  std::array<StableIValue, 11> stack{
      from(grad),         from(x),       from(plain),
      from(std::nullopt),  // bias_sizes: no bias
      ints(stride),       ints(padding), ints(dilation),
      from(false),  // transposed
      from(Ints{0, 0}),   from(groups),  from(torch::headeronly::HeaderOnlyArrayRef<bool>(wanted, 3))};
  ZB_TORCH_CALL(torch_call_dispatcher("aten::convolution_backward", "", stack.data(), TORCH_ABI_VERSION));
  Tensor grad_x = to<Tensor>(stack[0]);
  Tensor grad_weight = to<Tensor>(stack[1]);
  to<Tensor>(stack[2]);
  return {grad_x, grad_weight};
}

}  // namespace aten
}  // namespace zb
